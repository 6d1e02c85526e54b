"""predict, iter_predict and score: of any iterator or array, without padding, in inference mode, for keeps."""

from __future__ import annotations

import collections

import numpy as np
import pytest

import bucketlab as bl
from bucketlab import mx
from kinds import (
    CLASSES,
    LABEL,
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
    step,
    symbol,
    values,
)
from nets import CONTEXTS, Batches

NAMES = ["softmax_label"]


def iterator(rows=10, size=4, **kwargs):
    random = np.random.RandomState(5)
    label = random.randint(0, CLASSES, rows).astype("f")
    return mx.io.NDArrayIter(random.rand(rows, WIDTH).astype("f"), label, batch_size=size, **kwargs)


def keyed(source):
    """The batches of an iterator as those of bucket 0."""
    made = []
    for given in source:
        given.bucket_key = 0
        made.append(given)
    return Batches(made, source.provide_data, source.provide_label)


@every_kind
@every_number_of_contexts
def test_a_batch_that_does_not_tell_its_padding_has_none(kind, contexts):
    module = bound(kind, contexts=contexts)
    data = Batches([batch(seed=seed, pad=None) for seed in range(3)])
    assert module.predict(data).shape == (12, CLASSES)
    assert [outputs[0].shape[0] for outputs, _, _ in module.iter_predict(data)] == [4, 4, 4]
    metric = mx.metric.create("acc")
    module.score(data, metric)
    assert metric.num_inst == 12


@every_kind
@every_number_of_contexts
def test_padding_is_in_no_prediction_and_in_no_score(kind, contexts):
    module, metric, source = bound(kind, contexts=contexts), mx.metric.create("acc"), keyed(iterator())
    found = module.predict(source)
    assert found.shape == (10, CLASSES)
    assert [outputs[0].shape[0] for outputs, _, _ in module.iter_predict(source)] == [4, 4, 2]
    module.score(source, metric)
    right = found.asnumpy().argmax(1) == np.concatenate([b.label[0].asnumpy() for b in keyed(iterator())])[:10]
    assert metric.num_inst == 10 and metric.get()[1] == right.mean()


@every_kind
@every_number_of_contexts
def test_padding_is_a_number_of_rows_and_leaves_some(kind, contexts):
    module = bound(kind, contexts=contexts)
    assert module.predict(Batches([batch(pad=np.int64(3))])).shape == (1, CLASSES)
    for pad in (4, 5):
        with refused(f"pad {pad}", kind=ValueError):
            module.predict(Batches([batch(pad=pad)]))
    for pad in ("x", 1.5, -1):
        for call in (module.predict, lambda source: module.score(source, "acc")):
            with refused("pad is", repr(pad), kind=(ValueError, TypeError)):
                call(Batches([batch(pad=pad)]))
    metric = mx.metric.create("acc")
    module.score(Batches([batch(pad=4), batch(pad=1)]), metric)
    assert metric.num_inst == 3


@every_kind
def test_what_iter_predict_gave_stays_what_it_was(kind):
    module, twin = bound(kind), bound("Module")
    kept = [(outputs[0], given) for outputs, _, given in module.iter_predict(keyed(iterator(8)))]
    for output, given in kept:
        twin.forward(given, is_train=False)
        np.testing.assert_array_equal(output.asnumpy(), twin.get_outputs()[0].asnumpy())


@every_kind
@every_number_of_contexts
@pytest.mark.parametrize("merged", [False, True])
def test_outputs_handed_out_stay_what_they_were(kind, contexts, merged):
    module = ready(kind, contexts=contexts)
    module.forward(batch(), is_train=False)
    kept = module.get_outputs(merge_multi_context=merged)[0]
    kept = [kept] if merged else kept
    before = [part.asnumpy() for part in kept]
    for seed in (1, 2):
        step(module, batch(seed=seed))
    for part, value in zip(kept, before):
        np.testing.assert_array_equal(part.asnumpy(), value)


@every_kind
@every_number_of_contexts
def test_an_array_of_any_rows_is_predicted_without_labels_and_training_goes_on(kind, contexts):
    module, twin = ready(kind, contexts=contexts), ready(kind, contexts=contexts)
    weight, bias = values(module)["fc_weight"], values(module)["fc_bias"]
    for rows in (1, 3, 4, 9):
        given = batch(rows, seed=3).data[0]
        scores = np.exp(given.asnumpy() @ weight.T + bias)
        for array in (given, given.asnumpy(), given.asnumpy().astype("float64")):
            found = module.predict(array)
            assert isinstance(found, mx.nd.NDArray)
            np.testing.assert_allclose(found.asnumpy(), scores / scores.sum(1, keepdims=True), rtol=1e-5)
    for each in (module, twin):
        step(each, batch())
    assert_equal(values(module), values(twin))


