"""However a batch is cut over contexts, results are those of one context with everything."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bucketlab import BucketingModule, Module, mx
from bucketlab.errors import SliceError
from bucketlab.slicing import row_counts
from nets import CONTEXTS, batch, classifier, tagger, values_for

CLOSE = {"rtol": 1e-4, "atol": 1e-6}
few = settings(max_examples=12)
workloads = st.lists(st.sampled_from([1, 2, 3, 0.5, 9]), min_size=2, max_size=4)
rows = st.integers(1, 7)
layouts = st.sampled_from(["NT", "TN"])


def trained(symbol, workload, batches, first, desc=(lambda n: (n, 4), lambda n: (n,)), layout=None, **kwargs):
    """Train on the batches and tell all that a caller could read."""
    layout = layout or ("NC", "N")
    shapes = [mx.io.DataDesc("data", desc[0](first), layout=layout[0])]
    labels = [mx.io.DataDesc("softmax_label", desc[1](first), layout=layout[1])]
    module = Module(symbol, context=CONTEXTS[: len(workload)], work_load_list=workload, **kwargs)
    module.bind(shapes, labels)
    module.init_params(
        arg_params=values_for(symbol, data=desc[0](first), softmax_label=desc[1](first)),
        aux_params=None,
        initializer=mx.init.One(),
    )
    module.init_optimizer(optimizer_params={"learning_rate": 0.5, "momentum": 0.9})
    metric, outputs, grads = mx.metric.create(["ce", "acc"]), [], []
    for one in batches:
        module.forward_backward(one)
        outputs.append(module.get_outputs()[0].asnumpy())
        grads.append([sum(g.asnumpy() for g in block) for block in module._exec_group.grad_arrays])
        module.update()
        module.update_metric(metric, one.label)
    arguments, auxiliary = module.get_params()
    values = {name: value.asnumpy() for name, value in {**arguments, **auxiliary}.items()}
    return module, {"values": values, "outputs": outputs, "grads": grads, "metric": dict(metric.get_name_value())}


def assert_same(found, expected):
    for name, value in expected["values"].items():
        np.testing.assert_allclose(found["values"][name], value, err_msg=name, **CLOSE)
    for kind in ("outputs", "grads"):
        for one, other in zip(found[kind], expected[kind]):
            for a, b in zip(one, other):
                np.testing.assert_allclose(a, b, **CLOSE)
    assert found["metric"] == pytest.approx(expected["metric"], rel=1e-5)


def iterator(count, size, seed=3):
    rng = np.random.RandomState(seed)
    data, label = rng.uniform(-1, 1, (count, 4)).astype("float32"), rng.randint(0, 3, count)
    return mx.io.NDArrayIter(data, label.astype("float32"), batch_size=size)


@few
@given(workload=workloads, sizes=st.lists(rows, min_size=2, max_size=3))
def test_training_scoring_and_predicting(workload, sizes):
    batches = [batch(n, seed) for seed, n in enumerate(sizes)]
    symbol = classifier()
    many, found = trained(symbol, workload, batches, sizes[0])
    one, expected = trained(symbol, [1], batches, sizes[0])
    assert_same(found, expected)
    data = iterator(2 * sizes[0] - 1, sizes[0])
    np.testing.assert_allclose(many.predict(data).asnumpy(), one.predict(data).asnumpy(), **CLOSE)
    assert many.predict(data).shape == (2 * sizes[0] - 1, 3)
    assert dict(many.score(data, "acc")) == dict(one.score(data, "acc"))


@few
@given(contexts=st.integers(2, 4), data=st.data())
def test_fewer_rows_than_contexts_with_all_that_joins_rows(contexts, data):
    """Batch statistics and averaging losses look at all rows of a context: so few rows stay on one."""
    batch_norm = data.draw(st.booleans(), "batch_norm")
    normalization = data.draw(st.sampled_from(["null", "batch", "valid"]), "normalization")
    workload = data.draw(st.lists(st.integers(1, 3), min_size=contexts, max_size=contexts), "workload")
    sizes = data.draw(st.lists(st.integers(1, contexts - 1), min_size=2, max_size=3), "rows")
    batches = [batch(n, seed) for seed, n in enumerate(sizes)]
    symbol = classifier(batch_norm=batch_norm, normalization=normalization)
    many, found = trained(symbol, workload, batches, sizes[0])
    one, expected = trained(symbol, [1], batches, sizes[0])
    assert_same(found, expected)
    data = iterator(3, sizes[0])
    np.testing.assert_allclose(many.predict(data).asnumpy(), one.predict(data).asnumpy(), **CLOSE)
    assert dict(many.score(data, "acc")) == dict(one.score(data, "acc"))


@few
@given(
    workload=workloads,
    sizes=st.lists(rows, min_size=1, max_size=2),
    steps=st.integers(1, 3),
    layout=st.sampled_from(["NT", "TN"]),
)
def test_time_major_and_batch_major_rows(workload, sizes, steps, layout):
    rng = np.random.RandomState(0)

    def shape(n):
        return (n, steps) if layout == "NT" else (steps, n)

    batches = [
        mx.io.DataBatch([mx.nd.array(rng.randint(0, 7, shape(n)))], [mx.nd.array(rng.randint(0, 3, shape(n)))])
        for n in sizes
    ]
    for one in batches:
        one.provide_data = [mx.io.DataDesc("data", one.data[0].shape, layout=layout)]
        one.provide_label = [mx.io.DataDesc("softmax_label", one.label[0].shape, layout=layout)]
    forms = {"desc": (shape, shape), "layout": (layout, layout)}
    _, found = trained(tagger(layout), workload, batches, sizes[0], **forms)
    _, expected = trained(tagger(layout), [1], batches, sizes[0], **forms)
    assert_same(found, expected)


@few
@given(count=st.integers(2, 20), workload=workloads, rule=st.sampled_from(["balanced", "mxnet", "exact"]))
def test_a_rule_refuses_at_bind_or_gives_the_results_of_any_other(count, workload, rule):
    symbol = classifier()
    try:
        expected_rows = row_counts(count, workload, rule)
    except SliceError:
        module = Module(symbol, context=CONTEXTS[: len(workload)], work_load_list=workload, split=rule)
        with pytest.raises(SliceError, match=f"batch of {count} rows"):
            module.bind([("data", (count, 4))], [("softmax_label", (count,))])
        assert not module.binded
        return
    given_batch = [batch(count)]
    many, found = trained(symbol, workload, given_batch, count, split=rule)
    _, expected = trained(symbol, [1], given_batch, count)
    assert_same(found, expected)
    assert [part.rows for part in many.slices().contexts] == expected_rows


@few
@given(contexts=st.integers(1, 4), size=rows, pad=st.integers(0, 6), layout=layouts)
def test_padded_rows_count_nowhere(contexts, size, pad, layout):
    pad = min(pad, size - 1)
    rng = np.random.RandomState(1)
    shape = (size, 2) if layout == "NT" else (2, size)
    data, label = rng.randint(0, 7, shape), rng.randint(0, 3, shape)
    whole = mx.io.DataBatch([mx.nd.array(data)], [mx.nd.array(label)], pad=pad)
    many, _ = trained(
        tagger(layout), [1] * contexts, [], size, desc=(lambda n: shape, lambda n: shape), layout=(layout, layout)
    )
    many.forward(whole, is_train=False)
    metric, predicted = mx.metric.Accuracy(), many._predicted(whole)[0].asnumpy()
    many.update_metric(metric, whole.label)
    everything = many.get_outputs()[0].asnumpy().reshape((*shape, 3))
    kept = everything[: size - pad] if layout == "NT" else everything[:, : size - pad]
    kept_label = label[: size - pad] if layout == "NT" else label[:, : size - pad]
    assert np.array_equal(predicted.reshape(kept.shape), kept)
    assert metric.num_inst == kept_label.size
    assert metric.get()[1] == pytest.approx((kept.argmax(-1) == kept_label).mean())


@pytest.mark.parametrize("kind", ["sparse_grad", "row_sparse", "contrib"])
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_sparse_embeddings(kind, optimizer):
    """Rows of resting contexts and rows that nobody pulled count as they would on one context."""

    def symbol():
        weight = mx.sym.Variable("embed_weight", stype="default" if kind == "sparse_grad" else "row_sparse")
        operator = mx.sym.contrib.SparseEmbedding if kind == "contrib" else mx.sym.Embedding
        extra = {} if kind == "contrib" else {"sparse_grad": True}
        found = operator(mx.sym.Variable("data"), weight=weight, input_dim=20, output_dim=4, name="embed", **extra)
        logits = mx.sym.FullyConnected(mx.sym.mean(found, axis=1), num_hidden=3, name="fc")
        return mx.sym.SoftmaxOutput(logits, name="softmax")

    def run(contexts, kvstore):
        module = Module(symbol(), context=CONTEXTS[:contexts])
        module.bind([("data", (4, 5))], [("softmax_label", (4,))])
        values = values_for(symbol(), data=(4, 5))
        values["embed_weight"] = values["embed_weight"].tostype("row_sparse")
        module.init_params(arg_params=values, aux_params={})
        module.init_optimizer(kvstore=kvstore, optimizer=optimizer)
        rng = np.random.RandomState(0)
        for n in (4, 1, 5, 2, 4):
            words, label = mx.nd.array(rng.randint(0, 20, (n, 5))), mx.nd.array(rng.randint(0, 3, n))
            module.forward_backward(mx.io.DataBatch([words], [label]))
            module.update()
        for executor in module._exec_group.execs:
            assert executor.grad_dict["embed_weight"].stype == "row_sparse"
            assert executor.arg_dict["embed_weight"].stype == ("default" if kind == "sparse_grad" else "row_sparse")
        return {name: value.asnumpy() for name, value in module.get_params()[0].items()}

    expected = run(1, None)
    for contexts, kvstore in ((2, "local"), (3, "device"), (3, None)):
        for name, value in run(contexts, kvstore).items():
            np.testing.assert_allclose(value, expected[name], err_msg=f"{name} {contexts} {kvstore}", **CLOSE)


@few
@given(
    workload=st.lists(st.integers(1, 3), min_size=2, max_size=4),
    count=st.integers(1, 9),
    normalization=st.sampled_from(["batch", "valid"]),
)
def test_an_averaging_loss_is_warned_of_exactly_where_contexts_have_uneven_rows(workload, count, normalization):
    module = Module(classifier(normalization=normalization), context=CONTEXTS[: len(workload)], work_load_list=workload)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        module.bind([("data", (count, 4))], [("softmax_label", (count,))])
        counts = [part.rows for part in module.slices().contexts]
        module.reshape([("data", (count + 1, 4))], [("softmax_label", (count + 1,))])
    uneven = [text for text in (str(one.message) for one in told) if "averages over" in text]
    later = [part.rows for part in module.slices().contexts]
    expected = [rows for rows in (counts, later) if len({n for n in rows if n}) > 1]
    assert len(uneven) == min(1, len(expected))
    if expected:
        assert "'softmax' (SoftmaxOutput, normalization=" in uneven[0]
        assert f"contexts have {', '.join(map(str, expected[0]))} rows" in uneven[0]
        assert "normalization='null'" in uneven[0] and "multiple of" in uneven[0]


@few
@given(workload=workloads, steps=st.lists(st.tuples(st.integers(1, 3), rows), min_size=2, max_size=4))
def test_buckets_with_any_number_of_rows(workload, steps):
    rng = np.random.RandomState(2)
    batches = []
    for key, count in steps:
        words, label = rng.randint(0, 7, (count, key)), rng.randint(0, 3, (count, key))
        made = mx.io.DataBatch([mx.nd.array(words)], [mx.nd.array(label)], bucket_key=key)
        made.provide_data = [mx.io.DataDesc("data", words.shape, layout="NT")]
        made.provide_label = [mx.io.DataDesc("softmax_label", label.shape, layout="NT")]
        batches.append(made)

    def run(work):
        module = BucketingModule(
            lambda key: (tagger("NT"), ["data"], ["softmax_label"]),
            default_bucket_key=steps[0][0],
            context=CONTEXTS[: len(work)],
            work_load_list=work,
        )
        module.bind(batches[0].provide_data, batches[0].provide_label)
        module.init_params(arg_params=values_for(tagger("NT"), data=(2, 2), softmax_label=(2, 2)), aux_params={})
        module.init_optimizer(optimizer_params={"learning_rate": 0.5})
        metric, outputs = mx.metric.CrossEntropy(), []
        for one in batches:
            module.forward_backward(one)
            outputs.append(module.get_outputs()[0].asnumpy())
            module.update()
            module.update_metric(metric, one.label)
        return module.get_params()[0], outputs, metric.get()[1]

    (values, outputs, metric), (expected, expected_outputs, expected_metric) = run(workload), run([1])
    for name, value in expected.items():
        np.testing.assert_allclose(values[name].asnumpy(), value.asnumpy(), err_msg=name, **CLOSE)
    for one, other in zip(outputs, expected_outputs):
        np.testing.assert_allclose(one, other, **CLOSE)
    assert metric == pytest.approx(expected_metric, rel=1e-5)


@few
@given(contexts=st.integers(2, 4), sizes=st.lists(rows, min_size=1, max_size=4))
def test_gradients_that_add_up_over_batches(contexts, sizes):
    symbol = classifier()

    def run(count):
        module = Module(symbol, context=CONTEXTS[:count])
        module.bind([("data", (sizes[0], 4))], [("softmax_label", (sizes[0],))], grad_req="add")
        module.init_params(arg_params=values_for(symbol, data=(2, 4)), aux_params={})
        for seed, size in enumerate(sizes):
            module.forward_backward(batch(size, seed))
        group = module._exec_group
        return {n: sum(g.asnumpy() for g in block) for n, block in zip(group.held_names, group.grad_arrays)}

    found, expected = run(contexts), run(1)
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, err_msg=name, **CLOSE)
