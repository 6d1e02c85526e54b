"""MutableModule: any shape up to a maximum, in the maximum's memory, with the results of a plain Module."""

from __future__ import annotations

import logging

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bucketlab import Module, MutableModule, memory, mx, same_memory
from bucketlab.errors import NotReadyError, ShapeError
from nets import CONTEXTS, Batches, cut_batch, cut_shapes, images, values_for

CLOSE = {"rtol": 1e-4, "atol": 1e-6}
TWO = CONTEXTS[:2]
MOST = (3, 8, 8)
SGD = {"learning_rate": 0.5, "momentum": 0.9}

few = settings(max_examples=8)
size = st.tuples(st.integers(1, 3), st.integers(3, 8), st.integers(3, 8))


def flat_batch(one, seed=0):
    rows, height, width = one
    rng = np.random.RandomState(seed)
    made = mx.io.DataBatch(
        [mx.nd.array(rng.uniform(-1, 1, (rows, 1, height, width)))], [mx.nd.array(rng.randint(0, 3, rows))]
    )
    made.provide_data, made.provide_label = flat_shapes(one)
    return made


def flat_shapes(one):
    rows, height, width = one
    return [("data", (rows, 1, height, width))], [("softmax_label", (rows,))]


def make(nested=True, contexts=TWO, most=MOST, bound=None, symbol=None, **kwargs):
    """A MutableModule that is bound and has parameters."""
    symbol = images() if symbol is None else symbol
    largest = cut_shapes([most] * len(contexts)) if nested else flat_shapes(most)
    made = MutableModule(
        symbol,
        ["data"],
        ["softmax_label"],
        context=list(contexts),
        max_data_shapes=largest[0],
        max_label_shapes=largest[1],
        **kwargs,
    )
    first = bound or ([(1, 4, 5)] * len(contexts) if nested else (2, 4, 5))
    made.bind(*(cut_shapes(first) if nested else flat_shapes(first)))
    made.init_params(arg_params=values_for(symbol, data=(2, 1, 6, 6)), aux_params=None, initializer=mx.init.One())
    return made


def plain(like):
    """A Module on the same contexts, with the same parameters."""
    made = Module(like.symbol, context=like._context)
    made.bind(like.data_shapes, like.label_shapes)
    made.init_params(arg_params=like.get_params()[0], aux_params=like.get_params()[1])
    return made


def step(module, given_batch, metric=None):
    module.forward_backward(given_batch)
    module.update()
    if metric is not None:
        module.update_metric(metric, given_batch.label)


# ---------------------------------------------------------------------- results and memory


@few
@given(sizes=st.lists(st.lists(size, min_size=1, max_size=2), min_size=2, max_size=4), batch_norm=st.booleans())
def test_training_equals_a_plain_module_and_memory_stays_that_of_the_maximum(sizes, batch_norm):
    made = make(symbol=images(batch_norm=batch_norm))
    other = plain(made)
    for module in (made, other):
        module.init_optimizer(optimizer_params=SGD)
        step(module, cut_batch([MOST, MOST], 9))
    mx.nd.waitall()
    before = memory(made).distinct
    metrics = mx.metric.CrossEntropy(), mx.metric.CrossEntropy()
    for seed, one in enumerate(sizes):
        for module, metric in zip((made, other), metrics):
            step(module, cut_batch(one, seed), metric)
        np.testing.assert_array_equal(made.get_outputs()[0].asnumpy(), other.get_outputs()[0].asnumpy())
        assert [desc.shape for part in made.data_shapes for desc in part] == [
            (rows, 1, height, width) for rows, height, width in one
        ]
    for mine, theirs in zip(made.get_params(), other.get_params()):
        for name, value in theirs.items():
            np.testing.assert_array_equal(mine[name].asnumpy(), value.asnumpy(), err_msg=name)
    assert metrics[0].get() == metrics[1].get()
    mx.nd.waitall()
    assert memory(made).distinct <= before


