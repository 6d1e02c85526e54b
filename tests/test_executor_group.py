"""DataParallelExecutorGroup: sharing, slices, running, and what it refuses."""

from __future__ import annotations

import numpy as np
import pytest

from bucketlab import DataParallelExecutorGroup, mx
from bucketlab.errors import NotReadyError, ShapeError, SliceError, StaleError
from bucketlab.memory import same_memory, shared_bytes

CONTEXTS = [mx.cpu(0), mx.cpu(1)]


def lstm(layers, steps=6, vocab=30, hidden=5, embed=7):
    stack = mx.rnn.SequentialRNNCell()
    for i in range(layers):
        stack.add(mx.rnn.LSTMCell(num_hidden=hidden, prefix=f"lstm_l{i}_"))
    embedded = mx.sym.Embedding(mx.sym.Variable("data"), input_dim=vocab, output_dim=embed, name="embed")
    outputs, _ = stack.unroll(steps, inputs=embedded, merge_outputs=True)
    logits = mx.sym.FullyConnected(mx.sym.Reshape(outputs, shape=(-1, hidden)), num_hidden=vocab, name="pred")
    return mx.sym.SoftmaxOutput(logits, mx.sym.Reshape(mx.sym.Variable("softmax_label"), shape=(-1,)), name="softmax")


def classifier(hidden=3):
    return mx.sym.SoftmaxOutput(
        mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=hidden, name="fc"), name="softmax"
    )


def group(symbol=None, rows=4, contexts=CONTEXTS, **kwargs):
    symbol = symbol or classifier()
    names = [name for name in symbol.list_arguments() if name not in ("data", "softmax_label")]
    settings = {"workload": [1] * len(contexts), "for_training": True, "inputs_need_grad": False, **kwargs}
    return DataParallelExecutorGroup(
        symbol,
        contexts,
        settings.pop("workload"),
        [("data", (rows, 4))],
        [("softmax_label", (rows,))],
        names,
        settings.pop("for_training"),
        settings.pop("inputs_need_grad"),
        **settings,
    )


def batch(rows=4, seed=0, pad=0):
    rng = np.random.RandomState(seed)
    return mx.io.DataBatch(
        [mx.nd.array(rng.uniform(-1, 1, (rows, 4)))], [mx.nd.array(rng.randint(0, 3, rows))], pad=pad
    )


def fill(made, seed=1):
    rng = np.random.RandomState(seed)
    values = {n: mx.nd.array(rng.uniform(-1, 1, made.execs[0].arg_dict[n].shape)) for n in sorted(made.param_names)}
    made.set_params(values, {})
    return values


def test_groups_of_different_depth_share_parameters_gradients_and_inputs():
    data, label = [("data", (8, 6))], [("softmax_label", (8, 6))]
    shallow, deep = lstm(3), lstm(5)
    names = [name for name in shallow.list_arguments() if name not in ("data", "softmax_label")]
    first = DataParallelExecutorGroup(shallow, CONTEXTS, [1, 1], data, label, names, True, False)
    assert [set(arrays) for arrays in first.shared_data_arrays] == [{"data", "softmax_label"}] * 2
    second = DataParallelExecutorGroup(deep, CONTEXTS, [1, 1], data, label, names, True, False, shared_group=first)
    extra = {name for name in deep.list_arguments() if name not in names}
    for i in range(2):
        assert set(first.shared_data_arrays[i]) == set(second.shared_data_arrays[i]) == extra
        for name in extra:
            assert same_memory(first.shared_data_arrays[i][name], second.shared_data_arrays[i][name])
            assert same_memory(second.execs[i].arg_dict[name], second.shared_data_arrays[i][name])
        for name in names:
            assert same_memory(first.execs[i].arg_dict[name], second.execs[i].arg_dict[name])
            assert same_memory(first.execs[i].grad_dict[name], second.execs[i].grad_dict[name])
    assert not same_memory(first.execs[0].arg_dict["pred_weight"], first.execs[1].arg_dict["pred_weight"])
    assert all(second.grad_req[name] == request for name, request in first.grad_req.items())


