"""Checks of what an iterator is given: each names the argument, what was given and what was expected."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral
from typing import Any

import numpy as np

from bucketlab.data.sequences import Sequences
from bucketlab.errors import DataError
from bucketlab.slicing import check_workload, ratio

_EXACT = {"float16": 2**11, "float32": 2**24}  # whole numbers up to here are exact


def choice(name: str, value: Any, choices: Sequence[str]) -> None:
    if value not in choices:
        raise DataError(f"{name} is {value!r}; choose one of {', '.join(map(repr, choices))}")


def length_text(lengths: np.ndarray) -> str:
    """The shortest of ``lengths``, (n,) or (n, 2), as it is written in messages."""
    sizes = lengths.reshape(len(lengths), -1)
    return "x".join(str(n) for n in sizes[sizes.sum(axis=1).argmin()])


def data_names(given: str | Sequence[str] | None, sides: int) -> tuple[str, ...]:
    if given is None:
        return ("data",) if sides == 1 else ("source", "target")
    names = (given,) if isinstance(given, str) else tuple(given)
    if len(names) != sides or len(set(names)) != sides:
        raise DataError(f"data_name is {given!r}; give {sides} different name(s)")
    return names


def context_names(contexts: Any) -> tuple[str, ...]:
    """Names of contexts that are given as a number, as one context or as a list of them."""
    if isinstance(contexts, Integral):
        names = tuple(f"context {i}" for i in range(int(contexts)))
    else:
        names = tuple(map(str, contexts if isinstance(contexts, (list, tuple)) else [contexts]))
    if not names:
        raise DataError(f"contexts is {contexts!r}; give at least one")
    return names


def check_contexts(
    contexts: Any, given: Sequence[float] | None, planned: Sequence[float] | None
) -> tuple[float, ...]:
    """Workloads of the contexts: those given, or equal ones, or those of the plan where neither is given."""
    if contexts is None and given is None:
        return tuple(planned) if planned is not None else (1.0,)
    if contexts is None:
        assert given is not None
        if not len(given):
            raise DataError(f"workloads is {given!r}; give at least one")
        return check_workload(given, len(given))
    count = len(context_names(contexts))
    return check_workload([1] * count if given is None else given, count)


def contexts_text(workloads: Sequence[float]) -> str:
    return f"{len(workloads)} context(s) (workload {ratio(workloads)})"


def check_exact(name: str, kind: str, largest: int) -> None:
    """Refuse a type of number that would round ids."""
    if largest > _EXACT.get(kind, 2**31):
        raise DataError(f"{name} {kind} cannot hold the id {largest} exactly; use a wider one")


def check_ids(source: Sequences, ignore_label: int, begin: int | None, may_be_ignored: bool) -> None:
    """Refuse negative ids, ids whose label would never count, and pairs without a begin id."""
    if len(source.sides) == 2 and begin is None:
        raise DataError("pairs need begin, the id that stands before the first target token")
    for side in source.sides:
        bad = np.flatnonzero((side.flat < 0) & ((side.flat != ignore_label) | (ignore_label >= 0)))
        if len(bad):
            raise DataError(
                f"sequences[{side.row_of(bad[0])}] holds the id {side.flat[bad[0]]}; ids count from 0"
            )
    written = source.sides[-1]
    clash = np.flatnonzero(written.flat == ignore_label)
    if len(clash) and not may_be_ignored:
        raise DataError(
            f"sequences[{written.row_of(clash[0])}] holds the id {ignore_label}, which is ignore_label: its "
            "label would never count; number tokens from 1, or give ignore_label=-1"
        )
