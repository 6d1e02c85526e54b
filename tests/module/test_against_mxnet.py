"""Side by side with mx.mod on the same seed: the same parameters, bit for bit, after several steps."""

from __future__ import annotations

import numpy as np
import pytest

import bucketlab as bl
from bucketlab import mx

BUCKETS = (3, 5, 8)


def unrolled(length, vocab=20, hidden=6):
    stack = mx.rnn.SequentialRNNCell()
    stack.add(mx.rnn.LSTMCell(num_hidden=hidden, prefix="l0_"))
    stack.add(mx.rnn.GRUCell(num_hidden=hidden, prefix="l1_"))
    embedded = mx.sym.Embedding(mx.sym.Variable("data"), input_dim=vocab, output_dim=hidden, name="embed")
    outputs, _ = stack.unroll(length, inputs=embedded, merge_outputs=True)
    logits = mx.sym.FullyConnected(mx.sym.Reshape(outputs, shape=(-1, hidden)), num_hidden=vocab, name="pred")
    label = mx.sym.Reshape(mx.sym.Variable("softmax_label"), shape=(-1,))
    return mx.sym.SoftmaxOutput(logits, label, name="softmax"), ("data",), ("softmax_label",)


def convnet(_):
    body = mx.sym.Convolution(mx.sym.Variable("data"), kernel=(3, 3), num_filter=4, name="conv")
    body = mx.sym.Activation(mx.sym.BatchNorm(body, fix_gamma=False, name="bn"), act_type="relu")
    body = mx.sym.Dropout(mx.sym.Flatten(mx.sym.Pooling(body, kernel=(2, 2), pool_type="max")), p=0.0)
    return (
        mx.sym.SoftmaxOutput(mx.sym.FullyConnected(body, num_hidden=3, name="fc"), name="softmax"),
        ("data",),
        ("softmax_label",),
    )


def sentences(rows, length, seed):
    rng = np.random.RandomState(seed)
    data, label = (mx.nd.array(rng.randint(0, 20, (rows, length))) for _ in range(2))
    return mx.io.DataBatch(
        [data], [label], bucket_key=length,
        provide_data=[("data", data.shape)], provide_label=[("softmax_label", label.shape)],
    )  # fmt: skip


def images(rows, _, seed):
    rng = np.random.RandomState(seed)
    data, label = mx.nd.array(rng.uniform(-1, 1, (rows, 2, 8, 8))), mx.nd.array(rng.randint(0, 3, rows))
    return mx.io.DataBatch(
        [data], [label], bucket_key=0,
        provide_data=[("data", data.shape)], provide_label=[("softmax_label", label.shape)],
    )  # fmt: skip


def trained(library, sym_gen, batches, default, contexts, kvstore, optimizer, settings, workload=None, **kwargs):
    contexts = [mx.cpu(i) for i in range(contexts)]
    module = library.BucketingModule(sym_gen, default, context=contexts, work_load_list=workload, **kwargs)
    first = next(batch for batch in batches if batch.bucket_key == default)
    module.bind(first.provide_data, first.provide_label)
    mx.random.seed(7)
    np.random.seed(7)
    module.init_params(mx.init.Xavier())
    module.init_optimizer(kvstore=kvstore, optimizer=optimizer, optimizer_params=settings)
    metric = mx.metric.create(["acc", "ce"])
    for batch in batches:
        module.forward_backward(batch)
        module.update()
        module.update_metric(metric, batch.label)
    return module, metric


def assert_same(ours, theirs):
    for mine, original in zip(ours[0].get_params(), theirs[0].get_params()):
        assert mine.keys() == original.keys()
        for name in mine:
            assert np.array_equal(mine[name].asnumpy(), original[name].asnumpy()), name
    assert ours[1].get() == theirs[1].get()


OPTIMIZERS = {
    "sgd": {"learning_rate": 0.1, "momentum": 0.9, "wd": 1e-3},
    "adam": {"learning_rate": 0.01},
    "adagrad": {"learning_rate": 0.05},
}


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("contexts, kvstore", [(1, "local"), (2, "local"), (2, "device"), (3, "local")])
def test_bucketed_training_gives_the_same_bits(contexts, kvstore, optimizer):
    order = [8, 3, 5, 3, 8, 5, 5, 3]
    batches = [sentences(6, length, seed) for seed, length in enumerate(order)]
    arguments = (unrolled, batches, 8, contexts, kvstore, optimizer, OPTIMIZERS[optimizer])
    assert_same(trained(bl, *arguments), trained(mx.mod, *arguments))


@pytest.mark.parametrize("contexts, workload", [(1, None), (2, None), (2, [1, 3]), (4, None)])
def test_a_convolutional_net_gives_the_same_bits(contexts, workload):
    batches = [images(8, 0, seed) for seed in range(4)]
    arguments = (convnet, batches, 0, contexts, "local", "sgd", OPTIMIZERS["sgd"], workload)
    assert_same(trained(bl, *arguments), trained(mx.mod, *arguments))


def test_uneven_slices_by_their_rule_give_the_same_bits():
    batches = [images(7, 0, seed) for seed in range(3)]
    arguments = (convnet, batches, 0, 3, "local", "sgd", OPTIMIZERS["sgd"])
    assert_same(trained(bl, *arguments, split="mxnet"), trained(mx.mod, *arguments))


def test_fit_score_and_predict_agree():
    rng = np.random.RandomState(0)
    data, label = rng.uniform(-1, 1, (24, 5)).astype("f"), rng.randint(0, 3, 24).astype("f")
    symbol = mx.sym.SoftmaxOutput(
        mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=3, name="fc"), name="softmax"
    )
    results = []
    for library in (bl, mx.mod):
        module = library.Module(symbol, context=[mx.cpu(0), mx.cpu(1)])
        mx.random.seed(3)
        np.random.seed(3)
        module.fit(
            mx.io.NDArrayIter(data, label, batch_size=8), num_epoch=3, initializer=mx.init.Uniform(0.5),
            optimizer_params={"learning_rate": 0.5, "momentum": 0.9},
        )  # fmt: skip
        iterator = mx.io.NDArrayIter(data, label, batch_size=8)
        results.append((module.get_params()[0], module.score(iterator, "acc"), module.predict(iterator).asnumpy()))
    (ours, score, predicted), (theirs, their_score, their_predicted) = results
    assert all(np.array_equal(ours[name].asnumpy(), theirs[name].asnumpy()) for name in theirs)
    assert score == their_score and np.array_equal(predicted, their_predicted)


def test_a_fixed_parameter_stays_when_another_module_trains_it():
    symbol = mx.sym.SoftmaxOutput(
        mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=3, name="fc"), name="softmax"
    )
    shapes = [("data", (4, 5))], [("softmax_label", (4,))]
    trains = bl.Module(symbol)
    trains.bind(*shapes)
    trains.init_params(mx.init.Uniform(0.5))
    trains.init_optimizer(optimizer_params={"learning_rate": 0.5})
    fixed = bl.Module(symbol, fixed_param_names=["fc_weight"])
    fixed.bind(*shapes, shared_module=trains)
    given = mx.io.DataBatch([mx.nd.ones((4, 5))], [mx.nd.array([0, 1, 2, 0])])
    trains.forward_backward(given)
    trains.update()
    before = trains.get_params()[0]
    fixed.forward_backward(given)
    fixed.update()
    after = fixed.get_params()[0]
    assert np.array_equal(before["fc_weight"].asnumpy(), after["fc_weight"].asnumpy())
    assert not np.array_equal(before["fc_bias"].asnumpy(), after["fc_bias"].asnumpy())
