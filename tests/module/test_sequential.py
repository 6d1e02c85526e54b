"""SequentialModule: chains train like the one symbol they stand for, and refuse without leaving a trace."""

from __future__ import annotations

import collections

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

import bucketlab as bl
from bucketlab import mx
from bucketlab.errors import NotReadyError, ShapeError

ROWS = 6


def layer(name, hidden=3, data="data", **kwargs):
    return mx.sym.FullyConnected(mx.sym.Variable(data), num_hidden=hidden, name=name, **kwargs)


def classifier(name="b", hidden=2, data="data", label="softmax_label"):
    return mx.sym.SoftmaxOutput(layer(name, hidden, data), mx.sym.Variable(label), name="softmax")


def whole():
    """The symbol that ``chain`` stands for."""
    return mx.sym.SoftmaxOutput(mx.sym.FullyConnected(layer("a"), num_hidden=2, name="b"), name="softmax")


def chain(kinds=bl, contexts=None, **kwargs):
    contexts = contexts or mx.cpu()
    made = kinds.SequentialModule() if hasattr(kinds, "SequentialModule") else kinds()
    made.add(kinds.Module(layer("a"), label_names=None, context=contexts))
    made.add(kinds.Module(classifier(), context=contexts), take_labels=True, auto_wiring=True)
    return made


def loss_chain(kinds=bl, contexts=None):
    made = kinds.SequentialModule()
    made.add(kinds.Module(layer("a", 2), label_names=None, context=contexts or mx.cpu()))
    loss = kinds.PythonLossModule(grad_func=lambda scores, labels: mx.nd.softmax(scores) - mx.nd.one_hot(labels, 2))
    return made.add(loss, take_labels=True, auto_wiring=True)


def values(rows=ROWS, seed=0):
    random = np.random.RandomState(seed)
    return random.rand(rows, 4).astype("f"), random.randint(0, 2, rows).astype("f")


def batch(rows=ROWS, seed=0, **kwargs):
    x, y = values(rows, seed)
    return mx.io.DataBatch([mx.nd.array(x)], [mx.nd.array(y)], **kwargs)


def start():
    """Parameters to begin with."""
    random = np.random.RandomState(7)
    shapes = {"a_weight": (3, 4), "a_bias": (3,), "b_weight": (2, 3), "b_bias": (2,)}
    return {name: mx.nd.array(random.uniform(-1, 1, shape)) for name, shape in shapes.items()}


def bound(made=None, rows=ROWS, params=None, **kwargs):
    made = made or chain()
    made.bind([("data", (rows, 4))], [("softmax_label", (rows,))], **kwargs)
    made.init_params(mx.init.Uniform(1.0), arg_params=params if params is not None else start())
    return made


def arrays(params):
    return {name: value.asnumpy() for name, value in params[0].items()}


def assert_same(found, expected):
    assert found.keys() == expected.keys()
    for name in expected:
        np.testing.assert_array_equal(found[name], expected[name], err_msg=name)


def trained(module, steps=4, kvstore="local", optimizer="sgd", **settings):
    settings = settings or {"learning_rate": 0.2, "momentum": 0.9}
    module.init_optimizer(kvstore=kvstore, optimizer=optimizer, optimizer_params=settings)
    for step in range(steps):
        module.forward_backward(batch(seed=step))
        module.update()
    return arrays(module.get_params())


class TestLikeMxnet:
    @pytest.mark.parametrize("kvstore", [None, "local", "device"])
    @pytest.mark.parametrize("contexts", [1, 2])
    def test_same_parameters_after_training(self, contexts, kvstore):
        where = [mx.cpu(i) for i in range(contexts)]
        if kvstore is None and contexts > 1:
            # mx.mod lets the contexts drift apart here; the sum of gradients is what one context would have.
            expected = trained(bound(chain(bl)), kvstore="local")
            found = trained(bound(chain(bl, where)), kvstore=None)
            for name in expected:
                np.testing.assert_allclose(found[name], expected[name], rtol=1e-5)
            return
        expected = trained(bound(chain(mx.mod, where)), kvstore=kvstore)
        assert_same(trained(bound(chain(bl, where)), kvstore=kvstore), expected)

    @pytest.mark.parametrize("contexts", [1, 2])
    def test_same_parameters_with_a_loss_in_python(self, contexts):
        where = [mx.cpu(i) for i in range(contexts)]
        params = {name: value for name, value in start().items() if name[0] == "a"}
        params = {"a_weight": mx.nd.ones((2, 4)) * 0.1, "a_bias": mx.nd.array([0.1, -0.1])}
        found = trained(bound(loss_chain(bl, where), params=params))
        assert_same(found, trained(bound(loss_chain(mx.mod, where), params=params)))
        assert not np.array_equal(found["a_weight"], params["a_weight"].asnumpy())

    def test_same_fit_score_and_predict(self):
        results = []
        for kinds in (mx.mod, bl):
            x, y = values(12)
            data = mx.io.NDArrayIter(x, y, batch_size=4, label_name="softmax_label")
            made = chain(kinds)
            made.fit(data, num_epoch=3, arg_params=start(), optimizer="adam", eval_data=data)
            results.append((arrays(made.get_params()), made.score(data, ["acc", "ce"]), made.predict(data).asnumpy()))
        assert_same(results[1][0], results[0][0])
        assert results[1][1] == results[0][1]
        np.testing.assert_array_equal(results[1][2], results[0][2])

    def test_a_module_of_mxnet_can_be_in_a_chain(self):
        made = bl.SequentialModule()
        made.add(mx.mod.Module(layer("a"), label_names=None))
        made.add(bl.Module(classifier()), take_labels=True, auto_wiring=True)
        assert_same(trained(bound(made)), trained(bound(chain(mx.mod))))


