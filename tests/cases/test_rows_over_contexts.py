"""Batches of any number of rows over any number of contexts: no slice is refused, cut off or left out."""

from __future__ import annotations

import numpy as np
import pytest

import bucketlab as bl
from bucketlab import mx
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
from nets import CONTEXTS


@every_kind
def test_rows_that_contexts_do_not_divide(kind):
    many, one = bound(kind, 7, contexts=4), bound(kind, 7)
    for module in (many, one):
        module.forward(batch(7), is_train=False)
    assert [part.shape[0] for part in many.get_outputs(merge_multi_context=False)[0]] == [2, 2, 2, 1]
    np.testing.assert_allclose(many.get_outputs()[0].asnumpy(), one.get_outputs()[0].asnumpy(), rtol=1e-6)


@pytest.mark.parametrize("workload", [[1, 2], [3, 1], [9, 1], [0.5, 0.25]])
@pytest.mark.parametrize("rows", [3, 8])
def test_uneven_workloads_give_every_context_a_row(workload, rows):
    module = bl.Module(symbol(), context=CONTEXTS[:2], work_load_list=workload)
    module.bind(*shapes(rows))
    module.init_params(arg_params=start())
    module.forward(batch(rows), is_train=True)
    module.backward()
    counts = [part.shape[0] for part in module.get_outputs(merge_multi_context=False)[0]]
    assert sum(counts) == rows and min(counts) >= 1 and sorted(counts) == [c for _, c in sorted(zip(workload, counts))]
    one = bound("Module", rows)
    one.forward_backward(batch(rows))
    for k, name in enumerate(("fc_weight", "fc_bias")):
        total = sum(grad.asnumpy() for grad in module._exec_group.grad_arrays[k])
        np.testing.assert_allclose(
            total, one._exec_group.execs[0].grad_dict[name].asnumpy(), rtol=1e-5, atol=1e-6
        )


@pytest.mark.parametrize("workload", [[1], [1, 1, 1], [0, 0], [1, -1], [1, float("nan")], ["1", "2"]])
def test_a_workload_that_cannot_be_is_refused_when_the_module_is_made(workload):
    with refused("work_load_list"):
        bl.Module(symbol(), context=CONTEXTS[:2], work_load_list=workload).bind(*shapes(4))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"symbol": 3}, ["symbol is int"]),
        ({"workload": [1]}, ["workload has 1 entries", "2 context(s)"]),
        ({"workload": [1, 0]}, ["workload[1] is 0"]),
        ({"workload": None}, ["workload is None"]),
        ({"data_shapes": 3}, ["data_shapes is 3"]),
        ({"data_shapes": []}, ["data_shapes is empty"]),
        ({"label_shapes": 3}, ["label_shapes is 3"]),
        ({"param_names": None}, ["param_names is None"]),
        ({"param_names": "fc_weight"}, ["param_names is 'fc_weight'"]),
        ({"state_names": 3}, ["state_names is 3"]),
        ({"state_names": ["none"]}, ["state_names has 'none'"]),
        ({"fixed_param_names": "fc_weight"}, ["fixed_param_names is 'fc_weight'"]),
        ({"grad_req": 3}, ["grad_req is 3"]),
        ({"group2ctxs": 3}, ["group2ctxs is int"]),
        ({"shared_group": 3}, ["shared_group is a int"]),
    ],
)
def test_what_a_group_cannot_be_made_of_is_named(given, words):
    data, label = shapes()
    usual = {
        "symbol": symbol(),
        "contexts": CONTEXTS[:2],
        "workload": [1, 1],
        "data_shapes": data,
        "label_shapes": label,
        "param_names": list(start()),
        "for_training": True,
        "inputs_need_grad": False,
    }
    assert bl.DataParallelExecutorGroup(**usual).batch_size == 4
    with refused(*words, kind=(ValueError, TypeError)):
        bl.DataParallelExecutorGroup(**{**usual, **given})