@every_kind
def test_an_array_is_predicted_in_inference_mode(kind):
    dropped = mx.sym.Dropout(mx.sym.Variable("data"), p=0.5, mode="training")
    module = make(kind, dropped + 0, label=None)
    module.bind([("data", (8, WIDTH))])
    module.init_params()
    module.init_optimizer()
    np.testing.assert_array_equal(module.predict(mx.nd.ones((8, WIDTH))).asnumpy(), np.ones((8, WIDTH)))
    assert module.predict(mx.nd.ones((8, WIDTH)), always_output_list=True)[0].shape == (8, WIDTH)


@every_kind
def test_what_cannot_be_predicted_or_scored_is_named(kind):
    module = bound(kind)
    for wrong in ([1, 2], 3, None, "data", {"data": 1}):
        with refused("eval_data"):
            module.predict(wrong)
    for call in (lambda: module.score(np.ones((4, 4)), "acc"), lambda: next(module.iter_predict(np.ones((4, 4))))):
        with refused("eval_data is ndarray", "iterator"):
            call()
    with refused("eval_metric is 'none-such'"):
        module.score(keyed(iterator()), "none-such")


@every_kind
def test_fit_looks_at_what_it_is_given_before_it_binds(kind):
    module, source = make(kind), keyed(iterator(8))
    for wrong, words in (
        ({"train_data": np.ones((4, 4))}, ["train_data is ndarray"]),
        ({"train_data": None}, ["train_data is NoneType"]),
        ({"eval_data": np.ones((4, 4))}, ["eval_data is ndarray"]),
        ({"eval_metric": "none-such"}, ["eval_metric is 'none-such'"]),
        ({"validation_metric": "none-such"}, ["'none-such'"]),
        ({"num_epoch": None}, ["num_epoch"]),
    ):
        with refused(*words):
            module.fit(**{"train_data": source, "num_epoch": 1, **wrong})
        assert not module.binded


@every_kind
def test_what_cannot_be_called_back_is_named_before_anything_runs(kind):
    module, source = ready(kind), keyed(iterator(8))
    before = values(module)
    for argument in ("batch_end_callback", "epoch_end_callback", "eval_end_callback", "eval_batch_end_callback"):
        for wrong in (3, [print, "print"]):
            with refused(argument, repr(wrong[1] if wrong != 3 else 3), kind=TypeError):
                module.fit(source, num_epoch=1, **{argument: wrong})
    for argument in ("batch_end_callback", "score_end_callback"):
        with refused(argument, kind=TypeError):
            module.score(source, "acc", **{argument: 3})
    assert_equal(values(module), before)


@every_kind
@pytest.mark.parametrize("wrong", [None, "acc", 3])
def test_what_is_no_metric_is_named(kind, wrong):
    module = bound(kind)
    module.forward(batch(), is_train=False)
    with refused("eval_metric is", repr(wrong), kind=TypeError):
        module.update_metric(wrong, batch().label)


@every_kind
@every_number_of_contexts
def test_a_metric_for_other_outputs_or_labels_is_told_which_there_are(kind, contexts):
    module = bound(kind, contexts=contexts)
    module.forward(batch(), is_train=False)
    for outputs, labels, words in (
        (["softmax"], LABEL, ["output_names ['softmax']", "['softmax_output']"]),
        (["softmax_output"], ["label"], ["label_names ['label']", "['softmax_label']"]),
    ):
        metric = mx.metric.Accuracy(output_names=outputs, label_names=labels)
        for given in (metric, mx.metric.CompositeEvalMetric([metric])):
            with refused("'accuracy'", *words, kind=ValueError):
                module.update_metric(given, batch().label)
            with refused("'accuracy'", *words, kind=ValueError):
                module.score(keyed(iterator()), given)


@every_kind
def test_an_iterator_that_yields_nothing_is_said_to(kind):
    module, empty = ready(kind), Batches([batch()])
    empty.reset = lambda: None
    list(empty)
    for call in (
        lambda: module.score(empty, "acc"),
        lambda: module.predict(empty),
        lambda: list(module.iter_predict(empty)),
        lambda: module.fit(empty, num_epoch=1),
    ):
        with refused("yielded no batch", kind=ValueError):
            call()


