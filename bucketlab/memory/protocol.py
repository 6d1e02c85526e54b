"""What a source holds: each of its arrays by bucket, context, role and name.

A source that knows its arrays defines ``held_arrays()``, which yields :class:`HeldArray`, and where it runs more
executors than an executor group shows, ``held_pools()``, which yields :class:`HeldPool`. Modules and executor groups of
``mx.mod``, executors, updaters, arrays and collections of these are read by the adapter in this file.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from bucketlab._engine import mx

__all__ = ["ROLES", "HeldArray", "HeldPool", "collect"]

ROLES = (
    "parameter", "gradient", "auxiliary", "data", "label", "state", "output", "input_gradient", "optimizer", "kvstore",
    "host", "pool", "other",
)  # fmt: skip


class HeldArray(NamedTuple):
    """One array that a source holds.

    ``context_index`` counts the source's contexts, -1 where it has none; ``context`` is then empty, and where the array
    is will be read from the array itself.
    """

    bucket: Hashable
    context_index: int
    context: str
    role: str
    name: str
    array: Any


class HeldPool(NamedTuple):
    """The working pool of one executor, whose blocks are not arrays of their own in Python."""

    bucket: Hashable
    context_index: int
    context: str
    executor: Any


def collect(*sources: Any, **named: Any) -> tuple[list[HeldArray], list[HeldPool]]:
    """The arrays and the working pools that the sources hold, in a fixed order; nothing is read or waited for.

    With several sources the buckets of each carry its name (the keyword, else its position) so that they stay apart.
    Raises TypeError for a source that holds nothing that can be read.

    >>> collect(mx.nd.zeros((2,)))[0][0].role
    'other'
    """
    labelled = [(f"source {i}", source) for i, source in enumerate(sources)] + list(named.items())
    arrays: list[HeldArray] = []
    pools: list[HeldPool] = []
    for label, source in labelled:
        found = list(_arrays(source))
        working = list(_pools(source, None))
        if len(labelled) > 1 and not isinstance(source, (HeldArray, mx.nd.NDArray)):
            found = [entry._replace(bucket=_under(label, entry.bucket)) for entry in found]
            working = [entry._replace(bucket=_under(label, entry.bucket)) for entry in working]
        elif isinstance(source, mx.nd.NDArray) and len(labelled) > 1:
            found = [entry._replace(name=label.replace("source", "array")) for entry in found]
        arrays += found
        pools += working
    return arrays, pools


def _under(label: str, bucket: Hashable) -> Hashable:
    return label if bucket is None else f"{label}/{bucket}"


def _arrays(source: Any) -> Iterator[HeldArray]:
    if isinstance(source, HeldArray):
        yield source
    elif callable(getattr(source, "held_arrays", None)):
        yield from source.held_arrays()
    elif isinstance(source, mx.nd.NDArray):
        yield _loose("array", source)
    elif hasattr(source, "_buckets") or hasattr(source, "_exec_group") or hasattr(source, "_modules"):
        yield from _once(_module(source, None))
    elif hasattr(source, "execs"):
        yield from _group(source, None)
    elif hasattr(source, "arg_dict"):
        yield from _executor(source, None, 0, _roles_by_name(source))
    elif isinstance(getattr(source, "states", None), dict):
        yield from _optimizer(source, (), getattr(source, "optimizer", None))
    elif isinstance(source, Mapping):
        for name, value in source.items():
            yield from _within(str(name), value)
    elif isinstance(source, (list, tuple)):
        for i, value in enumerate(source):
            yield from _within(str(i), value)
    else:
        raise TypeError(
            f"cannot see the arrays of a {type(source).__name__}: give modules, executor groups, executors, updaters, "
            f"NDArrays, lists or dicts of these, or an object with held_arrays()"
        )


def _within(name: str, value: Any) -> Iterator[HeldArray]:
    if isinstance(value, mx.nd.NDArray):
        yield _loose(name, value)
    elif value is not None:
        for entry in _arrays(value):
            yield entry if isinstance(value, HeldArray) else entry._replace(name=f"{name}.{entry.name}")


def _loose(name: str, array: Any, role: str = "other") -> HeldArray:
    return HeldArray(None, -1, "", role, name, array)


def _once(entries: Iterable[HeldArray]) -> Iterator[HeldArray]:
    """Host and optimizer arrays belong to all buckets alike: each such object is told once, and of no bucket."""
    told: set[int] = set()
    for entry in entries:
        if entry.role in ("host", "optimizer", "kvstore"):
            if id(entry.array) in told:
                continue
            told.add(id(entry.array))
        yield entry


def _inner(module: Any, bucket: Hashable) -> list[tuple[Hashable, Any]]:
    """The modules inside a module, by bucket key, or by position in a sequence."""
    if isinstance(getattr(module, "_buckets", None), dict):
        return list(module._buckets.items())
    if isinstance(getattr(module, "_modules", None), list):
        return [(_under(f"module {i}", bucket), inner) for i, inner in enumerate(module._modules)]
    current = getattr(module, "_curr_module", None)
    return [] if current is None else [(bucket, current)]


def _module(module: Any, bucket: Hashable) -> Iterator[HeldArray]:
    inner = _inner(module, bucket)
    if inner:
        for key, part in inner:
            if callable(getattr(part, "held_arrays", None)):
                yield from (e._replace(bucket=key) if e.bucket is None else e for e in part.held_arrays())
            else:
                yield from _module(part, key)
        return
    group = getattr(module, "_exec_group", None)
    if group is not None:
        yield from _group(group, bucket)
    contexts = tuple(str(context) for context in getattr(module, "_context", None) or ())
    optimizer = getattr(module, "_optimizer", None)
    store = getattr(module, "_kvstore", None)
    for updater in (getattr(module, "_updater", None), getattr(store, "_updater", None)):
        if isinstance(getattr(updater, "states", None), dict):
            yield from _optimizer(updater, contexts, optimizer)
    for host in (getattr(module, "_arg_params", None), getattr(module, "_aux_params", None)):
        for name, array in (host or {}).items():
            yield _loose(name, array, "host")


def _optimizer(updater: Any, contexts: tuple[str, ...], optimizer: Any) -> Iterator[HeldArray]:
    names = getattr(optimizer, "idx2name", None) or {}
    for key, state in updater.states.items():
        parts = list(_leaves(state))
        for i, array in enumerate(parts):
            name = str(names.get(key, key)) + (f".{i}" if len(parts) > 1 else "")
            context = str(array.context)
            index = contexts.index(context) if context in contexts else -1
            yield HeldArray(None, index, context, "optimizer", name, array)


def _leaves(state: Any) -> Iterator[Any]:
    if isinstance(state, mx.nd.NDArray):
        yield state
    elif isinstance(state, (list, tuple)):
        for part in state:
            yield from _leaves(part)


def _roles_by_name(executor: Any) -> dict[str, str]:
    """A bare executor does not say what is data: go by mxnet's naming, where inputs end in data or label."""
    roles = {}
    for name in executor.arg_dict:
        roles[name] = "label" if name.endswith("label") else "data" if name.endswith("data") else "parameter"
    return roles


