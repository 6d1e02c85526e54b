"""What a source holds: each of its arrays by bucket, context, role and name.

A source that knows its arrays defines ``held_arrays()``, which yields :class:`HeldArray`, and where it runs
more executors than an executor group shows, ``held_pools()``, which yields :class:`HeldPool`. Modules and
executor groups of ``mx.mod``, executors, updaters, arrays and collections of these are read by the adapter in
this file.
"""

from __future__ import annotations

import gc
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import groupby, repeat
from typing import Any, NamedTuple

from bucketlab._engine import mx

NDArray = mx.nd.NDArray

__all__ = ["ROLES", "HeldArray", "HeldPool", "collect", "held"]

ROLES = (
    "parameter",
    "gradient",
    "auxiliary",
    "data",
    "label",
    "state",
    "output",
    "input_gradient",
    "optimizer",
    "kvstore",
    "host",
    "pool",
    "other",
)

_OF_ALL_BUCKETS = frozenset(["host", "optimizer", "kvstore"])


class HeldArray(NamedTuple):
    """One array that a source holds.

    ``context_index`` counts the source's contexts, -1 where it has none; ``context`` is then empty, and where
    the array is will be read from the array itself.
    """

    bucket: Hashable
    context_index: int
    context: str
    role: str
    name: str
    array: Any


_new_held = partial(tuple.__new__, HeldArray)


class HeldPool(NamedTuple):
    """The working pool of one executor, whose blocks are not arrays of their own in Python."""

    bucket: Hashable
    context_index: int
    context: str
    executor: Any


def collect(*sources: Any, **named: Any) -> tuple[list[HeldArray], list[HeldPool]]:
    """The arrays and the working pools that the sources hold, in a fixed order; nothing is read or waited
    for.

    Without sources: every NDArray and every executor that is alive in Python, named as a dict that holds it does.
    With several sources the buckets of each carry its name (the keyword, else its position) so that they stay
    apart. Raises TypeError for a source that holds nothing that can be read.

    >>> collect(mx.nd.zeros((2,)))[0][0].role
    'other'
    """
    if not sources and not named:
        return _alive()
    labelled = [(f"source {i}", source) for i, source in enumerate(sources)] + list(named.items())
    arrays: list[HeldArray] = []
    pools: list[HeldPool] = []
    for label, source in labelled:
        found = _arrays(source)
        working = _pools(source, None)
        if len(labelled) > 1 and isinstance(source, NDArray):
            found = [entry._replace(name=label.replace("source", "array")) for entry in found]
        elif len(labelled) > 1 and not isinstance(source, HeldArray):
            found = [_new_held((_under(label, entry[0]), *entry[1:])) for entry in found]
            working = [entry._replace(bucket=_under(label, entry.bucket)) for entry in working]
        arrays += found
        pools += working
    return arrays, pools


def _alive() -> tuple[list[HeldArray], list[HeldPool]]:
    """What Python's garbage collector knows of, whoever holds it; what the engine holds alone is not among it."""
    everything = gc.get_objects()
    arrays = [one for one in everything if isinstance(one, NDArray)]
    executors = [one for one in everything if isinstance(one, mx.executor.Executor)]
    del everything
    places = {id(array): at for at, array in enumerate(arrays)}
    names = ["array"] * len(arrays)
    for holder in gc.get_referrers(*arrays) if arrays else ():
        for name, value in list(holder.items()) if type(holder) is dict else ():
            at = places.get(id(value))
            if at is not None and isinstance(name, str) and names[at] == "array":
                names[at] = name
    pools = [HeldPool(None, 0, str(executor._ctx), executor) for executor in executors]
    return _loose(names, arrays), pools


def held(
    bucket: Hashable,
    index: int,
    context: str,
    roles: Iterable[str],
    names: Iterable[str],
    arrays: Iterable[Any],
) -> list[HeldArray]:
    """Many entries at once, built by C loops: a module with thousands of arrays is read at every structural event."""
    rows = zip(repeat(bucket), repeat(index), repeat(context), roles, names, arrays)
    return list(map(_new_held, rows))


def _in_bucket(bucket: Hashable, entries: Iterable[HeldArray]) -> list[HeldArray]:
    """The same entries, said to be of this bucket."""
    columns = list(zip(*entries))
    return list(map(_new_held, zip(repeat(bucket), *columns[1:]))) if columns else []


