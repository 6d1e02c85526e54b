"""Buckets with other parameters, contexts that rest, and how few engine calls a step is."""

from __future__ import annotations

import numpy as np
import pytest

from bucketlab import mx
from bucketlab._calls import OperatorCall
from bucketlab.errors import NotReadyError
from bucketlab.training.exchange import open_exchange
from bucketlab.training.flat import FlatParameters, ParamSpec
from bucketlab.training.update import Update
from update_runs import COLUMNS, Ours, assert_same, batches, cpus, first_values, mlp, optimizer_for, reference

ROWS = 8


def deep(key):
    """Bucket 'all' has an extra layer that bucket 'few' lacks."""
    net = mx.sym.Variable("data")
    if key == "all":
        net = mx.sym.FullyConnected(net, num_hidden=COLUMNS, name="extra")
    net = mx.sym.FullyConnected(net, num_hidden=13, name="fc1")
    net = mx.sym.Activation(net, act_type="tanh")
    net = mx.sym.FullyConnected(net, num_hidden=5, name="fc2")
    return mx.sym.SoftmaxOutput(net, name="softmax"), ("data",), ("softmax_label",)


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "ftrl", "adagrad"])
@pytest.mark.parametrize("kvstore", ["local", "device"])
def test_a_bucket_updates_its_own_parameters_only(optimizer, kvstore):
    """Counters run apart, so that corrections and schedules differ by parameter, as in mx.mod's kvstore."""
    shapes = [("data", (ROWS, COLUMNS))], [("softmax_label", (ROWS,))]
    values = first_values(deep("all")[0], ROWS)
    schedule = {"lr_scheduler": mx.lr_scheduler.FactorScheduler(1, 0.9, base_lr=0.1), "wd": 0.01}
    mod = mx.mod.BucketingModule(deep, "all", context=cpus(2))
    mod.bind(*shapes)
    mod.init_params(arg_params=values)
    mod.init_optimizer(kvstore, optimizer, dict(schedule))
    full = Ours(deep("all")[0], cpus(2), values, ROWS)
    few = Ours(deep("few")[0], cpus(2), values, ROWS, stores=full.stores)
    schedule["lr_scheduler"] = mx.lr_scheduler.FactorScheduler(1, 0.9, base_lr=0.1)
    full.init_optimizer(kvstore, optimizer, schedule)
    for key, batch in zip(["all", "few", "few", "all", "few", "all"], batches(ROWS, 6)):
        batch.bucket_key, batch.provide_data, batch.provide_label = key, *shapes
        mod.forward_backward(batch)
        mod.update()
        ours = full if key == "all" else few
        ours.forward_backward(batch)
        full.update.step(ours.names)
        assert_same(full, mod._buckets["all"])
    theirs = mod._curr_module._optimizer
    assert full.optimizer.num_update == theirs.num_update
    assert full.optimizer._index_update_count == theirs._index_update_count


def test_a_later_bucket_brings_parameters():
    values = first_values(deep("all")[0], ROWS)
    few = Ours(deep("few")[0], cpus(2), values, ROWS)
    few.init_optimizer("local", "sgd", {"learning_rate": 0.5, "wd": 0.1, "momentum": 0.9})
    batch = batches(ROWS, 1)[0]
    few.forward_backward(batch)
    few.update.step(few.names)
    full = Ours(deep("all")[0], cpus(2), {**values, **few_weights(few)}, ROWS, stores=few.stores)
    full.forward_backward(batch)
    with pytest.raises(NotReadyError, match=r"extra_weight.*add_names"):
        few.update.step(full.names)
    few.update.add_names(full.names, symbol=full.symbol)
    grads = {name: sum(store.grads[name].asnumpy() for store in full.stores) for name in full.names}
    before = full.weights()
    few.update.step(full.names)
    after = full.weights()
    for name, decay in (("extra_weight", 0.1), ("extra_bias", 0.0)):
        expected = before[name] - 0.5 * (grads[name] / ROWS + decay * before[name])
        np.testing.assert_allclose(after[name], expected, rtol=1e-5, atol=1e-7)
        assert (full.weights(1)[name] == after[name]).all()
    assert few.optimizer._index_update_count == {
        **dict.fromkeys(few.names, 2),
        **dict.fromkeys(("extra_weight", "extra_bias"), 1),
    }


