"""Binding one symbol on one context: what it needs, what is there already, and the executor that results.

:class:`ContextMemory` is everything that the executors of one context share, whatever their bucket or shape. Binding is
done in two steps, so that a refusal leaves no trace: :func:`requirements` infers and checks, :func:`bind` allocates.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from bucketlab import executors
from bucketlab._engine import mx
from bucketlab.errors import ShapeError, last_line
from bucketlab.training.flat import FlatParameters, ParamSpec

Names = tuple[Sequence[str], Sequence[str]]
"""Arguments and auxiliary states of a symbol, in its order."""

STORAGE = {"0": "default", "1": "row_sparse", "2": "csr"}


@dataclass(eq=False)
class ContextMemory:
    """The arrays of one context that outlive any single executor.

    ``inputs`` holds, by name, the array behind every argument that is no parameter: each executor sees as much of it as
    its shape needs. ``pool`` is the executor whose working memory the others borrow.
    """

    context: Any
    params: FlatParameters
    inputs: dict[str, Any] = field(default_factory=dict)
    input_grads: dict[str, Any] = field(default_factory=dict)
    aux: dict[str, Any] = field(default_factory=dict)
    pool: Any = None

    @classmethod
    def on(cls, context: Any) -> ContextMemory:
        return cls(context, FlatParameters(context))


@dataclass(frozen=True)
class ArrayNeed:
    """Shape, dtype, storage and home of an array that an executor is bound to."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype
    stype: str
    context: Any

    @property
    def size(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64))


@dataclass(frozen=True)
class Requirements:
    """What one executor needs: parameters, other arguments, gradients of those, auxiliary states.

    ``arguments`` are the names of parameters and other arguments in the symbol's order.
    """

    arguments: tuple[str, ...]
    params: tuple[ParamSpec, ...]
    inputs: tuple[ArrayNeed, ...]
    input_grads: tuple[ArrayNeed, ...]
    aux: tuple[ArrayNeed, ...]


def requirements(
    symbol: Any,
    memory: ContextMemory,
    descs: Sequence[Any],
    param_names: Sequence[str],
    grad_req: Mapping[str, str],
    group2ctx: Mapping[str, Any] | None = None,
) -> Requirements:
    """Infer what ``symbol`` needs for inputs of these descriptions, and check it against what is bound already.

    Allocates nothing. Raises ShapeError naming the argument, what was given and what was expected.
    """
    arg_names, aux_names = symbol.list_arguments(), symbol.list_auxiliary_states()
    given = {desc.name: desc for desc in descs if desc.name in set(arg_names)}
    params = set(param_names)
    names = (arg_names, aux_names)
    arg_shapes, aux_shapes = _infer_shapes(symbol, names, memory, given, params)
    attributes = symbol.attr_dict()
    arg_types, aux_types = _infer_types(symbol, names, given, attributes)
    storage = {
        name: STORAGE.get(attributes.get(name, {}).get("__storage_type__", "0"), "default") for name in arg_names
    }
    dense = [
        ArrayNeed(name, arg_shapes[name], np.dtype(arg_types[name]), "default", memory.context)
        for name in arg_names
        if storage[name] == "default"
    ]
    grad_storage = _gradient_storage(symbol, memory, params, given, dense, arg_types, grad_req, attributes)

    def home(name: str) -> Any:
        group = attributes.get(name, {}).get("__ctx_group__")
        return (group2ctx or {}).get(group, memory.context)

    specs, inputs, input_grads = [], [], []
    for name in arg_names:
        shape, dtype = arg_shapes[name], np.dtype(arg_types[name])
        if name in params:
            spec = ParamSpec(
                name, shape, dtype, storage[name], grad_storage.get(name, "default"), grad_req[name], home(name)
            )
            _check_param(memory, spec, given)
            specs.append(spec)
            continue
        need = ArrayNeed(name, shape, dtype, storage[name], home(name))
        inputs.append(need)
        if grad_req[name] != "null":
            input_grads.append(ArrayNeed(name, shape, dtype, grad_storage.get(name, "default"), home(name)))
    aux = [ArrayNeed(name, aux_shapes[name], np.dtype(aux_types[name]), "default", home(name)) for name in aux_names]
    for need in aux:
        known = memory.aux.get(need.name)
        if known is not None and known.shape != need.shape:
            raise ShapeError(
                f"auxiliary state {need.name!r} on {memory.context} has shape {known.shape} already, and "
                f"{_words(given)} would need {need.shape}"
            )
    return Requirements(tuple(arg_names), tuple(specs), tuple(inputs), tuple(input_grads), tuple(aux))