@every_kind
@pytest.mark.parametrize("shown", [[], None])
def test_labels_may_be_absent_in_any_form(kind, shown):
    module = make(kind, mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=2, name="fc"), label=None)
    module.bind([("data", (3, WIDTH))], shown, for_training=False)
    module.init_params(mx.init.One())
    data = mx.io.NDArrayIter(np.ones((7, WIDTH), "f"), batch_size=3)
    assert list(data.provide_label) == []
    assert module.predict(keyed(data)).shape == (7, 2)
    assert not module.label_shapes
    for label in ([], None, [None], [0]):
        for rows in (3, 2):
            module.forward(batch(rows, label=label, provide_label=shown), is_train=False)
            assert module.get_outputs()[0].shape == (rows, 2)


@every_kind
def test_a_batch_with_data_alone_is_enough_to_predict(kind):
    module, given = ready(kind), collections.namedtuple("Batch", ["data", "bucket_key"])
    for rows in (4, 2, 6):
        module.forward(given([batch(rows).data[0]], 0), is_train=False)
        assert module.get_outputs()[0].shape == (rows, CLASSES)
    module.forward(given((batch().data[0],), 0), is_train=False)
    step(module, batch())


def test_predictions_are_joined_where_rows_are_counted():
    """Time-major outputs: rows are on the second axis, of padding too."""
    net = mx.sym.Activation(mx.sym.Variable("data"), act_type="relu")
    for contexts in (1, 2):
        module = bl.Module(net, label_names=None, context=CONTEXTS[:contexts])
        described = [mx.io.DataDesc("data", (3, 4, 2), layout="TNC")]
        module.bind(described, for_training=False)
        module.init_params()
        x = np.random.RandomState(0).rand(3, 8, 2).astype("f")
        given = [mx.io.DataBatch([mx.nd.array(x[:, at : at + 4])], pad=pad) for at, pad in ((0, 0), (4, 3))]
        for one in given:
            one.provide_data = described
        np.testing.assert_array_equal(module.predict(Batches(given, described)).asnumpy(), x[:, :5])


def test_several_outputs_are_predicted_each_by_its_own_rows():
    data = mx.sym.Variable("data")
    net = mx.sym.Group([data * 2, mx.sym.Reshape(data, shape=(-1, 1)), mx.sym.sum(data)])
    results = []
    for contexts in (1, 2):
        module = bl.Module(net, label_names=None, context=CONTEXTS[:contexts])
        module.bind([("data", (4, 3))], for_training=False)
        module.init_params()
        results.append(module.predict(mx.io.NDArrayIter(np.arange(18, dtype="f").reshape(6, 3), batch_size=4)))
    for found in results:
        np.testing.assert_array_equal(found[0].asnumpy(), 2 * np.arange(18).reshape(6, 3))
        np.testing.assert_array_equal(found[1].asnumpy(), np.arange(18).reshape(18, 1))


@pytest.mark.filterwarnings("ignore:label_")
@every_kind
@every_number_of_contexts
@pytest.mark.parametrize("named", [LABEL, None])
def test_a_network_without_labels_can_be_scored_with_some(kind, contexts, named):
    """It was bound for data alone: the metric sees the labels of the batch all the same."""
    if kind == "SequentialModule" and named is None:
        named = LABEL
    net = mx.sym.softmax(mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=CLASSES, name="fc"))
    module, twin = make(kind, net, contexts, label=named), bound("Module")
    labels = shapes()[1] if kind == "SequentialModule" else None
    module.bind(shapes()[0], labels, for_training=False)
    module.init_params(arg_params={name: mx.nd.array(value) for name, value in values(twin).items()})
    for size in (4, 3, 5):
        # Labels that nothing says the name of, too.
        found = module.score(keyed(iterator(size=size)), "acc")
        assert found == twin.score(keyed(iterator(size=size)), "acc")
    if contexts == 2 and kind == "Module":
        first, second = batch(2, seed=1), batch(3, seed=2)
        labels = [first.label, second.label]
        metric, nested = mx.metric.create("acc"), mx.io.DataBatch([first.data, second.data], labels)
        module.forward(nested)
        module.update_metric(metric, labels)
        module.forward([mx.io.DataBatch(one.data, one.label) for one in (first, second)])
        module.update_metric(metric, labels, pre_sliced=True)
        assert metric.num_inst == 10


def test_labels_that_a_module_was_not_bound_with_are_learnt_all_the_same():
    """Bound for data alone, the network would learn from labels of zeros."""
    module, twin = bl.Module(symbol()), ready("Module")
    module.bind(shapes()[0])
    module.init_params(arg_params={name: mx.nd.array(value) for name, value in values(twin).items()})
    module.init_optimizer(optimizer_params={"learning_rate": 0.2, "momentum": 0.9})
    for each in (module, twin):
        step(each, batch())
    assert_equal(values(module), values(twin))
    assert inner(module).label_shapes == [("softmax_label", (4,))]