def few_weights(ours):
    return {name: mx.nd.array(value) for name, value in ours.weights().items()}


def test_multipliers_of_a_later_bucket_come_from_its_symbol():
    values = first_values(mlp(), ROWS)
    ours = Ours(mlp(), cpus(1), values, ROWS)
    ours.init_optimizer("local", "sgd", {"wd": 0.1})
    late = mx.sym.Variable("late_weight", lr_mult=0.25) * mx.sym.Variable("late_other", wd_mult=3.0)
    ours.update.add_names(["late_weight", "late_other", "late_plain"], symbol=late)
    indices = [len(ours.names) + place for place in range(3)]
    assert ours.optimizer._get_lrs(indices) == [0.01 * 0.25, 0.01, 0.01]
    assert ours.optimizer._get_wds(indices) == [0.1, 0.1 * 3.0, 0.0]


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adagrad"])
@pytest.mark.parametrize("kvstore", ["local", "device", None, "instance"])
@pytest.mark.parametrize("active", [(0, 1), (2,), (1, 2)])
def test_contexts_that_rest_count_as_zero(optimizer, kvstore, active):
    values, (first, second) = first_values(mlp(), 9), batches(9, 2)
    results = []
    for rests in (True, False):
        ours = Ours(mlp(), cpus(3), values, 9)
        ours.init_optimizer(mx.kv.create("local") if kvstore == "instance" else kvstore, optimizer, {})
        ours.forward_backward(first)
        ours.update.step(ours.names)
        ours.forward_backward(second, active)
        if rests:
            ours.update.step(ours.names, active)
        else:
            for number in set(range(3)) - set(active):
                for grad in ours.stores[number].grads.values():
                    grad[:] = 0
            ours.update.step(ours.names)
        ours.forward_backward(first)
        ours.update.step(ours.names)
        results.append([ours.weights(number) for number in range(3)])
    for context in range(3):
        for name in values:
            assert (results[0][context][name] == results[1][context][name]).all()
            assert (results[0][context][name] == results[0][0][name]).all()


@pytest.mark.parametrize("active", [(), (3,), (-1, 0)])
def test_active_names_contexts_that_there_are(active):
    ours = Ours(mlp(), cpus(3), first_values(mlp(), 9), 9)
    ours.init_optimizer("local", "sgd", {})
    with pytest.raises(ValueError, match="0 to 2"):
        ours.update.step(ours.names, active)
    assert ours.optimizer.num_update == 0


def update_of(stores, names, kvstore="local", optimizer="sgd", **settings):
    exchange = open_exchange(kvstore, [store.context for store in stores], stores[0].weights)
    return Update.create(stores, names, optimizer_for(exchange, names, optimizer, settings), exchange)