def known_requirements(
    arg_names: Sequence[str],
    aux_names: Sequence[str],
    attributes: Mapping[str, Mapping[str, str]],
    memory: ContextMemory,
    descs: Sequence[Any],
    param_names: Sequence[str],
    grad_req: Mapping[str, str],
    group2ctx: Mapping[str, Any] | None = None,
) -> Requirements | None:
    """What :func:`requirements` finds, where all of it is known: parameters that are bound, inputs that are given.

    None elsewhere. Nothing is inferred: whether the symbol takes it is for :func:`check_known`. ``attributes`` are
    those of the symbol, if any declares something.
    """
    given, params = {desc.name: desc for desc in descs}, set(param_names)

    def declared(name: str, default: Any) -> np.dtype:
        code = attributes.get(name, {}).get("__dtype__", "-1")
        return np.dtype(default if code == "-1" else mx.nd.ndarray._DTYPE_MX_TO_NP[int(code)])

    def stored(name: str) -> tuple[str, Any]:
        own = attributes.get(name, {})
        home = (group2ctx or {}).get(own.get("__ctx_group__", ""), memory.context)
        return STORAGE.get(own.get("__storage_type__", "0"), "default"), home

    specs, inputs, aux = [], [], []
    for name in arg_names:
        stype, home = stored(name)
        if name in params:
            known = memory.params.spec(name)
            if (
                known is None
                or (known.stype, known.context, known.dtype) != (stype, home, declared(name, known.dtype))
                or (grad_req[name] != "null" and not known.trains)
            ):
                return None
            specs.append(known if known.grad_req == grad_req[name] else replace(known, grad_req=grad_req[name]))
        elif name in given and grad_req[name] == "null":
            desc = given[name]
            inputs.append(ArrayNeed(name, desc.shape, declared(name, desc.dtype), stype, home))
        else:
            return None
    for name in aux_names:
        held = memory.aux.get(name)
        if held is None:
            return None
        aux.append(ArrayNeed(name, held.shape, np.dtype(held.dtype), "default", stored(name)[1]))
    return Requirements(tuple(arg_names), tuple(specs), tuple(inputs), (), tuple(aux))


def check_known(symbol: Any, needs: Requirements) -> None:
    """Raise ShapeError where ``symbol`` does not take what :func:`known_requirements` found.

    The engine would find out when it binds. But of a bind that it refuses it keeps the graph and all arrays, parameters
    among them, as long as the process lives.
    """
    every: tuple[Any, ...] = (*needs.params, *needs.inputs)
    try:
        _, _, aux = symbol.infer_shape_partial(**{need.name: need.shape for need in every})
        symbol.infer_type_partial(**{need.name: need.dtype for need in every})
    except mx.base.MXNetError as error:
        raise ShapeError(f"the engine would refuse to bind {_heads(symbol)}: {last_line(error)}") from None
    for need, shape in zip(needs.aux, aux):
        if shape != need.shape:
            raise ShapeError(f"auxiliary state {need.name!r} has shape {need.shape}; {_heads(symbol)} needs {shape}")


class TriedAxes:
    """The axes of inputs along which shapes have differed from bind to bind, and the engine took them.

    Along these, as rows and lengths do, shapes may differ again without :func:`check_known`, which takes a twelfth of
    the bind of an unrolled network.
    """

    def __init__(self) -> None:
        self._first: dict[str, ArrayNeed] = {}
        self._free: set[tuple[str, int]] = set()

    def cover(self, inputs: Iterable[ArrayNeed]) -> bool:
        """Whether inputs differ along such axes only from those that were bound."""
        differing = self._differing(inputs)
        return differing is not None and differing <= self._free

    def add(self, inputs: Sequence[ArrayNeed]) -> None:
        """Learn from inputs that were bound."""
        differing = self._differing(inputs)
        if differing is None:
            self._first.update((need.name, need) for need in inputs)
        else:
            self._free |= differing

    def _differing(self, inputs: Iterable[ArrayNeed]) -> set[tuple[str, int]] | None:
        """Names and axes; None for inputs of another kind than were bound."""
        found: set[tuple[str, int]] = set()
        for need in inputs:
            first = self._first.get(need.name)
            if first is None or first.dtype != need.dtype or len(first.shape) != len(need.shape):
                return None
            sizes = enumerate(zip(first.shape, need.shape))
            found.update((need.name, axis) for axis, (one, other) in sizes if one != other)
        return found


