"""Batches of shapes that were bound before: what else they say of their arrays decides as it did the first time."""

from __future__ import annotations

import numpy as np
import pytest

import bucketlab as bl
from bucketlab import mx
from bucketlab.errors import ShapeError
from kinds import (
    CLASSES,
    WIDTH,
    assert_equal,
    batch,
    every_kind,
    every_number_of_contexts,
    inner,
    make,
    ready,
    refused,
    step,
    values,
)
from nets import CONTEXTS, Batches

Desc = mx.io.DataDesc


def difference(contexts=1):
    """a - b, two inputs of one shape."""
    net = mx.sym.Variable("a") - mx.sym.Variable("b")
    module = bl.Module(net, ["a", "b"], None, context=CONTEXTS[:contexts])
    module.bind([("a", (4, 2)), ("b", (4, 2))], for_training=False)
    module.init_params()
    return module


def two_values(rows, names=None):
    """3 and 1, in this order, under these names."""
    made = mx.io.DataBatch([mx.nd.full((rows, 2), 3), mx.nd.ones((rows, 2))])
    made.provide_data = None if names is None else [(name, (rows, 2)) for name in names]
    return made


def shown(module, given):
    module.forward(given, is_train=False)
    found = module.get_outputs()[0].asnumpy()
    assert (found == found[0, 0]).all()
    return found[0, 0]


@every_number_of_contexts
def test_arrays_of_one_shape_go_by_their_names_every_time(contexts):
    module = difference(contexts)
    for rows in (4, 2, 4, 2, 6, 4):
        assert shown(module, two_values(rows, "ab")) == 2
        assert shown(module, two_values(rows, "ba")) == -2
        assert shown(module, two_values(rows)) == 2


def test_arrays_without_names_have_the_order_that_is_bound_now():
    """The same shapes have been bound in the other order before."""
    module = difference()
    module.reshape([("b", (4, 2)), ("a", (4, 2))])
    assert shown(module, two_values(4)) == -2
    module.reshape([("a", (2, 2)), ("b", (2, 2))])
    for rows in (2, 4, 2):
        assert shown(module, two_values(rows)) == 2, rows


