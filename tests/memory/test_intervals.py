"""Intervals against the plainest way to find the same: byte by byte."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from bucketlab.memory.intervals import Segments, group_intervals

intervals = st.lists(
    st.tuples(st.integers(0, 2), st.integers(0, 25), st.integers(0, 6), st.integers(0, 3)), max_size=12
)


def columns(found):
    table = np.array([(10**9 * d, s + 7, s + 7 + n, o) for d, s, n, o in found], np.int64).reshape(-1, 4)
    return table.T


@given(intervals)
def test_groups_are_the_connected_components_of_overlap(found):
    domain, start, stop, _ = columns(found)
    sets = [{(d, at) for at in range(a, b)} for d, a, b in zip(domain, start, stop)]
    expected = list(range(len(sets)))
    for _ in sets:
        for i, one in enumerate(sets):
            for j, other in enumerate(sets):
                if one & other:
                    expected[i] = expected[j] = min(expected[i], expected[j])
    number = group_intervals(domain, start, stop).tolist()
    for i in range(len(sets)):
        for j in range(len(sets)):
            assert (number[i] == number[j]) == (expected[i] == expected[j])


@given(intervals)
def test_cover_counts_every_byte_of_an_owner_once(found):
    domain, start, stop, owner = columns(found)
    cut = Segments(domain, start, stop)
    cover = cut.cover(owner, 4)
    for who in range(4):
        byte_set = {
            (d, at) for d, a, b, o in zip(domain, start, stop, owner) if o == who for at in range(a, b)
        }
        assert int(cut.length @ cover[:, who]) == len(byte_set)
    everything = {(d, at) for d, a, b in zip(domain, start, stop) for at in range(a, b)}
    assert int(cut.length @ cover.any(axis=1)) == len(everything)


def test_owners_below_zero_are_left_out():
    cut = Segments(np.zeros(2, int), np.array([0, 4]), np.array([8, 10]))
    assert cut.cover(np.array([-1, 0]), 1).tolist() == [[False], [True], [True]]
