"""The symbols: same parameters in every bucket, fixed names, and padding that changes no gradient."""

from __future__ import annotations

import numpy as np
import pytest

from bucketlab import mx
from bucketlab.errors import BucketError
from bucketlab.models import attention_lm, gru_lm, gru_translator, lstm_lm, mlp, small_convnet

VOCAB = 23
LANGUAGE_MODELS = {
    "lstm": lstm_lm(VOCAB, hidden=8, embed=6, layers=2),
    "gru": gru_lm(VOCAB, hidden=8, embed=6),
    "lstm fused": lstm_lm(VOCAB, hidden=8, embed=6, layers=2, fused=True),
    "gru fused": gru_lm(VOCAB, hidden=8, embed=6, fused=True),
    "attention": attention_lm(VOCAB, embed=8, heads=2, layers=2, feed_forward=12, max_length=16),
}


def parameters(symbol, **inputs):
    shapes, _, _ = symbol.infer_shape(**inputs)
    return {n: s for n, s in zip(symbol.list_arguments(), shapes) if n not in inputs}


def bound(symbol, seed=0, **inputs):
    """An executor with seeded parameters; ids as int32, as the iterators give them."""
    types = {name: "int32" for name in inputs if name != "softmax_label"}
    wanted = {n: "null" if n in inputs else "write" for n in symbol.list_arguments()}
    executor = symbol.simple_bind(mx.cpu(), type_dict=types, grad_req=wanted, **inputs)
    rng = np.random.default_rng(seed)
    for name in sorted(executor.arg_dict):
        if name not in inputs:
            executor.arg_dict[name][:] = rng.normal(0, 0.3, executor.arg_dict[name].shape)
    return executor


@pytest.mark.parametrize("name", LANGUAGE_MODELS)
def test_every_bucket_has_the_same_parameters(name):
    model = LANGUAGE_MODELS[name]
    first = parameters(model(3)[0], data=(2, 3), softmax_label=(2, 3))
    assert first
    for length in (1, 7, 16):
        assert parameters(model(length)[0], data=(2, length), softmax_label=(2, length)) == first


@pytest.mark.parametrize("name", LANGUAGE_MODELS)
def test_names_do_not_move_with_what_was_built_before(name):
    model = LANGUAGE_MODELS[name]
    before = model(4)[0].get_internals().list_outputs()
    mx.sym.FullyConnected(mx.sym.Variable("x"), num_hidden=2)
    with mx.name.Prefix("mine_"):
        again = model(4)
    assert again[0].get_internals().list_outputs() == before
    assert again[1:] == (("data",), ("softmax_label",))


@pytest.mark.parametrize("name", LANGUAGE_MODELS)
def test_a_position_sees_no_later_token(name):
    executor = bound(LANGUAGE_MODELS[name](5)[0], data=(2, 5), softmax_label=(2, 5))
    ids = np.array([[3, 4, 5, 6, 7], [8, 9, 10, 11, 12]])
    outputs = []
    for last in (7, 20):
        ids[:, 4] = last
        executor.arg_dict["data"][:] = ids
        outputs.append(executor.forward(is_train=False)[0].asnumpy().reshape(2, 5, VOCAB))
    assert np.array_equal(outputs[0][:, :4], outputs[1][:, :4])
    assert not np.allclose(outputs[0][:, 4], outputs[1][:, 4])
    np.testing.assert_allclose(outputs[0].sum(axis=2), 1, rtol=1e-5)


@pytest.mark.parametrize("name", LANGUAGE_MODELS)
def test_padding_changes_no_gradient(name):
    model = LANGUAGE_MODELS[name]
    ids, label = np.array([[3, 4, 5, 6]]), np.array([[4, 5, 6, 2]])
    gradients = []
    for length in (4, 9):
        executor = bound(model(length)[0], data=(1, length), softmax_label=(1, length))
        for array, values in (("data", ids), ("softmax_label", label)):
            padded = np.zeros((1, length))
            padded[:, :4] = values
            executor.arg_dict[array][:] = padded
        executor.forward(is_train=True)
        executor.backward()
        gradients.append({n: g.asnumpy() for n, g in executor.grad_dict.items() if g is not None})
    for parameter in parameters(model(4)[0], data=(1, 4), softmax_label=(1, 4)):
        np.testing.assert_allclose(gradients[0][parameter], gradients[1][parameter], rtol=1e-4, atol=1e-6)
    assert np.abs(gradients[0]["embed_weight"]).max() > 0


