"""Lengths as a histogram, and what a row of each length costs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Union

import numpy as np

from bucketlab.errors import DataError

CostOf = Callable[..., Any]
Cost = Union[str, CostOf, None]


@dataclass(frozen=True, eq=False)
class Counted:
    """Different lengths that rise, (n,), or different pairs, (n, 2), and how often each comes."""

    values: np.ndarray
    counts: np.ndarray

    @property
    def dimensions(self) -> int:
        return self.values.ndim

    @property
    def sizes(self) -> np.ndarray:
        """Tokens of each: the length, or both lengths together."""
        return self.values if self.values.ndim == 1 else self.values.sum(axis=1)

    @property
    def sequences(self) -> int:
        return int(self.counts.sum())

    @property
    def tokens(self) -> int:
        return int((self.sizes * self.counts).sum())


def count(given: Any) -> Counted:
    """Count lengths, (n,) whole numbers of at least 1 or (n, 2) of them; a corpus stands for its own."""
    lengths = np.asarray(getattr(given, "lengths", given))
    if lengths.size == 0:
        raise DataError("lengths is empty; give at least one")
    if lengths.ndim not in (1, 2) or (lengths.ndim == 2 and lengths.shape[1] != 2):
        raise DataError(f"lengths has shape {lengths.shape}; give (n,) lengths or (n, 2) pairs of lengths")
    if lengths.dtype.kind not in "iu":
        raise DataError(f"lengths are {lengths.dtype}; give whole numbers")
    if lengths.min() < 1:
        row = int(np.argmin(lengths)) // (lengths.ndim)
        raise DataError(f"lengths[{row}] is {lengths[row].tolist()}; every length must be at least 1")
    if lengths.ndim == 2:
        return Counted(*np.unique(lengths.astype(np.int64), axis=0, return_counts=True))
    if lengths.max() <= 4 * len(lengths) + 1000:  # a dense count is one pass, a sort is many
        counts = np.bincount(lengths)
        values = np.flatnonzero(counts)
        return Counted(values, counts[values])
    return Counted(*np.unique(lengths.astype(np.int64), return_counts=True))


def cost_name(cost: Cost) -> str:
    if cost is None:
        return "linear"
    return cost if isinstance(cost, str) else getattr(cost, "__name__", type(cost).__name__)


def row_cost(cost: Cost, *sides: np.ndarray) -> np.ndarray:
    """What one row costs at each bound: its padded tokens, their square, or what ``cost`` says.

    ``cost`` is None or ``"linear"``, ``"quadratic"``, or a function of an array of bounds (of two for
    pairs) that gives positive numbers which never fall as bounds grow.
    """
    total = np.sum(np.broadcast_arrays(*sides), axis=0)
    if cost is None or cost == "linear":
        return total
    if cost == "quadratic":
        return total**2
    if not callable(cost):
        raise DataError(f"cost is {cost!r}; give 'linear', 'quadratic' or a function of bounds")
    costs = np.asarray(cost(*sides))
    if costs.shape != total.shape or costs.dtype.kind not in "iuf":
        raise DataError(f"cost gives {costs.dtype} of shape {costs.shape} for bounds of shape {total.shape}")
    for axis in range(costs.ndim):
        if (np.diff(costs, axis=axis) < 0).any():
            raise DataError(f"cost {cost_name(cost)} falls as bounds grow; a longer row must not cost less")
    if not np.isfinite(costs).all() or costs.min() <= 0:
        raise DataError(f"cost {cost_name(cost)} gives {costs.min()}; costs are positive finite numbers")
    return costs


def summed(costs: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """``costs`` as exact integers where no sum of them can overflow, as floats otherwise."""
    if costs.dtype.kind in "iu" and int(costs.max()) * int(counts.sum()) < 2**61:
        return costs.astype(np.int64)
    return costs.astype(np.float64)
