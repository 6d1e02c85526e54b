"""Values on their way into the host's copies of parameters: all of them are written, or none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bucketlab._engine import mx

Hosts = Mapping[str, Mapping[str, Any]]
"""Host arrays by kind ("parameter" or "auxiliary state") and name."""


def write(value: Any, target: Any) -> None:
    """Copy a value into an array, converted to its type."""
    if value is not target:
        (value if value.dtype == target.dtype else value.astype(target.dtype)).copyto(target)


def fill(
    plan: Sequence[tuple[Hosts, Mapping[str, Any]]], givens: Mapping[str, Any], initializer: Any, keep: bool = True
) -> None:
    """Write host arrays: the value given for each, or what ``initializer`` makes of it.

    ``plan`` has the arrays of one symbol after another, each with the symbol's attributes. An initializer may refuse a
    name: all arrays are then as they were, or zeros without ``keep``, for those that were never anything else.
    """
    if initializer is not None and not callable(initializer):
        raise TypeError(f"initializer is {initializer!r}; expected an mx.init.Initializer, such as mx.init.Xavier()")
    before: list[tuple[Any, Any]] = []
    values: list[tuple[Any, Any]] = []
    try:
        for hosts, attributes in plan:
            for kind, hosted in hosts.items():
                given = givens[kind] or {}
                for name, array in sorted(hosted.items()):
                    if name in given:
                        values.append((given[name], array))
                    elif initializer is not None:
                        before.append((array.copy() if keep else None, array))
                        initializer(mx.init.InitDesc(name, attributes.get(name)), array)
    except BaseException:
        for value, array in before:
            write(zeros_like(array) if value is None else value, array)
        raise
    for value, array in values:
        write(value, array)


def zeros_like(array: Any, context: Any = None) -> Any:
    """Zeros of an array's shape, type and storage."""
    return mx.nd.zeros(array.shape, ctx=context or array.context, dtype=array.dtype, stype=array.stype)
