"""SVRGModule: the steps of mxnet.contrib's, over contexts and kvstores, and what it refuses."""

from __future__ import annotations

import importlib
import pickle

import numpy as np
import pytest

import bucketlab as bl
from bucketlab import mx
from bucketlab.errors import NotReadyError, ShapeError
from bucketlab.module.svrg import _SVRGOptimizer

ROWS, BATCH = 20, 6
# Not by an import statement, which would come before bucketlab's, and only after that can mxnet be imported.
MxnetSVRGModule = importlib.import_module("mxnet.contrib.svrg_optimization.svrg_module").SVRGModule


def regression(name="fc1", **kwargs):
    layer = mx.sym.FullyConnected(mx.sym.Variable("data"), name=name, num_hidden=1, **kwargs)
    return mx.sym.LinearRegressionOutput(layer, mx.sym.Variable("label"), name="out")


def iterator(rows=ROWS, shuffle=False, seed=3):
    random = np.random.RandomState(seed)
    np.random.seed(seed)
    x = random.randint(1, 5, (rows, 2)).astype("f")
    return mx.io.NDArrayIter(x, x @ [1, 2], batch_size=BATCH, shuffle=shuffle, label_name="label")


def module(kind=bl.SVRGModule, symbol=None, update_freq=2, **kwargs):
    return kind(regression() if symbol is None else symbol, ["data"], ["label"], update_freq=update_freq, **kwargs)


def start(name="fc1"):
    return {f"{name}_weight": mx.nd.array([[0.3, 0.1]]), f"{name}_bias": mx.nd.array([0.2])}


def bound(data=None, params=None, kvstore="local", settings=None, **kwargs):
    made, data = module(**kwargs), data or iterator()
    made.bind(data.provide_data, data.provide_label)
    made.init_params(arg_params=params or start())
    made.init_optimizer(kvstore=kvstore, optimizer_params=settings or {"learning_rate": 0.01})
    return made


def fitted(kind=bl.SVRGModule, contexts=1, kvstore="local", epochs=5, name="fc1", shuffle=True, **kwargs):
    optimizer = kwargs.pop("optimizer", "sgd")
    settings = kwargs or {"learning_rate": 0.02, "momentum": 0.9, "wd": 0.01}
    made = module(kind, regression(name), context=[mx.cpu(i) for i in range(contexts)])
    data = iterator(shuffle=shuffle)
    made.fit(
        data,
        num_epoch=epochs,
        optimizer=optimizer,
        optimizer_params=settings,
        kvstore=kvstore,
        arg_params=start(name),
        eval_metric="mse",
    )
    return {key: value.asnumpy() for key, value in made.get_params()[0].items()}


def assert_same(found, expected, **close):
    assert found.keys() == expected.keys()
    for name in expected:
        if close:
            np.testing.assert_allclose(found[name], expected[name], err_msg=name, **close)
        else:
            np.testing.assert_array_equal(found[name], expected[name], err_msg=name)


