"""row_sparse weights and gradients, and kvstores that keep weights of their own."""

from __future__ import annotations

import numpy as np
import pytest

from bucketlab import mx
from bucketlab.errors import BucketlabError
from bucketlab.training.kernels import family_of
from update_runs import COLUMNS, Ours, batches, cpus, first_values, mlp

ROWS = 12
SYMBOL = mlp(sparse=True)
VALUES = first_values(SYMBOL, ROWS)
BATCHES = batches(ROWS, 3, high=20)


def embedding(ours, context=0):
    return ours.stores[context].weights["embed_weight"].tostype("default").asnumpy()


def sparse_run(contexts, kvstore, optimizer="sgd", settings=(("learning_rate", 0.5),)):
    ours = Ours(SYMBOL, cpus(contexts), VALUES, ROWS)
    ours.init_optimizer(kvstore, optimizer, dict(settings))
    return ours


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adagrad"])
def test_no_kvstore_brings_whole_sparse_weights_to_every_context(optimizer):
    """mx.mod sums nothing here; kvstore 'local', with all rows pulled, is the reference."""
    every_row = {"embed_weight": mx.nd.arange(20, dtype="int64")}
    ours, through = sparse_run(3, None, optimizer, ()), sparse_run(3, "local", optimizer, ())
    for batch in BATCHES:
        for one in (ours, through):
            one.forward_backward(batch)
            one.update.step(one.names)
        through.update.pull_rows(every_row)
        for context in range(3):
            assert (embedding(ours, context) == embedding(through)).all()


def test_only_rows_that_are_asked_for_arrive():
    ours = sparse_run(2, "local")
    ours.forward_backward(BATCHES[0])
    ours.update.step(ours.names)
    before = embedding(ours)
    ours.update.pull_rows({"embed_weight": mx.nd.array([3, 5], dtype="int64")})
    rows = ours.stores[1].weights["embed_weight"].indices.asnumpy().tolist()
    assert rows == [3, 5]
    ours.update.pull_rows({"embed_weight": mx.nd.arange(20, dtype="int64")})
    assert (embedding(ours) != before).any() and (embedding(ours) == embedding(ours, 1)).all()


def test_rows_of_others_are_warned_of_and_unknown_names_refused():
    ids = mx.nd.array([1], dtype="int64")
    ours = sparse_run(2, "local")
    with pytest.warns(UserWarning, match=r"'fc1_weight' is not row_sparse"):
        ours.update.pull_rows({"fc1_weight": ids})
    with pytest.raises(BucketlabError, match="'nobody'"):
        ours.update.pull_rows({"nobody": ids})
    with pytest.warns(UserWarning, match=r"'embed_weight' is not updated in a kvstore"):
        sparse_run(1, "local").update.pull_rows({"embed_weight": ids})


@pytest.mark.parametrize("kvstore", ["local", None])
def test_sparse_gradients_of_resting_contexts_count_as_zero(kvstore):
    every_row = {"embed_weight": mx.nd.arange(20, dtype="int64")}
    found = []
    for rests in (True, False):
        ours = sparse_run(3, kvstore)
        ours.forward_backward(BATCHES[0])
        ours.update.step(ours.names)
        if kvstore:
            ours.update.pull_rows(every_row)
        ours.forward_backward(BATCHES[1], (0, 2))
        if rests:
            ours.update.step(ours.names, (0, 2))
        else:
            for name, grad in ours.stores[1].grads.items():
                mx.nd.zeros(grad.shape, grad.context, stype=grad.stype).copyto(grad)
                assert name in VALUES
            ours.update.step(ours.names)
        if kvstore:
            ours.update.pull_rows(every_row)
        found.append(ours)
    for name in ours.names:
        mine, expected = (one.stores[2].weights[name].asnumpy() for one in found)
        np.testing.assert_array_equal(mine, expected, err_msg=name)


