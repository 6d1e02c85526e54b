"""Every optimizer, every number of contexts: the same bits, counters and states as mx.mod."""

from __future__ import annotations

import pytest

from bucketlab import mx
from update_runs import Ours, assert_same, batches, cpus, first_values, mixed, mlp, reference

ROWS = 24
FUSED = {
    "sgd": ("sgd", {"learning_rate": 0.0317, "wd": 0.013}),
    "sgd without decay": ("sgd", {"learning_rate": 0.1, "clip_gradient": 0.5}),
    "sgd momentum": ("sgd", {"learning_rate": 1.619795382992397, "momentum": 0.9, "wd": 0.06704}),
    "nag": ("nag", {"learning_rate": 0.1, "momentum": 0.9, "wd": 0.01}),
    "nag without momentum": ("nag", {"learning_rate": 0.1, "wd": 0.01}),
    "signum": ("signum", {"learning_rate": 0.01, "wd": 0.01, "wd_lh": 0.1}),
    "signsgd": ("signum", {"learning_rate": 0.01, "momentum": 0.0, "wd": 0.01}),
    "adam": ("adam", {"learning_rate": 0.01, "wd": 0.01, "clip_gradient": 0.02}),
    "rmsprop": ("rmsprop", {"learning_rate": 0.01, "wd": 0.01}),
    "rmsprop centered": ("rmsprop", {"learning_rate": 0.01, "centered": True, "clip_weights": 0.4}),
    "ftrl": ("ftrl", {"learning_rate": 0.1, "wd": 0.01}),
}
PLAIN = {
    name: (name, {}) for name in ("adadelta", "adagrad", "adamax", "dcasgd", "ftml", "lamb", "lars", "nadam")
}
# The order of sums has nothing to do with the optimizer: a few optimizers over all contexts, all over a few.
MATRIX = [(name, contexts, "local") for name in FUSED for contexts in (1, 2)]
MATRIX += [(name, 8, "device") for name in FUSED]
MATRIX += [("sgd momentum", n, kvstore) for n in range(2, 10) for kvstore in ("local", "device")]


def train(symbol, contexts, kvstore, optimizer, settings, steps=3, module_kvstore=None, prepare=None, **more):
    """(ours, mx.mod) after the same steps from the same values; ``more`` goes to our init_optimizer."""
    rows = ROWS // contexts * contexts
    values = first_values(symbol, rows)
    mod = reference(symbol, cpus(contexts), values, rows, **more)
    mod.init_optimizer(module_kvstore or kvstore, optimizer, dict(settings))
    ours = Ours(symbol, cpus(contexts), values, rows)
    ours.init_optimizer(kvstore, optimizer, dict(settings), **more)
    for batch in batches(rows, steps, high=20 if prepare else None):
        if prepare and contexts > 1:
            mod.prepare(batch, sparse_row_id_fn=prepare)
            ours.update.pull_rows(prepare(batch))
        mod.forward_backward(batch)
        mod.update()
        ours.forward_backward(batch)
        ours.update.step(ours.names)
    return ours, mod


def states_of(mod):
    return (mod._updater or mod._kvstore._updater).states


def kinds(ours):
    plan = ours.update.plan(ours.names)
    return [type(step).__name__ for step in (plan.fused, *plan.plain) if step is not None]


@pytest.mark.parametrize("name, contexts, kvstore", dict.fromkeys(MATRIX))
def test_fused(name, contexts, kvstore):
    ours, mod = train(mlp(), contexts, kvstore, *FUSED[name])
    assert kinds(ours) == ["FusedStep"]
    assert_same(ours, mod)
    theirs = states_of(mod)
    assert set(ours.update.updater.states) == set(theirs)
    for key, state in theirs.items():
        for mine, other in zip(arrays(ours.update.updater.states[key]), arrays(state)):
            assert (mine.asnumpy() == other.asnumpy()).all()
    assert ours.optimizer.num_update == mod._optimizer.num_update == 3
    assert ours.optimizer._all_index_update_counts == mod._optimizer._all_index_update_counts
    assert ours.optimizer._index_update_count == mod._optimizer._index_update_count


def arrays(state):
    return [] if state is None else list(state) if isinstance(state, tuple) else [state]


@pytest.mark.parametrize("contexts, kvstore", [(1, "local"), (2, "local"), (3, "device")])
@pytest.mark.parametrize("name", PLAIN)
def test_plain(name, contexts, kvstore):
    ours, mod = train(mlp(), contexts, kvstore, *PLAIN[name])
    assert kinds(ours) == ["LocalStep"]
    assert_same(ours, mod)
    assert set(ours.update.updater.states) == set(states_of(mod))
    assert ours.optimizer.num_update == mod._optimizer.num_update
    assert ours.optimizer._all_index_update_counts == mod._optimizer._all_index_update_counts


@pytest.mark.parametrize("contexts", [1, 2])
@pytest.mark.parametrize("name", ["sgd", "sgd momentum", "nag", "signum", "adam"])
@pytest.mark.parametrize("multi_precision", [False, True])
@pytest.mark.filterwarnings("ignore:Accumulating with float16")
def test_mixed_dtypes_and_multipliers_of_the_symbol(name, contexts, multi_precision):
    optimizer, settings = FUSED[name]
    ours, mod = train(mixed(), contexts, "local", optimizer, {**settings, "multi_precision": multi_precision})
    # Only float16 has a second, precise copy of the weights, which has no fused form.
    assert kinds(ours) == (["FusedStep", "LocalStep"] if multi_precision else ["FusedStep"])
    assert_same(ours, mod)