class TestLikeMxnet:
    @pytest.mark.parametrize(
        "settings",
        [{}, {"optimizer": "adam", "learning_rate": 0.05}, {"optimizer": "rmsprop", "learning_rate": 0.01}],
    )
    def test_same_parameters_after_fit(self, settings):
        expected = fitted(MxnetSVRGModule, **dict(settings))
        assert_same(fitted(**dict(settings)), expected)
        assert not np.array_equal(expected["fc1_weight"], start()["fc1_weight"].asnumpy())

    def test_as_many_shuffles(self):
        after = []
        for kind in (MxnetSVRGModule, bl.SVRGModule):
            fitted(kind)
            after.append(np.random.rand())
        assert after[0] == after[1]

    def test_an_optimizer_object(self):
        def adam():
            return mx.optimizer.Adam(learning_rate=0.05, rescale_grad=1 / BATCH)

        assert_same(fitted(optimizer=adam()), fitted(MxnetSVRGModule, optimizer=adam()))

    @pytest.mark.parametrize("kvstore", [None, "local", "device", "object"])
    @pytest.mark.parametrize("contexts", [1, 2])
    def test_contexts_and_kvstores_come_to_the_same(self, contexts, kvstore):
        store = mx.kv.create("local") if kvstore == "object" else kvstore
        assert_same(fitted(contexts=contexts, kvstore=store), fitted(), rtol=1e-4, atol=1e-5)

    def test_same_steps_by_hand(self):
        results = []
        for kind in (MxnetSVRGModule, bl.SVRGModule):
            data = iterator()
            made = module(kind)
            made.bind(data.provide_data, data.provide_label)
            made.init_params(arg_params=start())
            made.init_optimizer(optimizer_params={"learning_rate": 0.02})
            for epoch in range(3):
                if epoch % made.update_freq == 0:
                    made.update_full_grads(data)
                data.reset()
                for batch in data:
                    made.forward_backward(batch)
                    made.update()
            results.append({name: value.asnumpy() for name, value in made.get_params()[0].items()})
        assert_same(results[1], results[0])

    def test_it_finds_the_weights(self):
        made = module(context=[mx.cpu(0), mx.cpu(1)])
        data = iterator(rows=18)
        made.fit(
            data,
            num_epoch=60,
            optimizer_params={"learning_rate": 0.05},
            eval_metric="mse",
            arg_params=start(),
        )
        np.testing.assert_allclose(made.get_params()[0]["fc1_weight"].asnumpy(), [[1, 2]], atol=0.05)
        assert made.score(data, "mse")[0][1] < 0.01


class TestMeanGradient:
    def expected_mean(self, data, params):
        x, y = data.data[0][1].asnumpy(), data.label[0][1].asnumpy()
        error = x @ params["fc1_weight"].asnumpy()[0] + params["fc1_bias"].asnumpy()[0] - y
        return (error[:, None] * x).sum(0) * BATCH / len(x)

    def test_it_is_the_mean_over_batches(self):
        data = iterator(rows=18)
        made = bound(data)
        made.update_full_grads(data)
        np.testing.assert_allclose(
            made._param_dict[0]["fc1_weight"].asnumpy()[0], self.expected_mean(data, start()), rtol=1e-5
        )

    @pytest.mark.parametrize("kvstore", ["local", None])
    def test_contexts_hold_parts_that_add_up_to_it(self, kvstore):
        data = iterator(rows=18)
        made = bound(data, context=[mx.cpu(0), mx.cpu(1)], kvstore=kvstore)
        made.update_full_grads(data)
        total = sum(table["fc1_weight"].asnumpy()[0] for table in made._param_dict)
        np.testing.assert_allclose(total, self.expected_mean(data, start()), rtol=1e-5)

    def test_starting_from_zero_is_one_attribute_away(self):
        class Published(bl.SVRGModule):
            starts_from_last_mean = False

        data = iterator(rows=18)
        for kind, factor in ((Published, 1), (bl.SVRGModule, 1 + 1 / 3)):
            made = bound(data, kind=kind)
            for _ in range(2):
                made.update_full_grads(data)
            np.testing.assert_allclose(
                made._param_dict[0]["fc1_weight"].asnumpy()[0],
                factor * self.expected_mean(data, start()),
                rtol=1e-5,
            )

    def test_at_the_copy_itself_a_step_follows_the_mean(self):
        data = iterator(rows=18)
        made = bound(data)
        made.update_full_grads(data)
        data.reset()
        made.forward_backward(next(data))
        made.update()
        step = (start()["fc1_weight"] - made.get_params()[0]["fc1_weight"]).asnumpy()[0]
        np.testing.assert_allclose(step, 0.01 / BATCH * self.expected_mean(data, start()), rtol=1e-4)

    def test_an_iterator_that_yields_nothing_is_refused(self):
        class Empty(mx.io.DataIter):
            def next(self):
                raise StopIteration

        with pytest.raises(ValueError, match="no batch"):
            bound().update_full_grads(Empty())


