"""What a program may do to an optimizer between two steps: the next one honours it as mx.mod does."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bucketlab import mx
from bucketlab.training.kernels import exact_text
from update_runs import Ours, assert_same, batches, cpus, first_values, mlp, reference

ROWS = 8
SYMBOL = mlp()
VALUES = first_values(SYMBOL, ROWS)
BATCHES = batches(ROWS, 4)
numbers = st.floats(1e-6, 2.0, allow_nan=False)


def multiply(kind, values):
    return lambda optimizer, grads: getattr(optimizer, f"set_{kind}_mult")(dict(values))


def setting(name, value):
    return lambda optimizer, grads: setattr(optimizer, name, value)


def mutate(kind, name, value):
    return lambda optimizer, grads: getattr(optimizer, f"{kind}_mult").__setitem__(name, value)


def scale_gradients(factor):
    def change(optimizer, grads):
        for grad in grads:
            grad *= factor

    return change


names = st.sampled_from(["fc1_weight", "fc1_bias", "fc2_weight", "fc2_bias"])
kinds = st.sampled_from(["lr", "wd"])
changes = st.one_of(
    st.builds(setting, st.sampled_from(["lr", "wd", "rescale_grad"]), numbers),
    st.builds(setting, st.just("clip_gradient"), st.one_of(st.none(), numbers)),
    st.builds(multiply, kinds, st.dictionaries(names, numbers, max_size=3)),
    st.builds(mutate, kinds, names, numbers),
    st.builds(scale_gradients, st.sampled_from([0.5, -2.0, 0.1])),
)
optimizers = st.sampled_from(
    [
        ("sgd", {}),
        ("sgd", {"momentum": 0.9}),
        ("nag", {"momentum": 0.5}),
        ("adam", {}),
        ("rmsprop", {"centered": True}),
        ("ftrl", {}),
        ("signum", {}),
    ]
)


@settings(max_examples=40, deadline=None)
@given(optimizers, st.integers(1, 2), st.lists(st.lists(changes, max_size=3), min_size=2, max_size=4))
def test_any_change_between_steps(optimizer, contexts, plan):
    name, own = optimizer
    mod = reference(SYMBOL, cpus(contexts), VALUES, ROWS)
    mod.init_optimizer("local", name, {"wd": 0.01, **own})
    ours = Ours(SYMBOL, cpus(contexts), VALUES, ROWS)
    ours.init_optimizer("local", name, {"wd": 0.01, **own})
    for batch, step in zip(BATCHES, plan):
        mod.forward_backward(batch)
        ours.forward_backward(batch)
        theirs = [grad for grads in mod._exec_group.grad_arrays for grad in grads]
        for change in step:
            change(mod._optimizer, theirs)
            change(ours.optimizer, [grad for store in ours.stores for grad in store.grads.values()])
        mod.update()
        ours.update.step(ours.names)
        assert_same(ours, mod)
    assert ours.optimizer.num_update == mod._optimizer.num_update == len(plan)


@pytest.mark.parametrize("name", ["sgd", "nag", "signum"])
def test_momentum_may_end(name):
    mod, ours = reference(SYMBOL, cpus(1), VALUES, ROWS), Ours(SYMBOL, cpus(1), VALUES, ROWS)
    mod.init_optimizer("local", name, {"momentum": 0.9})
    ours.init_optimizer("local", name, {"momentum": 0.9})
    for number, batch in enumerate(BATCHES):
        mod._optimizer.momentum = ours.optimizer.momentum = 0.9 if number < 2 else 0.0
        mod.forward_backward(batch)
        mod.update()
        ours.forward_backward(batch)
        ours.update.step(ours.names)
    assert_same(ours, mod)


def test_multi_precision_turned_on_later_sorts_the_parameters_anew():
    ours = Ours(SYMBOL, cpus(1), VALUES, ROWS)
    ours.init_optimizer("local", "sgd", {})
    ours.forward_backward(BATCHES[0])
    ours.update.step(ours.names)
    first = ours.update.plan(ours.names)
    ours.optimizer.multi_precision = True
    ours.update.step(ours.names)
    assert ours.update.plan(ours.names) is not first
    assert ours.optimizer.num_update == 2


def test_another_optimizer_put_into_the_updater_takes_over():
    ours = Ours(SYMBOL, cpus(1), VALUES, ROWS)
    ours.init_optimizer("local", "sgd", {"learning_rate": 0.1})
    ours.forward_backward(BATCHES[0])
    ours.update.step(ours.names)
    before = ours.weights()
    ours.update.updater.optimizer = mx.optimizer.SGD(learning_rate=0.0)
    ours.update.step(ours.names)
    for name, value in ours.weights().items():
        assert (value == before[name]).all()
    assert ours.update.optimizer.num_update == 1


@settings(max_examples=200, deadline=None)
@given(st.floats(1e-11, 1e6))
def test_the_engine_reads_exact_text_exactly(value):
    text = exact_text(value)
    weight, one = mx.nd.zeros((1,)), mx.nd.ones((1,))
    mx.nd.sgd_update(weight, one, out=weight, lr=text, wd=0.0)
    assert -weight.asscalar() == np.float32(value)


def test_a_learning_rate_too_small_for_exact_text_takes_the_other_operator():
    mod, ours = reference(SYMBOL, cpus(1), VALUES, ROWS), Ours(SYMBOL, cpus(1), VALUES, ROWS)
    for one in (mod, ours):
        one.init_optimizer("local", "sgd", {"momentum": 0.9})
    for batch, lr in zip(BATCHES, (0.1, 3e-13, 2e7, 0.1)):
        mod._optimizer.lr = ours.optimizer.lr = lr
        mod.forward_backward(batch)
        mod.update()
        ours.forward_backward(batch)
        ours.update.step(ours.names)
        assert_same(ours, mod)


def test_there_is_no_exact_text_for_what_19_decimals_cannot_say():
    assert exact_text(1e-13) is None and exact_text(2.0**24) is None
    assert float(exact_text(0.0)) == 0.0


@pytest.mark.parametrize("kvstore", [None, "local"])
@pytest.mark.parametrize("optimizer", ["sgd", "adam", "rmsprop"])
def test_a_scale_that_goes_to_and_fro_between_other_changes(optimizer, kvstore):
    """What is divided by may change with each batch, at the same time as a learning rate or not."""
    symbol = mlp()
    ours = Ours(symbol, cpus(1), first_values(symbol, 8), 8)
    mod = reference(symbol, cpus(1), ours.values, 8)
    ours.init_optimizer(kvstore, optimizer, {"learning_rate": 0.05, "wd": 0.01})
    mod.init_optimizer(kvstore, optimizer, {"learning_rate": 0.05, "wd": 0.01})
    changes = [{}, {"rescale_grad": 0.5}, {}, {"rescale_grad": 0.125, "lr": 0.1}, {"rescale_grad": 0.5}, {"lr": 0.2}]
    changes += [{"rescale_grad": 0.125}, {"rescale_grad": 0.5, "clip_gradient": 0.3}, {"rescale_grad": 0.125}]
    for batch, change in zip(batches(8, len(changes)), changes):
        for one in (ours, mod):
            for name, value in change.items():
                setattr(one.optimizer if one is ours else mod._optimizer, name, value)
            one.forward_backward(batch)
            (ours.update.step(ours.names) if one is ours else mod.update())
        assert_same(ours, mod)