def test_a_batch_is_cut_run_and_read_back_as_on_one_context():
    one, two = group(contexts=CONTEXTS[:1], rows=5), group(rows=5)
    values = fill(one)
    two.set_params(values, {})
    given = batch(5)
    for made in (one, two):
        made.forward(given, is_train=True)
        made.backward()
    assert [(part.start, part.stop) for part in two.slices] == [(0, 3), (3, 5)]
    np.testing.assert_allclose(two.get_outputs()[0].asnumpy(), one.get_outputs()[0].asnumpy(), rtol=1e-6)
    summed = sum(grad.asnumpy() for grad in two.grad_arrays[0])
    np.testing.assert_allclose(summed, one.grad_arrays[0][0].asnumpy(), rtol=1e-5)
    assert two.get_output_shapes() == [("softmax_output", (5, 3))]


def test_contexts_without_rows_rest_and_count_as_zero():
    one, two = group(contexts=CONTEXTS[:1]), group()
    two.set_params(fill(one), {})
    for made in (one, two):
        made.forward(batch(4), is_train=True)
        made.backward()
        made.reshape([("data", (1, 4))], [("softmax_label", (1,))])
        made.forward(batch(1, seed=3), is_train=True)
        made.backward()
    assert two.grad_arrays[0][1].asnumpy().any() == False  # noqa: E712
    np.testing.assert_allclose(two.grad_arrays[0][0].asnumpy(), one.grad_arrays[0][0].asnumpy(), rtol=1e-6)
    two.reshape([("data", (4, 4))], [("softmax_label", (4,))])
    two.forward(batch(4), is_train=True)
    assert two.get_outputs()[0].shape == (4, 3)


def test_outputs_that_were_handed_out_stay_what_they_are():
    made = group()
    fill(made)
    made.forward(batch(4, seed=0), is_train=False)
    kept = made.get_outputs()[0]
    before = kept.asnumpy()
    made.forward(batch(4, seed=9), is_train=False)
    assert np.array_equal(kept.asnumpy(), before)


def test_backward_after_another_user_of_the_working_memory_is_refused():
    first = group()
    fill(first)
    second = group(shared_group=first)
    first.forward(batch(), is_train=True)
    second.forward(batch(seed=5), is_train=True)
    with pytest.raises(StaleError, match="another bucket"):
        first.backward()
    second.backward()


def test_wrong_order_of_calls_says_what_is_missing():
    made = group()
    with pytest.raises(NotReadyError, match="forward"):
        made.get_outputs()
    with pytest.raises(NotReadyError, match="forward"):
        made.backward()
    made.forward(batch(), is_train=False)
    with pytest.raises(NotReadyError, match="is_train=True"):
        made.backward()
    inference = group(for_training=False)
    inference.forward(batch())
    with pytest.raises(NotReadyError, match="for_training=True"):
        inference.backward()
    with pytest.raises(NotReadyError, match="inputs_need_grad"):
        made.get_input_grads()


def test_seen_shapes_are_not_bound_again_and_parameters_stay_in_place():
    made = group(rows=6)
    first = made.execs[0]
    made.reshape([("data", (4, 4))], [("softmax_label", (4,))])
    second = made.execs[0]
    made.reshape([("data", (6, 4))], [("softmax_label", (6,))])
    assert made.execs[0] is first
    made.reshape([("data", (4, 4))], [("softmax_label", (4,))])
    assert made.execs[0] is second
    assert same_memory(first.arg_dict["fc_weight"], second.arg_dict["fc_weight"])
    assert shared_bytes(first.arg_dict["data"], second.arg_dict["data"]) == 2 * 4 * 4


