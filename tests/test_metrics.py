"""Metrics that leave padding out, against counting by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import bucketlab as bl
from bucketlab import mx
from bucketlab.errors import ShapeError
from bucketlab.metrics import RealTokens

CLASSES = 4


def scores(random, places):
    drawn = random.random((places, CLASSES)).astype("float32") + 0.05
    return drawn / drawn.sum(axis=1, keepdims=True)


@given(st.integers(1, 4), st.integers(1, 5), st.integers(0, 99), st.booleans(), st.sampled_from([0, -1]))
def test_what_is_counted_is_what_has_a_label(rows, length, seed, deep, ignore):
    random = np.random.default_rng(seed)
    labels, given_scores = random.integers(ignore, CLASSES, (rows, length)), scores(random, rows * length)
    real = labels.reshape(-1) != ignore
    metric = RealTokens(["acc", "ce"], ignore_label=ignore)
    shown = mx.nd.array(given_scores)
    metric.update([mx.nd.array(labels)], [shown.reshape((rows, length, CLASSES)) if deep else shown])
    values = dict(metric.get_name_value())
    if not real.any():
        assert all(math.isnan(value) for value in values.values())
        return
    kept, wanted = given_scores[real], labels.reshape(-1)[real]
    assert values["accuracy"] == pytest.approx((kept.argmax(axis=1) == wanted).mean())
    assert values["cross-entropy"] == pytest.approx(-np.log(kept[np.arange(len(wanted)), wanted]).mean(), rel=1e-5)


def test_it_agrees_with_the_one_metric_of_mxnet_that_can_leave_labels_out():
    random = np.random.default_rng(1)
    labels, given_scores = mx.nd.array(random.integers(0, CLASSES, (6, 5))), mx.nd.array(scores(random, 30))
    ours, theirs = RealTokens(mx.metric.Perplexity(ignore_label=None)), mx.metric.Perplexity(ignore_label=0)
    for metric in (ours, theirs):
        metric.update([labels], [given_scores])
        metric.update([labels[:2]], [given_scores[:10]])
    assert ours.get()[1] == pytest.approx(theirs.get()[1], rel=1e-6)


SENTENCES = [[1, 2, 3], [2, 2], [3, 1, 3, 2, 2], [1, 1]]


def next_word(key):
    """Predicts that a word follows itself, whatever it is trained on: its weights are fixed."""
    embedded = mx.sym.Embedding(mx.sym.Variable("data"), input_dim=CLASSES, output_dim=CLASSES, name="embed")
    label = mx.sym.reshape(mx.sym.Variable("softmax_label"), shape=(-1,))
    loss = mx.sym.SoftmaxOutput(
        mx.sym.reshape(embedded, shape=(-1, CLASSES)), label, use_ignore=True, ignore_label=0, name="softmax"
    )
    return loss, ("data",), ("softmax_label",)


@pytest.mark.parametrize("layout", ["NT", "TN"])
@pytest.mark.parametrize("contexts", [1, 2])
def test_in_training_and_scoring_every_real_token_counts_once(layout, contexts):
    batches = bl.data.BucketIter(SENTENCES, [3, 5], batch_size=2, layout=layout, contexts=contexts)
    module = bl.BucketingModule(
        next_word, batches.default_bucket_key, context=[mx.cpu(i) for i in range(contexts)],
        fixed_param_names=["embed_weight"],
    )  # fmt: skip
    weights = {"embed_weight": mx.nd.array(np.eye(CLASSES))}
    seen = []
    count = RealTokens(["acc", lambda labels, preds: seen.extend(labels.tolist()) or (0.0, len(labels))])
    module.fit(batches, eval_metric=count, arg_params=weights, num_epoch=1)
    # Four sentences of 3, 2, 5 and 2 words: 2 + 1 + 4 + 1 pairs, of which (2, 2) comes twice and (1, 1) once.
    assert dict(count.get_name_value())["accuracy"] == pytest.approx(3 / 8)
    assert sorted(seen) == [1, 1, 2, 2, 2, 2, 3, 3]
    assert module.score(batches, RealTokens("acc")) == [("accuracy", pytest.approx(3 / 8))]
    padded = dict(module.score(batches, "acc"))["accuracy"]
    assert padded != pytest.approx(3 / 8)


def test_the_speed_callback_and_the_recorder_read_it_as_any_other():
    metric = RealTokens("acc")
    metric.update([mx.nd.array([[1, 0]])], [mx.nd.array([[0, 1, 0, 0], [0, 1, 0, 0]])])
    assert metric.get_name_value() == metric.get_global_name_value() == [("accuracy", 1.0)]
    metric.reset_local()
    assert math.isnan(metric.get()[1]) and metric.get_global() == ("accuracy", 1.0)
    metric.reset()
    assert math.isnan(metric.get_global()[1])


def test_predictions_without_a_row_for_each_label_are_refused():
    labels = mx.nd.zeros((2, 3))
    with pytest.raises(ShapeError, match=r"predictions have shape \(2, 4, 3\) and labels \(2, 3\)"):
        RealTokens("acc").update([labels], [mx.nd.zeros((2, CLASSES, 3))])
    with pytest.raises(ShapeError, match=r"1 label\(s\) are given and 2 prediction"):
        RealTokens("acc").update([labels], [mx.nd.zeros((6, CLASSES))] * 2)