@pytest.mark.parametrize("where", [None, 3, "cpu", [], ["cpu"], [mx.cpu(), None], [3]])
@pytest.mark.parametrize("kind", ["Module", "BucketingModule", "MutableModule", "SVRGModule"])
def test_what_is_no_context_is_refused(kind, where):
    with refused("context", kind=(ValueError, TypeError)):
        if kind == "BucketingModule":
            bl.BucketingModule(lambda key: (symbol(), ["data"], ["softmax_label"]), 0, context=where).bind(*shapes())
        else:
            more = {"update_freq": 1} if kind == "SVRGModule" else {}
            getattr(bl, kind)(symbol(), ["data"], ["softmax_label"], context=where, **more)
    with refused("contexts", kind=(ValueError, TypeError)):
        bl.DataParallelExecutorGroup(symbol(), where, [1], *shapes(), list(start()), True, False)


@pytest.mark.parametrize("kind", ["Module", "BucketingModule", "SequentialModule", "MutableModule"])
def test_a_device_that_is_not_there_is_named(kind):
    absent = mx.gpu(mx.context.num_gpus() if mx.runtime.Features().is_enabled("CUDA") else 0)
    with mx.AttrScope(ctx_group="far"):
        scores = mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=CLASSES, name="fc")
    net = mx.sym.SoftmaxOutput(scores, name="softmax")
    if kind != "MutableModule":
        for given in ({"far": absent}, {"far": [absent]}, [{"far": absent}], [3]):
            module = make(kind, net, group2ctxs=given)
            with refused("group2ctxs", "gpu" if given != [3] else "3", kind=(ValueError, TypeError)):
                module.bind(*shapes())
            assert not module.binded
    with refused("contexts", str(absent), kind=ValueError):
        bl.DataParallelExecutorGroup(net, [mx.cpu(), absent], [1, 1], *shapes(), list(start()), True, False)


@every_kind
def test_fewer_rows_than_contexts_and_then_all_again(kind):
    many, one = ready(kind, 4, contexts=3), ready(kind, 4)
    for rows in (2, 4, 1, 1, 4):
        for module in (many, one):
            step(module, batch(rows, seed=rows))
        np.testing.assert_allclose(many.get_outputs()[0].asnumpy(), one.get_outputs()[0].asnumpy(), rtol=1e-5)
    for name, value in values(one).items():
        np.testing.assert_allclose(values(many)[name], value, rtol=1e-4, atol=1e-6, err_msg=name)


@every_kind
@every_number_of_contexts
@pytest.mark.parametrize(("rows", "label_rows"), [(4, 8), (4, 2), (2, 4)])
def test_labels_of_other_rows_than_the_data_are_refused_by_name(kind, contexts, rows, label_rows):
    module, twin = ready(kind, contexts=contexts), ready(kind, contexts=contexts)
    bad = batch(rows, label=[mx.nd.zeros((label_rows,))], provide_label=[("softmax_label", (label_rows,))])
    for _ in range(2):
        with refused("softmax_label"):
            module.forward(bad, is_train=True)
    for each in (module, twin):
        step(each, batch())
    assert_equal(values(module), values(twin))


@every_number_of_contexts
@pytest.mark.parametrize(
    ("data", "label", "words"),
    [
        ((4, WIDTH), (8,), ["softmax_label", "(8,)", "(4,)"]),
        ((8, WIDTH), (4,), ["data", "(8, 4)", "(4, 4)"]),
        ((4, 5), (4,), ["data", "(4, 5)", "(4, 4)"]),
    ],
)
def test_a_group_refuses_arrays_that_it_would_have_cut_off(contexts, data, label, words):
    where = CONTEXTS[:contexts]
    group = bl.DataParallelExecutorGroup(
        symbol(), where, [1] * contexts, *shapes(4), ["fc_weight", "fc_bias"], True, False
    )
    group.set_params(start(), {})
    group.forward(batch(), is_train=True)
    before = group.get_outputs()[0].asnumpy()
    with refused(*words):
        group.forward(mx.io.DataBatch([mx.nd.ones(data)], [mx.nd.ones(label)]))
    with refused("2 label array(s)", "softmax_label"):
        group.forward(mx.io.DataBatch([mx.nd.ones((4, WIDTH))], [mx.nd.ones((4,))] * 2))
    np.testing.assert_array_equal(group.get_outputs()[0].asnumpy(), before)
    group.backward()


@every_kind
def test_a_metric_is_shown_no_labels_of_other_rows(kind):
    module, metric = bound(kind, contexts=2), mx.metric.create("acc")
    module.forward(batch(), is_train=False)
    with refused("softmax_label", "(8,)"):
        module.update_metric(metric, [mx.nd.zeros((8,))])
    assert metric.num_inst == 0
    with refused("labels is NDArray"):
        module.update_metric(metric, mx.nd.zeros((4,)))
    module.update_metric(metric, batch().label)
    assert metric.num_inst == 4