def _words(given: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} of shape {desc.shape}" for name, desc in given.items()) or "no inputs"


def _check_param(memory: ContextMemory, spec: ParamSpec, given: Mapping[str, Any]) -> None:
    known = memory.params.weights.get(spec.name)
    if known is not None and known.shape != spec.shape:
        raise ShapeError(
            f"{_words(given)} would need parameter {spec.name!r} of shape {spec.shape}, and it is bound on "
            f"{memory.context} with shape {known.shape}; give inputs whose other axes are as they were at bind"
        )
    if known is not None and np.dtype(known.dtype) != spec.dtype:
        types = ", ".join(f"{name} of type {np.dtype(desc.dtype).name}" for name, desc in given.items())
        raise ShapeError(
            f"{types} would need parameter {spec.name!r} of type {spec.dtype.name}, and it is bound on "
            f"{memory.context} with type {np.dtype(known.dtype).name}; describe inputs with the types that they had "
            f"at bind"
        )


def _infer_shapes(
    symbol: Any, names: Names, memory: ContextMemory, given: Mapping[str, Any], params: set[str]
) -> tuple[dict[str, tuple[int, ...]], dict[str, tuple[int, ...]]]:
    arg_names, aux_names = names
    shapes = {name: desc.shape for name, desc in given.items()}
    bound = {name: array.shape for name, array in memory.params.weights.items() if name in params}

    def infer(known: Mapping[str, tuple[int, ...]]) -> tuple[dict[str, Any], dict[str, Any]]:
        arguments, _, auxiliary = symbol.infer_shape_partial(**known)
        return dict(zip(arg_names, arguments)), dict(zip(aux_names, auxiliary))

    try:
        arguments, auxiliary = infer(shapes)
        if _unknown(arguments) and bound:
            arguments, auxiliary = infer({**shapes, **bound})
    except mx.base.MXNetError as error:
        raise ShapeError(
            f"the symbol {_heads(symbol)} does not fit {_words(given)} on {memory.context}: {last_line(error)}"
        ) from None
    missing = _unknown(arguments)
    if missing:
        raise ShapeError(
            f"cannot tell the shape of {', '.join(map(repr, missing))} on {memory.context} from {_words(given)}; "
            f"name them "
            f"in data_shapes or label_shapes, or give their variables a shape"
        )
    return arguments, auxiliary


def _unknown(shapes: Mapping[str, Any]) -> list[str]:
    return [name for name, shape in shapes.items() if not shape or any(size < 1 for size in shape)]


def _heads(symbol: Any) -> str:
    return "/".join(symbol.list_outputs())


