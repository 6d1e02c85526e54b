"""What programs written for mx.mod rely on without saying so; each was found by running some of them."""

from __future__ import annotations

import numpy as np
import pytest

import bucketlab as bl
from bucketlab import mx


def classifier():
    return mx.sym.SoftmaxOutput(mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=3, name="fc"), name="softmax")


def trained(contexts, optimizer="sgd", symbol=None, **settings):
    module = bl.Module(classifier() if symbol is None else symbol, context=[mx.cpu(i) for i in range(contexts)])
    module.bind([("data", (4, 5))], [("softmax_label", (4,))])
    module.init_params(mx.init.One())
    module.init_optimizer(optimizer=optimizer, optimizer_params=settings or {"learning_rate": 0.1, "momentum": 0.9})
    step(module)
    return module


def step(module):
    x = np.random.RandomState(0).rand(4, 5)
    module.forward_backward(mx.io.DataBatch([mx.nd.array(x)], [mx.nd.array([0, 1, 2, 0])]))
    module.update()


@pytest.mark.parametrize(
    "shapes", [["data", mx.nd.ones((2, 1))], [("data", mx.nd.ones((2,)))], [("data", 3)], [3], [("data", (2.5, 1))]]
)
def test_what_is_no_description_is_a_type_error(shapes):
    module = bl.Module(mx.sym.Variable("data") * 2, label_names=None)
    with pytest.raises(TypeError, match="data_shapes"):
        module.bind(shapes)
    assert not module.binded


def test_shapes_may_be_numpy_arrays():
    module = bl.Module(mx.sym.Variable("data") * 2, label_names=None)
    module.bind([("data", np.array([2, 3]))])
    assert module.data_shapes == [("data", (2, 3))]


def test_backward_where_parts_of_the_graph_are_on_other_contexts():
    with mx.AttrScope(ctx_group="first"):
        a = mx.sym.Variable("a") * 2
    with mx.AttrScope(ctx_group="second"):
        both = a + mx.sym.Variable("b")
    module = bl.Module(both, ["a", "b"], None, group2ctxs={"first": mx.cpu(1), "second": mx.cpu(2)})
    module.bind([("a", (2, 5)), ("b", (2, 5))], inputs_need_grad=True)
    module.init_params()
    module.forward(mx.io.DataBatch([mx.nd.ones((2, 5))] * 2), is_train=True)
    module.backward([mx.nd.ones((2, 5))])
    grads = module.get_input_grads()
    assert [grad.context for grad in grads] == [mx.cpu(1), mx.cpu(2)]
    assert [grad.asnumpy()[0, 0] for grad in grads] == [2, 1]


def test_a_missing_parameter_is_told_of_before_an_unknown_one():
    module = trained(1)
    with pytest.raises(RuntimeError, match="fc_weight"):
        module.set_params({"other": mx.nd.ones((1,))}, {})
    with pytest.raises(ValueError, match="other"):
        module.set_params({"other": mx.nd.ones((1,))}, {}, allow_missing=True)


@pytest.mark.parametrize("contexts", [1, 2])
def test_input_gradients_that_nobody_asked_for_are_none(contexts):
    module = bl.Module(mx.sym.Variable("data") * 2, label_names=None, context=[mx.cpu(i) for i in range(contexts)])
    module.bind([("data", (2, 3))], inputs_need_grad=True, grad_req="null")
    module.init_params()
    module.forward(mx.io.DataBatch([mx.nd.ones((2, 3))]), is_train=True)
    module.backward([mx.nd.ones((2, 3))])
    assert module.get_input_grads() == [None]
    assert module.get_input_grads(merge_multi_context=False) == [[None] * contexts]