def test_a_larger_shape_takes_over_the_working_memory_and_the_others_follow_it():
    made = group(rows=4)
    weight = made.execs[0].arg_dict["fc_weight"]
    made.reshape([("data", (8, 4))], [("softmax_label", (8,))])
    larger = made.execs[0]
    made.reshape([("data", (4, 4))], [("softmax_label", (4,))])
    smaller = made.execs[0]
    assert shared_bytes(smaller.arg_dict["data"], larger.arg_dict["data"]) == 2 * 4 * 4
    assert same_memory(smaller.arg_dict["fc_weight"], weight)
    assert [len(arrays) for arrays in made.shared_data_arrays] == [2, 2]
    assert made.shared_data_arrays[0]["data"].size == 16


def test_executors_that_were_let_go_of_come_back_when_they_are_asked_for():
    made = group()
    values = fill(made)
    made.drop_executors()
    assert made.execs[0].arg_dict["data"].shape == (2, 4)
    made.drop_executors()
    made.forward(batch(), is_train=True)
    made.backward()
    assert np.array_equal(made.execs[1].arg_dict["fc_weight"].asnumpy(), values["fc_weight"].asnumpy())


def test_a_refused_reshape_changes_nothing():
    made = group()
    fill(made)
    with pytest.raises(ShapeError, match=r"data of shape \(2, 7\).*fc_weight.*\(3, 7\).*\(3, 4\)"):
        made.reshape([("data", (4, 7))], [("softmax_label", (4,))])
    with pytest.raises(ShapeError, match=r"'softmax_label' has 3 rows.*'data' has 4"):
        made.reshape([("data", (4, 4))], [("softmax_label", (3,))])
    assert made.data_shapes[0].shape == (4, 4)
    made.forward(batch(), is_train=True)
    made.backward()


def test_grad_req_forms():
    names = classifier().list_arguments()
    assert group(grad_req="add").grad_req == {
        "data": "null", "fc_weight": "add", "fc_bias": "add", "softmax_label": "null",
    }  # fmt: skip
    assert group(grad_req=["null", "write", "null", "null"]).grad_req == dict(
        zip(names, ["null", "write", "null", "null"])
    )
    assert group(grad_req={"fc_bias": "null"}).grad_req["fc_weight"] == "write"
    with pytest.raises(ValueError, match="'fc_wait'"):
        group(grad_req={"fc_wait": "add"})
    with pytest.raises(ValueError, match=r"2 entries.*4 arguments"):
        group(grad_req=["write", "write"])
    with pytest.raises(ValueError, match="'adds'"):
        group(grad_req="adds")


def test_fixed_parameters_and_inference_have_no_gradient_memory():
    fixed = group(fixed_param_names=["fc_weight"])
    assert fixed.grad_req["fc_weight"] == "null" and fixed.execs[0].grad_dict["fc_weight"] is None
    assert fixed.execs[0].grad_dict["fc_bias"] is not None
    inference = group(for_training=False)
    assert inference.grad_arrays is None
    assert all(grad is None for grad in inference.execs[0].grad_dict.values())
    assert all(not memory.params.grads for memory in inference._memory.contexts)


def test_too_few_contexts_to_share_with_is_refused_before_anything_is_bound():
    giver = group(contexts=CONTEXTS[:1])
    inputs = dict(giver.shared_data_arrays[0])
    with pytest.raises(ShapeError, match=r"1 context.*2"):
        group(shared_group=giver)
    assert giver.shared_data_arrays[0] == inputs


def test_fewer_contexts_than_the_giver_share_with_its_first():
    giver = group()
    taker = group(contexts=CONTEXTS[:1], shared_group=giver)
    assert same_memory(giver.execs[0].arg_dict["fc_weight"], taker.execs[0].arg_dict["fc_weight"])


def test_padded_rows_count_in_no_metric():
    made = group(rows=4)
    made.set_params({"fc_weight": mx.nd.zeros((3, 4)), "fc_bias": mx.nd.array([1, 0, 0])}, {})
    given = mx.io.DataBatch([mx.nd.ones((4, 4))], [mx.nd.array([0, 1, 0, 0])], pad=2)
    made.forward(given, is_train=False)
    metric = mx.metric.Accuracy()
    made.update_metric(metric, given.label)
    assert metric.num_inst == 2 and metric.get()[1] == 0.5
    assert made.predicted()[0].shape == (2, 3)


