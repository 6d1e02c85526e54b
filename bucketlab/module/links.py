"""What lies between the modules of a chain: shapes, arrays, labels and gradients on their way from one to the
next.

Shapes and arrays have two forms, as everywhere: one list for all contexts, or one list for each context
("nested"). A chain hands on in the form in which a module gives; a module written in Python has no contexts
and gets one list.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from bucketlab._engine import mx
from bucketlab.errors import ShapeError
from bucketlab.module.base import BaseModule
from bucketlab.module.python import PythonModule
from bucketlab.rows import RowAxis
from bucketlab.shapes import DataDesc, batch_axis, describe, is_per_context


def executing(module: Any) -> Any:
    """The module that holds the executors: the current bucket of several, else the module itself."""
    return getattr(module, "_curr_module", None) or module


def has_symbol(module: Any) -> bool:
    """Whether a module computes what a symbol says, and so takes only the labels that the symbol has."""
    return hasattr(module, "_sym_gen") or getattr(module, "_symbol", None) is not None


# ---------------------------------------------------------------------- shapes


def renamed(shapes: Any, names: Sequence[str]) -> Any:
    """The same shapes, types and layouts under other names, in order. ShapeError for another number."""
    if is_per_context(shapes):
        return [renamed(one, names) for one in shapes]
    descs = [describe(entry) for entry in shapes]
    if len(descs) != len(names):
        raise ShapeError(
            f"auto_wiring: {len(descs)} array(s) come in, {[desc.name for desc in descs]}, and the module "
            f"takes {len(names)}: {list(names)}"
        )
    return [DataDesc(name, desc.shape, desc.dtype, desc.layout) for name, desc in zip(names, descs)]


def check_handover(shapes: Any, names: Sequence[str]) -> None:
    """Refuse outputs that do not have the names of the data they are to be."""
    given = [entry[0] for entry in (shapes[0] if is_per_context(shapes) else shapes)]
    if sorted(given) != sorted(names):
        raise ShapeError(
            f"the module before it gives {given}, and its data_names are {list(names)}; add it with "
            f"auto_wiring=True to take them in order"
        )


def flat(shapes: Any, argument: str = "data_shapes") -> Any:
    """One list for all contexts: rows of nested shapes are added up."""
    if shapes is None or not is_per_context(shapes, argument):
        return shapes
    merged = []
    for parts in zip(*[[describe(entry) for entry in one] for one in shapes if one]):
        first, axis = parts[0], batch_axis(parts[0].layout)
        shape = list(first.shape)
        if axis >= 0:
            shape[axis] = sum(part.shape[axis] for part in parts)
        merged.append(DataDesc(first.name, tuple(shape), first.dtype, first.layout))
    return merged


def resized(shapes: Any, arrays: Any) -> Any:
    """Descriptions with the shapes of these arrays; as they are where they fit, or for others."""
    same = [tuple(entry[1]) for entry in shapes] == [tuple(np.shape(array)) for array in arrays or ()]
    if same or len(shapes) != len(arrays or ()) or is_per_context(shapes):
        return shapes
    descs = [describe(entry) for entry in shapes]
    return [DataDesc(d.name, tuple(np.shape(array)), d.dtype, d.layout) for d, array in zip(descs, arrays)]


def handed_on(module: Any) -> Any:
    """What a module gives out, for the next to bind to; with types and batch axes where these show."""
    if isinstance(getattr(module, "_modules", None), list):
        return handed_on(module._modules[-1])
    group = getattr(executing(module), "_exec_group", None)
    if group is None or not hasattr(group, "_bound"):
        return [describe(entry, "output_shapes") for entry in module.output_shapes]
    bound = group._bound
    rows = [(where.axis if where.steps else -1) for where in bound.row_axes]
    if bound.shapes.per_context:
        return [
            [_desc(name, parts[at].shape, parts[at].dtype, axis) for name, parts, axis in _outputs_of(group, rows)]
            for at in range(len(bound.active))
        ]
    whole = dict(group.get_output_shapes())
    return [_desc(name, whole[name], parts[0].dtype, axis) for name, parts, axis in _outputs_of(group, rows)]


def _outputs_of(group: Any, rows: Sequence[int]) -> Iterable[tuple[str, Any, int]]:
    return zip(group.output_names, group._bound.context_outputs, rows)


def _desc(name: str, shape: tuple[int, ...], dtype: Any, axis: int) -> Any:
    """A description whose layout says where the rows are; T for axes before them, C for those after."""
    layout = "".join("N" if at == axis else "T" if at < axis else "C" for at in range(len(shape)))
    return DataDesc(name, shape, dtype, layout)


# ---------------------------------------------------------------------- batches


def is_nested(arrays: Any) -> bool:
    """Whether arrays come as one list for each context."""
    return bool(arrays) and isinstance(arrays[0], (list, tuple))


def one_batch(batch: Any) -> Any:
    """A list of batches, one for each context, as one batch that comes cut."""
    if not isinstance(batch, list):
        return batch
    label = [getattr(part, "label", None) for part in batch]
    first = batch[0]
    nested = mx.io.DataBatch(
        [part.data for part in batch],
        label if all(label) else None,
        bucket_key=getattr(first, "bucket_key", None),
    )
    for kind in ("provide_data", "provide_label"):
        provided = [getattr(part, kind, None) for part in batch]
        setattr(nested, kind, provided if all(provided) else None)
    return nested


def batch_like(batch: Any, data: Any, label: Any, provide_data: Any, provide_label: Any) -> Any:
    """A batch with other arrays, and all else that the given one says of itself (key, padding, ...)."""
    made = mx.io.DataBatch(
        data,
        label,
        getattr(batch, "pad", None),
        getattr(batch, "index", None),
        getattr(batch, "bucket_key", None),
    )
    for name, value in getattr(batch, "__dict__", {}).items():
        vars(made).setdefault(name, value)
    made.provide_data, made.provide_label = provide_data, provide_label
    return made


def joined(arrays: Any, shapes: Any = None) -> Any:
    """Arrays of all contexts as one list; what is one list already is returned as it is."""
    if not is_nested(arrays):
        return arrays
    axes = [batch_axis(getattr(entry, "layout", None)) for entry in flat(shapes) or ()]
    parts = list(zip(*[one for one in arrays if one]))
    return [RowAxis(max(axis, 0)).join(part) for part, axis in zip(parts, axes or [0] * len(parts))]


def provided(names: Sequence[str], arrays: Any) -> Any:
    """Names and shapes of arrays on their way."""
    if is_nested(arrays):
        return [provided(names, one) for one in arrays]
    return [(name, array.shape) for name, array in zip(names, arrays)]


def picked(values: Any, entries: Any, names: Sequence[str] | None) -> Any:
    """Of ``values``, which ``entries`` describe, those called ``names``, in that order.

    All of them, as they are, when some name is not among the entries or ``names`` is None.
    """
    if values is None or entries is None or names is None:
        return values
    if is_per_context(entries):
        return [picked(one, described, names) if one else one for one, described in zip(values, entries)]
    given = [entry[0] for entry in entries]
    if len(given) != len(values) or given == list(names) or not set(names) <= set(given):
        return values
    return [values[given.index(name)] for name in names]


def check_labels(described: Any, labels: Sequence[Any] | None, data: Any, data_shapes: Any) -> None:
    """Refuse labels of other rows than the data, before any module runs. Where layouts do not tell, nothing is said."""
    if not data or not labels or not described or is_nested(data) or is_nested(labels) or is_per_context(described):
        return
    axis = batch_axis(getattr(data_shapes[0], "layout", None)) if data_shapes else 0
    rows = _size(data[0], axis)
    for entry, label in zip(described, labels):
        name, found = entry[0], _size(label, batch_axis(getattr(entry, "layout", None)))
        if None not in (rows, found) and rows != found:
            raise ShapeError(f"label {name!r} has {found} rows (shape {tuple(label.shape)}), and the data has {rows}")


def _size(array: Any, axis: int) -> int | None:
    shape = getattr(array, "shape", ())
    return shape[axis] if 0 <= axis < len(shape) else None


def label_names(module: Any) -> Sequence[str] | None:
    """The labels that a module names; None for one that does not say."""
    inner = executing(module)
    if hasattr(module, "_generate") and inner is module:
        return module._generate(module._default_bucket_key)[2]
    return getattr(inner, "_label_names", None) or None


def outputs(module: Any) -> Any:
    """A module's outputs in the form in which it was bound."""
    if _runs_nested(module):
        return [list(one) for one in zip(*module.get_outputs(merge_multi_context=False))]
    return module.get_outputs()


