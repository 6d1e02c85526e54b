"""Buckets: their keys, what a refused batch leaves, rebinds, monitors, and one optimizer for all of them."""

from __future__ import annotations

import collections
import re

import numpy as np
import pytest

import bucketlab as bl
from bucketlab import mx
from bucketlab.errors import BucketError, NotReadyError
from kinds import (
    CLASSES,
    WIDTH,
    assert_equal,
    batch,
    bound,
    every_kind,
    every_number_of_contexts,
    inner,
    make,
    ready,
    refused,
    shapes,
    start,
    step,
    symbol,
    values,
)
from nets import CONTEXTS, Batches

Lengths = collections.namedtuple("Lengths", ["source", "target"])


@pytest.mark.parametrize(
    "keys", [[1, 2], ["long", "short"], [(5, 5), (3, 5)], [Lengths(5, 5), Lengths(3, 5)], [2.5, 1.5], [np.int64(4), 3]]
)
def test_keys_are_anything_hashable(keys):
    module = bl.BucketingModule(lambda key: (symbol(), ["data"], ["softmax_label"]), keys[0])
    module.bind(*shapes())
    module.init_params(arg_params=start(), aux_params={})
    twin = ready("Module")
    module.init_optimizer(optimizer_params={"learning_rate": 0.2, "momentum": 0.9})
    for seed, key in enumerate([*keys, *keys]):
        step(module, batch(seed=seed, key=key))
        step(twin, batch(seed=seed))
    assert list(module._buckets) == keys and module._curr_bucket_key == keys[1]
    assert_equal(values(module), values(twin))


def test_a_batch_that_does_not_say_its_bucket_is_told_to():
    plain = mx.io.NDArrayIter(np.ones((8, WIDTH), "f"), np.zeros(8, "f"), batch_size=4)
    bare = collections.namedtuple("Bare", ["data"])([mx.nd.ones((4, WIDTH))])
    asked = []

    def sym_gen(key):
        asked.append(key)
        return symbol(), ["data"], ["softmax_label"]

    module = bl.BucketingModule(sym_gen, 2)
    module.bind(*shapes())
    module.init_params()
    module.init_optimizer()
    for call in (
        lambda: module.score(plain, "acc"),
        lambda: module.predict(plain),
        lambda: module.fit(plain, num_epoch=1),
        lambda: module.forward(bare),
        lambda: module.prepare(bare),
        lambda: module.forward(batch(key=None)),
        lambda: module.forward([batch(key=None)]),
    ):
        with refused("bucket_key", kind=BucketError):
            call()
    with refused("not hashable", "[2]", kind=BucketError):
        module.forward(batch(key=[2]))
    assert asked == [2] and list(module._buckets) == [2]


@pytest.mark.parametrize("made", [None, 3, (symbol(),), (None, ["data"], None), (symbol(), ["data"])])
def test_what_sym_gen_has_to_return_is_said(made):
    with refused("sym_gen(1)", "(symbol, data_names, label_names)", kind=BucketError):
        bl.BucketingModule(lambda key: made, 1)


@pytest.mark.parametrize(
    ("names", "argument"), [(("data", ["softmax_label"]), "data_names"), ((["data"], 3), "label_names")]
)
def test_names_that_are_no_list_are_not_taken_letter_by_letter(names, argument):
    module = bl.BucketingModule(lambda key: (symbol(), *(names if key else (["data"], ["softmax_label"]))), 0)
    module.bind(*shapes())
    module.init_params()
    with refused("sym_gen(1)", argument, kind=BucketError):
        module.forward(batch(key=1))
    assert list(module._buckets) == [0]


def test_what_sym_gen_may_be_is_said():
    with refused("sym_gen is NoneType", kind=TypeError):
        bl.BucketingModule(None, 1)
    with refused("default_bucket_key", kind=BucketError):
        bl.BucketingModule(lambda key: (symbol(), ["data"], ["softmax_label"]))
    assert bl.BucketingModule(lambda key: [symbol(), ["data"], ["softmax_label"]], 1).data_names == ["data"]
    assert bl.BucketingModule(lambda key: [symbol(), ("data",), LABEL], 1).output_names == ["softmax_output"]


