"""The rules of other systems beside the optimum, on the same lengths and under the same budget."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bucketlab.data.arguments import check_contexts, contexts_text
from bucketlab.data.batching import Budget, steps_for
from bucketlab.data.lengths import Counted, count
from bucketlab.data.optimum import best_bounds
from bucketlab.data.planner import plan_buckets
from bucketlab.data.rules import RULES, frequent_lengths
from bucketlab.errors import DataError
from bucketlab.slicing import divisor


@dataclass(frozen=True)
class RuleResult:
    """What one rule does with the lengths, in an epoch.

    ``tokens`` are those its buckets hold, ``padding`` fills real rows, ``filler`` last batches.
    ``best_padding`` is the least there is for all lengths with as many buckets. ``too_long`` sequences are
    dropped because no bucket holds them, ``left_over`` ones because they do not fill a batch.
    """

    rule: str
    says: str
    bounds: tuple[int, ...]
    tokens: int
    padding: int
    filler: int
    best_padding: int
    steps: int
    too_long: int = 0
    too_long_tokens: int = 0
    left_over: int = 0

    @property
    def waste(self) -> float:
        """The share of padding and filler in what is computed."""
        computed = self.tokens + self.padding + self.filler
        return 1 - self.tokens / computed if computed else 0.0


@dataclass(frozen=True, repr=False)
class Comparison:
    """One result for each rule; prints as a table."""

    k: int
    budget: Budget
    sequences: int
    tokens: int
    results: tuple[RuleResult, ...]

    def __getitem__(self, rule: str) -> RuleResult:
        for result in self.results:
            if result.rule == rule:
                return result
        raise DataError(
            f"there is no rule {rule!r}; compared are {', '.join(repr(r.rule) for r in self.results)}"
        )

    def __repr__(self) -> str:
        from bucketlab.views.plans import comparison_text

        return comparison_text(self)

    def _repr_html_(self) -> str:
        from bucketlab.views.plans import comparison_html

        return comparison_html(self)

    def to_dict(self) -> dict[str, Any]:
        return {
            "k": self.k,
            "budget": self.budget.to_dict(),
            "sequences": self.sequences,
            "tokens": self.tokens,
            "results": [{**vars(r), "bounds": list(r.bounds), "waste": r.waste} for r in self.results],
        }


def compare(
    lengths: Any,
    k: int = 8,
    budget: Budget | int | None = None,
    contexts: int | Sequence[Any] | None = None,
    workloads: Sequence[float] | None = None,
) -> Comparison:
    """What the bounds of other systems pad and drop, and the steps they take, beside the best bounds.

    The rules are those of MXNet, sockeye, gluonnlp, fairseq, lhotse and tensor2tensor, and powers of two.

    Each is given the same budget for a batch, 32 rows if none. MXNet's rule knows one batch size for all
    its buckets (under a budget of tokens, what the longest sequence allows) and drops what does not fill a
    batch; under all other rules the last batch of a bucket is filled.

    >>> compare([1] * 40 + [2] * 40 + [9] * 3, k=2)["MXNet"].too_long
    3
    """
    counted = count(lengths)
    if counted.dimensions != 1:
        raise DataError("compare takes single lengths; give one side of the pairs")
    if isinstance(k, bool) or int(k) != k or k < 1:
        raise DataError(f"k is {k!r}; give a whole number of buckets of at least 1")
    allowed = Budget.of(budget)
    shares = check_contexts(contexts, workloads, None)
    step = divisor(shares)
    longest = int(counted.values[-1])
    one_size = allowed.require(longest, step, contexts_text(shares))
    totals = np.concatenate([[0], np.cumsum(counted.counts)])

    def best(buckets: int) -> int:
        ends = best_bounds(counted.values, totals, buckets)
        return _padding(counted, [int(counted.values[end - 1]) for end in ends])

    results = [_mxnet(counted, one_size, best)]
    for rule in RULES:
        bounds = rule.choose(counted.values, counted.counts, k)
        rows = [allowed.rows_for(bound, step) for bound in bounds]
        results.append(_filled(rule.name, rule.says, counted, bounds, rows, best(len(bounds))))
    plan = plan_buckets(lengths, k, allowed, contexts, workloads)
    names = [int(key) for key in plan.keys]  # type: ignore[arg-type]
    results.append(_filled("optimum", plan.method, counted, names, list(plan.batch_sizes), best(len(plan))))
    return Comparison(int(k), allowed, counted.sequences, counted.tokens, tuple(results))


def _taken(counted: Counted, bounds: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """Sequences of each bucket, and each length's bucket as a position, len(bounds) where there is none."""
    at = np.searchsorted(np.asarray(bounds, dtype=np.int64), counted.values)
    return np.bincount(at, weights=counted.counts, minlength=len(bounds) + 1).astype(np.int64)[
        : len(bounds)
    ], at


def _padding(counted: Counted, bounds: Sequence[int]) -> int:
    taken, at = _taken(counted, bounds)
    held = at < len(bounds)
    real = (counted.values * counted.counts)[held].sum()
    return int((taken * np.asarray(bounds, dtype=np.int64)).sum() - real)


def _filled(
    name: str, says: str, counted: Counted, bounds: Sequence[int], rows: Sequence[int], best: int
) -> RuleResult:
    taken, _ = _taken(counted, bounds)
    steps = [steps_for(int(n), r) for n, r in zip(taken, rows)]
    filler = sum((s * r - int(n)) * b for s, r, n, b in zip(steps, rows, taken, bounds))
    padding = _padding(counted, bounds)
    return RuleResult(name, says, tuple(bounds), counted.tokens, padding, filler, best, sum(steps))


def _mxnet(counted: Counted, rows: int, best: Any) -> RuleResult:
    says = f"every length of at least {rows} sequences, the rest dropped"
    bounds = frequent_lengths(counted.values, counted.counts, rows)
    if not bounds:  # MXNet raises here
        nothing = counted.sequences, counted.tokens
        return RuleResult("MXNet", says + ": there is none", (), 0, 0, 0, 0, 0, *nothing)
    taken, at = _taken(counted, bounds)
    gone = at == len(bounds)
    lost = int((counted.values * counted.counts)[gone].sum())
    return RuleResult(
        "MXNet",
        says,
        tuple(bounds),
        counted.tokens - lost,
        _padding(counted, bounds),
        0,
        best(len(bounds)),
        int((taken // rows).sum()),
        int(counted.counts[gone].sum()),
        lost,
        int((taken % rows).sum()),
    )