class TestMended:
    def test_layers_with_full_in_their_name_are_trained(self):
        found = fitted(name="fullyconnected0")
        assert_same({name.replace("fullyconnected0", "fc1"): value for name, value in found.items()}, fitted())

    def test_training_is_meant_where_is_train_is_not_said(self):
        data = iterator()
        made, other = bound(), bound()
        for each, is_train in ((made, None), (other, True)):
            each.update_full_grads(data)
            data.reset()
            each.forward(next(data), is_train)
            each.backward()
            each.update()
        assert_same(*({k: v.asnumpy() for k, v in m.get_params()[0].items()} for m in (made, other)))

    def test_fixed_parameters_stay(self):
        made = module(fixed_param_names=["fc1_bias"])
        made.fit(iterator(), num_epoch=3, arg_params=start(), eval_metric="mse")
        params = made.get_params()[0]
        assert params["fc1_bias"].asnumpy() == np.float32(0.2)
        assert not np.array_equal(params["fc1_weight"].asnumpy(), start()["fc1_weight"].asnumpy())

    def test_row_sparse_gradients_give_what_dense_ones_do(self):
        x = mx.nd.array([[1, 0, 0, 2], [0, 3, 0, 0], [1, 1, 0, 0], [0, 0, 0, 1]])
        found = []
        for sparse in (True, False):
            stypes = {"stype": "csr"} if sparse else {}, {"stype": "row_sparse"} if sparse else {}
            data = mx.sym.Variable("data", **stypes[0])
            weight = mx.sym.Variable("v", shape=(4, 1), init=mx.init.Zero(), **stypes[1])
            net = mx.sym.LinearRegressionOutput(mx.sym.dot(data, weight), mx.sym.Variable("label"), name="out")
            values = x.tostype("csr") if sparse else x
            batches = mx.io.NDArrayIter(values, {"label": mx.nd.ones((4, 1))}, 2, last_batch_handle="discard")
            made = module(symbol=net)
            made.fit(batches, num_epoch=4, eval_metric="mse", optimizer_params={"learning_rate": 0.2})
            found.append(made.get_params()[0]["v"])
        assert [value.stype for value in found] == ["row_sparse", "default"]
        np.testing.assert_allclose(found[0].asnumpy(), found[1].asnumpy(), rtol=1e-5)
        assert found[1].asnumpy().any()

    def test_the_module_that_shares_keeps_a_copy_apart_from_its_weights(self):
        data = iterator()
        giver = bound(data)
        giver.update_full_grads(data)
        made = module()
        made.bind(data.provide_data, data.provide_label, shared_module=giver)
        own, copy = made._exec_group.execs[0].arg_dict, made._mod_aux._exec_group.execs[0].arg_dict
        assert bl.same_memory(own["fc1_weight"], giver._exec_group.execs[0].arg_dict["fc1_weight"])
        assert bl.same_memory(copy["fc1_weight"], giver._mod_aux._exec_group.execs[0].arg_dict["fc1_weight"])
        assert not bl.same_memory(own["fc1_weight"], copy["fc1_weight"])

    def test_parameters_are_untouched_by_init_optimizer(self):
        made = bound(context=[mx.cpu(0), mx.cpu(1)], kvstore="local")
        for executor in made._exec_group.execs:
            np.testing.assert_array_equal(executor.arg_dict["fc1_weight"].asnumpy(), start()["fc1_weight"].asnumpy())


class TestRefusals:
    @pytest.mark.parametrize(
        ("value", "kind"), [(None, TypeError), (1.5, TypeError), (True, TypeError), (0, ValueError)]
    )
    def test_update_freq(self, value, kind):
        with pytest.raises(kind, match="update_freq"):
            module(update_freq=value)

    def test_order_of_calls(self):
        made, data = module(), iterator()
        with pytest.raises(NotReadyError, match=r"call bind\("):
            made.update_full_grads(data)
        made.bind(data.provide_data, data.provide_label)
        made.init_params()
        with pytest.raises(NotReadyError, match=r"call init_optimizer\("):
            made.update_full_grads(data)
        with pytest.raises(NotReadyError, match=r"call init_optimizer\("):
            made.update()
        made.init_optimizer()
        with pytest.raises(NotReadyError, match=r"call update_full_grads\("):
            made.forward(next(data), is_train=True)
        made.forward(next(data), is_train=False)
        assert made.get_outputs()[0].shape == (BATCH, 1)

    def test_bound_for_inference_there_is_no_copy(self):
        made, data = bound(), iterator()
        made.bind(data.provide_data, data.provide_label, for_training=False, force_rebind=True)
        assert made.binded and not made._mod_aux.binded
        assert made.predict(data).shape == (ROWS, 1)
        with pytest.raises(NotReadyError, match="for_training=True"):
            made.update_full_grads(data)

    def test_a_bind_that_fails_leaves_both_unbound(self):
        made = module()
        with pytest.raises(ShapeError):
            made.bind([("data", (4, 2))], [("label", (3, 1))])
        assert not made.binded and not made._mod_aux.binded
        made.bind([("data", (4, 2))], [("label", (4, 1))])
        assert made.binded and made._mod_aux.binded

    def test_a_second_init_optimizer_changes_nothing(self, caplog):
        made, data = bound(), iterator()
        made.update_full_grads(data)
        before = made._param_dict[0]["fc1_weight"].asnumpy()
        made.init_optimizer(optimizer="adam")
        assert "force_init" in caplog.text and type(made._optimizer.default_opt).__name__ == "SGD"
        np.testing.assert_array_equal(made._param_dict[0]["fc1_weight"].asnumpy(), before)