class TestGradients:
    @pytest.mark.parametrize("contexts", [1, 2])
    def test_input_gradients_are_those_of_the_whole_symbol(self, contexts):
        where = [mx.cpu(i) for i in range(contexts)]
        made = bound(chain(bl, where), inputs_need_grad=True)
        reference = bound(bl.Module(whole()), inputs_need_grad=True)
        for module in (made, reference):
            module.forward_backward(batch())
        np.testing.assert_allclose(
            made.get_input_grads()[0].asnumpy(),
            reference.get_input_grads()[0].asnumpy(),
            rtol=1e-5,
            atol=1e-7,
        )
        parts = made.get_input_grads(merge_multi_context=False)[0]
        assert [part.shape for part in parts] == [(ROWS // contexts, 4)] * contexts

    def test_without_inputs_need_grad_the_way_out_is_named(self):
        made = bound()
        made.forward_backward(batch())
        with pytest.raises(NotReadyError, match="inputs_need_grad=True"):
            made.get_input_grads()

    def test_gradients_that_add_up_do_so_once(self):
        made = bound(grad_req="add")
        reference = bound(bl.Module(whole()), grad_req="add")
        for module in (made, reference):
            for seed in range(3):
                module.forward_backward(batch(seed=seed))
        expected = reference._exec_group.execs[0].grad_dict
        for module in made._modules:
            for name, grad in module._exec_group.execs[0].grad_dict.items():
                if grad is not None and name != "data":
                    np.testing.assert_allclose(grad.asnumpy(), expected[name].asnumpy(), rtol=1e-5, atol=1e-6)

    def test_gradients_add_up_before_a_loss_in_python(self):
        made = bound(loss_chain(), params={"a_weight": mx.nd.ones((2, 4)), "a_bias": mx.nd.zeros((2,))}, grad_req="add")
        grad = made._modules[0]._exec_group.execs[0].grad_dict["a_weight"]
        made.forward_backward(batch())
        once = grad.asnumpy()
        made.forward_backward(batch())
        np.testing.assert_allclose(grad.asnumpy(), 2 * once, rtol=1e-6)
        assert np.abs(once).sum() > 0

    def test_grad_req_by_name_reaches_each_module(self):
        made = bound(grad_req={"a_weight": "null", "b_weight": "add"})
        assert made._modules[0]._exec_group.grad_req["a_weight"] == "null"
        assert made._modules[0]._exec_group.grad_req["a_bias"] == "write"
        assert made._modules[1]._exec_group.grad_req["b_weight"] == "add"
        with pytest.raises(ValueError, match="c_weight"):
            bound(grad_req={"c_weight": "null"})

    def test_out_grads_reach_the_first_module(self):
        made = bl.SequentialModule().add(bl.Module(layer("a"), label_names=None))
        made.add(bl.Module(layer("b"), label_names=None), auto_wiring=True)
        made.bind([("data", (2, 4))], inputs_need_grad=True)
        made.init_params(mx.init.One())
        made.forward(mx.io.DataBatch([mx.nd.ones((2, 4))]), is_train=True)
        with pytest.raises(ValueError, match="out_grads"):
            made.backward()
        made.backward([mx.nd.ones((2, 3))])
        np.testing.assert_array_equal(made.get_input_grads()[0].asnumpy(), np.full((2, 4), 9.0))


class TestWiring:
    def test_type_and_layout_reach_the_next_module(self):
        first = mx.sym.Activation(mx.sym.Variable("data"), act_type="relu", __layout__="TNC")
        second = mx.sym.Activation(mx.sym.Variable("data"), act_type="tanh", __layout__="TNC")
        made = bl.SequentialModule()
        for symbol in (first, second):
            made.add(
                bl.Module(symbol, label_names=None, context=[mx.cpu(0), mx.cpu(1)]),
                auto_wiring=symbol is second,
            )
        made.bind([mx.io.DataDesc("data", (3, 4, 5), np.float16, "TNC")])
        made.init_params()
        x = np.random.RandomState(0).rand(3, 4, 5).astype(np.float16)
        made.forward(mx.io.DataBatch([mx.nd.array(x, dtype=np.float16)]), is_train=False)
        out = made.get_outputs()[0]
        assert out.dtype == np.float16 and out.shape == (3, 4, 5)
        np.testing.assert_allclose(out.asnumpy(), np.tanh(x), rtol=1e-2)
        assert [part.shape for part in made.get_outputs(merge_multi_context=False)[0]] == [(3, 2, 5)] * 2

    def test_auto_wiring_renames_the_first_modules_data_too(self):
        made = bl.SequentialModule().add(bl.Module(layer("a", data="x"), ["x"], None), auto_wiring=True)
        x, y = values(8)
        data = mx.io.NDArrayIter(x, y, batch_size=4, label_name="softmax_label")
        made.bind(data.provide_data, for_training=False)
        made.init_params(mx.init.One())
        np.testing.assert_allclose(made.predict(data).asnumpy(), np.repeat(x.sum(1)[:, None], 3, 1), rtol=1e-5)

    def test_names_that_do_not_meet_are_named_with_the_way_out(self):
        made = bl.SequentialModule().add(bl.Module(layer("a"), label_names=None))
        made.add(bl.Module(classifier()), take_labels=True)
        with pytest.raises(ShapeError, match=r"module 1 \(Module\).*a_output.*auto_wiring=True"):
            bound(made)

    def test_number_of_arrays_is_checked(self):
        made = bl.SequentialModule()
        data = mx.sym.Variable("data")
        made.add(bl.Module(mx.sym.Group([data + 1, data * 2]), label_names=None))
        made.add(bl.Module(classifier()), take_labels=True, auto_wiring=True)
        with pytest.raises(ShapeError, match=r"2 array\(s\) come in"):
            bound(made)

    def test_each_module_gets_the_labels_that_it_names(self):
        made = bl.SequentialModule()
        made.add(bl.Module(layer("a"), label_names=None))
        made.add(bl.Module(classifier(label="first"), label_names=["first"]), take_labels=True, auto_wiring=True)
        made.bind([("data", (4, 4))], [("second", (4,)), ("first", (4,))])
        made.init_params(mx.init.One())
        given = batch(4)
        given = mx.io.DataBatch(given.data, [mx.nd.full((4,), 5), mx.nd.array([0, 1, 0, 1])])
        made.forward(given, is_train=True)
        np.testing.assert_array_equal(made._modules[1]._exec_group.execs[0].arg_dict["first"].asnumpy(), [0, 1, 0, 1])
        assert made._modules[1].label_shapes == [("first", (4,))]

    def test_a_loss_in_python_takes_its_own_of_several_labels(self):
        seen = []
        loss = bl.PythonLossModule(label_names=["y"], grad_func=lambda s, y: seen.append(y.asnumpy()) or s * 0)
        made = bl.SequentialModule().add(bl.Module(layer("a"), label_names=None))
        made.add(loss, take_labels=True, auto_wiring=True)
        made.bind([("data", (2, 4))], [("z", (2,)), ("y", (2,))])
        made.init_params()
        labels = [mx.nd.array([7, 7]), mx.nd.array([1, 2])]
        made.forward_backward(mx.io.DataBatch([mx.nd.ones((2, 4))], labels))
        np.testing.assert_array_equal(seen, [[1, 2]])

    def test_label_shapes_are_none_when_nobody_takes_labels(self):
        made = bl.SequentialModule().add(bl.Module(layer("a"), label_names=None))
        made.bind([("data", (2, 4))], [("softmax_label", (2,))])
        assert made.label_shapes is None
        made.init_params()
        made.forward(batch(2))
        metric = mx.metric.create("acc")
        made.update_metric(metric, batch(2).label)
        assert metric.num_inst == 0

    def test_a_namedtuple_with_data_alone_is_a_batch(self):
        made = bound()
        made.forward(collections.namedtuple("Batch", ["data"])(batch().data), is_train=False)
        assert made.get_outputs()[0].shape == (ROWS, 2)

    def test_what_a_batch_says_of_itself_reaches_every_module(self):
        seen = []

        class Watcher(bl.PythonModule):
            def _compute_output_shapes(self):
                return self.data_shapes

            def forward(self, data_batch, is_train=None):
                seen.append((data_batch.pad, data_batch.bucket_key, data_batch.weather))
                self.out = data_batch.data

            def get_outputs(self, merge_multi_context=True):
                return self.out

        made = bl.SequentialModule().add(bl.Module(layer("a"), label_names=None))
        made.add(Watcher(["a_output"], None, ["a_output"]))
        made.bind([("data", (2, 4))])
        made.init_params()
        given = batch(2, pad=1, bucket_key="k")
        given.weather = "fine"
        made.forward(given)
        assert seen == [(1, "k", "fine")]


class TestForms:
    def test_a_list_of_batches_runs_one_on_each_context(self):
        made = bound(chain(bl, [mx.cpu(0), mx.cpu(1)]))
        reference = bound(chain())
        halves = [batch(3, seed=1), batch(3, seed=2)]
        joint = mx.io.DataBatch(
            [mx.nd.concat(*[h.data[0] for h in halves], dim=0)],
            [mx.nd.concat(*[h.label[0] for h in halves], dim=0)],
        )
        for module, given in ((made, halves), (reference, joint)):
            module.init_optimizer(optimizer_params={"learning_rate": 0.1, "rescale_grad": 1.0})
            module.forward_backward(given)
            module.update()
        np.testing.assert_allclose(made.get_outputs()[0].asnumpy(), reference.get_outputs()[0].asnumpy(), rtol=1e-5)
        for name, value in arrays(reference.get_params()).items():
            np.testing.assert_allclose(arrays(made.get_params())[name], value, rtol=1e-4, atol=1e-6)
        metrics = [mx.metric.create("ce"), mx.metric.create("ce")]
        made.update_metric(metrics[0], [half.label for half in halves], pre_sliced=True)
        reference.update_metric(metrics[1], joint.label)
        np.testing.assert_allclose(metrics[0].get()[1], metrics[1].get()[1], rtol=1e-5)

    @pytest.mark.parametrize("python_loss", [False, True])
    def test_shapes_of_each_contexts_own(self, python_loss):
        contexts = [mx.cpu(0), mx.cpu(1)]
        made, reference = (loss_chain(bl, contexts), loss_chain()) if python_loss else (chain(bl, contexts), chain())
        params = {"a_weight": mx.nd.ones((2, 4)) * 0.1, "a_bias": mx.nd.zeros((2,))} if python_loss else start()
        shapes = (
            [[("data", (4, 4))], [("data", (2, 4))]],
            [[("softmax_label", (4,))], [("softmax_label", (2,))]],
        )
        made.bind(*shapes)
        made.init_params(arg_params=params)
        bound(reference, 6, params)
        x, y = values(6)
        cut = mx.io.DataBatch(
            [[mx.nd.array(x[:4])], [mx.nd.array(x[4:])]], [[mx.nd.array(y[:4])], [mx.nd.array(y[4:])]]
        )
        cut.provide_data, cut.provide_label = shapes
        for module, given in ((made, cut), (reference, batch(6))):
            module.init_optimizer(optimizer_params={"learning_rate": 0.1, "rescale_grad": 1.0})
            module.forward_backward(given)
            module.update()
        for name, value in arrays(reference.get_params()).items():
            np.testing.assert_allclose(arrays(made.get_params())[name], value, rtol=1e-4, atol=1e-6)
        metric = mx.metric.create("acc")
        made.update_metric(metric, cut.label)
        assert metric.num_inst == 6

    def test_another_batch_size(self):
        made = bound()
        made.init_optimizer()
        made.forward_backward(batch(4))
        made.update()
        assert made.get_outputs()[0].shape == (4, 2)
        assert made.data_shapes == [("data", (4, 4))] and made.label_shapes == [("softmax_label", (4,))]
        made.forward_backward(batch())
        assert made.get_outputs()[0].shape == (ROWS, 2)


class TestPadding:
    @pytest.mark.parametrize("contexts", [1, 2])
    @pytest.mark.parametrize("make", [chain, loss_chain])
    def test_padded_rows_count_in_no_metric_and_no_prediction(self, make, contexts):
        made = make(bl, [mx.cpu(i) for i in range(contexts)])
        params = (
            start()
            if make is chain
            else {"a_weight": start()["b_weight"][:, :1] * mx.nd.ones((2, 4)), "a_bias": mx.nd.zeros((2,))}
        )
        x, y = values(7)
        data = mx.io.NDArrayIter(x, y, batch_size=4, label_name="softmax_label")
        made.bind(data.provide_data, data.provide_label)
        made.init_params(arg_params=params)
        out = made.predict(data)
        assert out.shape == (7, 2)
        assert made.score(data, "acc") == [("accuracy", np.mean(out.asnumpy().argmax(1) == y))]
        assert sum(part[0].shape[0] for part, _, _ in made.iter_predict(data)) == 7


class TestRefusals:
    def test_a_bind_that_fails_leaves_every_module_unbound(self):
        made = chain()
        for shapes in ([("wrong", (4, 4))], [("data", (4, 4))]):
            labels = [("softmax_label", (3,))]
            with pytest.raises(ValueError):
                made.bind(shapes, labels)
            assert not made.binded and not any(module.binded for module in made._modules)
            with pytest.raises(NotReadyError, match=r"call bind\("):
                made.data_shapes  # noqa: B018
        assert_same(trained(bound(made)), trained(bound(chain())))

    def test_a_rebind_that_fails_leaves_everything_as_it_was(self):
        made, reference = bound(), bound()
        first = trained(made, steps=2)
        assert_same(first, trained(reference, steps=2))
        with pytest.raises(ShapeError):
            made.bind([("data", (4, 4))], [("softmax_label", (5,))], force_rebind=True)
        assert made.data_shapes == [("data", (ROWS, 4))]
        for module in (made, reference):
            module.forward_backward(batch(seed=9))
            module.update()
        assert_same(arrays(made.get_params()), arrays(reference.get_params()))

    def test_a_loaded_bucket_is_unbound_again_when_the_next_module_refuses(self, tmp_path):
        def sym_gen(key):
            return layer("a"), ["data"], None

        saved = bl.BucketingModule(sym_gen, 4)
        saved.bind([("data", (2, 4))])
        saved.init_params(mx.init.One())
        saved.save_checkpoint(str(tmp_path / "c"), 0)
        made = bl.SequentialModule().add(bl.BucketingModule.load(str(tmp_path / "c"), 0, sym_gen, 4))
        made.add(bl.Module(classifier()), take_labels=True, auto_wiring=True)
        with pytest.raises(ShapeError):
            made.bind([("data", (2, 4))], [("softmax_label", (9,))])
        made.bind([("data", (5, 4))], [("softmax_label", (5,))])
        assert made.data_shapes == [("data", (5, 4))]

    def test_a_refused_batch_leaves_shapes_as_they_were(self):
        made = bound()
        bad = mx.io.DataBatch(batch(4).data, batch(3).label)
        for _ in range(2):
            with pytest.raises(ShapeError, match="softmax_label"):
                made.forward(bad)
            assert made.data_shapes == [("data", (ROWS, 4))]
        made.forward(batch())
        assert made.get_outputs()[0].shape == (ROWS, 2)

    def test_parameters_are_all_checked_before_any_is_written(self):
        made = bound()
        before = arrays(made.get_params())
        zeros = {name: value * 0 for name, value in start().items()}
        with pytest.raises(ValueError, match=r"module 1 .*b_weight.*\(2, 9\)"):
            made.set_params({**zeros, "b_weight": mx.nd.ones((2, 9))}, {})
        with pytest.raises(RuntimeError, match="b_bias"):
            made.set_params({name: value for name, value in zeros.items() if name != "b_bias"}, {})
        with pytest.raises(ValueError, match="c_weight"):
            made.set_params({**zeros, "c_weight": mx.nd.ones((1,))}, {})
        assert_same(arrays(made.get_params()), before)
        made.set_params({"b_bias": mx.nd.ones((2,))}, {}, allow_missing=True)
        made.set_params({**zeros, "c_weight": mx.nd.ones((1,)), "data": mx.nd.ones((1,))}, {}, allow_extra=True)
        assert not arrays(made.get_params())["b_bias"].any()

    def test_parameters_that_two_modules_have_are_named_before_any_is_written(self):
        made = bl.SequentialModule().add(bl.Module(layer("a", 4), label_names=None))
        made.add(bl.Module(classifier("a")), take_labels=True, auto_wiring=True)
        made.bind([("data", (2, 4))], [("softmax_label", (2,))])
        with pytest.raises(ValueError, match=r"'a_(weight|bias)' is in module 0 \(Module\) and in module 1 \(Module\)"):
            made.init_params(mx.init.One())
        assert not any(module.params_initialized for module in made._modules)

    def test_parameters_that_a_module_in_python_hides_are_compared_too(self):
        class Hidden(bl.PythonModule):
            def _compute_output_shapes(self):
                return self.data_shapes

            def init_params(self, *args, **kwargs):
                self.params_initialized = True

            def get_params(self):
                return {"a_weight": mx.nd.ones((1,))}, {}

        made = bl.SequentialModule().add(bl.Module(layer("a"), label_names=None))
        made.add(Hidden(["a_output"], None, ["a_output"]))
        made.bind([("data", (2, 4))])
        with pytest.raises(ValueError, match=r"a_weight.*Module.*Hidden"):
            made.init_params()

    def test_order_of_calls(self):
        made = bl.SequentialModule()
        with pytest.raises(NotReadyError, match=r"add\(module\)"):
            made.bind([("data", (2, 4))])
        made = chain()
        for call in (
            made.init_params,
            lambda: made.forward(batch()),
            made.backward,
            made.update,
            made.get_params,
        ):
            with pytest.raises(NotReadyError, match=r"call bind\("):
                call()
        made.bind([("data", (ROWS, 4))], [("softmax_label", (ROWS,))])
        with pytest.raises(NotReadyError, match=r"call init_params\("):
            made.forward(batch())
        made.init_params()
        with pytest.raises(NotReadyError, match=r"call init_optimizer\("):
            made.update()

    def test_what_add_refuses_leaves_the_chain_as_it_was(self):
        made = bound()
        with pytest.raises(ValueError, match=r"take_label.*take_labels"):
            made.add(bl.Module(layer("c")), take_label=True)
        with pytest.raises(TypeError, match="Symbol"):
            made.add(layer("c"))
        with pytest.raises(ValueError, match="in the chain already"):
            made.add(made._modules[0])
        assert len(made._modules) == len(made._metas) == 2 and made.binded

    def test_inputs_need_grad_needs_training(self):
        with pytest.raises(ValueError, match="for_training"):
            chain().bind([("data", (2, 4))], for_training=False, inputs_need_grad=True)

    def test_bound_twice_is_a_warning_and_nothing_else(self, caplog):
        made = bound()
        made.bind([("data", (2, 4))])
        assert "force_rebind" in caplog.text and made.data_shapes == [("data", (ROWS, 4))]


class TestParametersAndOptimizers:
    def test_get_params_is_a_snapshot(self):
        made = bound()
        kept = made.get_params()[0]
        before = {name: value.asnumpy() for name, value in kept.items()}
        trained(made)
        assert_same({name: value.asnumpy() for name, value in kept.items()}, before)

    def test_a_longer_chain_keeps_the_parameters_it_had(self):
        made = bl.SequentialModule().add(bl.Module(layer("a"), label_names=None))
        made.bind([("data", (ROWS, 4))], for_training=False)
        made.init_params(mx.init.One())
        made.add(bl.Module(classifier()), take_labels=True, auto_wiring=True)
        assert not made.binded
        made.bind([("data", (ROWS, 4))], [("softmax_label", (ROWS,))], inputs_need_grad=True)
        with pytest.warns(UserWarning, match="force_init"):
            made.init_params(mx.init.Zero())
        params = arrays(made.get_params())
        assert (params["a_weight"] == 1).all() and (params["b_weight"] == 0).all()
        made.forward_backward(batch())
        assert made.get_input_grads()[0].shape == (ROWS, 4)

    @pytest.mark.parametrize("settings", [{"optimizer": "adam"}, {"optimizer": "sgd", "momentum": 0.9, "wd": 0.1}])
    def test_an_optimizer_object_counts_for_each_module_by_itself(self, settings):
        name = settings.pop("optimizer")
        settings = {**settings, "learning_rate": 0.05, "rescale_grad": 1 / ROWS}
        expected = trained(bound(bl.Module(whole())), optimizer=mx.optimizer.create(name, **settings))
        found = trained(bound(), optimizer=mx.optimizer.create(name, **settings))
        for key in expected:
            np.testing.assert_allclose(found[key], expected[key], rtol=1e-4, atol=1e-6, err_msg=key)

    def test_changes_to_an_optimizer_object_are_followed(self):
        optimizer = mx.optimizer.SGD(learning_rate=0.5, rescale_grad=1 / ROWS)
        made = bound()
        trained(made, steps=1, optimizer=optimizer)
        optimizer.lr = 0.0
        before = arrays(made.get_params())
        made.forward_backward(batch(seed=3))
        made.update()
        assert_same(arrays(made.get_params()), before)

    def test_a_kvstore_object_serves_all_modules(self):
        contexts = [mx.cpu(0), mx.cpu(1)]
        expected = trained(bound(chain(bl, contexts)), kvstore="local")
        assert_same(trained(bound(chain(bl, contexts)), kvstore=mx.kv.create("local")), expected)

    def test_parameter_files(self, tmp_path):
        made, other = bound(), bound(params={name: value * 0 for name, value in start().items()})
        made.save_params(str(tmp_path / "p"))
        other.load_params(str(tmp_path / "p"))
        assert_same(arrays(other.get_params()), arrays(made.get_params()))

    def test_states_of_all_modules(self):
        def cell(name):
            return mx.sym.Variable("data") + mx.sym.Variable(name)

        made = bl.SequentialModule().add(bl.Module(cell("s"), label_names=None, state_names=["s"]))
        made.add(bl.Module(cell("t"), label_names=None, state_names=["t"]), auto_wiring=True)
        made.bind([("data", (2, 3))], for_training=False)
        made.init_params()
        made.set_states(value=1)
        made.forward(mx.io.DataBatch([mx.nd.zeros((2, 3))]))
        assert (made.get_outputs()[0].asnumpy() == 2).all()
        made.set_states([mx.nd.full((2, 3), 5), mx.nd.full((2, 3), 6)])
        assert [state.asnumpy()[0, 0] for state in made.get_states()] == [5, 6]
        with pytest.raises(ShapeError, match=r"module 1 .*'t'"):
            made.set_states([mx.nd.full((2, 3), 7), mx.nd.full((2, 4), 8)])
        with pytest.raises(ShapeError, match="1 entries"):
            made.set_states([mx.nd.full((2, 3), 7)])
        assert [state.asnumpy()[0, 0] for state in made.get_states()] == [5, 6]


class TestMembers:
    def bucketing(self, where):
        """A chain with a BucketingModule at ``where``: 0 first, 1 second."""

        def sum_rows(key):
            return mx.sym.sum(mx.sym.Variable("data"), axis=1, keepdims=True, name="sum"), ["data"], None

        def classify(key):
            return classifier(), ["data"], ["softmax_label"]

        made = bl.SequentialModule()
        if where == 0:
            made.add(bl.BucketingModule(sum_rows, default_bucket_key=4))
            made.add(bl.Module(classifier()), take_labels=True, auto_wiring=True)
        else:
            made.add(bl.Module(sum_rows(0)[0], label_names=None))
            made.add(bl.BucketingModule(classify, default_bucket_key=4), take_labels=True, auto_wiring=True)
        return made

    @pytest.mark.parametrize("where", [0, 1])
    def test_buckets_in_a_chain(self, where):
        made = self.bucketing(where)
        made.bind([("data", (2, 4))], [("softmax_label", (2,))])
        made.init_params(mx.init.One())
        made.init_optimizer()
        for key in (4, 2, 4, 3):
            data = [("data", (2, key))]
            given = mx.io.DataBatch(
                [mx.nd.ones((2, key))],
                [mx.nd.zeros((2,))],
                bucket_key=key,
                provide_data=data,
                provide_label=[("softmax_label", (2,))],
            )
            made.prepare(given)
            made.forward_backward(given)
            made.update()
            assert made.get_outputs()[0].shape == (2, 2)
        assert list(made._modules[where]._buckets) == [4, 2, 3]

    def test_a_chain_in_a_chain(self):
        inner = bl.SequentialModule().add(bl.Module(layer("a"), label_names=None))
        inner.add(bl.Module(layer("c"), label_names=None), auto_wiring=True)
        made = bl.SequentialModule().add(inner)
        made.add(bl.Module(classifier()), take_labels=True, auto_wiring=True)
        params = {**start(), "c_weight": mx.nd.array(np.eye(3)), "c_bias": mx.nd.zeros((3,))}
        bound(made, params=params)
        bound(flat := chain())
        for module in (made, flat):
            module.forward(batch(), is_train=False)
        np.testing.assert_allclose(made.get_outputs()[0].asnumpy(), flat.get_outputs()[0].asnumpy(), rtol=1e-5)
        with pytest.raises(ValueError, match=r"module 0 \(SequentialModule\): module 1 \(Module\).*c_bias"):
            made.set_params({**params, "c_bias": mx.nd.zeros((9,))}, {})
        found = trained(made)
        assert not np.array_equal(found["c_weight"], np.eye(3))

    def test_monitors_see_every_module_and_pass_over_python(self):
        made = bound(loss_chain(), params={"a_weight": mx.nd.ones((2, 4)), "a_bias": mx.nd.zeros((2,))})
        monitor = mx.mon.Monitor(1, stat_func=lambda x: x.abs().sum(), pattern=".*output")
        made.install_monitor(monitor)
        monitor.tic()
        made.forward_backward(batch())
        assert "a_output" in [name for _, name, _ in monitor.toc()]

    def test_sparse_rows_are_pulled_for_the_module_that_has_them(self):
        weight = mx.sym.Variable("e_weight", stype="row_sparse")
        embed = mx.sym.sum(
            mx.sym.contrib.SparseEmbedding(mx.sym.Variable("data"), weight=weight, input_dim=5, output_dim=3, name="e"),
            axis=1,
        )
        made = bl.SequentialModule().add(bl.Module(embed, label_names=None, context=[mx.cpu(0), mx.cpu(1)]))
        made.add(bl.Module(classifier(), context=[mx.cpu(0), mx.cpu(1)]), take_labels=True, auto_wiring=True)
        words = mx.nd.array([[0, 1], [2, 1], [3, 3], [1, 0]])
        data = mx.io.NDArrayIter(words, mx.nd.array([0, 1, 0, 1]), 4, label_name="softmax_label")
        made.bind(data.provide_data, data.provide_label)
        made.init_params(arg_params={**start(), "e_weight": mx.nd.ones((5, 3))}, allow_extra=True)
        made.init_optimizer(kvstore="local", optimizer_params={"learning_rate": 1.0})
        for given in data:
            made.prepare(given, sparse_row_id_fn=lambda b: {"e_weight": b.data[0].reshape((-1,))})
            made.forward_backward(given)
            made.update()
        changed = np.abs(made.get_params()[0]["e_weight"].asnumpy() - 1).sum(1) > 0
        assert changed.tolist() == [True, True, True, True, False]

    def test_events_come_from_the_chain(self):
        made, events = chain(), []
        made._observer = lambda kind, module, detail: events.append((kind, module is made))
        bound(made)
        made.init_optimizer()
        made.forward_backward(batch())
        made.update()
        made.update_metric(mx.metric.create("acc"), batch().label)
        assert events == [(kind, True) for kind in ("bind", "forward", "update", "metric")]

    def test_a_look_inside(self):
        made = bound(chain(bl, [mx.cpu(0), mx.cpu(1)]))
        assert [part.rows for part in made.slices().contexts] == [3, 3]
        assert made._total_exec_bytes == made.memory().distinct > 0
        assert chain()._total_exec_bytes == 0


def bad_batch(width=4, labels=ROWS):
    return mx.io.DataBatch([mx.nd.ones((ROWS, width))], [mx.nd.zeros((labels,))])


SHAPES = [("data", (ROWS, 4))], [("softmax_label", (ROWS,))]
WRONG = {"b_weight": mx.nd.ones((2, 9))}
CALLS = {
    "bind": lambda made: made.bind(*SHAPES),
    "bind smaller": lambda made: made.bind([("data", (2, 4))], [("softmax_label", (2,))], force_rebind=True),
    "bind for inference": lambda made: made.bind(SHAPES[0], for_training=False, force_rebind=True),
    "bind wrong name": lambda made: made.bind([("date", (ROWS, 4))], SHAPES[1], force_rebind=True),
    "bind wrong rows": lambda made: made.bind(SHAPES[0], [("softmax_label", (9,))], force_rebind=True),
    "bind wrong width": lambda made: made.bind([("data", (ROWS, 5))], SHAPES[1], force_rebind=True),
    "bind wrong request": lambda made: made.bind(*SHAPES, force_rebind=True, grad_req="ad"),
    "bind shared": lambda made: made.bind(*SHAPES, shared_module=made, force_rebind=True),
    "init": lambda made: made.init_params(mx.init.One()),
    "init missing": lambda made: made.init_params(arg_params={"a_weight": mx.nd.ones((3, 4))}, force_init=True),
    "set": lambda made: made.set_params(start(), {}),
    "set wrong": lambda made: made.set_params({**start(), **WRONG}, {}),
    "set unknown": lambda made: made.set_params({**start(), "c": mx.nd.ones((1,))}, {}),
    "set some wrong": lambda made: made.set_params({"a_bias": mx.nd.ones((3,)), **WRONG}, {}, allow_missing=True),
    "optimizer": lambda made: made.init_optimizer(),
    "wrong optimizer": lambda made: made.init_optimizer(optimizer=3, force_init=True),
    "forward": lambda made: made.forward(batch(), is_train=made.for_training),
    "forward other rows": lambda made: made.forward(batch(3)),
    "forward wrong width": lambda made: made.forward(bad_batch(width=7)),
    "forward wrong labels": lambda made: made.forward(bad_batch(labels=3)),
    "backward": lambda made: made.backward(),
    "backward wrong": lambda made: made.backward([mx.nd.ones((1,)), mx.nd.ones((1,))]),
    "update": lambda made: made.update(),
    "outputs": lambda made: made.get_outputs(),
    "input gradients": lambda made: made.get_input_grads(),
    "wrong states": lambda made: made.set_states([mx.nd.ones((1,))]),
}


def visible(made):
    """All that a caller can see of a chain."""
    flags = [(m.binded, m.params_initialized, m.optimizer_initialized, m.for_training) for m in (made, *made._modules)]
    shapes = [(m.data_shapes, m.label_shapes) for m in (made, *made._modules) if m.binded]
    params = arrays(made.get_params()) if made.binded and made.params_initialized else {}
    return flags, shapes, {name: value.tolist() for name, value in params.items()}


@hypothesis.given(calls=st.lists(st.sampled_from(sorted(CALLS)), min_size=1, max_size=14))
@hypothesis.settings(max_examples=40)
@pytest.mark.filterwarnings("ignore")
def test_whatever_is_refused_changes_nothing_and_says_why(calls):
    made = chain()
    for name in calls:
        before = visible(made)
        try:
            CALLS[name](made)
        except mx.base.MXNetError as error:
            raise AssertionError(f"{calls}: the engine's own words") from error
        except (ValueError, TypeError, RuntimeError) as refusal:
            assert visible(made) == before and len(str(refusal)) > 20, f"{name} of {calls}"