@few
@given(sizes=st.lists(size, min_size=2, max_size=4))
def test_flat_batches_are_cut_as_in_a_plain_module(sizes):
    made = make(nested=False)
    other = plain(made)
    for module in (made, other):
        module.init_optimizer(optimizer_params=SGD)
        for seed, one in enumerate(sizes):
            step(module, flat_batch(one, seed))
    assert [part.rows for part in made.slices().contexts] == [part.rows for part in other.slices().contexts]
    for name, value in other.get_params()[0].items():
        np.testing.assert_array_equal(made.get_params()[0][name].asnumpy(), value.asnumpy(), err_msg=name)


def test_equal_shapes_bind_nothing_and_seen_ones_are_found_again():
    made, kept = make(), []
    at_bind = list(made._curr_module._exec_group.execs)
    made.forward(cut_batch([(1, 4, 5), (1, 4, 5)]))
    assert made._curr_module._exec_group.execs == at_bind
    for sizes in ([MOST, MOST], [(2, 3, 7), (1, 8, 3)], [MOST, MOST], [(2, 3, 7), (1, 8, 3)]):
        made.forward(cut_batch(sizes))
        kept.append(list(made._curr_module._exec_group.execs))
    assert kept[0] == kept[2] and kept[1] == kept[3]
    weights = [executors[1].arg_dict["conv_weight"] for executors in (at_bind, *kept)]
    assert all(same_memory(weights[0], weight) for weight in weights)


def test_labels_of_another_shape_with_the_same_data_are_another_shape():
    label = mx.sym.Variable("softmax_label")
    symbol = mx.sym.Group(
        [mx.sym.identity(mx.sym.Variable("data"), name="seen"), mx.sym.sum(label, axis=1, name="sum")]
    )
    made = MutableModule(symbol, ["data"], ["softmax_label"], context=TWO, max_label_shapes=[("softmax_label", (2, 9))])
    made.bind([[("data", (2, 3))]] * 2, [[("softmax_label", (2, 4))]] * 2, for_training=False)
    made.init_params()
    for width in (4, 9, 1):
        made.forward(mx.io.DataBatch([[mx.nd.ones((2, 3))]] * 2, [[mx.nd.ones((2, width))]] * 2))
        assert made.get_outputs()[1].asnumpy().tolist() == [width] * 4
    with pytest.raises(ShapeError, match=r"'softmax_label' for context 0 has shape \(2, 10\), above"):
        made.forward(mx.io.DataBatch([[mx.nd.ones((2, 3))]] * 2, [[mx.nd.ones((2, 10))]] * 2))


def test_keep_limits_the_shapes_that_stay_bound_and_not_what_comes_out():
    made, other = make(keep=2), make()
    sizes = [[(1, 3, height), (1, height, 3)] for height in (3, 4, 5, 6, 3)]
    for seed, one in enumerate(sizes):
        for module in (made, other):
            module.forward(cut_batch(one, seed))
        np.testing.assert_array_equal(made.get_outputs()[0].asnumpy(), other.get_outputs()[0].asnumpy())
    assert len(made._curr_module._exec_group._bounds) == 3
    assert len(other._curr_module._exec_group._bounds) == 6
    with pytest.raises(ValueError, match="keep is 0; give the number of shapes to keep bound"):
        make(keep=0)
    with pytest.raises(ValueError, match="keep is 'few'"):
        make(keep="few")


# ---------------------------------------------------------------------- the maximum


def test_a_batch_above_the_maximum_is_refused_by_name_and_nothing_changes():
    made = make()
    made.init_optimizer()
    step(made, cut_batch([(2, 5, 5), (1, 4, 4)]))
    shapes, values = made.data_shapes, made.get_params()[0]
    too_large = r"'data' for context 1 has shape \(3, 1, 9, 8\), above the maximum \(3, 1, 8, 8\)"
    for refused in (
        lambda: made.forward(cut_batch([(1, 4, 4), (3, 9, 8)])),
        lambda: made.reshape(*cut_shapes([(1, 4, 4), (3, 9, 8)])),
    ):
        with pytest.raises(ShapeError, match=too_large + ".*grow=True"):
            refused()
        assert made.data_shapes == shapes
    with pytest.raises(
        ShapeError, match=r"'data' for context 0 has shape \(2, 3\) and the maximum .*; give as many axes"
    ):
        made.forward(mx.io.DataBatch([[mx.nd.ones((2, 3))]], [[mx.nd.ones(2)]]))
    with pytest.raises(ShapeError, match=r"'softmax_label' for context 0 has shape \(4,\), above the maximum \(3,\)"):
        made.forward(cut_batch([(4, 4, 4), (1, 4, 4)]))
    fresh = MutableModule(images(), ["data"], ["softmax_label"], context=TWO, max_data_shapes=[("data", MOST[:1] * 4)])
    with pytest.raises(ShapeError, match=r"has shape \(2, 1, 4, 4\), above the maximum \(3, 3, 3, 3\)"):
        fresh.bind(*cut_shapes([(2, 4, 4), (2, 4, 4)]))
    assert not fresh.binded
    for name, value in made.get_params()[0].items():
        assert np.array_equal(value.asnumpy(), values[name].asnumpy())
    step(made, cut_batch([(2, 5, 5), (1, 4, 4)]))


