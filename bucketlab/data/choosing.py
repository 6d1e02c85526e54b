"""How many buckets, and which: by padding first, then together with the batches they make."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bucketlab.data.batching import Budget
from bucketlab.data.chain import Chains, candidates
from bucketlab.data.keys import Key, assign
from bucketlab.data.lengths import Cost, Counted, row_cost, summed
from bucketlab.data.optimum import Layers, best_batched
from bucketlab.errors import BudgetError

# Different lengths up to which bounds and batches are chosen together: n x n costs are held at once.
DENSE = 2000
_ROUNDING = 1e-12


@dataclass(frozen=True)
class Wish:
    """What is asked for: at most ``k`` buckets, a share of padding up to ``limit``, batches in the budget."""

    k: int | None
    limit: float | None
    budget: Budget
    step: int
    cost: Cost
    step_cost: float
    even: bool
    joint: bool | None

    @property
    def evened(self) -> str:
        return ", batches evened" if self.even else ""

    def batched(self, taken: np.ndarray, most: int, cost: Any) -> np.ndarray:
        """The cost of buckets that take so many sequences each, in batches of at most ``most`` rows."""
        if most < 1:
            return np.where(taken > 0, np.inf, 0.0)
        steps = -(-taken // most)
        rows: Any = most
        if self.even:
            each = -(-taken // np.maximum(steps, 1))
            rows = -(-each // self.step) * self.step
        return steps * (rows * cost + self.step_cost) * 1.0


def choose_bounds(counted: Counted, wish: Wish) -> tuple[list[Key], str]:
    """Bounds for single lengths, and in words how they were chosen."""
    values, counts = counted.values, counted.counts
    costs = summed(row_cost(wish.cost, values), counts)
    totals = np.concatenate([[0], np.cumsum(counts)])

    def keys_of(ends: Sequence[int]) -> list[Key]:
        return [int(values[end - 1]) for end in ends]

    if wish.limit == 0 and wish.k is None:  # no padding at all: a bucket wherever the cost rises
        return keys_of(
            [*(np.flatnonzero(np.diff(costs)) + 1).tolist(), len(values)]
        ), "one bucket for each cost"
    layers = Layers(costs, totals)
    ideal = (costs * counts).sum().item()
    _grow(layers, ideal, wish)
    exact = keys_of(layers.ends())
    together = len(values) <= DENSE and wish.budget.kind != "bytes" if wish.joint is None else wish.joint
    if not together:
        return exact, "exact bounds" + wish.evened
    most = [wish.budget.rows_for(int(value), wish.step) for value in values]

    def group_cost(end: int) -> np.ndarray:
        return wish.batched(totals[end] - totals[:end], most[end - 1], costs[end - 1])

    keys = keys_of(best_batched(group_cost, len(values), layers.buckets))
    if wish.limit is not None and padding_share(keys, counted, wish.cost) > wish.limit + _ROUNDING:
        return exact, "exact bounds, as the joint optimum pads more than the limit"
    return keys, "joint optimum of bounds and batches"


def choose_chain(counted: Counted, wish: Wish) -> tuple[list[Key], str]:
    """Bounds for pairs, a chain, and in words how they were chosen."""
    lengths = [np.unique(counted.values[:, side]) for side in (0, 1)]
    source, target = (candidates(counted.values[:, side], counted.counts) for side in (0, 1))
    costs = row_cost(wish.cost, source[:, None], target[None, :]).astype(np.float64)
    chains = Chains(counted, source, target, lambda taken, i, j: taken * costs[i, j])
    _grow(chains, _least_cost(counted, wish.cost), wish)
    whole = len(source) == len(lengths[0]) and len(target) == len(lengths[1])
    method = "best chain" if whole else f"best chain of {len(source)} x {len(target)} candidates"
    exact: list[Key] = list(chains.keys())
    if not wish.joint:
        return exact, method + wish.evened
    most = [[wish.budget.rows_for((int(s), int(t)), wish.step) for t in target] for s in source]
    joint = Chains(counted, source, target, lambda taken, i, j: wish.batched(taken, most[i][j], costs[i, j]))
    while joint.buckets < chains.buckets and joint.add():
        pass
    keys: list[Key] = list(joint.keys())
    if wish.limit is not None and padding_share(keys, counted, wish.cost) > wish.limit + _ROUNDING:
        return exact, method + ", as its joint optimum pads more than the limit"
    return keys, method + ", bounds and batches together"


def padding_share(keys: Sequence[Key], counted: Counted, cost: Cost) -> float:
    """The share of padding in the cost of all rows, put into the tightest of the buckets."""
    sides = np.asarray(keys).reshape(len(keys), -1).T
    grid = row_cost(cost, *(np.sort(side) for side in sides))
    each = dict(zip(sorted(keys), grid.tolist()))
    per_key = np.array([each[key] for key in keys])
    padded = float((per_key[assign(keys, counted.values)] * counted.counts).sum())
    return 1 - _least_cost(counted, cost) / padded


def _least_cost(counted: Counted, cost: Cost) -> float:
    """What all rows would cost without padding."""
    if counted.dimensions == 1:
        each = row_cost(cost, counted.values)
    else:
        # A cost must not fall as bounds grow; only on a grid can that be checked.
        sides = [np.unique(counted.values[:, side]) for side in (0, 1)]
        grid = row_cost(cost, sides[0][:, None], sides[1][None, :])
        at = [np.searchsorted(sides[side], counted.values[:, side]) for side in (0, 1)]
        each = grid[at[0], at[1]]
    return float((each * counted.counts).sum())


def _grow(state: Layers | Chains, ideal: float, wish: Wish) -> None:
    """Allow buckets one by one, up to ``k``, until padding is within the limit; refuse if it never is."""
    while True:
        share = 1 - ideal / state.total
        if wish.limit is not None and share <= wish.limit + _ROUNDING:
            return
        if state.buckets == wish.k or not state.add():
            if wish.limit is None:
                return
            raise BudgetError(
                f"waste is {wish.limit}, but {state.buckets} bucket(s) pad {share:.4f} at least; allow more"
            )