@pytest.mark.parametrize("name", ["sgd", "adam", "nag"])
def test_float64(name):
    ours, mod = train(mlp("float64"), 1, "local", *FUSED[name])
    assert_same(ours, mod)


@pytest.mark.parametrize("contexts, kvstore", [(1, "local"), (2, "local"), (2, "device"), (3, "local")])
@pytest.mark.parametrize("name", ["sgd", "sgd momentum", "adam", "ftrl"])
def test_row_sparse_weights_go_one_way_and_dense_ones_the_other(name, contexts, kvstore):
    def rows(batch):
        return {"embed_weight": batch.data[0].reshape((-1,))}

    ours, mod = train(mlp(sparse=True), contexts, kvstore, *FUSED[name], prepare=rows)
    assert kinds(ours) == ["FusedStep", "LocalStep" if contexts == 1 else "KVStoreStep"]
    assert_same(ours, mod)


@pytest.mark.parametrize("name", ["sgd momentum", "adam", "adagrad"])
@pytest.mark.parametrize("contexts", [2, 3])
def test_without_update_on_kvstore_states_are_numbered_over_contexts(name, contexts, monkeypatch):
    monkeypatch.setenv("MXNET_UPDATE_ON_KVSTORE", "0")
    ours, mod = train(mlp(), contexts, "local", *{**FUSED, **PLAIN}[name])
    assert_same(ours, mod)
    assert set(ours.update.updater.states) == set(states_of(mod)) == set(range(4 * contexts))
    assert ours.optimizer._all_index_update_counts == mod._optimizer._all_index_update_counts


@pytest.mark.parametrize("name", ["sgd momentum", "adam", "adagrad"])
def test_no_kvstore_still_sums_over_contexts(name):
    """mx.mod lets every context go its own way; the sum is what its kvstore 'local' computes."""
    ours, mod = train(mlp(), 3, None, *{**FUSED, **PLAIN}[name], module_kvstore="local")
    assert ours.update.kvstore is None
    assert_same(ours, mod)


@pytest.mark.parametrize("on_kvstore", ["0", "1"])
def test_an_instance_is_used_as_it_is(on_kvstore, monkeypatch):
    monkeypatch.setenv("MXNET_UPDATE_ON_KVSTORE", on_kvstore)
    own = mx.kv.create("device")
    ours, mod = train(mlp(), 2, own, *FUSED["adam"], module_kvstore=mx.kv.create("device"))
    assert ours.update.kvstore is own and kinds(ours) == ["KVStoreStep"]
    assert_same(ours, mod)


def test_an_instance_over_one_context():
    ours, mod = train(mlp(), 1, mx.kv.create("local"), *FUSED["sgd"], module_kvstore=mx.kv.create("local"))
    assert_same(ours, mod)


def test_a_kvstore_without_init_is_told_the_values_by_broadcast():
    ours, mod = train(mlp(), 2, mx.kv.create("teststore"), *FUSED["adam"], module_kvstore="device")
    assert kinds(ours) == ["KVStoreStep"]
    assert_same(ours, mod)


def test_compressed_gradients():
    compression = {"type": "2bit", "threshold": 0.01}
    ours, mod = train(mlp(), 2, "device", *FUSED["sgd"], compression_params=compression)
    assert kinds(ours) == ["KVStoreStep"]
    assert_same(ours, mod)


def test_a_scheduler_and_a_first_number_of_updates():
    scheduler = [mx.lr_scheduler.FactorScheduler(2, 0.7, base_lr=0.13) for _ in range(2)]
    symbol, values = mlp(), first_values(mlp(), ROWS)
    mod = reference(symbol, cpus(2), values, ROWS)
    mod.init_optimizer("local", "adam", {"lr_scheduler": scheduler[0], "begin_num_update": 3})
    ours = Ours(symbol, cpus(2), values, ROWS)
    ours.init_optimizer("local", "adam", {"lr_scheduler": scheduler[1], "begin_num_update": 3})
    for batch in batches(ROWS, 6):
        for one in (mod, ours):
            one.forward_backward(batch)
        mod.update()
        ours.update.step(ours.names)
    assert ours.optimizer.num_update == mod._optimizer.num_update == 9
    assert ours.optimizer.learning_rate == mod._optimizer.learning_rate < 0.1
    assert_same(ours, mod)


class Halved(mx.optimizer.NAG):
    """An optimizer of somebody's own."""

    def update(self, index, weight, grad, state):
        super().update(index, weight, grad * 0.5, state)

    update_multi_precision = update


class Renamed(mx.optimizer.SGD):
    """One that changes nothing of how it updates."""

    def describe(self):
        return "mine"


@pytest.mark.parametrize("kind, step", [(Halved, "LocalStep"), (Renamed, "FusedStep")])
def test_a_subclass_is_fused_only_if_it_updates_as_its_parent(kind, step):
    symbol, values = mlp(), first_values(mlp(), ROWS)
    mod, ours = reference(symbol, cpus(1), values, ROWS), Ours(symbol, cpus(1), values, ROWS)
    mod.init_optimizer("local", kind(learning_rate=0.2, rescale_grad=1 / ROWS))
    ours.init_optimizer("local", kind(learning_rate=0.2, rescale_grad=1 / ROWS), {})
    for batch in batches(ROWS, 2):
        for one in (mod, ours):
            one.forward_backward(batch)
        mod.update()
        ours.update.step(ours.names)
    assert kinds(ours) == [step]
    assert_same(ours, mod)