@every_kind
@every_number_of_contexts
def test_arrays_of_numpy_are_taken_everywhere(kind, contexts):
    module, twin, metric = ready(kind, contexts=contexts), ready(kind, contexts=contexts), mx.metric.create("acc")
    given = batch()
    step(twin, given)
    numpy = batch(data=[given.data[0].asnumpy()], label=[given.label[0].asnumpy()])
    step(module, numpy)
    module.update_metric(metric, numpy.label)
    assert metric.num_inst == 4
    assert_equal(values(module), values(twin))


def test_rows_on_other_axes_are_cut_there():
    """Images with channels last, sequences by time, a mask for all: each has its rows where its layout says."""
    images = mx.sym.mean(mx.sym.Variable("images"), axis=(1, 2, 3))
    steps = mx.sym.mean(mx.sym.Variable("steps"), axis=(0, 2))
    both = mx.sym.broadcast_mul(images + steps, mx.sym.mean(mx.sym.Variable("mask"), axis=0, keepdims=True))
    described = [
        mx.io.DataDesc("images", (6, 2, 2, 3), layout="NHWC"),
        mx.io.DataDesc("steps", (5, 6, 2), layout="TNC"),
        mx.io.DataDesc("mask", (7,), layout="C"),
    ]
    random, results = np.random.RandomState(0), []
    arrays = [mx.nd.array(random.rand(*desc.shape)) for desc in described]
    for contexts in (1, 3):
        module = bl.Module(both, [d.name for d in described], None, context=CONTEXTS[:contexts])
        module.bind(described, inputs_need_grad=True)
        module.init_params()
        module.forward(mx.io.DataBatch(arrays), is_train=True)
        module.backward([mx.nd.ones((6,))])
        results.append([module.get_outputs()[0].asnumpy(), *(g.asnumpy() for g in module.get_input_grads()[:2])])
    for one, many in zip(*results):
        np.testing.assert_allclose(many, one, rtol=1e-5)
    assert module._exec_group.execs[1].arg_dict["steps"].shape == (5, 2, 2)
    assert module._exec_group.execs[1].arg_dict["mask"].shape == (7,)


def test_rows_that_disagree_on_their_axes_are_refused_with_both_named():
    module = bl.Module(
        mx.sym.Variable("a") + mx.sym.Variable("b"), ["a", "b"], None, context=CONTEXTS[:2]
    )
    with refused("'b' has 3 rows", "'a' has 4"):
        module.bind([mx.io.DataDesc("a", (4, 3), layout="NC"), mx.io.DataDesc("b", (4, 3), layout="CN")])
    assert not module.binded
    module.bind([("a", (4, 3)), ("b", (4, 3))])
    assert inner(module).slices().rows == 4


@every_kind
def test_the_last_batch_of_an_epoch_may_be_smaller(kind):
    random = np.random.RandomState(3)
    data, label = random.rand(10, WIDTH).astype("f"), random.randint(0, CLASSES, 10).astype("f")

    class Short(mx.io.DataIter):
        """4, 4 and 2 rows."""

        def __init__(self):
            super().__init__(4)
            self.provide_data, self.provide_label = shapes(4)
            self.reset()

        def reset(self):
            self.at = 0

        def next(self):
            if self.at >= 10:
                raise StopIteration
            rows = slice(self.at, min(self.at + 4, 10))
            self.at = rows.stop if rows.stop < 10 else 10
            x, y = mx.nd.array(data[rows]), mx.nd.array(label[rows])
            return batch(len(x), data=[x], label=[y], pad=None)

    many, one = bound(kind, contexts=2), bound(kind)
    for module in (many, one):
        module.fit(Short(), num_epoch=2, optimizer_params={"learning_rate": 0.1}, initializer=None)
    assert many.predict(Short()).shape == (10, CLASSES)
    np.testing.assert_allclose(many.predict(Short()).asnumpy(), one.predict(Short()).asnumpy(), rtol=1e-4)
    assert dict(many.score(Short(), "acc")) == dict(one.score(Short(), "acc"))
