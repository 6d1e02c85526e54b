"""A batch over contexts: which rows each context takes, and why a batch is refused."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from bucketlab.errors import SliceError

RULES = ("balanced", "mxnet", "exact")


@dataclass(frozen=True)
class ContextSlice:
    """Rows ``start:stop`` of a batch that one context holds, and the shapes it is bound to."""

    context: str
    start: int
    stop: int
    valid_rows: int
    shapes: tuple[tuple[str, tuple[int, ...]], ...]

    @property
    def rows(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True)
class SliceReport:
    """How one batch is cut over the contexts. Rows are counted on the batch axis; ``pad`` rows are filler."""

    bucket: Hashable
    rows: int
    pad: int
    rule: str
    workload: tuple[float, ...]
    contexts: tuple[ContextSlice, ...]

    def to_dict(self) -> dict[str, Any]:
        return {
            "bucket": self.bucket,
            "rows": self.rows,
            "pad": self.pad,
            "rule": self.rule,
            "workload": list(self.workload),
            "contexts": [
                {
                    "context": c.context,
                    "start": c.start,
                    "stop": c.stop,
                    "rows": c.rows,
                    "valid_rows": c.valid_rows,
                    "shapes": {name: list(shape) for name, shape in c.shapes},
                }
                for c in self.contexts
            ],
        }

    def __repr__(self) -> str:
        from bucketlab.views.text import slices_text

        return slices_text(self)

    def _repr_html_(self) -> str:
        from bucketlab.views.html import slices_html

        return slices_html(self)


def check_workload(workload: Any, contexts: int, argument: str = "work_load_list") -> tuple[float, ...]:
    """The workload as positive finite floats, one per context; raises :class:`SliceError` otherwise."""
    if not isinstance(workload, Iterable) or isinstance(workload, str):
        raise SliceError(f"{argument} is {workload!r}; give a positive finite number for each context")
    given = list(workload)
    if len(given) != contexts:
        raise SliceError(
            f"{argument} has {len(given)} entries for {contexts} context(s): {given}; give one per context"
        )
    for i, share in enumerate(given):
        if isinstance(share, bool) or (
            not isinstance(share, (int, float, Fraction)) and not hasattr(share, "__float__")
        ):
            raise SliceError(f"{argument}[{i}] is {share!r}; give positive finite numbers")
        if not math.isfinite(float(share)) or float(share) <= 0:
            raise SliceError(f"{argument}[{i}] is {share!r}; give positive finite numbers")
    return tuple(float(share) for share in given)


def row_counts(rows: int, workload: Sequence[float], rule: str = "balanced") -> list[int]:
    """Rows of each context for a batch of ``rows``.

    ``"balanced"``: largest remainder with at least one row a context where rows suffice, ties to the earlier
    context; with fewer rows than contexts the first contexts in order of workload get one row each and the
    rest get none. ``"mxnet"``: MXNet's own rounding, errors included. ``"exact"``: refuse unless every share
    is whole.

    >>> row_counts(10, [1, 1, 1, 1])
    [3, 3, 2, 2]
    """
    if rule not in RULES:
        raise SliceError(f"split is {rule!r}; choose one of {', '.join(map(repr, RULES))}")
    if isinstance(rows, bool) or rows < 1:
        raise SliceError(f"a batch of {rows} rows cannot be cut: it needs at least one row")
    if rule == "balanced":
        return _balanced(rows, workload)
    if rule == "mxnet":
        return _mxnet(rows, workload)
    return _exact(rows, workload)


def slices_of(rows: int, workload: Sequence[float], rule: str = "balanced", together: bool = False) -> list[slice]:
    """The same as :func:`row_counts`, as consecutive slices of the batch axis.

    ``together``: a batch that the balanced rule would give to fewer contexts than there are stays whole, on the
    context with the largest workload.
    """
    counts = row_counts(rows, workload, rule)
    if together and 0 in counts:
        most = max(range(len(counts)), key=lambda i: (workload[i], -i))
        counts = [rows if i == most else 0 for i in range(len(counts))]
    begin, cut = 0, []
    for count in counts:
        cut.append(slice(begin, begin + count))
        begin += count
    return cut


def _shares(rows: int, workload: Sequence[float]) -> list[Fraction]:
    weights = [Fraction(float(w)).limit_denominator(10**9) for w in workload]
    total = sum(weights)
    return [rows * w / total for w in weights]


def _balanced(rows: int, workload: Sequence[float]) -> list[int]:
    contexts = len(workload)
    shares = _shares(rows, workload)
    floor = 1 if rows >= contexts else 0
    counts = [max(floor, math.floor(share)) for share in shares]
    while sum(counts) < rows:
        counts[max(range(contexts), key=lambda i: (shares[i] - counts[i], -i))] += 1
    while sum(counts) > rows:
        counts[max((i for i in range(contexts) if counts[i] > floor), key=lambda i: (counts[i] - shares[i], i))] -= 1
    return counts


def _exact(rows: int, workload: Sequence[float]) -> list[int]:
    shares = _shares(rows, workload)
    if any(share.denominator != 1 for share in shares):
        raise SliceError(
            f"batch of {rows} rows over {len(shares)} contexts (workload {ratio(workload)}) does not divide; "
            f"use a multiple of {divisor(workload)} rows, or split='balanced' "
            f"({', '.join(map(str, _balanced(rows, workload)))})"
        )
    return [int(share) for share in shares]


def _mxnet(rows: int, workload: Sequence[float]) -> list[int]:
    # MXNet rounds each share half to even and counts in binary floats: the very same operations give the same cuts.
    total = sum(workload)
    counts = [round(share * rows / total) for share in workload]
    short = rows - sum(counts)
    if short > 0:
        counts[-1] += short
    bounds, end = [], 0
    for count in counts:
        begin = int(min(end, rows))
        end = int(min(begin + count, rows))
        bounds.append(end - begin)
    if 0 in bounds:
        raise SliceError(
            f"batch of {rows} rows over {len(bounds)} contexts (workload {ratio(workload)}) gives "
            f"{', '.join(map(str, bounds))} by MXNet's rule (too many slices: some are empty); use a larger batch, "
            f"or split='balanced' ({', '.join(map(str, _balanced(rows, workload)))})"
        )
    return bounds


def divisor(workload: Sequence[float]) -> int:
    """The smallest batch that every context's share divides exactly; batches of its multiples do too.

    >>> divisor([1, 2, 3])
    6
    """
    shares = _shares(1, workload)
    step = 1
    for share in shares:
        step = step * share.denominator // math.gcd(step, share.denominator)
    return step


def ratio(workload: Sequence[float]) -> str:
    """The workload as people write it: ``1:2:3``."""
    return ":".join(f"{share:g}" for share in workload)