def _under(label: str, bucket: Hashable) -> Hashable:
    return label if bucket is None else f"{label}/{bucket}"


def _arrays(source: Any) -> list[HeldArray]:
    if isinstance(source, HeldArray):
        return [source]
    if callable(getattr(source, "held_arrays", None)):
        return list(source.held_arrays())
    if isinstance(source, NDArray):
        return _loose(["array"], [source])
    if any(hasattr(source, name) for name in ("_buckets", "_exec_group", "_modules", "_curr_module")):
        return _once(_module(source, None, set()))
    if hasattr(source, "execs"):
        return _group(source, None)
    if hasattr(source, "arg_dict"):
        return _executor(source, None, 0, _roles_by_name(source))
    if isinstance(getattr(source, "states", None), dict):
        return _optimizer(source, (), getattr(source, "optimizer", None))
    if isinstance(source, Mapping):
        return _within((str(name), value) for name, value in source.items())
    if isinstance(source, (list, tuple)):
        return _within((str(i), value) for i, value in enumerate(source))
    raise TypeError(
        f"cannot see the arrays of a {type(source).__name__}: give modules, executor groups, executors, "
        f"updaters, NDArrays, lists or dicts of these, or an object with held_arrays()"
    )


def _within(named: Iterable[tuple[str, Any]]) -> list[HeldArray]:
    found: list[HeldArray] = []
    pairs = [(name, value) for name, value in named if value is not None]
    for loose, group in groupby(pairs, key=lambda pair: isinstance(pair[1], NDArray)):
        if loose:
            of = list(group)
            found += _loose([name for name, _ in of], [array for _, array in of])
            continue
        for name, value in group:
            if isinstance(value, HeldArray):
                found.append(value)
            else:
                found += [
                    _new_held((*entry[:4], f"{name}.{entry.name}", entry.array)) for entry in _arrays(value)
                ]
    return found


def _loose(names: Iterable[str], arrays: Iterable[Any], role: str = "other") -> list[HeldArray]:
    return held(None, -1, "", repeat(role), names, arrays)


def _once(entries: Iterable[HeldArray]) -> list[HeldArray]:
    """Host and optimizer arrays belong to all buckets alike: each object is told once."""
    told: set[int] = set()
    found = []
    for entry in entries:
        if entry[3] in _OF_ALL_BUCKETS:
            if id(entry[5]) in told:
                continue
            told.add(id(entry[5]))
        found.append(entry)
    return found


def _inner(module: Any, bucket: Hashable) -> list[tuple[Hashable, Any]]:
    """The modules inside a module, by bucket key, or by position in a sequence."""
    if isinstance(getattr(module, "_buckets", None), dict):
        return list(module._buckets.items())
    if isinstance(getattr(module, "_modules", None), list):
        return [(_under(f"module {i}", bucket), inner) for i, inner in enumerate(module._modules)]
    current = getattr(module, "_curr_module", None)
    return [] if current is None else [(bucket, current)]


def _module(module: Any, bucket: Hashable, told: set[int]) -> list[HeldArray]:
    """``told`` are what buckets have in common, by identity: what was read with one is not read with the others."""

    def fresh(*shared: Any) -> list[Any]:
        new = [one for one in shared if one and id(one) not in told]
        told.update(map(id, new))
        return new

    found: list[HeldArray] = []
    inner = _inner(module, bucket)
    for key, part in inner:
        if callable(getattr(part, "held_arrays", None)):
            found += [e if e.bucket is not None else _new_held((key, *e[1:])) for e in part.held_arrays()]
        else:
            found += _module(part, key, told)
    if inner:
        return found
    group = getattr(module, "_exec_group", None)
    if group is not None:
        found += _group(group, bucket)
    own = getattr(module, "_context", None) or ()
    contexts = tuple(str(context) for context in (own if isinstance(own, (list, tuple)) else [own]))
    optimizer = getattr(module, "_optimizer", None)
    store = getattr(module, "_kvstore", None)
    update: Any = getattr(module, "_update", None)
    if callable(getattr(update, "held", None)):
        found += [
            HeldArray(None, i, contexts[i] if i < len(contexts) else "", role, name, array)
            for one in fresh(update)
            for role, name, i, array in one.held()
        ]
        updaters: tuple[Any, ...] = ()
    else:
        updaters = (getattr(module, "_updater", None), getattr(store, "_updater", None))
    for updater in fresh(*updaters):
        if isinstance(getattr(updater, "states", None), dict):
            found += _optimizer(updater, contexts, optimizer)
    for host in fresh(getattr(module, "_arg_params", None), getattr(module, "_aux_params", None)):
        found += _loose(host.keys(), host.values(), "host")
    return found


