"""Binding: what is known is not inferred again, what the engine refuses leaves no trace, and nothing is logged."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

import bucketlab as bl
from bucketlab import binding, mx
from bucketlab._quiet import can_be_quiet
from bucketlab.errors import ShapeError
from bucketlab.executors import declarations

ROWS = 4


def classifier(dtype: str | None = None, stype: str | None = None):
    data = mx.sym.Variable("data", dtype=dtype, stype=stype)
    normal = mx.sym.BatchNorm(mx.sym.FullyConnected(mx.sym.Cast(data, dtype="float32"), num_hidden=5, name="fc"))
    return mx.sym.SoftmaxOutput(mx.sym.FullyConnected(normal, num_hidden=3, name="out"), name="softmax")


def descs(rows: int = ROWS, columns: int = 7, dtype: str = "float32"):
    return [mx.io.DataDesc("data", (rows, columns), dtype)], [mx.io.DataDesc("softmax_label", (rows,))]


def bound(symbol=None, contexts: int = 1, **more):
    module = bl.Module(classifier() if symbol is None else symbol, context=[mx.cpu(i) for i in range(contexts)])
    module.bind(*descs(), **more)
    module.init_params()
    return module


def both(group, data, label):
    return group._known_requirements(0, data, label), group._requirements(0, data, label)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_what_is_known_is_what_would_be_inferred(dtype):
    group = bound()._exec_group
    known, inferred = both(group, *descs(rows=9, dtype=dtype))
    assert known == inferred
    assert [need.shape for need in known.inputs] == [(9, 7), (9,)]


def test_what_a_variable_declares_counts_for_more_than_its_description():
    group = bound(classifier(dtype="float16"))._exec_group
    known, inferred = both(group, *descs(rows=9))
    assert known == inferred
    assert known.inputs[0].dtype == np.float16


def test_nothing_is_known_before_the_first_bind_nor_of_parameters_that_are_new():
    group = bound()._exec_group
    fresh = binding.ContextMemory.on(mx.cpu())
    named = (group.arg_names, group.aux_names, {}, fresh, [*descs()[0], *descs()[1]], group.param_names, group.grad_req)
    assert binding.known_requirements(*named) is None


@pytest.mark.parametrize("late", [{"inputs_need_grad": True}, {"grad_req": {"fc_weight": "null"}}])
def test_gradients_of_inputs_and_late_gradients_are_inferred(late):
    module = bound(**late)
    group = module._exec_group
    # The same executors with a gradient for everything: fc_weight has none so far.
    wanted = dict(group.grad_req, fc_weight="write")
    named = (group.arg_names, group.aux_names, {}, group._memory.contexts[0], [*descs()[0], *descs()[1]])
    assert binding.known_requirements(*named, group.param_names, wanted) is None


@pytest.mark.parametrize("contexts", [1, 2])
def test_a_refused_bind_names_the_parameter_and_leaves_the_inputs_as_they_were(contexts):
    module = bound(contexts=contexts)
    memories = module._exec_group._memory.contexts
    before = [dict(memory.inputs) for memory in memories]
    # More rows and more columns: the inputs would have to grow before the engine sees that the weight does not fit.
    told = r"parameter 'fc_weight' of shape \(5, 70\).*bound on cpu\(0\) with shape \(5, 7\)"
    with pytest.raises(ShapeError, match=told):
        module.reshape(*descs(rows=40, columns=70))
    assert [dict(memory.inputs) for memory in memories] == before
    module.forward(mx.io.DataBatch([mx.nd.ones((ROWS, 7))], [mx.nd.zeros((ROWS,))]), is_train=True)
    module.backward()
    assert np.isfinite(module.get_outputs()[0].asnumpy()).all()


def test_declarations_are_all_attributes_or_none():
    plain, declared = classifier(), classifier(dtype="float16")
    assert declarations(plain) == {}
    assert declarations(declared) == declared.attr_dict()
    assert declarations(declared)["data"]["__dtype__"] == "2"
    assert declarations(mx.sym.Variable("alone")) == {}
    assert declarations(classifier(stype="csr"))["data"]["__storage_type__"] == "2"


def test_an_executor_is_what_mxnet_makes_of_the_same_arrays():
    module = bound()
    ours = module._exec_group.execs[0]
    symbol = module.symbol
    grads = {name: grad for name, grad in ours.grad_dict.items() if grad is not None}
    theirs = symbol.bind(mx.cpu(), ours.arg_dict, grads, dict(module._exec_group.grad_req), ours.aux_dict)
    assert isinstance(ours, mx.executor.Executor)
    for table in ("arg_dict", "grad_dict", "aux_dict", "output_dict"):
        assert list(getattr(ours, table)) == list(getattr(theirs, table))
    assert all(listed is named for listed, named in zip(ours.arg_arrays, ours.arg_dict.values()))
    assert ours.debug_str().splitlines()[0] == theirs.debug_str().splitlines()[0]
    wider = ours.reshape(data=(2 * ROWS, 7), softmax_label=(2 * ROWS,), allow_up_sizing=True)
    assert wider.outputs[0].shape == (2 * ROWS, 3)


QUIET = """
import os, sys
import bucketlab as bl
from bucketlab import mx
from bucketlab._quiet import quiet
symbol = mx.sym.SoftmaxOutput(mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=3), name="softmax")
module = bl.Module(symbol)
module.bind([("data", (2, 4))], [("softmax_label", (2,))])
module.init_params()
sys.stderr.write("bound\\n")
os.environ["MXNET_SUBGRAPH_BACKEND"] = "NONE"
symbol.simple_bind(mx.cpu(), data=(2, 4))
with quiet():
    symbol.simple_bind(mx.cpu(), data=(2, 4))
    sys.stderr.write("from Python\\n")
    try:
        symbol.simple_bind(mx.cpu(), data=(2, 4), softmax_label=(3, 3))
    except RuntimeError:
        sys.stderr.write("an error\\n")
"""


def test_a_bind_keeps_the_engine_from_saying_what_nobody_needs_and_no_longer():
    assert can_be_quiet()
    run = subprocess.run([sys.executable, "-c", QUIET], capture_output=True, text=True, check=True, timeout=120)
    lines = run.stderr.splitlines()
    assert lines[0] == "bound"
    assert lines[1].endswith("MXNET_SUBGRAPH_BACKEND=NONE is detected, subgraph backend is not in use")
    assert lines[2:] == ["from Python", "an error"]


def test_settings_of_the_engine_are_there_for_the_bind_only(monkeypatch):
    import os

    monkeypatch.delenv("MXNET_SUBGRAPH_BACKEND", raising=False)
    before = dict(os.environ)
    bound()
    assert dict(os.environ) == before
