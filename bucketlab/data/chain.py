"""The best buckets for pairs: a chain growing in both lengths; a pair goes to the first that holds it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from bucketlab.data.lengths import Counted
from bucketlab.data.optimum import best_bounds

GRID = 96  # candidate bounds on each side; the search takes buckets x (GRID x GRID)^2 / 4 steps
GroupCost = Callable[[np.ndarray, int, int], np.ndarray]


def candidates(lengths: np.ndarray, counts: np.ndarray, most: int = GRID) -> np.ndarray:
    """All different lengths of one side or, when there are too many, the best ``most`` bounds of it."""
    values, where = np.unique(lengths, return_inverse=True)
    if len(values) <= most:
        return values
    weights = np.zeros(len(values), dtype=np.int64)
    np.add.at(weights, where.reshape(-1), counts)
    ends = best_bounds(values, np.concatenate([[0], np.cumsum(weights)]), most)
    return values[np.asarray(ends) - 1]


class Chains:
    """The best chains out of ``source`` x ``target``, one bucket more with each :meth:`add`.

    ``held[i, j]`` pairs fit into ``(source[i], target[j])``. A bucket that follows another takes the
    difference, so the cost of a chain is a sum over neighbours. ``group_cost(n, i, j)`` is that of the
    bucket ``(i, j)`` taking ``n`` pairs, for an array of ``n``; it is 0 for none.
    """

    def __init__(
        self, counted: Counted, source: np.ndarray, target: np.ndarray, group_cost: GroupCost
    ) -> None:
        held = np.zeros((len(source), len(target)), dtype=np.int64)
        rows = np.searchsorted(source, counted.values[:, 0])
        columns = np.searchsorted(target, counted.values[:, 1])
        np.add.at(held, (rows, columns), counted.counts)
        self.source, self.target, self.group_cost = source, target, group_cost
        self.held = held.cumsum(axis=0).cumsum(axis=1)
        self.best = np.empty(held.shape)
        for i, j in np.ndindex(held.shape):
            self.best[i, j] = group_cost(self.held[i : i + 1, j], i, j)[0]
        self.backs: list[np.ndarray] = [np.full(held.shape, -1, dtype=np.int32)]

    @property
    def buckets(self) -> int:
        return len(self.backs)

    @property
    def total(self) -> float:
        """The least cost of all pairs in at most :attr:`buckets` buckets."""
        return float(self.best[-1, -1])

    def add(self) -> bool:
        """Allow one bucket more; False if that makes nothing better."""
        now, back = self.best.copy(), np.full(self.best.shape, -1, dtype=np.int32)
        width = self.best.shape[1]
        for i, j in np.ndindex(self.best.shape):
            taken = self.held[i, j] - self.held[: i + 1, : j + 1]
            cost = self.best[: i + 1, : j + 1] + self.group_cost(taken, i, j)
            at = int(cost.argmin())
            least = cost.flat[at]
            if least < now[i, j]:
                now[i, j] = least
                back[i, j] = at // (j + 1) * width + at % (j + 1)
        better = not np.array_equal(now, self.best)
        if better:
            self.best = now
            self.backs.append(back)
        return better

    def keys(self) -> list[tuple[int, int]]:
        """The best chain, which ends with the longest lengths of both sides."""
        width = self.best.shape[1]
        i, j = (n - 1 for n in self.best.shape)
        chain = {(int(self.source[i]), int(self.target[j]))}
        for back in reversed(self.backs):
            at = int(back[i, j])
            if at >= 0:  # otherwise one bucket fewer is as good here
                i, j = divmod(at, width)
                chain.add((int(self.source[i]), int(self.target[j])))
        return sorted(chain)
