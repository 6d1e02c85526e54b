"""Intervals of bytes: which overlap, and how many bytes each owner covers, every byte once."""

from __future__ import annotations

import numpy as np

__all__ = ["Segments", "group_intervals", "line_up"]


def line_up(domain: np.ndarray, start: np.ndarray, stop: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Move intervals of separate domains onto one line, so that those of different domains never overlap."""
    if not len(domain):
        return start, stop
    _, which = np.unique(domain, return_inverse=True)
    low = np.full(which.max() + 1, np.iinfo(np.int64).max)
    high = np.full(len(low), np.iinfo(np.int64).min)
    np.minimum.at(low, which, start)
    np.maximum.at(high, which, stop)
    shift = np.concatenate([[0], np.cumsum(high - low)[:-1]]) - low
    return start + shift[which], stop + shift[which]


def group_intervals(domain: np.ndarray, start: np.ndarray, stop: np.ndarray) -> np.ndarray:
    """A number for each interval ``[start, stop)``, equal for those of one domain that overlap, also through
    others.

    Intervals that only touch are apart; an empty one is alone.

    >>> group_intervals(np.array([7, 7, 7, 9]), np.array([0, 4, 2, 0]), np.array([4, 8, 6, 8])).tolist()
    [0, 0, 0, 1]
    """
    number = np.full(len(domain), -1)
    full = np.flatnonzero(stop > start)
    begin, end = line_up(domain[full], start[full], stop[full])
    order = np.argsort(begin, kind="stable")
    reach = np.maximum.accumulate(end[order])
    fresh = np.ones(len(order), bool)
    fresh[1:] = begin[order][1:] >= reach[:-1]
    number[full[order]] = np.cumsum(fresh) - 1
    alone = number < 0
    number[alone] = fresh.sum() + np.arange(alone.sum())
    return number


class Segments:
    """The line of bytes cut wherever an interval begins or ends: within one segment all bytes have the same
    owners.

    >>> cut = Segments(np.zeros(2, int), np.array([0, 4]), np.array([8, 10]))
    >>> cut.length.tolist(), cut.cover(np.array([0, 1]), 2).tolist()
    ([4, 4, 2], [[True, False], [True, True], [False, True]])
    """

    def __init__(self, domain: np.ndarray, start: np.ndarray, stop: np.ndarray):
        begin, end = line_up(domain, start, stop)
        cuts = np.unique(np.concatenate([begin, end]))
        self.length = np.diff(cuts)
        self._first = np.searchsorted(cuts, begin)
        self._last = np.searchsorted(cuts, end)

    def cover(self, owner: np.ndarray, owners: int) -> np.ndarray:
        """For each segment (rows) and owner (columns) whether an interval of that owner covers it.

        ``owner`` holds a column for each interval; those with a negative one are left out.
        """
        steps = np.zeros((len(self.length) + 1, owners), np.int32)
        used = owner >= 0
        np.add.at(steps, (self._first[used], owner[used]), 1)
        np.add.at(steps, (self._last[used], owner[used]), -1)
        return np.cumsum(steps[:-1], axis=0) > 0
