"""Gradients in and out, and states: cut and joined by rows, asked for in the right order, kept by name."""

from __future__ import annotations

import numpy as np
import pytest

import bucketlab as bl
from bucketlab import mx
from bucketlab.errors import NotReadyError, ShapeError, StaleError
from kinds import (
    KINDS,
    WIDTH,
    batch,
    bound,
    every_kind,
    every_number_of_contexts,
    inner,
    make,
    ready,
    refused,
    shapes,
)
from nets import CONTEXTS

ONES = mx.nd.ones((4, 3))


def affine(factor=2):
    """data times a number: a network without a loss and without parameters."""
    return mx.sym.Variable("data") * factor


def bound_affine(kind, contexts=1, shape=(4, 3), **bind):
    module = make(kind, affine(), contexts, label=None)
    module.bind([("data", shape)], **{"inputs_need_grad": True, **bind})
    module.init_params()
    if kind == "SVRGModule" and module.for_training:
        inner(module)._mod_aux.init_params()
    return module


def given(data, key=0):
    made = mx.io.DataBatch([data], bucket_key=key)
    made.provide_data = [("data", data.shape)]
    return made


@every_kind
@every_number_of_contexts
def test_gradients_from_outside_are_needed_where_there_is_no_loss(kind, contexts):
    module = bound_affine(kind, contexts)
    module.forward(given(ONES), is_train=True)
    for nothing in (None, []):
        with refused("out_grads", kind=ValueError):
            module.backward(nothing)
    for wrong, words in (
        ([mx.nd.ones((5, 3))], ["out_grads", "(5, 3)"]),
        ([mx.nd.ones((4, 2))], ["out_grads", "(4, 2)"]),
        ([ONES, ONES], ["out_grads", "2 arrays"]),
        ([None], ["out_grads", "NoneType"]),
        (3, ["out_grads", "int"]),
        ("ones", ["out_grads", "str"]),
    ):
        with refused(*words, kind=(ValueError, TypeError)):
            module.backward(wrong)
    for right in ([ONES], ONES, (ONES,), [ONES.asnumpy()], ONES.asnumpy(), [ONES.astype("float64")]):
        module.backward(right)
        np.testing.assert_array_equal(module.get_input_grads()[0].asnumpy(), np.full((4, 3), 2))


@every_kind
@every_number_of_contexts
def test_outputs_that_need_no_gradient_may_be_left_out_at_the_end(kind, contexts):
    """A critic's value, say, comes with what its actions are drawn from, and only the value learns."""
    data = mx.sym.Variable("data")
    net = mx.sym.Group([data * 2, data * 3, mx.sym.MakeLoss(data * 4), mx.sym.BlockGrad(data * 7)])
    module = make(kind, net, contexts, label=None)
    module.bind([("data", (5, 3))], inputs_need_grad=True)
    module.init_params()
    if kind == "SVRGModule":
        inner(module)._mod_aux.init_params()
    ones = mx.nd.ones((5, 3))
    module.forward(given(ones), is_train=True)
    for missing in (None, [ones]):
        with refused("out_grads", "no loss", kind=ValueError):
            module.backward(missing)
    for heads in ([ones, ones * 10], [ones, ones * 10, ones], [ones, ones * 10, ones, ones]):
        module.backward(heads)
        np.testing.assert_array_equal(module.get_input_grads()[0].asnumpy(), np.full((5, 3), 2 + 30 + 4))