def many(count, contexts, *more, **settings):
    names = tuple(f"layer{n}_{kind}" for n in range(count // 2) for kind in ("weight", "bias"))
    stores = [FlatParameters(context) for context in cpus(contexts)]
    for store in stores:
        store.ensure([ParamSpec(name, (3, 3) if "weight" in name else (3,)) for name in names])
    return update_of(stores, names, *more, **settings), names


def engine_calls(update, names):
    update.step(names)
    return [call for call in update.plan(names).fused.program.calls if isinstance(call, OperatorCall)]


@pytest.mark.parametrize("contexts", range(1, 9))
@pytest.mark.parametrize("optimizer", ["sgd", "adam", "rmsprop", "nag", "ftrl", "signum"])
def test_a_step_is_one_kernel_and_two_calls_for_each_further_context(optimizer, contexts):
    assert len(engine_calls(*many(40, contexts, optimizer=optimizer))) == 1 + 2 * (contexts - 1)


def test_weight_decay_takes_one_kernel_more():
    assert len(engine_calls(*many(40, 1, wd=0.1))) == 2


def test_multipliers_cut_ranges_only_where_they_differ():
    update, names = many(40, 1)
    update.optimizer.set_lr_mult({"layer7_weight": 0.1})
    assert len(engine_calls(update, names)) == 3


def test_nothing_is_made_again_while_nothing_changes():
    update, names = many(12, 2, momentum=0.9)
    update.step(names)
    program = update.plan(names).fused.program
    for _ in range(3):
        update.step(names)
    assert update.plan(names).fused.program is program
    update.optimizer.lr = 0.5
    update.step(names)
    assert update.plan(names).fused.program is program


def test_memory_held_between_steps():
    update, names = many(4, 8, optimizer="adam")
    assert list(update.held()) == []
    update.step(names)
    roles = [(role, name, context) for role, name, context, _ in update.held()]
    assert roles == [
        *(("optimizer", f"{name}[{place}]", 0) for name in names for place in (0, 1)),
        ("kvstore", "sum of gradients 0", 0),
        ("kvstore", "sum of gradients 1", 0),
    ]
    update.release_buffers()
    assert {role for role, *_ in update.held()} == {"optimizer"}
    update.step(names)
    assert update.optimizer.num_update == 2


@pytest.mark.parametrize("contexts, buffers", [(1, 0), (2, 1), (6, 1), (7, 2)])
def test_gradients_are_summed_in_as_few_buffers_as_the_order_allows(contexts, buffers):
    for kvstore, expected in (("local", buffers), ("device", min(buffers, 1))):
        update, names = many(4, contexts, kvstore)
        update.step(names)
        assert [role for role, *_ in update.held()].count("kvstore") == expected


def test_group2ctx_parameters_are_updated_where_they_live():
    stores = [FlatParameters(mx.cpu(0)), FlatParameters(mx.cpu(1))]
    for number, store in enumerate(stores):
        store.ensure([ParamSpec("near", (3,)), ParamSpec("far", (3,), context=mx.cpu(5 + number))])
    names = ("near", "far")
    update = update_of(stores, names, learning_rate=1.0)
    for number, store in enumerate(stores, 1):
        for name in names:
            store.grads[name][:] = number
    update.step(names)
    assert update.plan(names).plain == ()
    for store in stores:
        for name in names:
            assert store.weights[name].asnumpy().tolist() == [-3, -3, -3]


def test_contexts_that_met_parameters_in_another_order_are_still_summed_right():
    stores = [FlatParameters(context) for context in cpus(2)]
    stores[0].ensure([ParamSpec("a", (3,)), ParamSpec("b", (40,))])
    stores[1].ensure([ParamSpec("b", (40,))])
    stores[1].ensure([ParamSpec("a", (3,))])
    update = update_of(stores, ("a", "b"), learning_rate=1.0)
    for factor, store in enumerate(stores, 1):
        store.grads["a"][:], store.grads["b"][:] = factor, 10 * factor
    update.step(("a", "b"))
    for store in stores:
        assert set(store.weights["a"].asnumpy()) == {-3.0} and set(store.weights["b"].asnumpy()) == {-30.0}


def test_fixed_parameters_are_passed_over():
    values = first_values(mlp(), ROWS)
    req = {name: "null" if name.startswith("fc1") else "write" for name in values}
    ours, mod = Ours(mlp(), cpus(2), values, ROWS, req), reference(mlp(), cpus(2), values, ROWS, req)
    ours.init_optimizer("local", "sgd", {"momentum": 0.9})
    mod.init_optimizer("local", "sgd", {"momentum": 0.9})
    for batch in batches(ROWS, 2):
        ours.forward_backward(batch)
        ours.update.step(ours.names)
        mod.forward_backward(batch)
        mod.update()
    assert_same(ours, mod)
    assert set(ours.update.updater.states) == {"fc2_weight", "fc2_bias"}