LABEL = ("softmax_label",)


def test_a_list_of_batches_of_one_bucket_goes_to_the_contexts():
    module, twin = ready("BucketingModule", contexts=2), ready("Module", 8)
    halves = [batch(4, seed=1, key=5), batch(4, seed=2, key=5)]
    whole = batch(8)
    whole.data = [mx.nd.concat(*[half.data[0] for half in halves], dim=0)]
    whole.label = [mx.nd.concat(*[half.label[0] for half in halves], dim=0)]
    step(module, halves)
    step(twin, whole)
    assert module._curr_bucket_key == 5
    for name, value in values(twin).items():
        np.testing.assert_allclose(values(module)[name], value, rtol=1e-5, atol=1e-7, err_msg=name)
    with refused("[5, 6]", "bucket_key", kind=BucketError):
        module.forward([batch(4, key=5), batch(4, key=6)])


BAD = {
    "label rows": {"label": [mx.nd.zeros((8,))]},
    "width": {"data": [mx.nd.ones((4, 9))]},
    "names": {"provide_data": [("words", (4, WIDTH))]},
    "no shapes": {"provide_data": None},
    "no data": {"data": []},
    "not arrays": {"data": [None]},
    "two labels": {"label": [mx.nd.zeros((4,))] * 2},
}


@every_number_of_contexts
@pytest.mark.parametrize("key", [0, 1, 2])
def test_a_refused_batch_leaves_bucket_shapes_and_results(key, contexts):
    """Of the current bucket, of another one, of one that is not there yet."""
    module, twin = ready("BucketingModule", contexts=contexts), ready("BucketingModule", contexts=contexts)
    for each in (module, twin):
        for known in (1, 0):
            step(each, batch(key=known, seed=known))
        each.forward(batch(seed=5), is_train=True)
    for how, changed in BAD.items():
        if how == "no shapes" and key < 2:
            continue
        with refused():
            module.forward(batch(key=key, **changed))
        assert module._curr_bucket_key == 0 and list(module._buckets) == [0, 1], how
        assert module.data_shapes == twin.data_shapes
        np.testing.assert_array_equal(module.get_outputs()[0].asnumpy(), twin.get_outputs()[0].asnumpy())
    for each in (module, twin):
        each.backward()
        each.update()
        step(each, batch(key=2))
    assert_equal(values(module), values(twin))


def test_observers_are_told_which_bucket_is_current_after_all():
    module, seen = ready("BucketingModule"), []
    module.forward(batch(key=1))
    module._observer = lambda kind, _, detail: seen.append((kind, detail))
    with refused():
        module.forward(batch(key=0, label=[mx.nd.zeros((3,))]))
    assert [detail for kind, detail in seen if kind == "switch"][-1:] in ([], [1])
    assert "forward" not in [kind for kind, _ in seen]


@every_kind
def test_a_bind_that_failed_can_be_repeated(kind):
    module = make(kind)
    for wrong, words in (
        (([("dta", (4, WIDTH))], shapes()[1]), ["dta", "data"]),
        ((shapes()[0], [("softmax_label", (3,))]), ["softmax_label", "3"]),
        (([("data", (0, WIDTH))], shapes()[1]), ["data", "(0, 4)"]),
        (([("data", (4, -1))], shapes()[1]), ["data", "(4, -1)"]),
        (([("data", (4,)), ("data", (4,))], shapes()[1]), ["data"]),
        ((None, None), ["data_shapes"]),
        (([], None), ["data"]),
        (("data", None), ["data_shapes"]),
        ((shapes()[0], 3), ["label_shapes is 3"]),
    ):
        with refused(*words):
            module.bind(*wrong)
        assert not module.binded
        with refused("bind(", kind=NotReadyError):
            module.init_params()
    module.bind(*shapes())
    module.init_params()
    module.forward(batch(), is_train=False)
    assert module.get_outputs()[0].shape == (4, CLASSES)


@every_kind
def test_bound_twice_is_a_warning_and_nothing_else(kind, caplog):
    module, twin = ready(kind), ready(kind)
    module.bind([("data", (9, WIDTH))], [("softmax_label", (9,))])
    assert "force_rebind=True" in caplog.text and module.data_shapes == [("data", (4, WIDTH))]
    for each in (module, twin):
        step(each, batch())
    assert_equal(values(module), values(twin))