@every_kind
@every_number_of_contexts
def test_outputs_with_an_entry_for_every_step_are_cut_by_rows(kind, contexts):
    """A language model's outputs have rows times steps entries."""
    flat = mx.sym.Reshape(mx.sym.Variable("data"), shape=(-1, 2))
    net = mx.sym.FullyConnected(flat, num_hidden=3, no_bias=True, name="fc")
    module = make(kind, net, contexts, label=None)
    module.bind([("data", (4, 5, 2))], inputs_need_grad=True)
    module.init_params(mx.init.One())
    if kind == "SVRGModule":
        inner(module)._mod_aux.init_params(mx.init.One())
    assert [tuple(shape) for _, shape in module.output_shapes] == [(20, 3)]
    module.forward(given(mx.nd.ones((4, 5, 2))), is_train=True)
    assert module.get_outputs()[0].shape == (20, 3)
    heads = np.repeat(np.arange(20, dtype="f")[:, None], 3, 1)
    module.backward([heads])
    expected = np.repeat(3 * np.arange(20, dtype="f").reshape(4, 5, 1), 2, 2)
    np.testing.assert_array_equal(module.get_input_grads()[0].asnumpy(), expected)
    with refused("out_grads"):
        module.backward([mx.nd.ones((4, 3))])


def test_gradients_for_several_outputs_each_by_its_own_rows():
    data = mx.sym.Variable("data")
    net = mx.sym.Group([data * 2, mx.sym.Reshape(data, shape=(-1,)) * 3, mx.sym.sum(data)])
    heads = [mx.nd.array(np.arange(8).reshape(4, 2)), mx.nd.array(np.arange(8)), mx.nd.ones((1,))]
    for contexts in (1, 2):
        module = bl.Module(net, label_names=None, context=CONTEXTS[:contexts])
        module.bind([("data", (4, 2))], inputs_need_grad=True)
        module.init_params()
        module.forward(mx.io.DataBatch([mx.nd.ones((4, 2))]), is_train=True)
        module.backward(heads)
        np.testing.assert_array_equal(
            module.get_input_grads()[0].asnumpy(), 5 * np.arange(8).reshape(4, 2) + 1
        )


@every_kind
def test_calls_in_the_wrong_order_say_which_comes_first(kind):
    module = bound_affine(kind)
    for call in (module.backward, module.get_outputs):
        with refused("forward(", kind=NotReadyError):
            call()
    with refused("backward(", kind=NotReadyError):
        module.get_input_grads()
    module.forward(given(ONES), is_train=False)
    with refused("is_train=True", kind=NotReadyError):
        module.backward([ONES])
    module = bound_affine(kind, inputs_need_grad=False)
    module.forward(given(ONES), is_train=True)
    module.backward([ONES])
    with refused("inputs_need_grad=True", kind=NotReadyError):
        module.get_input_grads()
    module = bound_affine(kind, inputs_need_grad=False, for_training=False)
    module.forward(given(ONES))
    with refused("for_training=True", kind=NotReadyError):
        module.backward([ONES])
    with refused("for_training=True", kind=ValueError):
        make(kind).bind(*shapes(), for_training=False, inputs_need_grad=True)


def test_input_gradients_of_another_bucket_are_not_taken_for_ones_own():
    module = bound_affine("BucketingModule")
    module.forward(given(ONES), is_train=True)
    module.backward([ONES])
    other = mx.nd.ones((4, 2))
    module.forward(given(other, key=1), is_train=True)
    with refused("backward(", kind=StaleError):
        module.get_input_grads()
    module.backward([other])
    assert module.get_input_grads()[0].shape == (4, 2)


@every_kind
@every_number_of_contexts
def test_input_gradients_stand_in_the_order_of_the_data(kind, contexts):
    made = {name: mx.sym.Variable(name) for name in "abc"}
    order = ["b", "c", "a"]
    module = make(kind, made["a"] + 2 * made["b"] + 3 * made["c"], contexts, data=order, label=None)
    module.bind([(name, (4, 2)) for name in order], inputs_need_grad=True)
    module.init_params()
    if kind == "SVRGModule":
        inner(module)._mod_aux.init_params()
    arrays = {name: mx.nd.full((4, 2), 10**i) for i, name in enumerate("abc")}
    for names in (order, ["a", "b", "c"]):
        one = mx.io.DataBatch([arrays[name] for name in names], bucket_key=0)
        one.provide_data = [(name, (4, 2)) for name in names]
        module.forward(one, is_train=True)
        assert (module.get_outputs()[0].asnumpy() == 1 + 20 + 300).all()
        module.backward([mx.nd.ones((4, 2))])
        assert [grad.asnumpy()[0, 0] for grad in module.get_input_grads()] == [2, 3, 1]


