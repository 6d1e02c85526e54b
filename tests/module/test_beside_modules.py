"""Side by side with mx.mod: chains, losses written in Python, variance reduction, buckets."""

from __future__ import annotations

import importlib
import random as shuffles

import numpy as np
import pytest

from beside import CLASSES, ROWS, WIDTH, batches, seed, side_by_side, train, values
from bucketlab import mx
from nets import CONTEXTS, Batches

# Not by an import statement, which would come before bucketlab's, and only after that can mxnet be imported.
MxnetSVRGModule = importlib.import_module("mxnet.contrib.svrg_optimization.svrg_module").SVRGModule


def parts(contexts):
    """Two symbols: features, and what comes of them."""
    hidden = mx.sym.tanh(mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=4, name="fc1"))
    scores = mx.sym.FullyConnected(mx.sym.Variable("hidden"), num_hidden=CLASSES, name="fc2")
    return hidden, scores, {"context": CONTEXTS[:contexts]}


@pytest.mark.parametrize("contexts", [1, 2])
def test_a_chain_that_ends_in_a_loss_written_in_python(contexts):
    def gradient(scores, labels):
        return mx.nd.softmax(scores) - mx.nd.one_hot(labels, CLASSES)

    def run(library):
        hidden, scores, where = parts(contexts)
        made = library.SequentialModule()
        made.add(library.Module(hidden, label_names=None, **where))
        made.add(library.Module(scores, ["hidden"], None, **where), auto_wiring=True)
        made.add(library.PythonLossModule(grad_func=gradient), take_labels=True, auto_wiring=True)
        seed()
        metric = mx.metric.create("acc")
        made.fit(
            Batches(batches()),
            eval_metric=metric,
            num_epoch=2,
            kvstore="device",
            optimizer="adam",
            optimizer_params={"learning_rate": 0.1},
            initializer=mx.init.Xavier(),
        )
        return {**values(made), "metric": np.array(metric.get()[1])}

    side_by_side(run)


def test_a_chain_with_labels_in_its_last_module():
    def run(library):
        hidden, scores, where = parts(2)
        loss = library.Module(mx.sym.SoftmaxOutput(scores, name="softmax"), ["hidden"], **where)
        made = library.SequentialModule()
        made.add(library.Module(hidden, label_names=None, **where)).add(loss, take_labels=True, auto_wiring=True)
        made.bind([("data", (ROWS, WIDTH))], [("softmax_label", (ROWS,))])
        seed()
        made.init_params(mx.init.Xavier())
        made.init_optimizer("local", "sgd", {"learning_rate": 0.2, "momentum": 0.9})
        found = {**values(train(made, batches())), "output": made.get_outputs()[0].asnumpy()}
        return {**found, "score": np.array([value for _, value in made.score(Batches(batches(2)), ["acc", "ce"])])}

    side_by_side(run)


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_variance_reduction(optimizer):
    data = mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=1, name="fc1")
    net = mx.sym.LinearRegressionOutput(data, mx.sym.Variable("label"), name="lin")
    random = np.random.RandomState(0)
    x, y = random.rand(24, WIDTH), random.rand(24)

    def run(library):
        kind = MxnetSVRGModule if library is mx.mod else library.SVRGModule
        made = kind(net, ["data"], ["label"], update_freq=2)
        seed()
        made.fit(
            mx.io.NDArrayIter(x, y, ROWS, label_name="label"),
            eval_metric="mse",
            num_epoch=4,
            optimizer=optimizer,
            optimizer_params={"learning_rate": 0.05},
            initializer=mx.init.Uniform(0.5),
        )
        return values(made)

    side_by_side(run)


LENGTHS = (3, 5, 4)


def unrolled(length):
    """A network over sequences whose parameters do not depend on their length."""
    cell = mx.rnn.LSTMCell(6, prefix="l0_")
    embedded = mx.sym.Embedding(mx.sym.Variable("data"), input_dim=9, output_dim=4, name="embed")
    outputs, _ = cell.unroll(length, embedded, merge_outputs=True)
    scores = mx.sym.FullyConnected(mx.sym.mean(outputs, axis=1), num_hidden=CLASSES, name="fc")
    return mx.sym.SoftmaxOutput(scores, name="softmax")


def sequences(count=6):
    random, made = np.random.RandomState(0), []
    for at in range(count):
        length = LENGTHS[at % len(LENGTHS)]
        data, label = mx.nd.array(random.randint(0, 9, (ROWS, length))), mx.nd.array(random.randint(0, CLASSES, ROWS))
        names = {"provide_data": [("data", data.shape)], "provide_label": [("softmax_label", label.shape)]}
        made.append(mx.io.DataBatch([data], [label], pad=0, bucket_key=length, **names))
    return made