@every_kind
@every_number_of_contexts
def test_a_rebind_that_fails_leaves_everything(kind, contexts):
    module, twin = ready(kind, contexts=contexts), ready(kind, contexts=contexts)
    for each in (module, twin):
        step(each, batch())
        each.forward(batch(seed=1), is_train=True)
    for wrong in ([("dta", (4, WIDTH))], [("data", (4, 9))], [("data", (0, WIDTH))]):
        with refused():
            module.bind(wrong, shapes()[1], force_rebind=True)
        assert module.data_shapes == twin.data_shapes and module.binded
    np.testing.assert_array_equal(module.get_outputs()[0].asnumpy(), twin.get_outputs()[0].asnumpy())
    for each in (module, twin):
        each.backward()
        each.update()
    assert_equal(values(module), values(twin))


@every_kind
@every_number_of_contexts
@pytest.mark.parametrize("how", ["force_rebind", "reset"])
def test_a_rebind_keeps_parameters_and_the_optimizers_state(kind, contexts, how):
    if kind == "SequentialModule" and how == "reset":
        how = "force_rebind"
    module, twin = ready(kind, contexts=contexts), ready(kind, contexts=contexts)
    for rows in (4, 2, 6):
        for each in (module, twin):
            step(each, batch())
        if how == "reset":
            module._reset_bind()
            assert not module.binded
        module.bind(*shapes(rows), force_rebind=how == "force_rebind")
        for each in (module, twin):
            step(each, batch(rows))
    assert_equal(values(module), values(twin))


@every_kind
def test_for_inference_and_back(kind):
    module, twin = ready(kind), ready(kind)
    for each in (module, twin):
        step(each, batch())
    module.bind(*shapes(2), for_training=False, force_rebind=True)
    module.forward(batch(2))
    with refused("for_training=True", kind=NotReadyError):
        module.backward()
    if kind != "SVRGModule":
        with refused("for_training=True", kind=NotReadyError):
            module.update()
    module.bind(*shapes(), force_rebind=True)
    for each in (module, twin):
        step(each, batch(seed=1))
    assert_equal(values(module), values(twin))


def ordered(first):
    """Two layers whose parameters the symbol lists in the one or the other order; the same computation."""
    data = mx.sym.Variable("data")
    a = mx.sym.FullyConnected(data, num_hidden=WIDTH, no_bias=True, name="a")
    b = mx.sym.FullyConnected(data, num_hidden=WIDTH, no_bias=True, name="b") * 0.5
    return mx.sym.LinearRegressionOutput(a + b if first else b + a, mx.sym.Variable("softmax_label"))


def regression(seed=0, key=0):
    one = batch(seed=seed, key=key)
    return batch(data=one.data, label=one.data, key=key, provide_label=[("softmax_label", (4, WIDTH))])


LAYERS = {"a_weight": mx.nd.ones((WIDTH, WIDTH)), "b_weight": mx.nd.ones((WIDTH, WIDTH)) * 3}
OPTIMIZERS = [("sgd", {"momentum": 0.9}), ("adam", {}), ("adagrad", {}), ("nadam", {})]


def two_orders(default=0, contexts=1, kvstore="local", optimizer="sgd", settings=None):
    module = bl.BucketingModule(
        lambda key: (ordered(key == 0), ["data"], ["softmax_label"]), default, context=CONTEXTS[:contexts]
    )
    module.bind(shapes()[0], [("softmax_label", (4, WIDTH))])
    module.init_params(arg_params=LAYERS, aux_params={})
    settings = {"momentum": 0.9} if settings is None else settings
    module.init_optimizer(kvstore, optimizer, {"learning_rate": 0.1, **settings})
    return module


@pytest.mark.parametrize(("optimizer", "settings"), OPTIMIZERS)
@every_number_of_contexts
def test_optimizer_states_go_by_the_name_of_the_parameter(optimizer, settings, contexts):
    one, two = (two_orders(0, contexts, "local", optimizer, settings) for _ in range(2))
    for seed in range(4):
        step(one, regression(seed))
        step(two, regression(seed, key=seed % 2))
    for name, value in values(one).items():
        np.testing.assert_allclose(values(two)[name], value, rtol=1e-5, atol=1e-6, err_msg=name)


