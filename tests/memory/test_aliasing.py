"""Same memory or not: known cases, and the judgement of a writer wherever that can tell."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bucketlab import mx
from bucketlab.memory import aliases, same_memory, shared_bytes


def test_views_reshapes_and_copies():
    a = mx.nd.zeros((10, 4))
    assert same_memory(a, a)
    assert same_memory(a, a.reshape((4, 10)))
    assert same_memory(a, a.detach())
    assert same_memory(a, a.as_in_context(mx.cpu(0)))
    assert same_memory(a[2:5], a[2:5].reshape((2, 6)))
    assert not same_memory(a, a.copy())
    assert not same_memory(a, a[0:9])
    assert not same_memory(a[0:4], a[4:8])
    assert not same_memory(a, mx.nd.zeros((10, 4), ctx=mx.cpu(1)))


def test_bytes_in_common():
    a = mx.nd.zeros((10, 4))
    assert shared_bytes(a, a[2:5]) == 48
    assert shared_bytes(a[0:4], a[2:6]) == 32
    assert shared_bytes(a[0:4], a[4:6]) == 0
    assert shared_bytes(a, a.copy()) == 0


def test_numpy_and_dlpack_lend_the_same_memory():
    memory = np.zeros((3, 4), "float32")
    one, other = (mx.nd.from_numpy(memory, zero_copy=True) for _ in range(2))
    assert same_memory(one, other)
    array = mx.nd.ones((5,))
    again = mx.nd.from_dlpack(array.to_dlpack_for_read())
    assert same_memory(array, again)
    assert shared_bytes(array[1:3], again) == 8


def test_arrays_without_memory_are_told_apart_by_their_owner():
    made = [
        mx.nd.NDArray(mx.nd.ndarray._new_alloc_handle((8,), mx.cpu(), True, np.float32)) for _ in range(2)
    ]
    assert same_memory(made[0], made[0].reshape((2, 4)))
    assert same_memory(made[0][2:4], made[0][2:4])
    assert not same_memory(made[0][2:4], made[0][4:6])
    assert not same_memory(*made)
    assert shared_bytes(made[0][2:6], made[0]) == 16


@pytest.mark.parametrize("storage", ["row_sparse", "csr"])
def test_sparse_arrays_are_compared_in_all_parts(storage):
    dense = mx.nd.array([[0, 1], [0, 0], [2, 3]])
    one, other = dense.tostype(storage), dense.tostype(storage)
    empty = mx.nd.sparse.zeros(storage, (3, 2))
    mx.nd.waitall()
    assert same_memory(one, one.detach())
    assert not same_memory(one, other)
    assert same_memory(empty, empty.detach())
    assert not same_memory(empty, mx.nd.sparse.zeros(storage, (3, 2)))


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_agrees_with_a_test_that_writes(data):
    """`same_array` adds to one and looks at the other: it can tell where both have one shape."""
    buffer = mx.nd.array(np.arange(24).reshape(12, 2))
    begin, other = data.draw(st.integers(0, 11)), data.draw(st.integers(0, 11))
    rows = data.draw(st.integers(1, 12 - max(begin, other)))
    a, b = buffer[begin : begin + rows], buffer[other : other + rows]
    if data.draw(st.booleans()):
        b = b.reshape((rows, 2))
    if data.draw(st.booleans()):
        a = a.copy()
    found = same_memory(a, b)
    assert found == mx.test_utils.same_array(a, b)


def test_what_is_no_array_is_refused():
    with pytest.raises(TypeError, match="b is a list"):
        same_memory(mx.nd.zeros((1,)), [1])


def test_groups_name_what_shares():
    a = mx.nd.zeros((10, 4))
    report = aliases({"whole": a, "part": a[2:5], "apart": a.copy()})
    assert [group.name for group in report.groups] == ["m0"]
    assert report.groups[0].names == ("whole", "part")
    assert (report.groups[0].bytes, report.groups[0].declared, report.saved) == (160, 208, 48)


def embedding(sparse: bool):
    weight = mx.sym.Variable("embed_weight", stype="row_sparse" if sparse else "default")
    embed = mx.sym.sparse.Embedding(
        mx.sym.Variable("data"), weight=weight, input_dim=20, output_dim=4, sparse_grad=sparse, name="embed"
    )
    net = mx.sym.FullyConnected(mx.sym.mean(embed, axis=1), num_hidden=3, name="fc")
    return mx.sym.SoftmaxOutput(net, name="softmax")


def two_groups(sparse: bool):
    def group(length, shared):
        symbol = embedding(sparse)
        data, label = [("data", (4, length))], [("softmax_label", (4,))]
        names = [name for name in symbol.list_arguments() if name not in ("data", "softmax_label")]
        return mx.module.executor_group.DataParallelExecutorGroup(
            symbol,
            [mx.cpu(0), mx.cpu(1)],
            [1, 1],
            data,
            label,
            names,
            for_training=True,
            inputs_need_grad=False,
            shared_group=shared,
        )

    first = group(6, None)
    return first, group(4, first)


def test_dense_groups_share_parameters_gradients_and_inputs():
    first, second = two_groups(sparse=False)
    report = aliases(long=first, short=second)
    assert report.buckets == ("long", "short")
    for group in report.groups:
        assert group.buckets == ("long", "short") and len(group.names) == 1
    shared = {(group.context, group.roles[0], group.names[0]) for group in report.groups}
    assert shared == {
        (context, role, name)
        for context in ("cpu(0)", "cpu(1)")
        for role, names in (
            ("parameter", ("embed_weight", "fc_weight", "fc_bias")),
            ("gradient", ("embed_weight", "fc_weight", "fc_bias")),
            ("data", ("data",)),
            ("label", ("softmax_label",)),
            # The outputs lie in the pool, which the groups have in common: the one that ran last is read.
            ("output", ("softmax_output",)),
        )
        for name in names
    }
    assert report.apart == ()


def test_a_row_sparse_gradient_stays_apart_and_says_why():
    first, second = two_groups(sparse=True)
    report = aliases(long=first, short=second)
    apart = [entry for entry in report.apart if entry.role == "gradient"]
    assert [(entry.context, entry.name) for entry in apart] == [
        ("cpu(0)", "embed_weight"),
        ("cpu(1)", "embed_weight"),
    ]
    assert apart[0].reason == "row_sparse: every bind makes its own gradient"
    assert apart[0].buckets == ("long", "short")
    shared = {(group.roles[0], group.names[0]) for group in report.groups}
    assert ("parameter", "embed_weight") in shared and ("gradient", "fc_weight") in shared


def test_a_later_larger_bucket_gets_inputs_of_its_own():
    first = two_groups(sparse=False)[1]
    symbol = first.symbol
    second = mx.module.executor_group.DataParallelExecutorGroup(
        symbol,
        first.contexts,
        [1, 1],
        [("data", (4, 9))],
        [("softmax_label", (4,))],
        first.param_names,
        True,
        False,
        shared_group=first,
    )
    report = aliases(short=first, long=second)
    assert [(entry.role, entry.context) for entry in report.apart] == [("data", "cpu(0)"), ("data", "cpu(1)")]
    assert "needed more than was there" in report.apart[0].reason


def test_a_report_tells_the_same_as_plain_data():
    a = mx.nd.zeros((10, 4))
    told = aliases([a, a]).to_dict()
    assert told["saved"] == 160
    assert [member["name"] for member in told["groups"][0]["members"]] == ["0", "1"]
    assert "address" not in told["groups"][0]["members"][0]
