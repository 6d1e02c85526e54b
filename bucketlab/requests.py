"""What callers may ask of an executor group besides shapes: gradients, places of layers, values of parameters."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np

from bucketlab._engine import mx
from bucketlab.errors import ShapeError, SliceError

GRAD_REQS = ("write", "add", "null")


def contexts_of(given: Any, argument: str = "context") -> list[Any]:
    """One context or several, as a list. Raises SliceError for none, TypeError for other things."""
    contexts = [given] if isinstance(given, mx.Context) else given
    if not isinstance(contexts, Iterable) or isinstance(contexts, str):
        raise TypeError(f"{argument} is {given!r}; expected a context such as mx.cpu(0), or a list of them")
    contexts = list(contexts)
    if not contexts:
        raise SliceError(f"{argument} is empty; give at least one, such as mx.cpu()")
    for one in contexts:
        if not isinstance(one, mx.Context):
            raise TypeError(f"{argument} has {one!r}; expected contexts such as mx.cpu(0)")
    return contexts


def check_contexts(contexts: Any, argument: str = "contexts") -> list[Any]:
    """Contexts as a list, all of them here. Raises as contexts_of does, and ValueError for absent devices."""
    given = contexts_of(contexts, argument)
    for context in given:
        if context.device_type == "gpu" and context.device_id >= _gpus():
            raise ValueError(
                f"{argument}: there is no {context} here: mxnet sees {_gpus()} GPU(s), numbered from 0; use another "
                f"context, such as mx.cpu()"
            )
    return given


@cache
def _gpus() -> int:
    return int(mx.context.num_gpus()) if mx.runtime.Features().is_enabled("CUDA") else 0


def names_of(argument: str, given: Any) -> list[str]:
    """Names as a list. Raises TypeError for other things, a single string among them: it would be taken by letters."""
    if isinstance(given, str):
        raise TypeError(f"{argument} is {given!r}; give a list of names, such as [{given!r}]")
    if given is not None and not isinstance(given, Iterable):
        raise TypeError(f"{argument} is {given!r}; give a list of names, such as ['data']")
    return list(given or [])


def check_distinct(names: Sequence[str]) -> None:
    """Refuse a symbol that uses a name for two of its arguments or auxiliary states."""
    if len(set(names)) < len(names):
        twice = sorted({name for name in names if names.count(name) > 1})
        raise ValueError(f"the symbol has {', '.join(map(repr, twice))} more than once; give every layer its own name")


def check_states(names: Sequence[str], arguments: Sequence[str]) -> None:
    """Refuse states that the symbol does not take."""
    unknown = [name for name in names if name not in arguments]
    if unknown:
        raise ValueError(f"state_names has {', '.join(map(repr, unknown))}, which the symbol does not take")


def as_params(kind: str, given: Any) -> dict[str, Any] | None:
    """Values for parameters as NDArrays by name; numpy arrays are taken, and None stays None.

    Raises TypeError for what is no dict, and naming the parameter for what is no array.
    """
    if given is None:
        return None
    if not isinstance(given, Mapping):
        raise TypeError(f"values for a {kind} are given as {type(given).__name__}; expected a dict of name to NDArray")
    values = {}
    for name, value in given.items():
        if not isinstance(value, (mx.nd.NDArray, np.ndarray)):
            raise TypeError(f"{kind} {name!r} is given as {type(value).__name__}; expected an NDArray or a numpy array")
        values[name] = mx.nd.array(value, dtype=value.dtype) if isinstance(value, np.ndarray) else value
    return values


def check_params(kind: str, given: Mapping[str, Any], known: Mapping[str, Any], allow_extra: bool) -> None:
    """Refuse values whose name or shape does not fit, naming the parameter."""
    extra = [name for name in given if name not in known]
    if extra and not allow_extra:
        raise ValueError(
            f"{kind} {', '.join(map(repr, sorted(extra)))} is not in the symbol; known: {sorted(known)}; "
            f"pass allow_extra=True to ignore it"
        )
    for name, value in given.items():
        target = known.get(name)
        if target is not None and tuple(value.shape) != tuple(target.shape):
            raise ShapeError(
                f"{kind} {name!r} is given with shape {tuple(value.shape)}, expected {tuple(target.shape)}"
            )


def resolve_grad_req(
    grad_req: Any,
    arg_names: Sequence[str],
    param_names: Sequence[str],
    inputs_with_grad: Sequence[str],
    fixed: Sequence[str],
) -> dict[str, str]:
    """One request ('write', 'add' or 'null') for every argument, from a string, a list in their order, or a dict."""
    params, inputs, still = set(param_names), set(inputs_with_grad), set(fixed)

    def default(name: str, request: str) -> str:
        trains = name in inputs or (name in params and name not in still)
        return request if trains else "null"

    if isinstance(grad_req, str):
        resolved = {name: default(name, grad_req) for name in arg_names}
        given: dict[str, Any] = {"grad_req": grad_req}
    elif isinstance(grad_req, (list, tuple)):
        if len(grad_req) != len(arg_names):
            raise ValueError(
                f"grad_req has {len(grad_req)} entries and the symbol {len(arg_names)} arguments: {list(arg_names)}"
            )
        resolved = dict(zip(arg_names, grad_req))
        given = resolved
    elif isinstance(grad_req, Mapping):
        unknown = [name for name in grad_req if name not in set(arg_names)]
        if unknown:
            raise ValueError(f"grad_req names {unknown}, which are no arguments; known: {list(arg_names)}")
        resolved = {name: grad_req.get(name, default(name, "write")) for name in arg_names}
        given = dict(grad_req)
    else:
        raise ValueError(f"grad_req is {grad_req!r}; give a string, a list in the order of the arguments, or a dict")
    for name, request in given.items():
        if request not in GRAD_REQS:
            raise ValueError(f"grad_req of {name!r} is {request!r}; choose one of {GRAD_REQS}")
    return resolved


def prepare_group2ctxs(group2ctxs: Any, contexts: int) -> list[Any]:
    """A dict of group name to context for each context, from None, a list of such dicts, or a dict of lists."""
    if group2ctxs is None:
        return [None] * contexts
    if isinstance(group2ctxs, (list, tuple)):
        if len(group2ctxs) != contexts:
            raise SliceError(f"group2ctxs has {len(group2ctxs)} entries for {contexts} context(s); give one for each")
        for i, entry in enumerate(group2ctxs):
            if not isinstance(entry, (Mapping, type(None))):
                raise TypeError(f"group2ctxs[{i}] is {entry!r}; expected a dict of group to context")
            for group, home in (entry or {}).items():
                check_contexts(home, f"group2ctxs[{i}][{group!r}]")
        return list(group2ctxs)
    if isinstance(group2ctxs, Mapping):
        tables: list[dict[str, Any]] = [{} for _ in range(contexts)]
        for group, given in group2ctxs.items():
            homes = check_contexts(given, f"group2ctxs[{group!r}]")
            if len(homes) not in (1, contexts):
                raise SliceError(f"group2ctxs[{group!r}] has {len(homes)} contexts; give 1 or {contexts}")
            for i, table in enumerate(tables):
                table[group] = homes[i if len(homes) > 1 else 0]
        return tables
    raise TypeError(
        f"group2ctxs is {type(group2ctxs).__name__}; give a dict of group to context(s), or a list of dicts, one per "
        f"context"
    )
