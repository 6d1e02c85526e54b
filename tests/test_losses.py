"""Losses that average over the rows of their own context: which they are, and when it is said."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

from bucketlab import BucketingModule, Module, mx
from bucketlab.losses import averaging_losses
from nets import CONTEXTS, classifier, cut_shapes, images

SHAPES, AXES = {"data": (4, 5), "label": (4, 3)}, {"data": 0, "label": 0}


def layers():
    data, label = mx.sym.Variable("data"), mx.sym.Variable("label")
    return mx.sym.FullyConnected(data, num_hidden=3, name="fc"), label


def names(symbol, shapes=SHAPES, axes=AXES):
    return [str(loss) for loss in averaging_losses(symbol, shapes, axes)]


@pytest.mark.parametrize("normalization", ["batch", "valid"])
def test_layers_that_are_told_to(normalization):
    found, _ = layers()
    softmax = mx.sym.SoftmaxOutput(found, name="softmax", normalization=normalization)
    made = mx.sym.MakeLoss(mx.sym.square(found), name="made", normalization=normalization)
    assert names(mx.sym.Group([softmax, made])) == [
        f"'softmax' (SoftmaxOutput, normalization={normalization!r})",
        f"'made' (MakeLoss, normalization={normalization!r})",
    ]


def test_layers_that_count_each_row_for_itself():
    found, label = layers()
    quiet = [
        mx.sym.SoftmaxOutput(found, name="softmax"),
        mx.sym.LinearRegressionOutput(found, label, name="linear"),
        mx.sym.MakeLoss(mx.sym.mean(mx.sym.square(found - label), axis=1), name="by_row"),
        mx.sym.MakeLoss(mx.sym.sum(mx.sym.square(found - label)), name="summed"),
    ]
    assert [names(symbol) for symbol in quiet] == [[]] * 4


def test_a_mean_over_rows_is_one_where_a_loss_comes_of_it():
    found, label = layers()
    error = mx.sym.square(found - label)
    whole = mx.sym.MakeLoss(mx.sym.mean(error, name="whole"), name="loss")
    flat = mx.sym.make_loss(mx.sym.mean(mx.sym.Reshape(error, shape=(-1,)), axis=0, name="flat"))
    seen = mx.sym.Group([mx.sym.BlockGrad(mx.sym.mean(error, name="shown")), mx.sym.MakeLoss(mx.sym.sum(error))])
    assert names(whole) == ["'whole' (mean)"] and names(flat) == ["'flat' (mean)"] and names(seen) == []
    time_major = mx.sym.MakeLoss(mx.sym.mean(mx.sym.Variable("data"), axis=0, name="steps"))
    assert names(time_major, {"data": (7, 4)}, {"data": 1}) == []
    assert names(time_major, {"data": (7, 4)}, {"data": 0}) == ["'steps' (mean)"]


def told(make):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        make()
    return [str(one.message) for one in caught if "averages over" in str(one.message)]


def bound(rows, contexts=2, symbol=None, **kwargs):
    made = Module(symbol or classifier(normalization="batch"), context=CONTEXTS[:contexts])
    made.bind([("data", (rows, 4))], [("softmax_label", (rows,))], **kwargs)
    return made


def test_it_is_said_for_training_over_uneven_contexts_only():
    assert told(lambda: bound(4)) == []
    assert told(lambda: bound(5, contexts=1)) == []
    assert told(lambda: bound(5, for_training=False)) == []
    assert len(told(lambda: bound(5))) == 1


def test_it_is_right_that_it_is_said():
    """With 3 rows and 1 row, a row of the second context weighs three times as much: 4.0 where it should be 0.5."""
    label = mx.nd.array([0, 1, 2, 0])

    def gradient(contexts, normalization):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            made = Module(
                classifier(normalization=normalization), context=CONTEXTS[:contexts], work_load_list=[3, 1][:contexts]
            )
            made.bind([("data", (4, 4))], [("softmax_label", (4,))])
        made.init_params(mx.init.Constant(0.1))
        made.forward_backward(mx.io.DataBatch([mx.nd.array(np.arange(16).reshape(4, 4) / 16)], [label]))
        return sum(
            grad.asnumpy() for grad in made._exec_group.grad_arrays[made._exec_group.held_names.index("fc2_bias")]
        )

    np.testing.assert_allclose(gradient(2, "null"), gradient(1, "null"), rtol=1e-5)
    assert not np.allclose(gradient(2, "batch"), gradient(1, "batch"), rtol=1e-2)


def test_it_names_layer_rows_and_way_out_once_over_all_buckets():
    symbol = classifier(normalization="valid")
    made = BucketingModule(
        lambda key: (symbol, ["data"], ["softmax_label"]), default_bucket_key=4, context=CONTEXTS[:2]
    )
    made.bind([("data", (4, 4))], [("softmax_label", (4,))])
    made.init_params()

    def switch():
        for rows in (5, 7):
            made.switch_bucket(rows, [("data", (rows, 4))], [("softmax_label", (rows,))])

    assert told(switch) == [
        "'softmax' (SoftmaxOutput, normalization='valid') averages over the valid labels of its own context, and the "
        "contexts have 3, 2 rows: every context weighs the same, so gradients are not those of the whole batch. "
        "Use normalization='null' or a sum (rescale_grad divides by the rows of the batch), or batches of a "
        "multiple of 2 rows"
    ]


def test_contexts_with_shapes_of_their_own_are_uneven_too():
    rows = mx.sym.mean(mx.sym.FullyConnected(mx.sym.Flatten(images()[0]), num_hidden=1), name="rows")
    made = Module(mx.sym.MakeLoss(rows), context=CONTEXTS[:2])
    texts = told(lambda: made.bind(*cut_shapes([(2, 4, 4), (3, 5, 5)])))
    assert len(texts) == 1 and "'rows' (mean)" in texts[0] and texts[0].endswith("as many rows on every context")


def test_a_warning_that_is_an_error_leaves_the_module_unbound():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        made = Module(classifier(normalization="batch"), context=CONTEXTS[:2])
        with pytest.raises(UserWarning, match="averages over the rows"):
            made.bind([("data", (5, 4))], [("softmax_label", (5,))])
    assert not made.binded
