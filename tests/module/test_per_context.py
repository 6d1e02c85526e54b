"""Shapes of one's own for every context, from bind to predict, with one context as the reference."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bucketlab import BucketingModule, Module, mx
from bucketlab.errors import ShapeError
from nets import CONTEXTS, Batches, batch, classifier, cut_batch, cut_shapes, images, values_for

CLOSE = {"rtol": 1e-4, "atol": 1e-6}
TWO = CONTEXTS[:2]
SIZES = ((2, 6, 6), (3, 5, 8))

few = settings(max_examples=10)
size = st.tuples(st.integers(1, 3), st.integers(3, 7), st.integers(3, 7))


def module(symbol=None, contexts=TWO, sizes=SIZES, **kwargs):
    symbol = images() if symbol is None else symbol
    made = Module(symbol, context=list(contexts), **kwargs)
    data, label = cut_shapes(sizes)
    made.bind(data, label)
    made.init_params(arg_params=values_for(symbol, data=(2, 1, 6, 6)), aux_params=None, initializer=mx.init.One())
    return made


def gradients(made):
    return {
        name: sum(array.asnumpy() for array in block)
        for name, block in zip(made._exec_group.held_names, made._exec_group.grad_arrays)
    }


def alone(symbol, one, values, seed_batch, i):
    """One context with the part of context ``i``."""
    rows, height, width = one
    single = Module(symbol, context=CONTEXTS[0])
    single.bind([("data", (rows, 1, height, width))], [("softmax_label", (rows,))])
    single.init_params(arg_params=values, aux_params={})
    single.forward_backward(mx.io.DataBatch(seed_batch.data[i], seed_batch.label[i]))
    return single


# ---------------------------------------------------------------------- results


@few
@given(bound=st.lists(size, min_size=2, max_size=3), data=st.data())
def test_training_is_the_sum_of_what_each_context_computes_alone(bound, data):
    """Batches of other sizes and of fewer contexts included; the reference is a module on one context for each."""
    symbol = images()
    made = module(symbol, CONTEXTS[: len(bound)], bound)
    made.init_optimizer(optimizer_params={"learning_rate": 0.25})
    assert made._optimizer.rescale_grad == 1 / len(bound)
    values = values_for(symbol, data=(2, 1, 6, 6))
    for seed in range(2):
        sizes = data.draw(st.lists(size, min_size=1, max_size=len(bound)), "sizes")
        given_batch = cut_batch(sizes, seed, named=data.draw(st.booleans(), "named"))
        made.forward_backward(given_batch)
        singles = [alone(symbol, one, values, given_batch, i) for i, one in enumerate(sizes)]
        found = gradients(made)
        for name, value in found.items():
            expected = sum(gradients(single)[name] for single in singles)
            np.testing.assert_allclose(value, expected, err_msg=name, **CLOSE)
        np.testing.assert_allclose(
            made.get_outputs()[0].asnumpy(),
            np.concatenate([single.get_outputs()[0].asnumpy() for single in singles]),
            **CLOSE,
        )
        made.update()
        values = {
            name: mx.nd.array(value.asnumpy() - 0.25 * found[name] / len(bound)) for name, value in values.items()
        }
        now = made.get_params()[0]
        for name, value in values.items():
            np.testing.assert_allclose(now[name].asnumpy(), value.asnumpy(), err_msg=name, **CLOSE)


@few
@given(sizes=st.lists(size, min_size=2, max_size=4))
def test_a_metric_sees_every_context_once_in_order(sizes):
    made = module(contexts=CONTEXTS[: len(sizes)], sizes=sizes)
    seen = []

    class Rows(mx.metric.EvalMetric):
        def update(self, labels, preds):
            seen.append((labels[0].asnumpy().tolist(), preds[0].shape))

    given_batch = cut_batch(sizes)
    made.forward(given_batch, is_train=False)
    made.update_metric(Rows("rows"), given_batch.label)
    assert seen == [(label[0].asnumpy().tolist(), (rows, 3)) for label, (rows, _, _) in zip(given_batch.label, sizes)]


def test_fit_scores_and_predicts_with_fewer_contexts_in_the_last_batch():
    train = Batches([cut_batch(SIZES), cut_batch([(3, 9, 9), (1, 5, 8)], 1), cut_batch(SIZES[:1], 2)])
    held_out = Batches([cut_batch(SIZES, 5), cut_batch(SIZES[:1], 6)])
    made, validated = Module(images(), context=TWO), []
    np.random.seed(0)
    made.fit(
        train,
        eval_data=held_out,
        num_epoch=2,
        initializer=mx.init.Xavier(),
        eval_end_callback=lambda param: validated.append(param.eval_metric.num_inst),
    )
    assert validated == [7, 7]
    predicted = made.predict(held_out)
    labels = [label for one in held_out._batches for part in one.label for label in part[0].asnumpy()]
    assert predicted.shape == (7, 3)
    score = dict(made.score(held_out, "acc"))["accuracy"]
    assert score == pytest.approx((predicted.asnumpy().argmax(1) == labels).mean())
    single = Module(images(), context=TWO[0])
    single.bind([("data", (2, 1, 6, 6))], for_training=False)
    single.set_params(*made.get_params())
    for i, part in enumerate(held_out._batches[0].data):
        own = single.predict(part[0])
        np.testing.assert_allclose(predicted.asnumpy()[2 * i : 2 * i + len(own)], own.asnumpy(), **CLOSE)


def test_padding_is_counted_from_the_end_of_the_whole_batch():
    made, given_batch = module(), cut_batch(SIZES)
    given_batch.pad = 4
    made.forward(given_batch, is_train=False)
    metric = mx.metric.Accuracy()
    made.update_metric(metric, given_batch.label)
    assert metric.num_inst == 1 and made._predicted(given_batch)[0].shape == (1, 3)
    assert [part.valid_rows for part in made.slices().contexts] == [1, 0]


def test_running_statistics_of_a_resting_context_are_those_of_the_one_that_ran():
    symbol = images(batch_norm=True)
    made, single = module(symbol), module(symbol, TWO[:1], SIZES[:1])
    for one in (made, single):
        one.init_optimizer()
        one.forward_backward(cut_batch(SIZES[:1], 3))
        one.update()
    for name, value in single.get_params()[1].items():
        np.testing.assert_allclose(made.get_params()[1][name].asnumpy(), value.asnumpy(), **CLOSE)
        assert not np.array_equal(value.asnumpy(), np.ones(4))


def test_gradients_of_inputs_and_gradients_from_outside_have_the_form_of_the_batch():
    symbol = mx.sym.Convolution(mx.sym.Variable("data"), kernel=(3, 3), num_filter=2, name="conv", no_bias=True)
    made = Module(symbol, context=TWO, label_names=None)
    made.bind(cut_shapes(SIZES)[0], inputs_need_grad=True)
    made.init_params(mx.init.One())
    made.forward(cut_batch(SIZES, labels=False), is_train=True)
    shapes = [out.shape for out in made.get_outputs(merge_multi_context=False)[0]]
    assert shapes == [(2, 2, 4, 4), (3, 2, 3, 6)]
    assert made._exec_group.output_names == ["conv_output"]
    made.backward([[mx.nd.ones(shape)] for shape in shapes])
    inner = made.get_input_grads(merge_multi_context=False)[0]
    assert [grad.shape for grad in inner] == [(2, 1, 6, 6), (3, 1, 5, 8)]
    assert inner[0].asnumpy()[0, 0, 2:4, 2:4].tolist() == [[18, 18], [18, 18]]
    with pytest.raises(ShapeError, match=r"do not join along axis 0; ask with merge_multi_context=False"):
        made.get_outputs()
    with pytest.raises(ShapeError, match=r"out_grads has shapes \[\[\(2, 2, 4, 4\)\]\] by context; expected"):
        made.backward([[mx.nd.ones(shapes[0])]])


def test_gradients_from_outside_may_be_joined_as_outputs_are():
    symbol = mx.sym.Pooling(mx.sym.Variable("data"), global_pool=True, kernel=(1, 1), pool_type="avg", name="pool")
    made = Module(symbol, context=TWO, label_names=None)
    made.bind(cut_shapes(SIZES)[0], inputs_need_grad=True)
    made.init_params()
    made.forward(cut_batch(SIZES, labels=False), is_train=True)
    outside = mx.nd.array(np.arange(1, 6).reshape(5, 1, 1, 1))
    made.backward([outside])
    grads = made.get_input_grads(merge_multi_context=False)[0]
    assert [grad.asnumpy()[:, 0].sum((1, 2)).round(4).tolist() for grad in grads] == [[1, 2], [3, 4, 5]]
    with pytest.raises(ShapeError, match=r"'pool_output' has shape \(4, 1, 1, 1\); expected 5 entries on axis 0"):
        made.backward([outside[:4]])


def test_outputs_that_do_not_join_are_predicted_by_context():
    symbol = mx.sym.Activation(mx.sym.Variable("data"), act_type="relu", name="act")
    made = Module(symbol, context=TWO, label_names=None)
    made.bind(cut_shapes(SIZES)[0], for_training=False)
    made.init_params()
    data = Batches([cut_batch(SIZES, labels=False), cut_batch(SIZES[:1], 1, labels=False)])
    first, last = made.predict(data, merge_batches=False)
    assert [part.shape for part in first[0]] == [(2, 1, 6, 6), (3, 1, 5, 8)]
    assert last[0].shape == (2, 1, 6, 6)
    assert [len(outputs) for outputs, _, _ in made.iter_predict(data)] == [1, 1]
    with pytest.raises(ShapeError, match="merge_batches=False"):
        made.predict(data)


def test_arrays_are_fed_by_the_names_that_the_batch_gives_them():
    symbol = mx.sym.Variable("a") - 2 * mx.sym.Variable("b")
    made = Module(symbol, data_names=["a", "b"], label_names=None, context=TWO)
    made.bind([[("a", (1, 2)), ("b", (1, 2))], [("a", (2, 3)), ("b", (2, 3))]], for_training=False)
    made.init_params()
    executors = list(made._exec_group.execs)
    data = [[mx.nd.ones((1, 2)), 5 * mx.nd.ones((1, 2))], [mx.nd.zeros((2, 3)), mx.nd.ones((2, 3))]]
    given_batch = mx.io.DataBatch(data, None)
    given_batch.provide_data = [[("b", (1, 2)), ("a", (1, 2))], [("b", (2, 3)), ("a", (2, 3))]]
    made.forward(given_batch)
    assert [out.asnumpy()[0, 0] for out in made.get_outputs(merge_multi_context=False)[0]] == [3, 1]
    assert all(a is b for a, b in zip(executors, made._exec_group.execs))


def test_shapes_seen_before_are_not_bound_again():
    made, kept = module(), []
    for sizes in (SIZES, ((1, 4, 4), (2, 9, 3)), SIZES, ((1, 4, 4), (2, 9, 3))):
        made.forward(cut_batch(sizes))
        kept.append(made._exec_group.execs[1])
    assert kept[0] is kept[2] and kept[1] is kept[3]
    assert made.data_shapes[1][0].shape == (2, 1, 9, 3) and made.label_shapes[0][0].shape == (1,)


def test_both_forms_run_in_one_module():
    made = module()
    flat = mx.io.DataBatch([mx.nd.ones((3, 1, 4, 4))], [mx.nd.zeros(3)])
    made.forward_backward(flat)
    assert [part.rows for part in made.slices().contexts] == [2, 1]
    made.forward_backward(cut_batch(SIZES))
    assert [part.shapes[0][1] for part in made.slices().contexts] == [(2, 1, 6, 6), (3, 1, 5, 8)]
    assert made.slices().rule == "per context" and made.slices().rows == 5


def test_a_list_of_batches_is_divided_by_its_rows_and_each_part_has_its_own_padding():
    made = Module(classifier(), context=TWO)
    made.bind([("data", (4, 4))], [("softmax_label", (4,))])
    made.init_params()
    made.init_optimizer(optimizer_params={"learning_rate": 0.1})
    parts = [batch(3, 1, pad=1), batch(2, 2, pad=1)]
    made.forward_backward(parts)
    made.update()
    assert made._optimizer.rescale_grad == pytest.approx(1 / 5)
    metric = mx.metric.Accuracy()
    made.update_metric(metric, [part.label for part in parts], pre_sliced=True)
    assert metric.num_inst == 3
    made.forward_backward(batch(4))
    made.update()
    assert made._optimizer.rescale_grad == pytest.approx(1 / 4)


def test_buckets_may_have_shapes_of_their_own_for_each_context():
    made = BucketingModule(lambda key: (images(), ["data"], ["softmax_label"]), default_bucket_key="a", context=TWO)
    made.bind(*cut_shapes(SIZES))
    made.init_params(mx.init.One())
    made.init_optimizer()
    for key, sizes in (("b", ((1, 8, 4), (2, 4, 9))), ("a", SIZES), ("b", ((2, 8, 4),))):
        given_batch = cut_batch(sizes)
        given_batch.bucket_key = key
        made.forward_backward(given_batch)
        made.update()
        assert made.get_outputs()[0].shape == (sum(rows for rows, _, _ in sizes), 3)


# ---------------------------------------------------------------------- labels


@pytest.mark.parametrize("labels", [None, [], [None, None], [[], []]])
def test_labels_may_be_absent_in_any_form(labels):
    made = Module(images(), context=TWO)
    data = cut_shapes(SIZES)[0]
    made.bind(data, labels, for_training=False)
    made.init_params(mx.init.One())
    assert made.label_shapes is None
    unlabelled = cut_batch(SIZES, labels=False)
    assert made.predict(Batches([unlabelled])).shape == (5, 3)
    unlabelled.label = [None, None]
    made.forward(unlabelled)
    made.reshape(data, labels)
    assert made.label_shapes is None
    # Labels that come with a batch later are scored all the same.
    assert dict(made.score(Batches([cut_batch(SIZES)]), mx.metric.CrossEntropy()))["cross-entropy"] == pytest.approx(
        np.log(3), rel=1e-4
    )


@pytest.mark.parametrize("with_label", [0, 1])
def test_labels_of_some_contexts_only(with_label):
    made = Module(images(), context=TWO)
    data, label = cut_shapes(SIZES)
    label[1 - with_label] = None
    made.bind(data, label)
    made.init_params(arg_params=values_for(images(), data=(2, 1, 6, 6)), aux_params={})
    made.forward_backward(cut_batch(SIZES, 4))
    given_batch = cut_batch(SIZES, 4)
    given_batch.label[1 - with_label] = None
    given_batch.provide_label = label
    made.forward_backward(given_batch)
    assert (
        made._exec_group.execs[1 - with_label].arg_dict["softmax_label"].asnumpy().tolist()
        == [0] * (SIZES[1 - with_label][0])
    )
    metric = mx.metric.Accuracy()
    made.update_metric(metric, given_batch.label)
    assert metric.num_inst == SIZES[with_label][0]


def test_a_metric_of_losses_needs_no_labels():
    loss = mx.sym.MakeLoss(mx.sym.mean(mx.sym.Variable("data"), axis=(1, 2, 3)), name="loss")
    made = Module(loss, context=TWO, label_names=None)
    made.bind(cut_shapes(SIZES)[0])
    made.init_params()
    made.forward(cut_batch(SIZES, labels=False))
    metric = mx.metric.Loss()
    made.update_metric(metric, None)
    assert metric.num_inst == 5


# ---------------------------------------------------------------------- refusals, after which all is as it was


def _one_missing(given_batch):
    given_batch.data[1] = None


def _too_many(given_batch):
    given_batch.data.append(given_batch.data[0])


def _mixed(given_batch):
    given_batch.data[1] = given_batch.data[1][0]


def _flat_label(given_batch):
    given_batch.label = [part[0] for part in given_batch.label]


def _short_label(given_batch):
    given_batch.label.pop()


def _other_channels(given_batch):
    given_batch.data[1] = [mx.nd.ones((3, 2, 5, 8))]
    given_batch.provide_data = None


def _too_many_arrays(given_batch):
    given_batch.data[1].append(mx.nd.ones(3))


def _other_name(given_batch):
    given_batch.provide_data = [[("data", (2, 1, 6, 6))], [("date", (3, 1, 5, 8))]]


def _label_rows(given_batch):
    given_batch.label[1] = [mx.nd.zeros(4)]


def _flat_description(given_batch):
    given_batch.provide_data = [("data", (2, 1, 6, 6)), ("data", (3, 1, 5, 8))]


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (_one_missing, r"no data for context 1: its entry is None"),
        (_too_many, r"data for 3 contexts and the module has 2; give either one list for all"),
        (_mixed, r"data mixes two forms: \[\[\(2, 1, 6, 6\)\], \(3, 1, 5, 8\)\]"),
        (_flat_label, r"data for each context and one list of labels for all; give either"),
        (_short_label, r"labels for 1 context\(s\) and data for 2"),
        (
            _other_channels,
            r"'conv_weight' of shape \(4, 2, 3, 3\), and it is bound on cpu\(1\) with",
        ),
        (_too_many_arrays, r"context 1: the batch has 2 data array\(s\); expected \['data'\]"),
        (
            _other_name,
            r"data_shapes names \['date'\] for context 1.*data_names=\['data'\]",
        ),
        (_label_rows, r"context 1: the batch has labels \[\('softmax_label', \(4,\)\)\]"),
        (_flat_description, r"the batch has data for each context and provide_data is"),
    ],
)
def test_a_batch_that_does_not_fit_is_refused_and_the_next_one_runs(spoil, says):
    made = module()
    executors = list(made._exec_group.execs)
    spoilt = cut_batch(SIZES)
    spoil(spoilt)
    with pytest.raises(ShapeError, match=says):
        made.forward(spoilt)
    assert made._exec_group.execs == executors
    made.forward_backward(cut_batch(SIZES))
    assert made.get_outputs()[0].shape == (5, 3)


@pytest.mark.parametrize(
    ("data", "label", "says"),
    [
        ([[("data", (2, 1, 6, 6))], ("data", (3, 1, 5, 8))], None, "mixes two forms.*give either one list for all"),
        ([[("data", (2, 1, 6, 6))]] * 3, None, "lists for 3 contexts, and there are 2"),
        (cut_shapes(SIZES)[0], [("softmax_label", (5,))], "data_shapes is per context and label_shapes is one list"),
        (cut_shapes(SIZES)[0], cut_shapes(SIZES)[1][:1], "label_shapes has lists for 1 contexts and data_shapes for 2"),
        (
            [("data", (5, 1, 6, 6))],
            cut_shapes(SIZES)[1],
            "is one list for all contexts and label_shapes is per",
        ),
        (
            [[("data", (2, 1, 6, 6))], [("data", (0, 1, 5, 8))]],
            None,
            r"data_shapes\[1\]: 'data' has shape \(0, 1",
        ),
    ],
)
def test_shapes_that_are_no_form_are_refused_by_bind_and_reshape(data, label, says):
    made = Module(images(), context=TWO)
    with pytest.raises(ShapeError, match=says):
        made.bind(data, label)
    assert not made.binded
    bound = module()
    with pytest.raises(ShapeError, match=says):
        bound.reshape(data, label)
    assert bound.data_shapes[1][0].shape == (3, 1, 5, 8)


def test_labels_for_a_metric_have_the_form_of_the_batch():
    made, given_batch = module(), cut_batch(SIZES)
    made.forward(given_batch)
    with pytest.raises(ShapeError, match="labels are one list for all contexts, and the batch came cut"):
        made.update_metric(mx.metric.Accuracy(), [part[0] for part in given_batch.label])
    with pytest.raises(ShapeError, match=r"labels has lists for 1 context\(s\), and 2 ran this batch"):
        made.update_metric(mx.metric.Accuracy(), given_batch.label[:1])


def test_a_single_context_takes_the_nested_form_too():
    made = Module(images(), context=CONTEXTS[0])
    made.bind(*cut_shapes(SIZES[:1]))
    made.init_params(mx.init.One())
    made.init_optimizer()
    made.forward_backward(cut_batch(SIZES[:1]))
    made.update()
    assert made.output_shapes == [("softmax_output", (2, 3))] and made._optimizer.rescale_grad == 1


def test_a_group_lists_its_arrays_by_context_and_name():
    made = module()
    group = made._exec_group
    assert [[array.shape for array in own] for own in group.data_arrays] == [[(2, 1, 6, 6)], [(3, 1, 5, 8)]]
    assert [[array.shape for array in own] for own in group.label_arrays] == [[(2,)], [(3,)]]
    assert group.data_shapes is made._data_shapes and isinstance(made._label_shapes, tuple)
    assert [[desc.name for desc in own] for own in made._label_shapes] == [["softmax_label"]] * 2
    made.forward(cut_batch(SIZES[:1]))
    assert len(group.data_arrays) == 1 and len(group.execs) == 2