def test_the_maximum_grows_when_asked_to(caplog):
    made, roomy = make(grow=True), make(most=(3, 12, 8))
    for module in (made, roomy):
        module.init_optimizer(optimizer_params=SGD)
        step(module, cut_batch([(2, 5, 5), (1, 4, 4)]))
    assert [part[0].shape for part in made.maximum.data] == [(3, 1, 8, 8)] * 2
    with caplog.at_level(logging.INFO):
        step(made, cut_batch([(1, 12, 3), (1, 4, 4)], 1))
    assert "The maximum grows to" in caplog.text and "(3, 1, 12, 8)" in caplog.text
    assert [part[0].shape for part in made.maximum.data] == [(3, 1, 12, 8), (3, 1, 8, 8)]
    mx.nd.waitall()
    before = memory(made).distinct
    step(made, cut_batch([(3, 12, 8), (3, 8, 8)], 2))
    mx.nd.waitall()
    assert memory(made).distinct <= before
    step(roomy, cut_batch([(1, 12, 3), (1, 4, 4)], 1))
    step(roomy, cut_batch([(3, 12, 8), (3, 8, 8)], 2))
    for name, value in roomy.get_params()[0].items():
        np.testing.assert_array_equal(made.get_params()[0][name].asnumpy(), value.asnumpy(), err_msg=name)


@pytest.mark.parametrize(
    ("kwargs", "says"),
    [
        (
            {"max_data_shapes": [("date", (1, 2))]},
            r"max_data_shapes names \['date'\]; the module's data",
        ),
        ({"max_data_shapes": 5}, "max_data_shapes is 5; give either one list for all contexts"),
        ({"max_data_shapes": [[("data", (1, 2))]] * 3}, r"lists for 3 context\(s\) and there are 2"),
        ({"max_data_shapes": [("data", (1, 2)), [("data", (1, 2))]]}, "max_data_shapes mixes two forms"),
        ({"max_label_shapes": [("softmax_label", (0,))]}, r"max_label_shapes: 'softmax_label' has shape \(0,\)"),
    ],
)
def test_maxima_that_cannot_be_are_refused_when_the_module_is_made(kwargs, says):
    with pytest.raises(ShapeError, match=says):
        MutableModule(images(), ["data"], ["softmax_label"], context=TWO, **kwargs)


def test_a_flat_maximum_holds_for_every_context_and_what_has_none_follows_in_rows():
    made = MutableModule(images(), ["data"], ["softmax_label"], context=TWO, max_data_shapes=[("data", (3, 1, 8, 8))])
    made.bind(*cut_shapes([(2, 4, 4), (1, 5, 5)]))
    assert [part[0].shape for part in made.maximum.data] == [(3, 1, 8, 8)] * 2
    assert [part[0].shape for part in made.maximum.label] == [(3,)] * 2
    nothing = MutableModule(images(), ["data"], ["softmax_label"], context=TWO)
    nothing.bind(*cut_shapes([(2, 4, 7), (1, 5, 5)]))
    assert [part[0].shape for part in nothing.maximum.data] == [(2, 1, 5, 7)] * 2
    nested = MutableModule(
        images(), ["data"], ["softmax_label"], context=TWO, max_data_shapes=cut_shapes([MOST, MOST])[0]
    )
    with pytest.raises(ShapeError, match="one list for each context, and data_shapes one for all; give either"):
        nested.bind(*flat_shapes((2, 4, 4)))
    with pytest.raises(ShapeError, match=r"'data' has shape \(2, 4\) and the maximum \(3, 1, 8, 8\); give as"):
        made.bind([[("data", (2, 4))]] * 2, force_rebind=True)
    assert made.binded and made.data_shapes[1][0].shape == (1, 1, 5, 5)


