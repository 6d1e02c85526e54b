"""Executors that are let go of are gone at once, without waiting for the garbage collector: they hold most memory."""

from __future__ import annotations

import gc
import weakref

import pytest

import bucketlab as bl
from bucketlab import mx

CONTEXTS = [mx.cpu(0), mx.cpu(1)]


def batch(length, rows=4):
    shape = (rows, length)
    return mx.io.DataBatch(
        [mx.nd.ones(shape)], [mx.nd.zeros(shape)], pad=0, bucket_key=length,
        provide_data=[mx.io.DataDesc("data", shape)], provide_label=[mx.io.DataDesc("softmax_label", shape)],
    )  # fmt: skip


def step(module, given):
    module.forward_backward(given)
    module.update()
    module.update_metric(mx.metric.Perplexity(None), given.label)
    module.get_outputs()


def ready(module, first):
    module.bind(first.provide_data, first.provide_label)
    module.init_params()
    module.init_optimizer()
    return module


def bucketed(lengths):
    sym_gen = bl.models.lstm_lm(20, hidden=6, embed=5)
    made = ready(bl.BucketingModule(sym_gen, lengths[0], context=CONTEXTS), batch(lengths[0]))
    for length in lengths:
        step(made, batch(length))
    return made


def executors(module):
    """Weak references to all that is bound now."""
    parts = getattr(module, "_buckets", {None: module}).values()
    return [weakref.ref(e) for part in parts for bound in part._exec_group._bounds.values() for e in bound.execs]


def gone(references):
    return [reference() is None for reference in references]


@pytest.fixture(autouse=True)
def without_collector():
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def test_when_a_hungrier_bucket_takes_over_the_working_memory():
    module = bucketed([2])
    before = executors(module)
    step(module, batch(6))
    assert all(gone(before)) and len(before) == 2


@pytest.mark.parametrize("how", ["release", "limit", "del"])
def test_when_buckets_are_let_go_of(how):
    module = bucketed([6, 4, 2, 6])
    of = {key: [weakref.ref(e) for e in part._exec_group.execs] for key, part in module._buckets.items()}
    if how == "release":
        module.release(4)
    elif how == "limit":
        module.limit(buckets=2)
    else:
        del module._buckets[4]
    left = {key: not all(gone(references)) for key, references in of.items()}
    assert left == {4: False, 6: True, 2: True}


def test_when_it_is_bound_again():
    module = bucketed([6, 4])
    before = executors(module)
    first = batch(6)
    module.bind(first.provide_data, first.provide_label, force_rebind=True)
    assert all(gone(before)) and len(before) == 4


def test_when_a_mutable_module_has_more_shapes_than_it_keeps():
    net = mx.sym.SoftmaxOutput(mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=3), name="softmax")
    first = mx.io.DataBatch([mx.nd.ones((8, 4))], [mx.nd.zeros((8,))], pad=0)
    module = bl.MutableModule(net, ["data"], ["softmax_label"], context=CONTEXTS, keep=1)
    module.bind([("data", (8, 4))], [("softmax_label", (8,))])
    module.init_params()
    module.forward(first)
    seen = []
    for rows in (6, 4, 2):
        module.forward(mx.io.DataBatch([mx.nd.ones((rows, 4))], [mx.nd.zeros((rows,))], pad=0))
        seen.append([weakref.ref(e) for e in module._curr_module._exec_group.execs])
    assert [all(gone(references)) for references in seen] == [True, True, False]


@pytest.mark.parametrize("kind", ["Module", "BucketingModule"])
def test_when_the_module_goes(kind):
    if kind == "Module":
        module = ready(bl.Module(bl.models.lstm_lm(20, hidden=6, embed=5)(4)[0], context=CONTEXTS), batch(4))
        for rows in (4, 2):
            step(module, batch(4, rows))
    else:
        module = bucketed([2, 6, 4])
    before = executors(module)
    assert before and not any(gone(before))
    del module
    assert all(gone(before))