def input_grads(module: Any) -> Any:
    """A module's input gradients in the form in which it was bound."""
    if _runs_nested(module):
        return [list(one) for one in zip(*module.get_input_grads(merge_multi_context=False))]
    return module.get_input_grads()


def _runs_nested(module: Any) -> bool:
    bound = getattr(getattr(executing(module), "_exec_group", None), "_bound", None)
    return bound is not None and bound.shapes.per_context


def clear_input_grads(module: Any) -> None:
    """Set a module's input gradients to zero: only those of parameters are to add up over batches."""
    if isinstance(getattr(module, "_modules", None), list):
        clear_input_grads(module._modules[0])
        return
    group = getattr(executing(module), "_exec_group", None)
    for block in getattr(group, "input_grad_arrays", None) or ():
        for grad in block:
            if grad is not None:
                grad[:] = 0


# ---------------------------------------------------------------------- parameters, states, gradients


def parameter_names(module: Any) -> set[str] | None:
    """Names of a module's parameters and auxiliary states; None for one that keeps them to itself."""
    if isinstance(getattr(module, "_modules", None), list):
        parts = [parameter_names(part) for part in module._modules]
        return None if None in parts else {name for part in parts for name in part or ()}
    inner = executing(module)
    if hasattr(inner, "_param_names") and hasattr(inner, "_aux_names"):
        return {*inner._param_names, *inner._aux_names}
    return set() if _is_plain(module, "init_params") else None


def _is_plain(module: Any, method: str) -> bool:
    """Whether a module written in Python has nothing of its own to do in ``method``."""
    return isinstance(module, PythonModule) and getattr(type(module), method) is getattr(PythonModule, method)


