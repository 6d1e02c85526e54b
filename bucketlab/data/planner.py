"""Choosing buckets: the best bounds, the rows of each batch, and both together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from bucketlab.data.arguments import check_contexts, contexts_text
from bucketlab.data.batching import Budget, evened
from bucketlab.data.chain import Chains, candidates
from bucketlab.data.keys import Key, assign
from bucketlab.data.lengths import Cost, Counted, cost_name, count, row_cost, summed
from bucketlab.data.optimum import Layers, best_batched
from bucketlab.data.plan import BucketPlan, PlannedBucket
from bucketlab.errors import BudgetError, DataError
from bucketlab.slicing import divisor, row_counts

DENSE = (
    2000  # different lengths up to which bounds and batches are chosen together: n x n costs are held at once
)
BARS = 60
WASTE = 0.1


def plan_buckets(
    lengths: Any,
    k: int | None = None,
    budget: Budget | int | None = None,
    contexts: int | Sequence[Any] | None = None,
    workloads: Sequence[float] | None = None,
    cost: Cost = None,
    *,
    waste: float | None = None,
    step_cost: float = 0,
    even: bool = True,
    joint: bool | None = None,
) -> BucketPlan:
    """The best buckets for sequences of these lengths: those that compute the fewest tokens in an epoch.

    ``lengths`` are (n,) whole numbers, or (n, 2) for pairs, whose buckets form a chain. There are at most
    ``k`` buckets; with ``waste`` the fewest whose padding is no more than that share of what is computed;
    with neither, ``waste=0.1``. ``budget`` is what one batch may take: padded tokens, or
    ``Budget.rows(n)``, ``Budget.bytes(n, bytes_of)``; 32 rows if not given. Batches divide exactly over the
    contexts by their workloads and, unless ``even=False``, have no more rows than their number of steps
    needs.

    ``cost`` is what a row of a bound costs: ``"linear"``, ``"quadratic"``, or a function of bounds (see
    ``bucketlab.data.lengths.row_cost``); ``step_cost`` is added for each batch. ``joint`` chooses bounds
    and batch sizes together instead of one after the other: by default for up to 2,000 different lengths,
    but not for pairs nor for a budget of bytes, where it asks ``bytes_of`` about every length.

    >>> plan_buckets([3, 3, 4, 9, 9, 10], k=2).keys
    (4, 10)
    """
    counted = count(lengths)
    shares = check_contexts(contexts, workloads, None)
    if k is not None and (isinstance(k, bool) or int(k) != k or k < 1):
        raise DataError(f"k is {k!r}; give a whole number of buckets of at least 1")
    if waste is not None and not 0 <= waste < 1:
        raise DataError(f"waste is {waste!r}; give a share from 0 up to, not including, 1")
    limit = waste if waste is not None or k is not None else WASTE
    allowed = Budget.of(budget)
    step = divisor(shares)
    where = contexts_text(shares)
    chooser = _Single if counted.dimensions == 1 else _Pairs
    chosen = chooser(counted, allowed, step, cost, step_cost, even)
    chosen.require(where)
    together = joint if joint is not None else chosen.joint_by_default
    keys, method = chosen.choose(k, limit, together)
    buckets = _fill(keys, counted, allowed, step, even, shares, where)
    named = contexts if contexts is not None and not isinstance(contexts, int) else None
    default, order = _binding(buckets)
    return BucketPlan(
        buckets,
        tuple(map(str, named)) if named else tuple(f"context {i}" for i in range(len(shares))),
        shares,
        allowed,
        method,
        cost_name(cost),
        default,
        order,
        _histogram(counted),
    )


class _Single:
    """Bounds for one length."""

    def __init__(
        self, counted: Counted, budget: Budget, step: int, cost: Cost, step_cost: float, even: bool
    ) -> None:
        self.counted, self.budget, self.step = counted, budget, step
        self.step_cost, self.even = step_cost, even
        self.costs = summed(row_cost(cost, counted.values), counted.counts)
        self.totals = np.concatenate([[0], np.cumsum(counted.counts)])
        self.joint_by_default = len(counted.values) <= DENSE and budget.kind != "bytes"

    def require(self, where: str) -> None:
        self.budget.require(int(self.counted.values[-1]), self.step, where)

    def choose(self, k: int | None, limit: float | None, joint: bool) -> tuple[list[Key], str]:
        layers = Layers(self.costs, self.totals)
        distinct = len(self.costs)
        ideal = (self.costs * self.counted.counts).sum().item()
        if limit == 0 and k is None:
            return self._keys(range(1, distinct + 1)), "one bucket for each length"
        most = distinct if k is None else min(k, distinct)
        grow_until(layers.add, lambda: (layers.buckets, layers.total), ideal, most, limit)
        exact = self._keys(layers.ends())
        if not joint:
            return exact, "exact bounds" + (", batches evened" if self.even else "")
        caps = np.array([self.budget.rows_for(int(v), self.step) for v in self.counted.values])

        def group_cost(end: int) -> np.ndarray:
            taken = self.totals[end] - self.totals[:end]
            return batched_cost(
                taken, caps[end - 1], self.step, self.costs[end - 1], self.step_cost, self.even
            )

        keys = self._keys(best_batched(group_cost, distinct, layers.buckets))
        if limit is not None and self._share(keys, ideal) > limit:
            return exact, "exact bounds, as the joint optimum pads more than the limit"
        return keys, "joint optimum of bounds and batches"

    def _keys(self, ends: Any) -> list[Key]:
        return [int(self.counted.values[end - 1]) for end in ends]

    def _share(self, keys: list[Key], ideal: float) -> float:
        at = np.searchsorted(self.counted.values, np.asarray(keys))
        bound = at[np.searchsorted(at, np.arange(len(self.costs)))]
        return 1 - ideal / (self.costs[bound] * self.counted.counts).sum().item()


class _Pairs:
    """Bounds for pairs of lengths."""

    joint_by_default = False

    def __init__(
        self, counted: Counted, budget: Budget, step: int, cost: Cost, step_cost: float, even: bool
    ) -> None:
        self.counted, self.budget, self.step = counted, budget, step
        self.step_cost, self.even = step_cost, even
        self.source = candidates(counted.values[:, 0], counted.counts)
        self.target = candidates(counted.values[:, 1], counted.counts)
        self.costs = row_cost(cost, self.source[:, None], self.target[None, :]).astype(np.float64)
        own = (
            row_cost(cost, *counted.values.T).astype(np.float64)
            if cost is None or isinstance(cost, str)
            else None
        )
        self.ideal = float(((own if own is not None else self._own(cost)) * counted.counts).sum())

    def _own(self, cost: Cost) -> np.ndarray:
        # A function of bounds is checked on a grid, where "never falls" has a meaning, so it is asked on one.
        sides = [np.unique(self.counted.values[:, d]) for d in (0, 1)]
        grid = row_cost(cost, sides[0][:, None], sides[1][None, :])
        at = [np.searchsorted(sides[d], self.counted.values[:, d]) for d in (0, 1)]
        return grid[at[0], at[1]].astype(np.float64)

    def require(self, where: str) -> None:
        self.budget.require((int(self.source[-1]), int(self.target[-1])), self.step, where)

    def choose(self, k: int | None, limit: float | None, joint: bool) -> tuple[list[Key], str]:
        chains = Chains(self.counted, self.source, self.target, lambda n, i, j: n * self.costs[i, j])
        most = len(self.source) + len(self.target) if k is None else k
        grow_until(chains.add, lambda: (chains.buckets, chains.total), self.ideal, most, limit)
        whole = len(self.source) == len(np.unique(self.counted.values[:, 0])) and len(self.target) == len(
            np.unique(self.counted.values[:, 1])
        )
        method = (
            "best chain" if whole else f"best chain of {len(self.source)} x {len(self.target)} candidates"
        )
        if joint:
            buckets = chains.buckets
            caps = np.array(
                [
                    [self.budget.rows_for((int(s), int(t)), self.step) for t in self.target]
                    for s in self.source
                ]
            )

            def group_cost(taken: np.ndarray, i: int, j: int) -> np.ndarray:
                return batched_cost(taken, caps[i, j], self.step, self.costs[i, j], self.step_cost, self.even)

            chains = Chains(self.counted, self.source, self.target, group_cost)
            while chains.buckets < buckets and chains.add():
                pass
            method += ", bounds and batches together"
        elif self.even:
            method += ", batches evened"
        return list(chains.keys()), method


def grow_until(
    add: Callable[[], Any], now: Callable[[], tuple[int, float]], ideal: float, most: int, limit: float | None
) -> None:
    """Allow buckets one by one, up to ``most``, until padding is within ``limit``; refuse if never."""
    while True:
        buckets, total = now()
        share = 1 - ideal / total
        if limit is not None and share <= limit + 1e-12:
            return
        if buckets >= most or add() is False:
            if limit is not None:
                raise BudgetError(
                    f"waste is {limit}, but {buckets} bucket(s) pad {share:.4f} at least; allow more"
                )
            return


def batched_cost(
    taken: np.ndarray, most: int, step: int, cost: Any, step_cost: float, even: bool
) -> np.ndarray:
    """The cost of buckets that take so many sequences each, in batches of at most ``most`` rows."""
    if most < 1:
        return np.where(taken > 0, np.inf, 0.0)
    steps = -(-taken // most)
    each = -(-taken // np.maximum(steps, 1))
    rows = -(-each // step) * step if even else most
    return steps * (rows * cost + step_cost) * 1.0


def _fill(
    keys: Sequence[Key],
    counted: Counted,
    budget: Budget,
    step: int,
    even: bool,
    shares: tuple[float, ...],
    where: str,
) -> tuple[PlannedBucket, ...]:
    at = assign(keys, counted.values)
    buckets = []
    for position, key in enumerate(keys):
        mine = at == position
        sequences = int(counted.counts[mine].sum())
        if not sequences:
            continue
        most = budget.require(key, step, where)
        rows = evened(sequences, most, step) if even else most
        tokens = int((counted.sizes[mine] * counted.counts[mine]).sum())
        taken = int(budget.bytes_of(key, rows)) if budget.bytes_of is not None else None
        buckets.append(PlannedBucket(key, sequences, tokens, rows, tuple(row_counts(rows, shares)), taken))
    return tuple(buckets)


def _binding(buckets: Sequence[PlannedBucket]) -> tuple[Key, tuple[Key, ...]]:
    """The default key and the order to bind in.

    The default is the bucket that takes the most bytes, where these are known, and otherwise the one with
    the longest sequences: its arrays then hold every other bucket's. The rest follow by falling bytes, or
    by falling rows: of all orders, largest batch first was measured to grow the shared memory of unrolled
    graphs least.
    """
    known = all(b.bytes is not None for b in buckets)
    default = max(buckets, key=lambda b: (b.bytes or 0 if known else 0, b.size, b.key))
    rest = sorted(
        (b for b in buckets if b is not default),
        key=lambda b: (-(b.bytes or 0) if known else 0, -b.rows, -b.size),
    )
    return default.key, (default.key, *(b.key for b in rest))


def _histogram(counted: Counted) -> tuple[tuple[int, int, int], ...]:
    longest = int(counted.sizes.max())
    width = -(-longest // BARS)
    bars = np.bincount((counted.sizes - 1) // width, weights=counted.counts, minlength=-(-longest // width))
    return tuple((i * width + 1, (i + 1) * width, int(n)) for i, n in enumerate(bars))