def _infer_types(
    symbol: Any, names: Names, given: Mapping[str, Any], attributes: Mapping[str, Mapping[str, str]]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Types of arguments and auxiliary states; what nothing decides is float32, as everywhere in MXNet."""
    arg_names, aux_names = names
    declared = {
        name: mx.nd.ndarray._DTYPE_MX_TO_NP[int(attributes[name]["__dtype__"])]
        for name in arg_names
        if attributes.get(name, {}).get("__dtype__", "-1") != "-1"
    }
    known = {name: desc.dtype for name, desc in given.items()}
    known.update({name: dtype for name, dtype in declared.items() if name in known})
    try:
        arguments, _, auxiliary = symbol.infer_type_partial(**known)
        undecided = [name for name, dtype in zip(arg_names, arguments) if dtype is None]
        if undecided:
            default = {name: declared.get(name, np.float32) for name in undecided}
            arguments, _, auxiliary = symbol.infer_type_partial(**{**known, **default})
    except mx.base.MXNetError as error:
        types = {name: np.dtype(dtype).name for name, dtype in known.items()}
        raise ShapeError(
            f"the symbol {_heads(symbol)} does not take inputs of types {types}: {last_line(error)}"
        ) from None
    decided = [np.float32 if dtype is None else dtype for dtype in arguments]
    return dict(zip(arg_names, decided)), dict(zip(aux_names, [np.float32 if t is None else t for t in auxiliary]))


def _gradient_storage(
    symbol: Any,
    memory: ContextMemory,
    params: set[str],
    given: Mapping[str, Any],
    dense: Sequence[ArrayNeed],
    types: Mapping[str, Any],
    grad_req: Mapping[str, str],
    attributes: Mapping[str, Mapping[str, str]],
) -> dict[str, str]:
    """How each gradient is stored. Only the engine's own binding infers it: a symbol with sparse parts is bound.

    It takes no memory for the ``dense`` arguments then, and for dense gradients only what the bind to come takes.
    """
    sparse = any(
        entry.get("__storage_type__", "0") not in ("0", "-1") or entry.get("sparse_grad") == "True" or "stype" in entry
        for entry in attributes.values()
    )
    if not sparse or all(request == "null" for request in grad_req.values()):
        return {}
    known = memory.params.grads
    if all(name in known for name, request in grad_req.items() if request != "null" and name in params):
        return {name: known[name].stype for name in grad_req if name in known}
    probe = symbol.simple_bind(
        memory.context,
        grad_req=dict(grad_req),
        type_dict=dict(types),
        shared_buffer={need.name: promised(need) for need in dense},
        **{name: desc.shape for name, desc in given.items()},
    )
    return {name: grad.stype for name, grad in probe.grad_dict.items() if grad is not None}


def bind(
    symbol: Any,
    memory: ContextMemory,
    needs: Requirements,
    grad_req: Mapping[str, str],
    group2ctx: Mapping[str, Any] | None = None,
    pool: Any = None,
    sums: dict[ArrayNeed, Any] | None = None,
) -> Any:
    """An executor on the shared arrays of ``memory``, which grow by what is new.

    ``pool`` is the executor whose working memory it borrows; without one it gets its own. ``sums`` are gradients of
    inputs that add up, by shape; new ones are put there.
    """
    sums = {} if sums is None else sums
    memory.params.ensure(needs.params)
    arrays = {spec.name: memory.params.weights[spec.name] for spec in needs.params}
    grads = {spec.name: memory.params.grads[spec.name] for spec in needs.params if spec.trains}
    arrays.update({need.name: _shared(memory.inputs, need) for need in needs.inputs})
    for need in needs.input_grads:
        # Gradients that add up belong to their shape: the sums of others must not run into them.
        if grad_req[need.name] != "add":
            grads[need.name] = _shared(memory.input_grads, need)
        elif need in sums:
            grads[need.name] = sums[need]
        else:
            grads[need.name] = sums[need] = _fresh(need)
    for need in needs.aux:
        if need.name not in memory.aux:
            memory.aux[need.name] = _fresh(need)
    aux = {need.name: memory.aux[need.name] for need in needs.aux}
    try:
        return executors.bind(
            symbol,
            memory.context,
            {name: arrays[name] for name in needs.arguments},
            grads,
            grad_req,
            aux,
            group2ctx,
            pool,
        )
    except mx.base.MXNetError as error:
        raise ShapeError(
            f"the engine refused to bind {_heads(symbol)} on {memory.context}: {last_line(error)}"
        ) from None


def promised(need: ArrayNeed | ParamSpec) -> Any:
    """A dense array of that shape and type that has no memory before it is used."""
    return mx.nd.NDArray(mx.nd.ndarray._new_alloc_handle(need.shape, need.context, True, need.dtype))


def _fresh(need: ArrayNeed) -> Any:
    return mx.nd.zeros(need.shape, ctx=need.context, dtype=need.dtype, stype=need.stype)


def holds(known: Any, need: ArrayNeed) -> bool:
    """Whether the array that stands under a name already has room for what is needed."""
    alike = known.stype == need.stype and known.dtype == need.dtype and known.context == need.context
    return alike and (known.size >= need.size if need.stype == "default" else known.shape == need.shape)


def _shared(arrays: dict[str, Any], need: ArrayNeed) -> Any:
    """The array of that name, or as much of it as the shape needs; a larger one replaces it for those to come."""
    known = arrays.get(need.name)
    if known is None or not holds(known, need):
        arrays[need.name], before = _fresh(need), known
        known = arrays[need.name]
        if before is not None and before.stype == known.stype == "default" and before.dtype == known.dtype:
            # States go on in the larger array, each row's at its place; inputs are fed anew anyway.
            before.reshape((-1,)).copyto(known.reshape((-1,))[: before.size])
    if known.shape == need.shape:
        return known
    return known.reshape((-1,))[: need.size].reshape(need.shape)
