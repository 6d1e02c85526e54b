"""FlatParameters: where parameters and gradients lie, and that nothing ever moves."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bucketlab import mx
from bucketlab.errors import ShapeError
from bucketlab.training import flat
from bucketlab.training.flat import FlatParameters, ParamSpec

DTYPES = ("float16", "float32", "float64")


def spec(name, shape=(2, 3), **more):
    return ParamSpec(name, shape, **more)


def test_parameters_of_one_dtype_share_one_buffer_and_start_at_64_bytes():
    store = FlatParameters(mx.cpu())
    store.ensure([spec("a_weight", (3, 5)), spec("b_weight", (7,)), spec("c_weight", (16,))])
    (segment,) = store.segments
    assert dict(segment.spans) == {"a_weight": (0, 15), "b_weight": (16, 23), "c_weight": (32, 48)}
    assert segment.weight.shape == segment.grad.shape == (48,)
    store.weights["b_weight"][:] = 2
    store.grads["c_weight"][:] = 3
    assert segment.weight.asnumpy().nonzero()[0].tolist() == list(range(16, 23))
    assert segment.grad.asnumpy().nonzero()[0].tolist() == list(range(32, 48))


def test_weights_and_gammas_come_first_so_that_they_are_one_range():
    store = FlatParameters(mx.cpu())
    store.ensure([spec(name) for name in ("a_bias", "a_weight", "n_beta", "n_gamma", "z_weight")])
    (segment,) = store.segments
    order = sorted(segment.spans, key=lambda name: segment.spans[name])
    assert order == ["a_weight", "n_gamma", "z_weight", "a_bias", "n_beta"]


def test_null_parameters_have_no_gradient_memory():
    store = FlatParameters(mx.cpu())
    store.ensure([spec("a"), spec("fixed", (100,), grad_req="null"), spec("b")])
    assert set(store.grads) == {"a", "b"}
    elements = [0 if segment.grad is None else segment.grad.size for segment in store.segments]
    assert elements == [32, 0]


def test_a_gradient_asked_for_later_is_made_then_and_only_for_that_name():
    store = FlatParameters(mx.cpu())
    store.ensure([spec(name, (n,), grad_req="null") for name, n in (("a", 3), ("b", 20), ("c", 5))])
    weights = dict(store.weights)
    for value, name in enumerate("abc", 1):
        store.weights[name][:] = value
    store.ensure([spec("b", (20,))])
    assert {name: store.weights[name] for name in "abc"} == weights
    assert set(store.grads) == {"b"}
    assert [(sorted(s.spans), s.grad is None) for s in store.segments] == [
        (["a"], True),
        (["b"], False),
        (["c"], True),
    ]
    trained = store.segments[1]
    assert trained.weight.asnumpy().tolist() == [2] * 20 + [0] * 12
    trained.weight[:] = 9
    assert store.weights["b"].asnumpy().tolist() == [9] * 20
    assert store.weights["c"].asnumpy().tolist() == [3] * 5


def test_new_names_make_a_new_segment_and_leave_the_old_ones_as_they_are():
    store = FlatParameters(mx.cpu())
    store.ensure([spec("a")])
    first, version = store.segments[0], store.version
    store.ensure([spec("a"), spec("b")])
    assert store.segments[0] is first and [sorted(s.spans) for s in store.segments] == [["a"], ["b"]]
    assert store.version > version
    version = store.version
    store.ensure([spec("b"), spec("a", grad_req="null")])
    assert store.version == version and set(store.grads) == {"a", "b"}


def test_sparse_and_foreign_parameters_have_arrays_of_their_own():
    store = FlatParameters(mx.cpu(0))
    store.ensure(
        [
            spec("rows", stype="row_sparse", grad_stype="row_sparse"),
            spec("dense_with_sparse_gradient", grad_stype="row_sparse"),
            spec("elsewhere", context=mx.cpu(1)),
        ]
    )
    assert store.weights["rows"].stype == store.grads["rows"].stype == "row_sparse"
    assert store.weights["dense_with_sparse_gradient"].stype == "default"
    assert store.grads["dense_with_sparse_gradient"].stype == "row_sparse"
    assert store.weights["elsewhere"].context == store.grads["elsewhere"].context == mx.cpu(1)
    assert all("rows" not in segment.spans for segment in store.segments)


@pytest.mark.parametrize(
    "other, words",
    [
        (spec("a", (3, 2)), ["'a'", "shape", "(2, 3)", "(3, 2)"]),
        (spec("a", dtype="float16"), ["'a'", "dtype", "float32", "float16"]),
        (spec("a", stype="row_sparse"), ["'a'", "stype", "default", "row_sparse"]),
        (spec("a", grad_stype="row_sparse"), ["'a'", "grad_stype"]),
        (spec("a", context=mx.cpu(2)), ["'a'", "cpu(0)", "cpu(2)"]),
        (spec("a", (2, 0)), ["'a'", "(2, 0)"]),
    ],
)
def test_a_refused_call_names_both_and_changes_nothing(other, words):
    store = FlatParameters(mx.cpu(0))
    store.ensure([spec("a")])
    before = (store.segments, dict(store.weights), dict(store.grads), store.version)
    with pytest.raises(ShapeError) as caught:
        store.ensure([spec("new"), other])
    assert all(word in str(caught.value) for word in words)
    assert before == (store.segments, dict(store.weights), dict(store.grads), store.version)


def test_grad_req_must_be_one_that_mxnet_has():
    with pytest.raises(ValueError, match=r"'w'.*'sum'"):
        spec("w", grad_req="sum")


def test_no_buffer_has_more_elements_than_the_engine_can_count(monkeypatch):
    monkeypatch.setattr(flat, "MAX_ELEMENTS", 40)
    store = FlatParameters(mx.cpu())
    store.ensure([spec(name, (n,)) for name, n in (("a", 16), ("b", 17), ("c", 16), ("d", 100))])
    assert [sorted(segment.spans) for segment in store.segments] == [["a"], ["b"], ["c"], ["d"]]


specs = st.lists(
    st.builds(
        ParamSpec,
        name=st.sampled_from("abcdefgh"),
        shape=st.sampled_from([(1,), (3, 5), (64,), (2, 2, 2)]),
        dtype=st.sampled_from(DTYPES),
        grad_req=st.sampled_from(["write", "add", "null"]),
    ),
    unique_by=lambda one: one.name,
)


@settings(max_examples=20, deadline=None)
@given(st.lists(specs, max_size=4))
def test_whatever_is_ensured_nothing_overlaps_moves_or_lacks_a_place(calls):
    store, known, marks = FlatParameters(mx.cpu()), {}, {}
    for wanted in calls:
        wanted = [known.get(one.name, one) if one.name in known else one for one in wanted]
        held = dict(store.weights)
        store.ensure(wanted)
        known.update({one.name: one for one in wanted})
        for name, array in held.items():
            assert store.weights[name] is array
            assert (array.asnumpy() == marks[name]).all()
        for name in set(store.weights) - set(held):
            marks[name] = len(marks) + 1
            store.weights[name][:] = marks[name]
    for name, one in known.items():
        assert store.weights[name].shape == one.shape and store.weights[name].dtype == np.dtype(one.dtype)
        assert (store.weights[name].asnumpy() == marks[name]).all()
        assert (name in store.grads) == (one.grad_req != "null")
    for segment in store.segments:
        taken = np.zeros(segment.weight.shape, bool)
        for start, stop in segment.spans.values():
            assert start * segment.dtype.itemsize % 64 == 0 and not taken[start:stop].any()
            taken[start:stop] = True
        assert not segment.weight.asnumpy()[~taken].any()
