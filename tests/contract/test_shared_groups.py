"""Executor groups that share: what becomes one memory, what stays apart, and results as those of one alone."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from bucketlab import DataParallelExecutorGroup, aliases, mx, same_memory
from bucketlab.errors import ShapeError
from nets import CONTEXTS, classifier, lstm, parameters_of, values_for

TWO = CONTEXTS[:2]


@pytest.fixture(scope="module", params=["dense", "sparse"])
def pair(request):
    """A three-layer model's group at the sizes of a real one, and a five-layer model's that shares with it."""
    sparse = request.param == "sparse"
    size = {"steps": 80, "vocab": 1000, "hidden": 100, "embed": 200, "sparse": sparse}
    three, five = lstm(3, **size), lstm(5, **size)
    data, label, shared = [("data", (32, 80))], [("softmax_label", (32, 80))], parameters_of(three)

    def made(symbol, giver):
        return DataParallelExecutorGroup(
            symbol=symbol,
            contexts=TWO,
            workload=[1, 1],
            data_shapes=data,
            label_shapes=label,
            param_names=shared,
            for_training=True,
            inputs_need_grad=False,
            shared_group=giver,
        )

    first = made(three, None)
    alone = [set(arrays) for arrays in first.shared_data_arrays]
    second = made(five, first)
    extra = set(five.list_arguments()) - set(shared)
    return SimpleNamespace(first=first, second=second, shared=shared, extra=extra, alone=alone, sparse=sparse)


def test_a_group_alone_shares_out_its_inputs_and_nothing_else(pair):
    assert pair.alone == [{"data", "softmax_label"}] * 2


def test_what_the_deeper_model_has_more_is_one_array_in_both_groups(pair):
    assert {name.split("_")[0] for name in pair.extra} == {"data", "softmax", "layer3", "layer4"}
    for one, other, executor in zip(pair.first.shared_data_arrays, pair.second.shared_data_arrays, pair.second.execs):
        assert set(one) == set(other) == pair.extra
        for name in pair.extra:
            assert same_memory(one[name], other[name]) and same_memory(one[name], executor.arg_dict[name])


def test_every_shared_parameter_and_its_gradient_is_one_array_on_each_context(pair):
    for one, other in zip(pair.first.execs, pair.second.execs):
        for name in pair.shared:
            assert same_memory(one.arg_dict[name], other.arg_dict[name])
            assert one.grad_dict[name].stype == other.grad_dict[name].stype
            if not pair.sparse:
                assert same_memory(one.grad_dict[name], other.grad_dict[name])
    for i, name in ((0, "pred_weight"), (1, "layer2_i2h_bias")):
        assert mx.test_utils.same_array(pair.first.execs[i].arg_dict[name], pair.second.execs[i].arg_dict[name])
        assert mx.test_utils.same_array(pair.first.execs[i].grad_dict[name], pair.second.execs[i].grad_dict[name])
    zero, one = pair.first.execs
    assert not any(same_memory(zero.arg_dict[name], one.arg_dict[name]) for name in pair.shared)


def test_the_request_for_each_gradient_holds_in_the_second_group(pair):
    assert {pair.second.grad_req[name] for name in pair.first.grad_req} == {"write", "null"}
    assert all(pair.second.grad_req[name] == request for name, request in pair.first.grad_req.items())


def test_the_alias_view_tells_the_same(pair):
    report = aliases(three=pair.first, five=pair.second)
    together = {(group.context, group.names) for group in report.groups if len(group.members) == 2}
    for context in ("cpu(0)", "cpu(1)"):
        assert {(context, (name,)) for name in pair.shared if name != "embed_weight"} <= together
        assert {(context, (name,)) for name in pair.extra} <= together
    assert {part.role for part in report.apart} <= {"output"}


def test_a_row_sparse_embedding_keeps_its_storage(pair):
    stored = "row_sparse" if pair.sparse else "default"
    for group in (pair.first, pair.second):
        for executor in group.execs:
            assert executor.arg_dict["embed_weight"].stype == stored
            assert executor.grad_dict["embed_weight"].stype == stored


# ---------------------------------------------------------------------- values, on small models


def group(symbol, rows=4, contexts=TWO, giver=None, params=None, training=True, inputs=None, **kwargs):
    data, label = inputs or ([("data", (rows, 4))], [("softmax_label", (rows,))])
    return DataParallelExecutorGroup(
        symbol,
        contexts,
        [1] * len(contexts),
        data,
        label,
        parameters_of(symbol) if params is None else params,
        training,
        False,
        giver,
        **kwargs,
    )


def words(rows=4, steps=5, seed=0):
    rng = np.random.RandomState(seed)
    tokens = mx.nd.array(rng.randint(0, 9, (rows, steps)))
    return mx.io.DataBatch([tokens], [mx.nd.array(rng.randint(0, 9, (rows, steps)))])


def gradients(made):
    return {
        name: sum(array.tostype("default").asnumpy() for array in block)
        for name, block in zip(made.held_names, made.grad_arrays)
        if block[0] is not None
    }


@pytest.mark.parametrize("sparse", [False, True])
def test_three_groups_in_a_chain_compute_what_each_computes_alone(sparse):
    size = {"vocab": 9, "hidden": 3, "embed": 4, "sparse": sparse}
    symbols = [lstm(2, steps, **size) for steps in (5, 3, 4)]
    inputs = [([("data", (4, steps))], [("softmax_label", (4, steps))]) for steps in (5, 3, 4)]
    values = values_for(symbols[0], data=(4, 5), softmax_label=(4, 5))
    chain = []
    for symbol, own in zip(symbols, inputs):
        chain.append(group(symbol, giver=chain[-1] if chain else None, inputs=own))
    chain[0].set_params(values, {})
    for i in range(2):
        for name in chain[0].held_names:
            assert same_memory(chain[0].execs[i].arg_dict[name], chain[2].execs[i].arg_dict[name])
            assert same_memory(chain[0].execs[i].grad_dict[name], chain[2].execs[i].grad_dict[name])
    for made, symbol, own, steps in zip(chain, symbols, inputs, (5, 3, 4)):
        alone = group(symbol, contexts=TWO[:1], inputs=own)
        alone.set_params(values, {})
        for one in (made, alone):
            one.forward(words(4, steps, seed=steps), is_train=True)
            one.backward()
        np.testing.assert_allclose(
            made.get_outputs()[0].asnumpy(), alone.get_outputs()[0].asnumpy(), rtol=1e-5, atol=1e-7
        )
        found, expected = gradients(made), gradients(alone)
        assert found.keys() == expected.keys() == set(made.held_names)
        for name, value in expected.items():
            np.testing.assert_allclose(found[name], value, rtol=1e-4, atol=1e-6, err_msg=name)


def test_a_giver_on_more_contexts_shares_its_first_ones():
    giver = group(classifier(), contexts=CONTEXTS[:3])
    taker = group(classifier(), contexts=CONTEXTS[:2], giver=giver)
    assert [str(context) for context in taker.contexts] == ["cpu(0)", "cpu(1)"]
    for i in range(2):
        assert same_memory(giver.execs[i].arg_dict["fc1_weight"], taker.execs[i].arg_dict["fc1_weight"])
    assert len(taker.param_arrays[0]) == 2 and len(taker.shared_data_arrays) == 2
    with pytest.raises(ShapeError, match=r"executors on 2 context\(s\) and 3 are asked for"):
        group(classifier(), contexts=CONTEXTS[:3], giver=taker)
    with pytest.raises(TypeError, match=r"shared_group is a list; expected a bucketlab\.DataParallelExecutorGroup"):
        group(classifier(), giver=[giver])


def test_auxiliary_states_are_shared_and_what_one_group_learns_the_other_knows():
    symbol = classifier(batch_norm=True)
    first = group(symbol, params=parameters_of(symbol))
    second = group(symbol, rows=6, giver=first)
    first.set_params(
        values_for(symbol, data=(4, 4)), {"bn_moving_mean": mx.nd.zeros(5), "bn_moving_var": mx.nd.ones(5)}
    )
    for i in range(2):
        for name in symbol.list_auxiliary_states():
            assert same_memory(first.execs[i].aux_dict[name], second.execs[i].aux_dict[name])
    second.forward(mx.io.DataBatch([mx.nd.random.uniform(shape=(6, 4))], [mx.nd.zeros(6)]), is_train=True)
    second.backward()
    mx.nd.waitall()
    learnt = second.execs[1].aux_dict["bn_moving_mean"].asnumpy()
    assert learnt.any() and np.array_equal(first.execs[1].aux_dict["bn_moving_mean"].asnumpy(), learnt)


def test_states_are_shared_and_no_parameters():
    cell = mx.sym.Variable("data") + mx.sym.Variable("carried")
    symbol = mx.sym.SoftmaxOutput(mx.sym.FullyConnected(cell, num_hidden=3, name="fc"), name="softmax")
    names = ["fc_weight", "fc_bias"]
    first = group(symbol, params=names, state_names=["carried"])
    second = group(symbol, params=names, state_names=["carried"], giver=first)
    assert [array.asnumpy().any() for array in first.state_arrays[0]] == [False, False]
    first.set_states(value=3)
    assert second.get_states()[0].asnumpy().tolist() == [[3] * 4] * 4
    for i in range(2):
        assert same_memory(first.state_arrays[0][i], second.state_arrays[0][i])
    assert first.grad_req["carried"] == "null" and "carried" not in first.held_names


def test_requests_for_gradients_may_differ_between_groups_that_share():
    symbol = classifier()
    writes = group(symbol)
    mixed = group(symbol, giver=writes, grad_req={"fc1_weight": "null", "fc2_weight": "add"})
    writes.set_params(values_for(symbol, data=(4, 4)), {})
    given = mx.io.DataBatch([mx.nd.random.uniform(shape=(4, 4))], [mx.nd.array([0, 1, 2, 0])])
    writes.forward(given, is_train=True)
    writes.backward()
    once = {name: value.copy() for name, value in gradients(writes).items()}
    for executor in writes.execs:
        executor.grad_dict["fc1_weight"][:] = 7
    mixed.forward(given, is_train=True)
    mixed.backward()
    assert mixed.execs[0].grad_dict["fc1_weight"] is None
    assert writes.execs[0].grad_dict["fc1_weight"].asnumpy().min() == 7
    after = gradients(writes)
    np.testing.assert_allclose(after["fc2_weight"], 2 * once["fc2_weight"], rtol=1e-5)
    np.testing.assert_allclose(after["fc1_bias"], once["fc1_bias"], rtol=1e-5)


@pytest.mark.parametrize("giver_trains", [True, False])
def test_groups_for_training_and_for_inference_share_parameters(giver_trains):
    symbol = classifier()
    giver = group(symbol, training=giver_trains)
    taker = group(symbol, training=not giver_trains, giver=giver)
    training, inference = (giver, taker) if giver_trains else (taker, giver)
    giver.set_params(values_for(symbol, data=(4, 4)), {})
    for i in range(2):
        for name in training.held_names:
            assert same_memory(training.execs[i].arg_dict[name], inference.execs[i].arg_dict[name])
    assert inference.grad_arrays is None and not any(inference.execs[0].grad_arrays)
    given = mx.io.DataBatch([mx.nd.random.uniform(shape=(4, 4))], [mx.nd.array([0, 1, 2, 0])])
    inference.forward(given)
    before = inference.get_outputs()[0].asnumpy()
    training.forward(given)
    np.testing.assert_allclose(training.get_outputs()[0].asnumpy(), before, rtol=1e-6)
    training.backward()
    assert all(value.any() for value in gradients(training).values())
