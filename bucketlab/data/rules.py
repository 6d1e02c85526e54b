"""How other systems choose bounds, each from its documentation and behaviour, to be set beside the optimum.

A rule takes the different lengths, which rise, their counts, and a number of buckets, and gives bounds.
Most end with the longest length, so that nothing is dropped; where a rule drops, that is its own doing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

Bounds = list[int]
Choose = Callable[[np.ndarray, np.ndarray, int], Bounds]


@dataclass(frozen=True)
class Rule:
    """A named way to choose bounds. ``own_k``: it takes no number of buckets but finds its own."""

    name: str
    says: str
    choose: Choose
    own_k: bool = False


def _up_to(bounds: list[int], longest: int) -> Bounds:
    """Different bounds that rise and hold everything."""
    return sorted({b for b in bounds if 1 <= b < longest} | {longest})


def equal_width(values: np.ndarray, counts: np.ndarray, k: int) -> Bounds:
    longest = int(values[-1])
    width = -(-longest // k)
    return _up_to(list(range(width, longest + width, width)), longest)


def constant_width_from_the_top(values: np.ndarray, counts: np.ndarray, k: int) -> Bounds:
    shortest, longest = int(values[0]), int(values[-1])
    width = max((1 + longest - shortest) // k, 1)
    return _up_to([max(longest - i * width, shortest) for i in range(k)], longest)


def linear_widths(values: np.ndarray, counts: np.ndarray, k: int) -> Bounds:
    # Widths 1 + a, 1 + 2a, ...: they sum to the span when a = 2 (span - k) / (k (k + 1)).
    shortest, longest = int(values[0]), int(values[-1])
    growth = 2 * (longest - shortest - k) / (k * (k + 1))
    i = np.arange(1, k + 1)
    return _up_to(np.round(shortest + growth * i * (i + 1) / 2 + i).astype(int).tolist(), longest)


def exponential_widths(values: np.ndarray, counts: np.ndarray, k: int, ratio: float = 1.1) -> Bounds:
    shortest, longest = int(values[0]), int(values[-1])
    grown = (ratio ** np.arange(1, k + 1) - 1) / (ratio**k - 1)
    return _up_to(np.round(shortest + (longest - shortest) * grown).astype(int).tolist(), longest)


def equal_counts(values: np.ndarray, counts: np.ndarray, k: int) -> Bounds:
    # Percentiles without interpolation: the length that stands at each k-th of the sorted list.
    ends = np.cumsum(counts)
    places = np.arange(1, k + 1) * (ends[-1] - 1) // k
    return _up_to(values[np.searchsorted(ends, places, side="right")].tolist(), int(values[-1]))


def equal_tokens(values: np.ndarray, counts: np.ndarray, k: int) -> Bounds:
    # Sequences are added up in order of length; once a bin is over its k-th of all tokens, the next starts at
    # the following sequence, with nothing carried over. A bin takes what is shorter than the next's first.
    share = float((values * counts).sum()) / k
    bounds, total = [], 0.0
    for position, (length, count) in enumerate(zip(values.tolist(), counts.tolist())):
        left = count
        while left:
            if total > share:
                if position:
                    bounds.append(int(values[position - 1]))
                total = 0.0
            # The smallest number of sequences of this length that goes over the share, if so many are left.
            needed = max(int((share - total) // length) + 1, 1)
            taken = min(left, needed)
            total += taken * length
            left -= taken
    return _up_to(bounds, int(values[-1]))


def growing_by_a_tenth(values: np.ndarray, counts: np.ndarray, k: int, first: int = 8) -> Bounds:
    longest, bounds, bound = int(values[-1]), [], first
    while bound < longest:
        bounds.append(bound)
        bound = max(bound + 1, int(bound * 1.1))
    return _up_to(bounds, longest)


def powers_of_two(values: np.ndarray, counts: np.ndarray, k: int, first: int = 8) -> Bounds:
    longest, bounds, bound = int(values[-1]), [], first
    while bound < longest:
        bounds.append(bound)
        bound *= 2
    return _up_to(bounds, longest)


RULES = (
    Rule("sockeye", "equal widths", equal_width),
    Rule("gluonnlp constant", "equal widths, counted down from the longest", constant_width_from_the_top),
    Rule("gluonnlp linear", "widths that grow by a constant", linear_widths),
    Rule("gluonnlp exponential", "widths that grow by a tenth", exponential_widths),
    Rule("fairseq", "as many sequences in each", equal_counts),
    Rule("lhotse", "as many tokens in each", equal_tokens),
    Rule("tensor2tensor", "bounds that grow by a tenth from 8", growing_by_a_tenth, own_k=True),
    Rule("powers of two", "8, 16, 32, ...", powers_of_two, own_k=True),
)


def frequent_lengths(values: np.ndarray, counts: np.ndarray, rows: int) -> Bounds:
    """MXNet: every length that at least a batch of sequences has; what is longer than them all is dropped."""
    return values[counts >= rows].tolist()
