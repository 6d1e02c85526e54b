"""Which rows each context takes."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bucketlab import mx
from bucketlab.errors import SliceError
from bucketlab.slicing import check_workload, divisor, row_counts, slices_of

workloads = st.lists(st.sampled_from([1, 2, 3, 0.5, 5, 9]), min_size=1, max_size=8)


@given(rows=st.integers(1, 200), workload=workloads)
def test_balanced_slices_cover_the_batch_and_stay_within_a_row_of_the_exact_share(rows, workload):
    counts = row_counts(rows, workload)
    assert sum(counts) == rows and min(counts) >= (1 if rows >= len(workload) else 0)
    total = sum(map(Fraction, workload))
    shares = [rows * Fraction(share) / total for share in workload]
    if all(share >= 1 for share in shares):
        assert all(abs(count - share) < 1 for count, share in zip(counts, shares))
    if divisor(workload) and rows % divisor(workload) == 0:
        assert counts == shares


@given(rows=st.integers(1, 150), workload=workloads)
def test_mxnet_rule_is_theirs_bit_for_bit_errors_included(rows, workload):
    try:
        theirs = [part.stop - part.start for part in mx.executor_manager._split_input_slice(rows, workload)]
    except ValueError:
        with pytest.raises(SliceError, match="MXNet's rule"):
            row_counts(rows, workload, "mxnet")
    else:
        assert row_counts(rows, workload, "mxnet") == theirs


@given(rows=st.integers(1, 100), workload=workloads)
def test_exact_rule_refuses_what_does_not_divide_and_names_the_step(rows, workload):
    step = divisor(workload)
    if rows % step:
        with pytest.raises(SliceError, match=f"multiple of {step} rows"):
            row_counts(rows, workload, "exact")
    else:
        assert sum(row_counts(rows, workload, "exact")) == rows


def test_ties_go_to_the_earlier_context():
    assert row_counts(10, [1, 1, 1, 1]) == [3, 3, 2, 2]
    assert row_counts(7, [1, 2, 3]) == [1, 2, 4]
    assert row_counts(1, [1, 1]) == [1, 0]


def test_slices_follow_one_another():
    assert slices_of(5, [1, 1]) == [slice(0, 3), slice(3, 5)]


@pytest.mark.parametrize("share", [0, -1, math.nan, math.inf, True, "1"])
def test_workloads_are_positive_finite_numbers(share):
    with pytest.raises(SliceError, match=r"work_load_list\[1\]"):
        check_workload([1, share], 2)


def test_wrong_counts_and_rules_are_named():
    with pytest.raises(SliceError, match="2 entries for 3 context"):
        check_workload([1, 1], 3)
    with pytest.raises(SliceError, match="'even'"):
        row_counts(4, [1, 1], "even")
    with pytest.raises(SliceError, match="0 rows"):
        row_counts(0, [1, 1])


def test_a_batch_of_fewer_rows_than_contexts_stays_whole_where_asked_on_the_context_with_most_work():
    assert slices_of(2, [1, 3, 3], together=True) == [slice(0, 0), slice(0, 2), slice(2, 2)]
    assert slices_of(2, [1, 1, 1], together=True) == [slice(0, 2), slice(2, 2), slice(2, 2)]
    assert slices_of(3, [1, 1, 1], together=True) == slices_of(3, [1, 1, 1])
    with pytest.raises(SliceError, match="multiple of 3 rows"):
        slices_of(2, [1, 1, 1], "exact", together=True)