@every_kind
def test_the_right_number_of_arrays_under_the_right_names(kind):
    module = ready(kind)
    two = batch(data=[mx.nd.ones((4, WIDTH))] * 2, provide_data=None)
    with refused("2 data array(s)", "data"):
        module.forward(two)
    named = batch(provide_data=[("words", (4, WIDTH))])
    with refused("words", "data"):
        module.forward(named)
    with refused("2 label array(s)", "softmax_label"):
        module.forward(batch(label=[mx.nd.zeros((4,))] * 2, provide_label=None))
    for wrong in (mx.nd.ones((4, WIDTH)), np.ones((4, WIDTH)), None, "batch", 3):
        with refused("give a DataBatch" if kind != "BucketingModule" else "batch"):
            module.forward(wrong)
    for wrong in (mx.nd.ones((4, WIDTH)), {"data": ONES}, "data"):
        with refused("data is", "list"):
            module.forward(batch(data=wrong))
    with refused("label is NDArray", "list"):
        module.forward(batch(label=mx.nd.zeros((4,))))
    with refused("'data' is given as an array of object"):
        module.forward(batch(data=[np.full((4, WIDTH), None)]))
    module.forward_backward(batch())


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "SVRGModule"])
@every_number_of_contexts
def test_gradients_add_up_over_batches_and_shapes(kind, contexts):
    added, alone = bound(kind, contexts=contexts, bind={"grad_req": "add"}), bound("Module")
    total = 0
    for seed, rows in enumerate((4, 2, 4, 6)):
        added.forward_backward(batch(rows, seed, key=seed % 2))
        alone.forward_backward(batch(rows, seed))
        total = total + alone._exec_group.execs[0].grad_dict["fc_weight"].asnumpy()
    found = sum(grad.asnumpy() for grad in inner(added)._exec_group.grad_arrays[0])
    np.testing.assert_allclose(found, total, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "SVRGModule"])
def test_requests_for_gradients_are_checked_by_name(kind):
    for request, words in (
        ("sometimes", ["grad_req", "sometimes"]),
        ({"fc_weight": "never"}, ["grad_req", "fc_weight", "never"]),
        (3, ["grad_req"]),
    ):
        module = make(kind)
        with refused(*words, kind=ValueError):
            module.bind(*shapes(), grad_req=request)
        assert not module.binded
    with refused("grad_req", "fd_weight", kind=ValueError):
        make("Module").bind(*shapes(), grad_req={"fd_weight": "add"})
    with refused("grad_req", "2 entries", "4 arguments", kind=ValueError):
        make("Module").bind(*shapes(), grad_req=["write", "write"])


def test_a_list_of_requests_goes_by_name_in_every_bucket():
    """In the order of the default bucket's arguments; the others list theirs in another one, or have more of them."""

    def sym_gen(key):
        data = mx.sym.Variable("data")
        parts = [mx.sym.FullyConnected(data, num_hidden=3, no_bias=True, name=name) for name in ("a", "b", "c")]
        made = {0: parts[0] + parts[1], 1: parts[1] + parts[0], 2: parts[2] + parts[1] + parts[0]}[key]
        return mx.sym.SoftmaxOutput(made, name="softmax"), ["data"], ["softmax_label"]

    module = bl.BucketingModule(sym_gen, 0)
    module.bind(*shapes(), grad_req=["null", "write", "null", "null"])
    module.init_params(mx.init.One())
    module.init_optimizer(optimizer_params={"learning_rate": 0.5})
    for key in (0, 1, 2, 1):
        before = {name: value.asnumpy() for name, value in module.get_params()[0].items()}
        module.forward_backward(batch(key=key))
        module.update()
        after = module.get_params()[0]
        moved = {name for name, value in before.items() if not np.array_equal(after[name].asnumpy(), value)}
        assert moved == ({"a_weight", "c_weight"} if key == 2 and "c_weight" in before else {"a_weight"}), key
    request = module._buckets[2]._exec_group.grad_req
    assert {name for name in request if request[name] == "write"} == {"a_weight", "c_weight"}