def test_slice_report_names_contexts_rows_and_shapes():
    made = group(rows=5, workload=[1, 3])
    given = batch(5, pad=1)
    made.forward(given, is_train=False)
    report = made.slice_report("a")
    assert report.bucket == "a" and report.rows == 5 and report.pad == 1 and report.rule == "balanced"
    assert [(c.context, c.start, c.stop, c.valid_rows) for c in report.contexts] == [
        ("cpu(0)", 0, 1, 1),
        ("cpu(1)", 1, 5, 3),
    ]
    assert report.contexts[1].shapes == (("data", (4, 4)), ("softmax_label", (4,)))


def test_shapes_of_ones_own_per_context():
    symbol = mx.sym.Pooling(
        mx.sym.Convolution(mx.sym.Variable("data"), kernel=(3, 3), num_filter=2, name="conv"),
        global_pool=True, kernel=(1, 1), pool_type="avg",
    )  # fmt: skip
    symbol = mx.sym.SoftmaxOutput(mx.sym.Flatten(symbol), name="softmax")
    data = [[("data", (2, 1, 6, 6))], [("data", (3, 1, 5, 8))]]
    label = [[("softmax_label", (2,))], [("softmax_label", (3,))]]
    names = ["conv_weight", "conv_bias"]
    made = DataParallelExecutorGroup(symbol, CONTEXTS, [1, 1], data, label, names, True, False)
    rng = np.random.RandomState(0)
    arrays = [[mx.nd.array(rng.uniform(size=one[0][1]))] for one in data]
    labels = [[mx.nd.array([0, 1])], [mx.nd.array([1, 0, 1])]]
    values = fill(made)
    made.forward(mx.io.DataBatch(arrays, labels), is_train=True)
    made.backward()
    assert [out.shape for out in made.get_outputs(merge_multi_context=False)[0]] == [(2, 2), (3, 2)]
    assert made.get_outputs()[0].shape == (5, 2)
    for i in range(2):
        alone = DataParallelExecutorGroup(symbol, [mx.cpu()], [1], data[i], label[i], names, True, False)
        alone.set_params(values, {})
        alone.forward(mx.io.DataBatch(arrays[i], labels[i]), is_train=True)
        alone.backward()
        np.testing.assert_allclose(made.grad_arrays[0][i].asnumpy(), alone.grad_arrays[0][0].asnumpy(), rtol=1e-5)
    with pytest.raises(ShapeError, match="mixes two forms"):
        made.reshape([("data", (2, 1, 6, 6)), [("data", (3, 1, 5, 8))]], None)


def test_time_major_rows_come_back_in_order_over_contexts():
    data = mx.sym.Variable("data")
    flat = mx.sym.Reshape(data, shape=(-1, 1))
    made = {}
    for contexts in (CONTEXTS[:1], CONTEXTS):
        one = DataParallelExecutorGroup(
            flat * 2,
            contexts,
            [1] * len(contexts),
            [mx.io.DataDesc("data", (3, 4), layout="TN")],
            None,
            [],
            False,
            False,
        )
        one.forward(mx.io.DataBatch([mx.nd.arange(12).reshape((3, 4))], pad=1))
        made[len(contexts)] = one
    assert np.array_equal(made[2].get_outputs()[0].asnumpy(), made[1].get_outputs()[0].asnumpy())
    assert made[2].predicted()[0].asnumpy().ravel().tolist() == [0, 2, 4, 8, 10, 12, 16, 18, 20]


def test_rows_that_do_not_divide_by_an_exact_rule_are_refused():
    with pytest.raises(SliceError, match="multiple of 2 rows"):
        group(rows=5, split="exact")