@every_number_of_contexts
def test_the_layout_of_a_batch_is_its_own(contexts):
    module = bl.Module(mx.sym.Variable("data") * 2, label_names=None, context=CONTEXTS[:contexts])
    module.bind([Desc("data", (4, 6), layout="NT")], for_training=False)
    module.init_params()
    array = mx.nd.array(np.arange(24).reshape(4, 6))
    for rows, layout in ((4, "NT"), (2, "NT"), (4, "NT"), (4, "TN"), (4, "TN"), (2, "TN"), (2, "NT"), (4, "NT")):
        given = mx.io.DataBatch([array[:rows]], provide_data=[Desc("data", (rows, 6), layout=layout)])
        module.forward(given, is_train=False)
        np.testing.assert_array_equal(module.get_outputs()[0].asnumpy(), 2 * array[:rows].asnumpy())
        cut = [part.shape for part in module.get_outputs(merge_multi_context=False)[0]]
        if module.data_shapes[0].layout == layout:
            each = (rows // contexts, 6) if layout == "NT" else (rows, 6 // contexts)
            assert cut == [each] * contexts


@every_kind
@every_number_of_contexts
def test_batches_of_other_types_are_converted_whatever_their_rows(kind, contexts):
    """Labels of integers, data of doubles: what is bound stays as it is."""
    module, twin = ready(kind, contexts=contexts), ready(kind, contexts=contexts)
    for rows in (4, 6, 2, 6):
        plain = batch(rows, seed=rows)
        other = batch(rows, data=[plain.data[0].astype("float64")], label=[plain.label[0].astype("int32")])
        other.provide_data = [Desc("data", (rows, WIDTH), np.float64)]
        other.provide_label = [Desc("softmax_label", (rows,), np.int32)]
        exact = plain.data[0].astype("float64").astype("float32")
        np.testing.assert_array_equal(exact.asnumpy(), plain.data[0].asnumpy())
        step(module, other)
        step(twin, plain)
        assert {inner(module).data_shapes[0].dtype, inner(module).label_shapes[0].dtype} == {np.float32}
    assert_equal(values(module), values(twin))


@pytest.mark.parametrize("kind", ["Module", "SVRGModule"])
@every_number_of_contexts
def test_a_reshape_keeps_the_types_that_are_bound(kind, contexts):
    module, twin = ready(kind, contexts=contexts), ready(kind, contexts=contexts)
    for rows in (6, 4, 2):
        module.reshape([Desc("data", (rows, WIDTH), np.float64)], [Desc("softmax_label", (rows,), np.int32)])
        assert (module.data_shapes[0].dtype, module.label_shapes[0].dtype) == (np.float32, np.float32)
        for each in (module, twin):
            step(each, batch(rows))
    assert_equal(values(module), values(twin))


@every_kind
@every_number_of_contexts
def test_labels_come_and_go(kind, contexts):
    module, twin = ready(kind, contexts=contexts), ready(kind, contexts=contexts)
    for rows in (4, 6, 4, 6, 2, 4):
        given = batch(rows, seed=rows)
        for shape in (rows, 4):
            alone = batch(shape, label=None, provide_label=None)
            module.forward(alone, is_train=False)
            assert module.get_outputs()[0].shape == (shape, CLASSES)
        for each in (module, twin):
            step(each, given)
    assert_equal(values(module), values(twin))


def two_losses():
    data = mx.sym.Variable("data")
    scores = [mx.sym.FullyConnected(data, num_hidden=CLASSES, name=name) for name in ("fa", "fb")]
    return mx.sym.Group([mx.sym.SoftmaxOutput(score, name=name) for score, name in zip(scores, "ab")])


def measured(module, labels, **more):
    """Accuracy of each output beside its own label."""
    found = []
    for name in "ab":
        metric = mx.metric.Accuracy(output_names=[f"{name}_output"], label_names=[f"{name}_label"])
        module.update_metric(metric, labels, **more)
        found.append((metric.num_inst, metric.get()[1]))
    return found


def ordered(kind, contexts, nested):
    module = make(kind, two_losses(), contexts, label=("a_label", "b_label"))
    data, labels = ("data", (4, WIDTH)), [("a_label", (4,)), ("b_label", (4,))]
    module.bind([[data]] * contexts if nested else [data], [labels] * contexts if nested else labels)
    mx.random.seed(2)
    module.init_params(mx.init.Uniform(1))
    return module


def two_labels(given, order, times=None):
    """The batch with a label for each loss, in this order; in the per-context form as often as asked."""
    rows = len(given.label[0])
    arrays = {"a": given.label[0], "b": (given.label[0] + 1) % CLASSES}
    label, described = [arrays[name] for name in order], [(f"{name}_label", (rows,)) for name in order]
    made = batch(rows)
    made.data, made.label, made.provide_label = given.data, label, described
    if times:
        made.data, made.label = [given.data] * times, [list(label) for _ in range(times)]
        made.provide_data, made.provide_label = [given.provide_data] * times, [described] * times
    return made


@pytest.mark.parametrize("nested", [False, True])
@every_number_of_contexts
@every_kind
def test_labels_in_another_order_are_fed_and_measured_by_name(kind, contexts, nested):
    module = ordered(kind, contexts, nested)
    for rows in (4, 2, 4, 6, 2):
        given, expected = batch(rows, seed=rows), None
        for order in ("ab", "ba", "ab"):
            made = two_labels(given, order, contexts if nested else None)
            module.forward(made, is_train=False)
            found = measured(module, made.label)
            assert found[0][0] == rows * (contexts if nested else 1)
            expected = expected or found
            copies = [list(part) if nested else part for part in made.label]
            assert found == expected == measured(module, copies), (rows, order)


@every_kind
@every_number_of_contexts
def test_an_iterator_with_labels_in_another_order_scores_the_same(kind, contexts):
    module = ordered(kind, contexts, nested=False)
    metrics = [
        mx.metric.Accuracy(name=name, output_names=[f"{name}_output"], label_names=[f"{name}_label"]) for name in "ab"
    ]
    found = []
    for order in ("ab", "ba"):
        batches = [two_labels(batch(4, seed=seed), order) for seed in range(3)]
        found.append(module.score(Batches(batches), mx.metric.CompositeEvalMetric(metrics)))
    assert found[0] == found[1] and found[0][0][1] != found[0][1][1]


@pytest.mark.parametrize("then", ["ab", "ba"])
def test_a_list_of_batches_is_fed_by_name(then):
    module = difference(2)
    for rows in (2, 3, 2):
        halves = [two_values(rows, "ab"), two_values(rows, then)]
        module.forward(halves, is_train=False)
        found = module.get_outputs()[0].asnumpy()
        np.testing.assert_array_equal(found[:rows], np.full((rows, 2), 2))
        np.testing.assert_array_equal(found[rows:], np.full((rows, 2), 2 if then == "ab" else -2))
    with refused("'x', 'y'", "'a', 'b'", kind=ShapeError):
        module.forward([two_values(2, "xy")] * 2, is_train=False)


@pytest.mark.parametrize("kind", ["Module", "BucketingModule"])
def test_the_labels_of_a_list_of_batches_are_fed_and_measured_by_name(kind):
    module = ordered(kind, 2, nested=False)
    halves, found = [batch(2, seed=seed) for seed in range(2)], []
    for orders in (("ab", "ab"), ("ba", "ba"), ("ab", "ba"), ("ab", "ab")):
        parts = [two_labels(half, order) for half, order in zip(halves, orders)]
        for part in parts:
            part.provide_data = [("data", (2, WIDTH))]
        module.forward(parts, is_train=False)
        found.append(measured(module, [part.label for part in parts], pre_sliced=True))
    assert all(one == found[0] for one in found)


@every_kind
def test_whatever_labels_come_after_a_batch_without_any(kind):
    module, twin = ready(kind), ready(kind)
    for each, name in ((module, "int32"), (twin, "float32")):
        each.forward(batch(6, label=None, provide_label=None), is_train=False)
        given = batch(2)
        given.label = [given.label[0].astype(name)]
        given.provide_label = [Desc("softmax_label", (2,), np.dtype(name).type)]
        step(each, given)
    assert_equal(values(module), values(twin))
