"""The best bounds there are, in one dimension: exact dynamic programs over the different lengths.

Lengths rise; ``totals[j]`` sequences have one of the first ``j`` lengths. A bucket ``(i, j]`` takes the
lengths ``i + 1 .. j`` and pads them to the ``j``-th.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np


@dataclass
class Layers:
    """One layer for each number of buckets: the least cost of the first ``j`` lengths in at most so many.

    ``costs[j - 1]`` is the cost of a row padded to the ``j``-th length, and must not fall.
    """

    costs: np.ndarray
    totals: np.ndarray
    best: np.ndarray = field(init=False)
    backs: list[np.ndarray] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.best = np.concatenate([[0], self.costs * self.totals[1:]]).astype(self.costs.dtype)
        self.backs = [np.zeros(len(self.totals), dtype=np.int32)]

    @property
    def buckets(self) -> int:
        return len(self.backs)

    @property
    def total(self) -> float:
        """The least cost of all lengths in at most :attr:`buckets` buckets."""
        return self.best[-1].item()

    def add(self) -> bool:
        """Allow one bucket more; False if that makes nothing better.

        The best start of the last bucket never moves left as its end moves right (costs rise with the end,
        counts with the start), so the ends are halved, all segments of one depth at once: O(n log n) in
        whole arrays.
        """
        n = len(self.costs)
        best, back = self.best.copy(), np.zeros(n + 1, dtype=np.int32)
        low, high = np.array([1]), np.array([n])
        first, last = np.array([0]), np.array([n - 1])
        while len(low):
            end = (low + high) // 2
            widths = np.minimum(end - 1, last) - first + 1
            offsets = np.concatenate([[0], np.cumsum(widths)[:-1]])
            segment = np.repeat(np.arange(len(end)), widths)
            start = np.arange(len(segment)) - (offsets - first)[segment]
            ends = end[segment]
            value = self.best[start] + self.costs[ends - 1] * (self.totals[ends] - self.totals[start])
            least = np.minimum.reduceat(value, offsets)
            at = np.flatnonzero(value == least[segment])
            chosen = start[at[np.searchsorted(segment[at], np.arange(len(end)))]]
            best[end], back[end] = least, chosen
            low, high = np.concatenate([low, end + 1]), np.concatenate([end - 1, high])
            first, last = np.concatenate([first, chosen]), np.concatenate([chosen, last])
            alive = low <= high
            low, high, first, last = low[alive], high[alive], first[alive], last[alive]
        better = not np.array_equal(best, self.best)
        if better:
            self.best = best
            self.backs.append(back)
        return better

    def ends(self) -> list[int]:
        """Where the best buckets end: positions in the lengths, from 1. Fewer than allowed if as good."""
        return trace(self.backs)


def trace(backs: list[np.ndarray]) -> list[int]:
    at, ends = len(backs[0]) - 1, []
    for back in reversed(backs):
        if at == 0:
            break
        ends.append(at)
        at = int(back[at])
    return ends[::-1]


def best_bounds(costs: np.ndarray, totals: np.ndarray, buckets: int) -> list[int]:
    """Ends of at most ``buckets`` buckets of least cost."""
    layers = Layers(costs, totals)
    while layers.buckets < buckets and layers.add():
        pass
    return layers.ends()


def best_batched(group_cost: Callable[[int], np.ndarray], lengths: int, buckets: int) -> list[int]:
    """Ends of at most ``buckets`` buckets of least cost, for any cost of a bucket: O(k n^2) in whole arrays.

    ``group_cost(j)`` gives the cost of bucket ``(i, j]`` for every ``i < j``.
    """
    costs = np.full((lengths + 1, lengths + 1), np.inf)
    for end in range(1, lengths + 1):
        costs[:end, end] = group_cost(end)
    best = costs[0].copy()
    best[0] = 0
    backs = [np.zeros(lengths + 1, dtype=np.int32)]
    for _ in range(min(buckets, lengths) - 1):
        candidates = best[:, None] + costs
        back = candidates.argmin(axis=0)
        now = candidates[back, np.arange(lengths + 1)]
        now[0] = 0
        if np.array_equal(now, best):
            break
        best = now
        backs.append(back.astype(np.int32))
    return trace(backs)