@pytest.mark.parametrize("kvstore", ["local", "instance"])
def test_a_weight_that_was_set_stays_set_in_a_kvstore(kvstore):
    ours = Ours(SYMBOL, cpus(2), VALUES, ROWS)
    own = mx.kv.create("local") if kvstore == "instance" else kvstore
    ours.init_optimizer(own, "sgd", {"learning_rate": 0.0})
    ours.forward_backward(BATCHES[0])
    ours.update.step(ours.names)
    for name, value in VALUES.items():
        new = (mx.nd.ones(value.shape) * 7).tostype(value.stype)
        for store in ours.stores:
            new.copyto(store.weights[name])
        ours.update.set_weight(name, new)
    ours.update.step(ours.names)
    ours.update.pull_rows({"embed_weight": mx.nd.arange(20, dtype="int64")})
    for store in ours.stores:
        for name in VALUES:
            assert set(store.weights[name].asnumpy().ravel()) == {7.0}


class Failing(mx.optimizer.Optimizer):
    """Fails at a given update."""

    def __init__(self, after, **kwargs):
        super().__init__(**kwargs)
        self.after = after

    def create_state(self, index, weight):
        return None

    def update(self, index, weight, grad, state):
        self._update_count(index)
        if self.num_update > self.after:
            raise ArithmeticError("no further")


@pytest.mark.parametrize("kvstore", ["local", "instance"])
def test_what_goes_wrong_in_an_optimizer_is_raised(kvstore):
    """A kvstore calls it through C, where mx.mod lets Python print the error and goes on."""
    ours = Ours(mlp(), cpus(2), first_values(mlp(), ROWS), ROWS)
    ours.init_optimizer(mx.kv.create("local") if kvstore == "instance" else kvstore, Failing(1), {})
    ours.forward_backward(batches(ROWS, 1)[0])
    ours.update.step(ours.names)
    with pytest.raises(ArithmeticError, match="no further"):
        ours.update.step(ours.names)
    ours.optimizer.after = 10
    ours.update.step(ours.names)


def test_a_dense_weight_with_a_sparse_gradient():
    weight = mx.sym.Variable("embed_weight")
    net = mx.sym.Embedding(
        mx.sym.Variable("data"), weight=weight, input_dim=20, output_dim=3, sparse_grad=True, name="embed"
    )
    net = mx.sym.SoftmaxOutput(mx.sym.FullyConnected(net, num_hidden=5, name="fc"), name="softmax")
    values = first_values(net, ROWS)
    found = []
    for contexts, kvstore in ((1, None), (3, "local"), (3, "device")):
        ours = Ours(net, cpus(contexts), values, ROWS, grad_stypes={"embed_weight": "row_sparse"})
        ours.init_optimizer(kvstore, "adagrad", {})
        for batch in BATCHES:
            ours.forward_backward(batch)
            ours.update.step(ours.names)
        assert all((embedding(ours, k) == embedding(ours)).all() for k in range(contexts))
        found.append(embedding(ours))
    np.testing.assert_allclose(found[1], found[0], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found[2], found[0], rtol=1e-5, atol=1e-6)
    assert BATCHES[0].data[0].shape[1] == COLUMNS


def test_which_optimizers_have_a_fused_form():
    fused = {name for name, kind in mx.optimizer.Optimizer.opt_registry.items() if has_family(kind)}
    assert fused >= {"sgd", "ccsgd", "nag", "signum", "adam", "rmsprop", "ftrl"}
    assert not fused & {"adagrad", "adadelta", "adamax", "nadam", "ftml", "dcasgd", "lbsgd", "lars", "lamb"}


def has_family(kind):
    try:
        return family_of(kind()) is not None
    except TypeError:
        return False


def test_an_optimizer_whose_methods_were_replaced_is_not_fused():
    own = mx.optimizer.SGD()
    assert family_of(own) is not None
    own.update = lambda *arguments: None
    assert family_of(own) is None
    gluon = mx.optimizer.SGD(param_dict={0: mx.gluon.Parameter("w")})
    assert family_of(gluon) is None
