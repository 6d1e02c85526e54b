"""Optimizer states: files in both directions, values put in from outside, and what is refused."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from bucketlab import mx
from bucketlab.errors import NotReadyError, ShapeError
from bucketlab.training.exchange import Exchange, open_exchange
from bucketlab.training.update import Update
from update_runs import Ours, assert_same, batches, cpus, first_values, mlp, reference

ROWS = 12
SYMBOL = mlp()
VALUES = first_values(SYMBOL, ROWS)
BATCHES = batches(ROWS, 4)
OPTIMIZERS = [
    ("sgd", {"momentum": 0.9}),
    ("sgd", {}),
    ("adam", {}),
    ("rmsprop", {"centered": True}),
    ("rmsprop", {}),
    ("ftrl", {}),
    ("adagrad", {}),
]


def pair(contexts, kvstore, optimizer, settings, values=VALUES):
    mod = reference(SYMBOL, cpus(contexts), values, ROWS)
    mod.init_optimizer(kvstore, optimizer, dict(settings))
    ours = Ours(SYMBOL, cpus(contexts), values, ROWS)
    ours.init_optimizer(kvstore, optimizer, dict(settings))
    return mod, ours


def run(mod, ours, some):
    for batch in some:
        mod.forward_backward(batch)
        mod.update()
        ours.forward_backward(batch)
        ours.update.step(ours.names)


@pytest.mark.parametrize("on_kvstore", ["1", "0"])
@pytest.mark.parametrize("contexts", [1, 2])
@pytest.mark.parametrize("optimizer, settings", OPTIMIZERS)
def test_files_go_both_ways(optimizer, settings, contexts, on_kvstore, tmp_path, monkeypatch):
    monkeypatch.setenv("MXNET_UPDATE_ON_KVSTORE", on_kvstore)
    mod, ours = pair(contexts, "local", optimizer, settings)
    run(mod, ours, BATCHES[:2])
    mod.save_optimizer_states(str(tmp_path / "theirs"))
    ours.update.save(str(tmp_path / "ours"))
    # Counters do not travel in these files, neither here nor there: both start at one again.
    reached = {name: mx.nd.array(value) for name, value in ours.weights().items()}
    again, mine = pair(contexts, "local", optimizer, settings, reached)
    again.load_optimizer_states(str(tmp_path / "ours"))
    mine.update.load(str(tmp_path / "theirs"))
    run(again, mine, BATCHES[2:])
    assert_same(mine, again)


@pytest.mark.parametrize("before, after", [(1, 2), (2, 1), (2, 2), (1, 1), (3, 2)])
@pytest.mark.parametrize("first, then", [("1", "0"), ("0", "1"), ("1", "1"), ("0", "0")])
def test_states_over_another_number_of_contexts(before, after, first, then, tmp_path, monkeypatch):
    monkeypatch.setenv("MXNET_UPDATE_ON_KVSTORE", first)
    source = pair(before, "local", "adam", {})[1]
    source.forward_backward(BATCHES[0])
    source.update.step(source.names)
    source.update.save(str(tmp_path / "states"))
    monkeypatch.setenv("MXNET_UPDATE_ON_KVSTORE", then)
    target = pair(after, "local", "adam", {})[1]
    target.update.load(str(tmp_path / "states"))
    for position, name in enumerate(source.names):
        own = source.update.updater.states[source.update.exchange.keys(name, position)[0]]
        for key in target.update.exchange.keys(name, position):
            for mine, other in zip(own, target.update.updater.states[key]):
                assert (mine.asnumpy() == other.asnumpy()).all()


def test_states_with_their_optimizer():
    _, ours = pair(1, "local", "sgd", {"momentum": 0.9, "learning_rate": 0.3})
    ours.forward_backward(BATCHES[0])
    ours.update.step(ours.names)
    saved = ours.update.updater.get_states(dump_optimizer=True)
    plain = mx.optimizer.get_updater(mx.optimizer.SGD())
    plain.set_states(saved)
    assert plain.optimizer.num_update == 1 and set(plain.states) == {0, 1, 2, 3}
    _, other = pair(1, "local", "sgd", {"momentum": 0.1})
    for name, value in ours.weights().items():
        other.stores[0].weights[name][:] = value
    other.update.updater.set_states(saved)
    for one in (ours, other):
        one.forward_backward(BATCHES[1])
        one.update.step(one.names)
    assert other.update.optimizer.lr == 0.3 and other.update.optimizer.num_update == 2
    for name, value in ours.weights().items():
        assert (other.weights()[name] == value).all()


def momentum(ours, name="fc1_bias"):
    return ours.update.updater.states[ours.names.index(name)]


def test_states_can_be_written_replaced_and_deleted():
    def after(change):
        _, ours = pair(1, "local", "sgd", {"momentum": 0.5, "learning_rate": 0.0})
        ours.forward_backward(BATCHES[0])
        ours.update.step(ours.names)
        for state in ours.update.updater.states.values():
            state[:] = 1
        change(ours.update.updater)
        ours.update.step(ours.names)
        return [ours.update.updater.states[key].asnumpy() for key in range(4)]

    def everywhere(value):
        return [np.full(VALUES[name].shape, value, np.float32) for name in VALUES]

    def whole(updater):
        updater.states = {key: state * 6 for key, state in updater.states.items()}

    def one_by_one(updater):
        for key, state in list(updater.states.items()):
            updater.states[key] = state * 8

    def by_method(updater):
        updater.states.update({key: state * 4 for key, state in updater.states.items()})

    def nothing(updater):
        pass

    def clear(updater):
        updater.states.clear()

    for change, value in ((nothing, 0.5), (whole, 3), (one_by_one, 4), (by_method, 2), (clear, 0)):
        for mine, expected in zip(after(change), everywhere(value)):
            np.testing.assert_array_equal(mine, expected, err_msg=change.__name__)
    assert [state.max() for state in after(lambda updater: updater.states.pop(1))] == [0.5, 0, 0.5, 0.5]


def test_the_updater_works_when_called_as_mxnets():
    _, ours = pair(1, "local", "adam", {})
    theirs = mx.optimizer.get_updater(mx.optimizer.create("adam", rescale_grad=1 / ROWS))
    ours.forward_backward(BATCHES[0])
    ours.update.step(ours.names)
    for position, name in enumerate(ours.names):
        theirs(position, ours.stores[0].grads[name], VALUES[name].copy())
    grad, name = mx.nd.ones((5,)), "fc2_bias"
    weight = mx.nd.zeros((5,))
    other = weight.copy()
    ours.update.updater(3, grad, weight)
    theirs(3, grad, other)
    assert ours.names[3] == name and (weight.asnumpy() == other.asnumpy()).all()
    for mine, their in zip(ours.update.updater.states[3], theirs.states[3]):
        assert (mine.asnumpy() == their.asnumpy()).all()


@pytest.mark.parametrize(
    "states, words",
    [
        ({0: mx.nd.zeros((2, 2))}, ["0", "4"]),
        ({7: mx.nd.zeros((13, 7))}, ["7", "another model"]),
        ({-1: mx.nd.zeros((13, 7))}, ["-1"]),
    ],
)
def test_states_of_another_model_are_refused_and_change_nothing(states, words):
    _, ours = pair(1, "local", "sgd", {"momentum": 0.9})
    ours.forward_backward(BATCHES[0])
    ours.update.step(ours.names)
    before = dict(ours.update.updater.states)
    with pytest.raises(ShapeError) as caught:
        ours.update.updater.set_states(pickle.dumps(states))
    assert all(word in str(caught.value) for word in words)
    assert dict(ours.update.updater.states) == before


def test_states_of_another_optimizer_are_refused_by_name():
    _, ours = pair(1, "local", "adam", {})
    ours.update.updater.states = {2: mx.nd.zeros((5, 13))}
    before = ours.weights()
    with pytest.raises(ShapeError, match=r"'fc2_weight'.*another optimizer"):
        ours.update.step(ours.names)
    assert ours.optimizer.num_update == 0
    assert all((ours.weights()[name] == value).all() for name, value in before.items())


def test_states_on_servers_are_out_of_reach(tmp_path):
    class Remote:
        type = "dist_async"

        def set_optimizer(self, optimizer):
            self.optimizer = optimizer

        def broadcast(self, name, value, out):
            pass

    _, ours = pair(1, "local", "sgd", {})
    update = Update.create(ours.stores, ours.names, ours.optimizer, Exchange(Remote(), None, True, 1), VALUES)
    assert update.kvstore.optimizer is ours.optimizer
    for refused in (update.save, update.load):
        with pytest.raises(NotReadyError, match=r"dist_async.*MXNET_UPDATE_ON_KVSTORE"):
            refused(str(tmp_path / "states"))
    assert not (tmp_path / "states").exists()


def test_a_kvstore_saves_and_loads_the_same_states(tmp_path):
    _, ours = pair(2, "local", "adam", {})
    ours.forward_backward(BATCHES[0])
    ours.update.step(ours.names)
    ours.update.kvstore.save_optimizer_states(str(tmp_path / "kvstore"))
    ours.update.save(str(tmp_path / "update"))
    assert (tmp_path / "kvstore").read_bytes() == (tmp_path / "update").read_bytes()


def test_what_a_kvstore_argument_may_be():
    values = {"w": mx.nd.zeros((2,))}
    with pytest.raises(TypeError, match="int"):
        open_exchange(3, cpus(2), values)
    with pytest.raises(ValueError, match=r"compression_params.*'local'.*device"):
        open_exchange("local", cpus(2), values, {"type": "2bit"})
    assert open_exchange("local", cpus(1), values, {"type": "2bit"}).kvstore is None
    assert open_exchange("device", cpus(2), values).order == "device"
    assert open_exchange("local_allreduce_cpu", cpus(2), values).order == "local"


def test_a_huge_parameter_leaves_the_update_to_the_module():
    huge = {"w": Huge()}
    assert open_exchange("local", cpus(2), huge).update_on_kvstore is False
    assert open_exchange("device", cpus(2), huge).update_on_kvstore is True
    assert open_exchange("local", cpus(2), huge, update_on_kvstore=True).update_on_kvstore is False


class Huge:
    shape = (16 * 1024 * 1024 + 1,)