def _group_roles(group: Any) -> dict[str, str]:
    roles = dict.fromkeys(group.param_names, "parameter")
    roles.update((name, "state") for name in getattr(group, "state_names", None) or ())
    for role, attribute in (("data", "data_shapes"), ("label", "label_shapes")):
        names = getattr(group, f"{role}_names", None) or [entry[0] for entry in getattr(group, attribute, None) or ()]
        roles.update((name, role) for name in names)
    return roles


def _group(group: Any, bucket: Hashable) -> Iterator[HeldArray]:
    roles = _group_roles(group)
    outputs = getattr(group, "output_names", None)
    inputs = getattr(group, "shared_data_arrays", None) or ()
    for i, executor in enumerate(group.execs):
        yield from _executor(executor, bucket, i, roles, outputs, str(group.contexts[i]))
        # The group's store of inputs may hold arrays that only other groups use.
        for name, array in (inputs[i] if i < len(inputs) else {}).items():
            if name not in executor.arg_dict:
                yield HeldArray(bucket, i, str(group.contexts[i]), "other", name, array)


def _executor(
    executor: Any,
    bucket: Hashable,
    index: int,
    roles: Mapping[str, str],
    output_names: Iterable[str] | None = None,
    context: str | None = None,
) -> Iterator[HeldArray]:
    where = str(executor._ctx) if context is None else context
    for name, array in executor.arg_dict.items():
        yield HeldArray(bucket, index, where, roles.get(name, "other"), name, array)
    for name, array in executor.grad_dict.items():
        if array is not None:
            role = "input_gradient" if roles.get(name) in ("data", "label", "state") else "gradient"
            yield HeldArray(bucket, index, where, role, name, array)
    for name, array in executor.aux_dict.items():
        yield HeldArray(bucket, index, where, "auxiliary", name, array)
    names = list(output_names if output_names is not None else executor._symbol.list_outputs())
    for i, array in enumerate(executor.outputs):
        yield HeldArray(bucket, index, where, "output", names[i] if i < len(names) else f"output{i}", array)


def _pools(source: Any, bucket: Hashable) -> Iterator[HeldPool]:
    """The executors behind a source, each once: those in use, then those that a group keeps from before a reshape."""
    if callable(getattr(source, "held_pools", None)):
        yield from (entry._replace(bucket=bucket) if entry.bucket is None else entry for entry in source.held_pools())
        return
    inner = _inner(source, bucket)
    if inner:
        for key, part in inner:
            yield from _pools(part, key)
        return
    group = getattr(source, "_exec_group", None) or source
    executors = getattr(group, "execs", None)
    if isinstance(executors, list):
        told: set[int] = set()
        for several in (executors, getattr(group, "_default_execs", None) or ()):
            for i, executor in enumerate(several):
                if id(executor) not in told:
                    told.add(id(executor))
                    yield HeldPool(bucket, i, str(group.contexts[i]), executor)
    elif hasattr(source, "arg_dict") and hasattr(source, "handle"):
        yield HeldPool(bucket, 0, str(source._ctx), source)
    elif isinstance(source, (list, tuple)) and not isinstance(source, HeldArray):
        for part in source:
            yield from _pools(part, bucket)
    elif isinstance(source, Mapping):
        for part in source.values():
            yield from _pools(part, bucket)