def _optimizer(updater: Any, contexts: tuple[str, ...], optimizer: Any) -> list[HeldArray]:
    names = getattr(optimizer, "idx2name", None) or {}
    found = []
    for key, state in updater.states.items():
        parts = list(_leaves(state))
        for i, array in enumerate(parts):
            name = str(names.get(key, key)) + (f".{i}" if len(parts) > 1 else "")
            context = str(array.context)
            index = contexts.index(context) if context in contexts else -1
            found.append(HeldArray(None, index, context, "optimizer", name, array))
    return found


def _leaves(state: Any) -> Iterator[Any]:
    if isinstance(state, NDArray):
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
        names = getattr(group, f"{role}_names", None) or [
            entry[0] for entry in getattr(group, attribute, None) or ()
        ]
        roles.update((name, role) for name in names)
    return roles


def _group(group: Any, bucket: Hashable) -> list[HeldArray]:
    if callable(getattr(group, "held_arrays", None)):
        return _in_bucket(bucket, group.held_arrays())
    roles = _group_roles(group)
    outputs = getattr(group, "output_names", None)
    inputs = getattr(group, "shared_data_arrays", None) or ()
    found = []
    for i, executor in enumerate(group.execs):
        where = str(group.contexts[i])
        found += _executor(executor, bucket, i, roles, outputs, where)
        # The group's store of inputs may hold arrays that only other groups use.
        stored = inputs[i] if i < len(inputs) else {}
        arguments = executor.arg_dict
        found += [
            HeldArray(bucket, i, where, "other", name, array)
            for name, array in stored.items()
            if name not in arguments
        ]
    return found


def _executor(
    executor: Any,
    bucket: Hashable,
    index: int,
    roles: Mapping[str, str],
    output_names: Sequence[str] | None = None,
    context: str | None = None,
) -> list[HeldArray]:
    where = str(executor._ctx) if context is None else context
    arguments = executor.arg_dict
    gradients = {name: array for name, array in executor.grad_dict.items() if array is not None}
    gradient_roles = (
        "input_gradient" if roles.get(n) in ("data", "label", "state") else "gradient" for n in gradients
    )
    auxiliary = executor.aux_dict
    names = list(executor._symbol.list_outputs() if output_names is None else output_names)
    names += [f"output{i}" for i in range(len(names), len(executor.outputs))]
    argument_roles = (roles.get(name, "other") for name in arguments)
    return [
        *held(bucket, index, where, argument_roles, arguments, arguments.values()),
        *held(bucket, index, where, gradient_roles, gradients, gradients.values()),
        *held(bucket, index, where, repeat("auxiliary"), auxiliary, auxiliary.values()),
        *held(bucket, index, where, repeat("output"), names, executor.outputs),
    ]


def _pools(source: Any, bucket: Hashable) -> list[HeldPool]:
    """The executors behind a source, each once, those that a group keeps from before a reshape too."""
    if callable(getattr(source, "held_pools", None)):
        return [
            entry._replace(bucket=bucket) if entry.bucket is None else entry for entry in source.held_pools()
        ]
    if isinstance(source, (HeldArray, NDArray)):
        return []
    inner = _inner(source, bucket)
    if isinstance(source, (list, tuple)):
        inner = [(bucket, part) for part in source if not isinstance(part, NDArray)]
    elif isinstance(source, Mapping):
        inner = [(bucket, part) for part in source.values()]
    if inner:
        return [pool for key, part in inner for pool in _pools(part, key)]
    group = getattr(source, "_exec_group", None) or source
    if group is not source and callable(getattr(group, "held_pools", None)):
        return _pools(group, bucket)
    executors = getattr(group, "execs", None)
    if isinstance(executors, list):
        known: dict[int, HeldPool] = {}
        for several in (executors, getattr(group, "_default_execs", None) or ()):
            for i, executor in enumerate(several):
                known.setdefault(id(executor), HeldPool(bucket, i, str(group.contexts[i]), executor))
        return list(known.values())
    if hasattr(source, "arg_dict") and hasattr(source, "handle"):
        return [HeldPool(bucket, 0, str(source._ctx), source)]
    return []