class TestLife:
    def test_reshape_and_other_batch_sizes_reach_both(self):
        data = iterator()
        made = bound(data)
        made.update_full_grads(data)
        made.reshape([("data", (3, 2))], [("label", (3,))])
        for each in (made, made._mod_aux):
            assert each.data_shapes == [("data", (3, 2))]
        made.forward_backward(mx.io.DataBatch([mx.nd.ones((4, 2))], [mx.nd.ones((4,))]))
        made.update()
        assert made._mod_aux.get_outputs()[0].shape == (4, 1)
        made._reset_bind()
        assert not made.binded and not made._mod_aux.binded

    def test_checkpoints(self, tmp_path):
        made, prefix, data = (
            bound(settings={"learning_rate": 0.01, "momentum": 0.9}),
            str(tmp_path / "c"),
            iterator(),
        )
        made.update_full_grads(data)
        data.reset()
        made.forward_backward(next(data))
        made.update()
        made.save_checkpoint(prefix, 1, save_optimizer_states=True)
        names = {"data_names": ["data"], "label_names": ["label"]}
        again = bl.SVRGModule.load(prefix, 1, load_optimizer_states=True, update_freq=3, **names)
        assert isinstance(again, bl.SVRGModule) and again.update_freq == 3
        again.bind(data.provide_data, data.provide_label)
        again.init_optimizer(optimizer_params={"learning_rate": 0.01, "momentum": 0.9})
        for key, state in made._updater.states.items():
            np.testing.assert_array_equal(again._updater.states[key].asnumpy(), state.asnumpy())
        assert type(bl.SVRGModule.load(prefix, 1, **names)) is bl.Module

    def test_memory_shows_the_copy(self):
        made = bound()
        assert {row.bucket for row in made.memory().buckets} == {"weights", "copy"}
        assert made.memory().distinct > bl.Module.memory(made._mod_aux).distinct

    def test_the_rate_of_the_optimizer_asked_for(self):
        made = bound()
        made._optimizer.lr = 0.5
        made._optimizer.rescale_grad = 0.25
        assert made._optimizer.default_opt.lr == 0.5 and made._optimizer.default_opt.rescale_grad == 0.25


class TestOptimizer:
    def test_means_are_assigned_and_parameters_optimised(self):
        optimizer = _SVRGOptimizer(
            "sgd", param_idx2name={0: "w", 1: "w_full", 2: "fullyconnected_full"}, learning_rate=1.0
        )
        store = mx.kv.create("local")
        store.set_optimizer(optimizer)
        found = []
        for key in range(3):
            store.init(key, mx.nd.ones((2,)))
            store.push(key, mx.nd.full((2,), 3))
            store.pull(key, out=(array := mx.nd.zeros((2,))))
            found.append(array.asnumpy()[0])
        assert found == [-2, 3, -2]

    def test_it_can_be_sent_to_servers(self):
        again = pickle.loads(pickle.dumps(_SVRGOptimizer("adam", learning_rate=0.3, rescale_grad=0.5)))
        assert (again.lr, again.rescale_grad, type(again.default_opt).__name__) == (0.3, 0.5, "Adam")