def test_fused_and_unrolled_are_the_same_model():
    for make in (lstm_lm, gru_lm):
        plain, fused = make(VOCAB, hidden=5, embed=4), make(VOCAB, hidden=5, embed=4, fused=True)
        shapes = {"data": (2, 6), "softmax_label": (2, 6)}
        one, other = bound(fused(6)[0], **shapes), bound(plain(6)[0], **shapes)
        weights = {n: a for n, a in one.arg_dict.items() if n not in shapes}
        unpacked = mx.rnn.FusedRNNCell(5, mode=fused.cell, prefix=fused.cell + "_").unpack_weights(weights)
        cell = {"lstm": mx.rnn.LSTMCell, "gru": mx.rnn.GRUCell}[fused.cell](5, prefix=f"{fused.cell}_l0_")
        for name, value in cell.pack_weights(unpacked).items():
            other.arg_dict[name][:] = value
        ids = np.random.default_rng(1).integers(1, VOCAB, (2, 6))
        for executor in (one, other):
            executor.arg_dict["data"][:] = ids
        ours, theirs = (e.forward(is_train=False)[0].asnumpy() for e in (one, other))
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("fused", [False, True])
def test_time_major_is_the_same_model(fused):
    ids = np.random.default_rng(2).integers(1, VOCAB, (3, 5))
    rows = bound(lstm_lm(VOCAB, fused=fused)(5)[0], data=(3, 5), softmax_label=(3, 5))
    time = bound(lstm_lm(VOCAB, fused=fused, layout="TN")(5)[0], data=(5, 3), softmax_label=(5, 3))
    rows.arg_dict["data"][:] = ids
    time.arg_dict["data"][:] = ids.T
    by_rows = rows.forward(is_train=False)[0].asnumpy().reshape(3, 5, VOCAB)
    by_time = time.forward(is_train=False)[0].asnumpy().reshape(5, 3, VOCAB)
    np.testing.assert_allclose(by_rows, by_time.transpose(1, 0, 2), rtol=1e-5, atol=1e-7)


def test_translator_does_not_look_at_padding_or_later_words():
    model = gru_translator(VOCAB, VOCAB, hidden=6, embed=5)
    source, target = np.array([[3, 4, 5]]), np.array([[2, 7, 8, 9]])
    outputs = []
    for source_length, target_length in ((3, 4), (8, 6)):
        symbol, data_names, label_names = model((source_length, target_length))
        assert (data_names, label_names) == (("source", "target"), ("softmax_label",))
        executor = bound(
            symbol, source=(1, source_length), target=(1, target_length), softmax_label=(1, target_length)
        )
        for array, values in (("source", source), ("target", target)):
            padded = np.zeros(executor.arg_dict[array].shape)
            padded[:, : values.shape[1]] = values
            executor.arg_dict[array][:] = padded
        outputs.append(executor.forward(is_train=False)[0].asnumpy()[:4])
    np.testing.assert_allclose(outputs[0], outputs[1], rtol=1e-5, atol=1e-7)


def test_bucketed_training_learns_a_cycle():
    """Ids that count up cyclically: a model that trains at all predicts the next one."""
    model = lstm_lm(12, hidden=24, embed=12)
    module = mx.mod.BucketingModule(model, default_bucket_key=6, context=mx.cpu())

    def batch(length, start):
        ids = (start + np.arange(4)[:, None] + np.arange(length + 1)) % 11 + 1
        return mx.io.DataBatch(
            [mx.nd.array(ids[:, :-1], dtype="int32")],
            [mx.nd.array(ids[:, 1:])],
            bucket_key=length,
            provide_data=[mx.io.DataDesc("data", (4, length), "int32", "NT")],
            provide_label=[mx.io.DataDesc("softmax_label", (4, length), "float32", "NT")],
        )

    first = batch(6, 0)
    module.bind(first.provide_data, first.provide_label)
    mx.random.seed(0)
    module.init_params(mx.init.Xavier())
    module.init_optimizer(optimizer="adam", optimizer_params={"learning_rate": 0.05})
    metric = mx.metric.Perplexity(ignore_label=0)
    seen = []
    for step in range(30):
        metric.reset()
        now = batch((6, 4)[step % 2], step)
        module.forward_backward(now)
        module.update()
        module.update_metric(metric, now.label)
        seen.append(metric.get()[1])
    assert seen[0] > 8
    assert max(seen[-2:]) < 2


def test_classifiers():
    assert mlp(3, hidden=(5, 4)).infer_shape(data=(2, 6))[1] == [(2, 3)]
    assert mlp(3, hidden=(), dropout=0.5).infer_shape(data=(2, 6, 2))[1] == [(2, 3)]
    net = small_convnet(4, filters=(3, 5))
    first = parameters(net, data=(2, 3, 8, 8), softmax_label=(2,))
    for size in ((1, 1), (5, 9), (64, 48)):
        assert net.infer_shape(data=(2, 3, *size))[1] == [(2, 4)]
        assert parameters(net, data=(2, 3, *size), softmax_label=(2,)) == first


@pytest.mark.parametrize("key", [0, -3, 2.5, "10", None, True, (3, 4)])
def test_a_key_that_is_no_length_is_refused(key):
    with pytest.raises(BucketError, match="bucket key"):
        LANGUAGE_MODELS["lstm"](key)


def test_numpy_lengths_are_lengths():
    model = LANGUAGE_MODELS["gru"]
    assert model(np.int64(4))[0].tojson() == model(4)[0].tojson()


def test_bad_arguments_are_named():
    with pytest.raises(BucketError, match="bucket 17 is longer than max_length=16"):
        LANGUAGE_MODELS["attention"](17)
    with pytest.raises(BucketError, match="not a pair"):
        gru_translator(5, 5)(4)
    with pytest.raises(ValueError, match="vocab is 0"):
        lstm_lm(0)
    with pytest.raises(ValueError, match=r"dropout is 1\.5"):
        lstm_lm(5, dropout=1.5)
    with pytest.raises(ValueError, match="layout is 'NTC'"):
        lstm_lm(5, layout="NTC")
    with pytest.raises(ValueError, match="embed is 10, which 4 heads do not divide"):
        attention_lm(5, embed=10)
    with pytest.raises(ValueError, match=r"filters\[1\] is 0"):
        small_convnet(filters=(3, 0))