BUCKETING = {
    "fixed": ({"fixed_param_names": ["embed_weight"]}, {}, "local", 2),
    "adding": ({}, {"grad_req": "add"}, "local", 2),
    "compressed": ({"compression_params": {"type": "2bit", "threshold": 0.05}}, {}, "device", 2),
    "workload": ({"work_load_list": [1, 3]}, {}, "device", 2),
    "three": ({}, {}, "local", 3),
}


@pytest.mark.parametrize("name", BUCKETING)
def test_buckets(name):
    constructor, bind, kvstore, contexts = BUCKETING[name]

    def run(library):
        made = library.BucketingModule(
            lambda key: (unrolled(key), ["data"], ["softmax_label"]), 5, context=CONTEXTS[:contexts], **constructor
        )
        made.bind([("data", (ROWS, 5))], [("softmax_label", (ROWS,))], **bind)
        seed()
        made.init_params(mx.init.Xavier())
        made.init_optimizer(kvstore, "sgd", {"learning_rate": 0.2, "momentum": 0.9})
        metric, found = mx.metric.create(["acc", "ce"]), {}
        for at, given in enumerate(sequences()):
            train(made, [given])
            made.update_metric(metric, given.label)
            found[f"output {at}"] = made.get_outputs()[0].asnumpy()
        return {**values(made), **found, "metric": np.array(metric.get()[1])}

    side_by_side(run)


def test_buckets_in_fit_and_score():
    def run(library):
        made = library.BucketingModule(
            lambda key: (unrolled(key), ["data"], ["softmax_label"]), 5, context=CONTEXTS[:2]
        )
        first = sequences()[1]
        data = Batches(sequences(), first.provide_data, first.provide_label)
        data.default_bucket_key, data.batch_size = 5, ROWS
        seed()
        made.fit(data, num_epoch=2, initializer=mx.init.Xavier(), optimizer="adam", kvstore="device")
        data.reset()
        return {**values(made), "score": np.array([value for _, value in made.score(data, ["acc", "ce"])])}

    side_by_side(run)


@pytest.mark.parametrize("layout", ["NT", "TN"])
def test_a_language_model_over_an_iterator_for_buckets(layout):
    random = np.random.RandomState(0)
    sentences_of_words = [random.randint(1, 9, random.choice([3, 4, 7, 8])).tolist() for _ in range(60)]

    def model(length):
        cell = mx.rnn.GRUCell(6, prefix="l0_")
        embedded = mx.sym.Embedding(mx.sym.Variable("data"), input_dim=9, output_dim=4, name="embed")
        outputs, _ = cell.unroll(length, embedded, layout=layout + "C", merge_outputs=True)
        scores = mx.sym.FullyConnected(mx.sym.Reshape(outputs, shape=(-1, 6)), num_hidden=9, name="fc")
        label = mx.sym.Reshape(mx.sym.Variable("softmax_label"), shape=(-1,))
        return mx.sym.SoftmaxOutput(scores, label, name="softmax"), ["data"], ["softmax_label"]

    def run(library):
        shuffles.seed(1)
        seed()
        data = mx.rnn.BucketSentenceIter(sentences_of_words, 6, [4, 8], invalid_label=0, layout=layout)
        made = library.BucketingModule(model, data.default_bucket_key, context=CONTEXTS[:2])
        metric = mx.metric.Perplexity(ignore_label=0)
        made.fit(
            data,
            eval_data=data,
            eval_metric=metric,
            num_epoch=2,
            optimizer="adam",
            optimizer_params={"learning_rate": 0.02, "lr_scheduler": mx.lr_scheduler.FactorScheduler(3, 0.9)},
            initializer=mx.init.Xavier(),
        )
        return {**values(made), "perplexity": np.array(metric.get()[1])}

    side_by_side(run)


@pytest.mark.parametrize("buckets", [False, True])
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_fit_asks_for_the_rows_of_sparse_parameters(buckets):
    def model(length):
        weight = mx.sym.Variable("embed_weight", stype="row_sparse")
        embedded = mx.sym.contrib.SparseEmbedding(mx.sym.Variable("data"), weight, input_dim=9, output_dim=4)
        scores = mx.sym.FullyConnected(mx.sym.mean(embedded, axis=1), num_hidden=CLASSES, name="fc")
        return mx.sym.SoftmaxOutput(scores, name="softmax"), ["data"], ["softmax_label"]

    some = [given for given in sequences() if buckets or given.bucket_key == 5]
    data = Batches(some, [("data", (ROWS, 5))], [("softmax_label", (ROWS,))])

    def run(library):
        where = {"context": CONTEXTS[:2]}
        made = library.BucketingModule(model, 5, **where) if buckets else library.Module(*model(5), **where)
        data.reset()
        seed()
        made.fit(
            data,
            num_epoch=2,
            initializer=mx.init.Uniform(0.3),
            sparse_row_id_fn=lambda given: {"embed_weight": given.data[0].reshape((-1,))},
        )
        return values(made)

    side_by_side(run)