def _arguments(module: Any) -> set[str]:
    if isinstance(getattr(module, "_modules", None), list):
        return {name for part in module._modules for name in _arguments(part)}
    symbol = module._checkpoint_symbol() if hasattr(module, "_generate") else getattr(module, "_symbol", None)
    return set() if symbol is None else set(symbol.list_arguments())


def share(params: Mapping[str, Any] | None, names: set[str] | None) -> Mapping[str, Any] | None:
    """Of ``params``, those called ``names``; all of them for a module that keeps its names to itself."""
    if params is None or names is None:
        return params
    return {name: value for name, value in params.items() if name in names}


def check_known(modules: Sequence[Any], givens: Iterable[Mapping[str, Any] | None], known: Iterable[set[str]]) -> None:
    """Refuse parameters that no module has. Values for inputs are passed over, as Module does."""
    names = {name for part in known for name in part} | {name for module in modules for name in _arguments(module)}
    extra = sorted(name for given in givens for name in given or () if name not in names)
    if extra:
        raise ValueError(
            f"parameter {', '.join(map(repr, extra))} is in no module of the chain; pass allow_extra=True to "
            f"pass over it"
        )


def check_params(module: Any, givens: Mapping[str, Any], initializer: Any, allow_missing: bool) -> None:
    """Check what a module is about to be given, as far as it can be checked before it is written."""
    checker = getattr(executing(module), "_checked", None)
    if checker is not None:
        checker(givens, initializer, allow_missing, True)


def state_count(module: Any) -> int:
    """How many states a module has."""
    if isinstance(getattr(module, "_modules", None), list):
        return sum(map(state_count, module._modules))
    return len(getattr(module, "_state_names", None) or ())


def requests(modules: Sequence[Any], grad_req: Any) -> list[Any]:
    """``grad_req`` for each module: of a dict, each gets the entries for its own arguments.

    What has no parameters always writes. Raises ValueError for an argument that no module has.
    """
    if not isinstance(grad_req, Mapping):
        return ["write" if _is_plain(module, "update") else grad_req for module in modules]
    arguments = [_arguments(module) for module in modules]
    unknown = sorted(set(grad_req) - {name for names in arguments for name in names})
    if unknown:
        raise ValueError(f"grad_req names {unknown}, which are arguments of no module of the chain")
    return [
        {name: request for name, request in grad_req.items() if name in names} if names else "write"
        for names in arguments
    ]


_CURRENT = frozenset(("_curr_module", "_curr_bucket_key", "_data_shapes", "_label_shapes"))
_COUNTS = ("num_update", "begin_num_update", "rescale_grad")


def settings(optimizer: Any) -> dict[str, Any]:
    """The plain numbers of an optimizer that its user may change, such as ``lr``."""
    return {
        name: value
        for name, value in vars(optimizer).items()
        if name not in _COUNTS and isinstance(value, (bool, int, float, type(None)))
    }


# ---------------------------------------------------------------------- back to where they were


def within(value: Any) -> list[Any]:
    """All modules inside a module, a list or a dict, the module itself first."""
    if isinstance(value, BaseModule):
        return [value, *(inner for held in vars(value).values() for inner in within(held))]
    if isinstance(value, Mapping):
        value = list(value.values())
    return [inner for held in value for inner in within(held)] if isinstance(value, list) else []


def states(modules: Sequence[Any]) -> list[tuple[Any, dict[str, Any]]]:
    """What every module, and every module inside, holds now; for :func:`restore`."""
    kept: dict[int, tuple[Any, dict[str, Any]]] = {}
    for module in [*modules, *within(list(modules))]:
        kept.setdefault(id(module), (module, dict(vars(module))))
    return list(kept.values())


def restore(kept: Iterable[tuple[Any, dict[str, Any]]]) -> None:
    """Put modules back to what they held: binding replaces what they hold and changes none of it."""
    for module, held in kept:
        vars(module).clear()
        vars(module).update(held)


def places(modules: Sequence[Any]) -> list[tuple[Any, dict[str, Any], Any]]:
    """The bucket and shapes that are current in every module, for :func:`go_back`."""
    found = []
    for module in modules:
        held = {name: value for name, value in vars(module).items() if name in _CURRENT}
        group = getattr(module, "_exec_group", None)
        found.append((module, held, getattr(group, "_bound", None)))
        inside = getattr(module, "_modules", None)
        found += places(inside if isinstance(inside, list) else [m for m in (held.get("_curr_module"),) if m])
    return found


def forget(modules: Iterable[Any]) -> None:
    """After a batch that some module refused: those that ran it have no results that could be used."""
    for module in modules:
        for part in within(module):
            memory = getattr(getattr(executing(part), "_exec_group", None), "_memory", None)
            if memory is not None:
                memory.ran = None


def go_back(kept: Iterable[tuple[Any, dict[str, Any], Any]]) -> None:
    """Make the bucket and shapes of :func:`places` current again."""
    for module, held, bound in kept:
        vars(module).update(held)
        if bound is not None and module._exec_group._bound is not bound:
            module._exec_group._use(bound)