@every_number_of_contexts
@pytest.mark.parametrize("then", [1, 2])
def test_they_go_by_name_over_a_checkpoint_too(tmp_path, contexts, then):
    """Saved where a comes first, loaded where b does."""
    source = two_orders(0, contexts)
    for seed in range(2):
        step(source, regression(seed))
    source.save_checkpoint(str(tmp_path / "m"), 1, True)
    again = two_orders(1, then)
    again.set_params(*source.get_params())
    again.load_optimizer_states(str(tmp_path / "m-0001.states"))
    for seed in range(2, 4):
        step(source, regression(seed))
        step(again, regression(seed, key=1))
    for name, value in values(source).items():
        np.testing.assert_allclose(values(again)[name], value, rtol=1e-5, atol=1e-6, err_msg=name)


def test_multipliers_follow_names_in_every_bucket():
    def sym_gen(key):
        bias = mx.sym.Variable("fc_bias", lr_mult=0.0)
        scores = mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=CLASSES, name="fc", bias=bias)
        if key:
            scores = mx.sym.broadcast_add(
                scores, mx.sym.Variable("late_bias", shape=(1, CLASSES), lr_mult=0.0, init=mx.init.Zero())
            )
        return mx.sym.SoftmaxOutput(scores, name="softmax"), ["data"], ["softmax_label"]

    module = bl.BucketingModule(sym_gen, 0)
    module.bind(*shapes())
    module.init_params(arg_params=start(), aux_params={})
    module.init_optimizer(optimizer_params={"learning_rate": 0.5, "momentum": 0.9})
    for key in (0, 1, 1, 0):
        step(module, batch(key=key, seed=key))
    found = values(module)
    np.testing.assert_array_equal(found["fc_bias"], start()["fc_bias"].asnumpy())
    assert not found["late_bias"].any() and not np.array_equal(found["fc_weight"], start()["fc_weight"].asnumpy())


def test_the_gradient_scale_follows_the_rows_of_each_batch():
    module, twin = ready("BucketingModule", 4), ready("Module", 4)
    for rows, key in ((4, 0), (2, 1), (6, 2), (1, 0)):
        step(module, batch(rows, key=key))
        step(twin, batch(rows))
        assert inner(module)._optimizer.rescale_grad == 1 / rows
    assert_equal(values(module), values(twin))


@every_kind
def test_a_monitor_sees_every_shape_and_what_is_bound_later(kind):
    module = ready(kind)
    monitor = mx.mon.Monitor(1, stat_func=lambda x: x.abs().sum(), pattern=".*output")
    module.install_monitor(monitor)

    def seen(given):
        monitor.tic()
        module.forward(given, is_train=False)
        return [name for _, name, _ in monitor.toc()]

    expected = ["fc_output", "softmax_output"]
    for rows, key in ((4, 0), (2, 0), (4, 1), (4, 0), (6, 2)):
        assert seen(batch(rows, key=key)) == expected, (rows, key)
    module.bind(*shapes(2), force_rebind=True)
    assert seen(batch(2)) == expected
    monitor.re_prog = re.compile("fc_weight")
    assert seen(batch(2)) == ["fc_weight"]


@every_kind
def test_fit_twice_goes_on_where_it_was(kind):
    """As one fit of both lengths, for an optimizer that remembers."""
    random = np.random.RandomState(2)
    batches = [batch(seed=seed) for seed in range(3)]
    settings = {"optimizer": "adam", "optimizer_params": {"learning_rate": 0.05}, "initializer": None}
    module, twin = bound(kind), bound(kind)
    module.fit(Batches(batches), num_epoch=2, **settings)
    module.fit(Batches(batches), begin_epoch=2, num_epoch=3, **settings)
    twin.fit(Batches(batches), num_epoch=3, **settings)
    assert_equal(values(module), values(twin))
    other = [batch(6, seed=random.randint(9)) for _ in range(2)]
    module.fit(Batches(other), num_epoch=1, force_rebind=True, **settings)
    assert module.data_shapes == [("data", (6, WIDTH))]