def test_a_callback_on_an_executor_outlives_a_reshape():
    seen = []
    module = bl.Module(mx.sym.Activation(mx.sym.Variable("data"), act_type="relu", name="act"), label_names=None)
    module.bind([("data", (2, 3))], for_training=False)
    module.init_params()
    module._exec_group.execs[0].set_monitor_callback(lambda name, _: seen.append(name), monitor_all=True)
    for rows in (2, 5, 2):
        module.forward(mx.io.DataBatch([mx.nd.ones((rows, 3))]))
    mx.nd.waitall()
    # What an input of an operator is called depends on the backend; what the symbol's own arrays are called does not.
    names = [name if isinstance(name, str) else name.decode() for name in seen]
    assert names.count("data") == names.count("act_output") == 3


def convolutions():
    layer = mx.sym.Variable("data")
    for i in range(2):
        layer = mx.sym.Convolution(layer, num_filter=16, kernel=(3, 3), pad=(1, 1), name=f"c{i}")
    layer = mx.sym.Deconvolution(layer, num_filter=16, kernel=(2, 2), stride=(2, 2), name="d")
    layer = mx.sym.FullyConnected(mx.sym.Flatten(layer), num_hidden=3, name="fc")
    return mx.sym.SoftmaxOutput(layer, name="softmax")


@pytest.mark.parametrize("optimizer", ["sgd", "adagrad"])
@pytest.mark.parametrize("contexts", [1, 2])
def test_convolutions_that_train_and_infer_by_turns(contexts, optimizer):
    results = []
    for kind in (mx.mod.Module, bl.Module):
        module = kind(convolutions(), context=[mx.cpu(i) for i in range(contexts)])
        module.bind([("data", (4, 16, 6, 6))], [("softmax_label", (4,))])
        mx.random.seed(1)
        module.init_params(mx.init.Xavier())
        module.init_optimizer(optimizer=optimizer, optimizer_params={"learning_rate": 0.05})
        random, outputs = np.random.RandomState(0), []
        for _ in range(3):
            x = mx.nd.array(random.rand(4, 16, 6, 6))
            batch = mx.io.DataBatch([x], [mx.nd.array([0, 1, 2, 0])])
            module.forward_backward(batch)
            module.update()
            module.forward(batch, is_train=False)
            outputs.append(module.get_outputs()[0].asnumpy())
        results.append((module.get_params()[0], outputs))
    for found, expected in zip(results[1][1], results[0][1]):
        np.testing.assert_allclose(found, expected, rtol=1e-5)
    for name, expected in results[0][0].items():
        np.testing.assert_allclose(results[1][0][name].asnumpy(), expected.asnumpy(), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("optimizer", ["sgd", "adadelta"])
@pytest.mark.parametrize("after", [1, 2])
@pytest.mark.parametrize("before", [1, 2])
def test_optimizer_states_are_found_by_number_and_by_name(tmp_path, before, after, optimizer):
    settings = {"learning_rate": 0.1, "momentum": 0.9} if optimizer == "sgd" else {"rho": 0.9}
    module = trained(before, optimizer, **settings)
    prefix = str(tmp_path / "c")
    module.save_checkpoint(prefix, 1, save_optimizer_states=True)
    again = bl.Module.load(prefix, 1, load_optimizer_states=True, context=[mx.cpu(i) for i in range(after)])
    again.bind([("data", (4, 5))], [("softmax_label", (4,))])
    again.init_optimizer(optimizer=optimizer, optimizer_params=settings)
    names = [name for name in again._symbol.list_arguments() if name.startswith("fc")]
    for number, name in enumerate(names):
        states = again._updater.states
        assert number in states and name in states and states[number] is states[name] is states.get(name)
        for found, expected in zip(arrays(states[name]), arrays(module._updater.states[name])):
            np.testing.assert_array_equal(found, expected)
    assert "other" not in states and 99 not in states and states.get("other") is None
    with pytest.raises(KeyError):
        states["other"]
    for each in (module, again):
        step(each)
    for name in names:
        np.testing.assert_allclose(
            module.get_params()[0][name].asnumpy(), again.get_params()[0][name].asnumpy(), rtol=1e-5
        )


def arrays(state):
    return [part.asnumpy() for part in (state if isinstance(state, tuple) else (state,))]