def recurrent(name="h"):
    return mx.sym.Variable("data") + mx.sym.Variable(name)


def stateful(kind, contexts=1, **more):
    module = make(kind, recurrent(), contexts, label=None, state_names=["h"], **more)
    module.bind([("data", (4, 3))], for_training=False)
    module.init_params()
    return module


def out(module, rows=4, key=0):
    module.forward(given(mx.nd.zeros((rows, 3)), key), is_train=False)
    return module.get_outputs()[0].asnumpy()


@every_kind
@every_number_of_contexts
def test_states_are_zero_set_and_read_in_every_form(kind, contexts):
    module = stateful(kind, contexts)
    assert not out(module).any() and not module.get_states()[0].asnumpy().any()
    module.set_states(value=2)
    assert (out(module) == 2).all()
    merged = module.get_states()
    assert [state.shape for state in merged] == [(4, 3)] and (merged[0].asnumpy() == 2).all()
    cut = module.get_states(merge_multi_context=False)
    assert [part.shape for part in cut[0]] == [(4 // contexts, 3)] * contexts
    counted = mx.nd.array(np.arange(12).reshape(4, 3))
    for form in ([counted], [counted.asnumpy()], [counted.astype("float64")]):
        module.set_states(value=0)
        module.set_states(states=form)
        np.testing.assert_array_equal(out(module), counted.asnumpy())
    kept = [[part.copy() for part in parts] for parts in module.get_states(merge_multi_context=False)]
    module.set_states(value=0)
    module.set_states(states=kept)
    np.testing.assert_array_equal(out(module), counted.asnumpy())


@every_kind
@every_number_of_contexts
def test_states_that_do_not_fit_are_named_and_none_is_set(kind, contexts):
    module = stateful(kind, contexts)
    module.set_states(value=3)
    for states, value, words, error in (
        ([mx.nd.ones((6, 3))], None, ["(6, 3)", "(4, 3)"], ShapeError),
        ([mx.nd.ones((2, 3))], None, ["(2, 3)", "(4, 3)"], ShapeError),
        ([mx.nd.ones((4, 2))], None, ["(4, 2)"], ShapeError),
        ([[mx.nd.ones((4, 3))] * 3], None, ["3 context(s)"], ShapeError),
        ([mx.nd.ones((4, 3))] * 2, None, ["2 entries"], ShapeError),
        ([7.0], None, ["float"], TypeError),
        (None, None, ["states", "value"], ValueError),
        ([mx.nd.ones((4, 3))], 1, ["states", "value"], ValueError),
        (None, "x", ["value"], TypeError),
    ):
        with refused(*words, kind=error):
            module.set_states(states, value)
        assert (module.get_states()[0].asnumpy() == 3).all()


@every_kind
@every_number_of_contexts
def test_states_stay_over_batches_of_other_rows(kind, contexts):
    """A row's state stays with its place on its context, also where a larger batch came in between."""
    module = stateful(kind, contexts)
    module.set_states(value=5)
    for rows in (4, 2, 4, 8, 4, 1, 4):
        found = out(module, rows)
        assert (found[: min(rows, 4 // contexts)] == 5).all(), rows
    assert (out(module) == 5).all()


def test_states_follow_from_bucket_to_bucket_whatever_their_rows():
    module = bl.BucketingModule(lambda key: (recurrent(), ["data"], None), 0, state_names=["h"])
    module.bind([("data", (4, 3))], for_training=False)
    module.init_params()
    out(module)
    out(module, key=1)
    module.set_states(value=5)
    for key, rows in ((1, 4), (0, 4), (2, 2), (3, 6), (0, 4), (1, 4)):
        assert (out(module, rows, key)[: min(rows, 4)] == 5).all(), (key, rows)
    assert (module.get_states()[0].asnumpy() == 5).all()


def test_modules_without_states_have_none():
    module = bound("Module")
    assert module.get_states() == []
    with refused("1 entries", kind=ShapeError):
        module.set_states([ONES])