def test_a_batch_in_the_other_form_is_held_to_the_same_maximum():
    made = make(nested=False, most=(4, 8, 8))
    made.forward(cut_batch([(2, 8, 8), (2, 3, 3)]))
    with pytest.raises(
        ShapeError, match=r"'data' for context 0 has shape \(3, 1, 8, 8\), above the maximum \(2, 1, 8, 8\)"
    ):
        made.forward(cut_batch([(3, 8, 8), (1, 3, 3)]))
    cut = make(most=(2, 8, 8))
    cut.forward(flat_batch((4, 8, 8)))
    with pytest.raises(
        ShapeError, match=r"'data' for context 0 has shape \(3, 1, 8, 8\), above the maximum \(2, 1, 8, 8\)"
    ):
        cut.forward(flat_batch((5, 8, 8)))


# ---------------------------------------------------------------------- fixed parameters


def test_a_parameter_is_fixed_when_its_name_contains_a_prefix():
    made = make(fixed_param_prefix=["onv"])
    made.init_optimizer(optimizer_params=SGD)
    before = made.get_params()[0]
    step(made, cut_batch([(2, 5, 5), (1, 4, 4)]))
    after = made.get_params()[0]
    changed = {name for name in before if not np.array_equal(before[name].asnumpy(), after[name].asnumpy())}
    assert changed == {"fc_weight", "fc_bias"}
    assert made._curr_module._exec_group.execs[0].grad_dict["conv_weight"] is None
    with pytest.warns(UserWarning, match="fixed_param_prefix has 'res5', which no parameter's name contains; known:"):
        make(fixed_param_prefix=["conv", "res5"])
    with pytest.raises(TypeError, match="fixed_param_prefix has 5; expected strings"):
        make(fixed_param_prefix=[5])


# ---------------------------------------------------------------------- fit, states, checkpoints


def iterators():
    train = Batches(
        [cut_batch([(2, 5, 5), (1, 4, 4)], 0), cut_batch([(3, 8, 8), (2, 3, 6)], 1), cut_batch([(1, 6, 4)], 2)]
    )
    return train, Batches([cut_batch([(2, 7, 7), (3, 8, 4)], 5), cut_batch([(2, 3, 3)], 6)])


def fitted(tmp_path, epochs, state=None, begin=0, params=None, **kwargs):
    train, held_out = iterators()
    made = MutableModule(
        images(), ["data"], ["softmax_label"], context=TWO, max_data_shapes=[("data", (3, 1, 8, 8))],
        max_label_shapes=[("softmax_label", (3,))],
    )  # fmt: skip
    made.fit(
        train,
        eval_data=held_out,
        optimizer_params=SGD,
        arg_params=params or values_for(images(), data=(2, 1, 6, 6)),
        aux_params={},
        begin_epoch=begin,
        num_epoch=epochs,
        state=state,
        **kwargs,
    )
    return made


def test_fit_with_validation_callbacks_and_a_state_to_go_on_from(tmp_path):
    calls = {"batch": [], "epoch": [], "eval": []}
    whole = fitted(
        tmp_path,
        4,
        batch_end_callback=lambda param: calls["batch"].append((param.epoch, param.nbatch)),
        epoch_end_callback=lambda epoch, symbol, args, aux: calls["epoch"].append((epoch, sorted(args))),
        eval_end_callback=lambda param: calls["eval"].append(param.eval_metric.num_inst),
    )
    assert calls["batch"] == [(epoch, batch) for epoch in range(4) for batch in range(3)]
    assert calls["epoch"] == [(epoch, ["conv_bias", "conv_weight", "fc_bias", "fc_weight"]) for epoch in range(4)]
    assert calls["eval"] == [7] * 4
    half = fitted(tmp_path, 2)
    half.save_checkpoint(str(tmp_path / "half"), 2, save_optimizer_states=True)
    rest = fitted(tmp_path, 4, state=str(tmp_path / "half-0002.states"), begin=2, params=half.get_params()[0])
    cold = fitted(tmp_path, 4, begin=2, params=half.get_params()[0])
    for name, value in whole.get_params()[0].items():
        np.testing.assert_allclose(rest.get_params()[0][name].asnumpy(), value.asnumpy(), err_msg=name, **CLOSE)
    assert not np.allclose(cold.get_params()[0]["fc_weight"].asnumpy(), whole.get_params()[0]["fc_weight"].asnumpy())
    loaded = MutableModule.load(
        str(tmp_path / "half"),
        2,
        load_optimizer_states=True,
        data_names=["data"],
        label_names=["softmax_label"],
        context=TWO,
        max_data_shapes=[("data", (3, 1, 8, 8))],
    )
    loaded.fit(iterators()[0], optimizer_params=SGD, begin_epoch=2, num_epoch=4)
    for name, value in whole.get_params()[0].items():
        np.testing.assert_allclose(loaded.get_params()[0][name].asnumpy(), value.asnumpy(), err_msg=name, **CLOSE)
    with pytest.raises(FileNotFoundError, match=r"gone\.states"):
        fitted(tmp_path, 1, state=str(tmp_path / "gone.states"))
    (tmp_path / "other.states").write_text("something else")
    with pytest.raises(ValueError, match=r"other\.states' holds no optimizer states"):
        fitted(tmp_path, 1, state=str(tmp_path / "other.states"))


def test_predict_and_score_equal_a_plain_module():
    made = make()
    other = plain(made)
    _, held_out = iterators()
    np.testing.assert_array_equal(made.predict(held_out).asnumpy(), other.predict(held_out).asnumpy())
    assert dict(made.score(held_out, "acc")) == dict(other.score(held_out, "acc"))


def test_what_an_observer_sees_comes_from_the_module_itself():
    made, seen = make(), []
    made._observer = lambda kind, module, detail: seen.append((kind, module is made))
    made.init_optimizer()
    given_batch = cut_batch([(2, 5, 5), (1, 4, 4)])
    step(made, given_batch, mx.metric.Accuracy())
    assert seen == [("reshape", True), ("forward", True), ("update", True), ("metric", True)]


def test_calls_that_come_too_early_say_what_to_call_first():
    made = MutableModule(images(), ["data"], ["softmax_label"], context=TWO)
    for call in (lambda: made.forward(cut_batch([MOST])), lambda: made.maximum, lambda: made.reshape([])):
        with pytest.raises(NotReadyError, match=r"call bind\(data_shapes, label_shapes\) first"):
            call()
    made.bind(*cut_shapes([MOST, MOST]))
    with pytest.raises(NotReadyError, match="call init_params"):
        made.forward(cut_batch([MOST, MOST]))
    made.init_params()
    with pytest.raises(NotReadyError, match="call init_optimizer"):
        made.update()
    with pytest.raises(NotReadyError, match=r"needs forward\(\) before it"):
        made.get_outputs()


def test_a_rebind_keeps_parameters_and_the_optimizer_s_state():
    made, other = make(), make()
    for module in (made, other):
        module.init_optimizer(optimizer_params=SGD)
        step(module, cut_batch([(2, 5, 5), (1, 4, 4)]))
    made.bind(*cut_shapes([(1, 3, 3), (1, 3, 3)]), force_rebind=True)
    assert made.params_initialized and made.optimizer_initialized
    for module in (made, other):
        step(module, cut_batch([(2, 5, 5), (1, 4, 4)], 1))
    for name, value in other.get_params()[0].items():
        np.testing.assert_array_equal(made.get_params()[0][name].asnumpy(), value.asnumpy(), err_msg=name)


def test_a_taker_shares_the_memory_of_a_mutable_module():
    giver = make()
    taker = MutableModule(images(), ["data"], ["softmax_label"], context=TWO[:1])
    taker.bind(*cut_shapes([(2, 5, 5)]), shared_module=giver)
    assert taker.params_initialized
    assert same_memory(
        giver._curr_module._exec_group.execs[0].arg_dict["fc_weight"],
        taker._curr_module._exec_group.execs[0].arg_dict["fc_weight"],
    )
