"""Side by side with mx.mod: optimizers, types, schedules, multipliers, kvstores, sparse rows."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

from beside import CLASSES, ROWS, WIDTH, batches, mlp, module, seed, side_by_side, train, values
from bucketlab import mx

# Sums over contexts have an order of their own for each kvstore, and another one from three contexts on.
PLACES = [(1, "local"), (2, "device"), (3, "local")]
OPTIMIZERS = {
    "sgd": {"momentum": 0.9, "wd": 0.01},
    "nag": {"momentum": 0.9, "wd": 0.01},
    "signum": {"momentum": 0.9, "wd_lh": 0.01},
    "adam": {"wd": 0.01},
    "adagrad": {"wd": 0.01},
    "rmsprop": {"centered": True},
    "adadelta": {"learning_rate": 1, "rho": 0.9},
    "ftrl": {"lamda1": 0.01},
    "adamax": {},
    "nadam": {},
    "ftml": {},
    "lamb": {"wd": 0.01},
    "lars": {"momentum": 0.9, "wd": 0.01},
    "lbsgd": {"momentum": 0.9, "updates_per_epoch": 4},
    # With momentum mx.mod's own fails: it asks an array whether it is true.
    "dcasgd": {"lamda": 0.1},
    "sgld": {},
    "groupadagrad": {},
    "test": {},
}


def without_bias():
    """data -> softmax over 3, of weights with two axes alone: groupadagrad takes no others."""
    hidden = mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=4, no_bias=True, name="fc1")
    scores = mx.sym.FullyConnected(mx.sym.tanh(hidden), num_hidden=CLASSES, no_bias=True, name="fc2")
    return mx.sym.SoftmaxOutput(scores, name="softmax")


def test_every_optimizer_of_mxnet_is_in_the_list():
    known = mx.optimizer.Optimizer.opt_registry
    # Other packages and tests may have put theirs there; ccsgd is sgd under an old name.
    own = {name for name, kind in known.items() if kind.__module__.startswith("mxnet.optimizer.")}
    assert own - {"ccsgd"} == set(OPTIMIZERS)


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize(("contexts", "kvstore"), PLACES)
def test_every_optimizer_over_contexts_and_kvstores(name, contexts, kvstore):
    net = without_bias() if name == "groupadagrad" else mlp()
    settings = {"learning_rate": 0.05, **OPTIMIZERS[name]}

    def run(library):
        made = module(library, net, contexts)
        made.init_optimizer(kvstore, name, dict(settings))
        seed(5)
        return values(train(made, batches(3)))

    before = values(module(mx.mod, net, contexts))
    after = side_by_side(run)
    assert any(not np.array_equal(after[key], before[key]) for key in before)


@pytest.mark.parametrize("name", ["sgd", "adam", "signum", "rmsprop"])
@pytest.mark.parametrize("contexts", [1, 2])
def test_an_optimizer_of_ones_own(name, contexts):
    def run(library):
        made = module(library, mlp(), contexts)
        own = mx.optimizer.create(name, learning_rate=0.1, rescale_grad=1 / ROWS, clip_gradient=0.1)
        own.set_lr_mult({"fc1_weight": 0.0})
        made.init_optimizer("local", own)
        return values(train(made, batches()))

    start = values(module(mx.mod, mlp(), contexts))
    np.testing.assert_array_equal(side_by_side(run)["fc1_weight"], start["fc1_weight"])


@pytest.mark.parametrize("together", ["1", "3", "60"])
@pytest.mark.parametrize("name", ["sgd", "lars", "lamb"])
@pytest.mark.parametrize("on_kvstore", ["0", "1"])
def test_updates_of_several_parameters_at_once(name, together, on_kvstore, monkeypatch):
    """Where a list of parameters goes to the optimizer, mixed types and all."""
    monkeypatch.setenv("MXNET_OPTIMIZER_AGGREGATION_SIZE", together)
    monkeypatch.setenv("MXNET_UPDATE_ON_KVSTORE", on_kvstore)
    net = mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=4, name="fc1")
    net = mx.sym.FullyConnected(mx.sym.Cast(net, dtype="float64"), num_hidden=4, name="fc2")
    net = mx.sym.FullyConnected(mx.sym.Cast(net, dtype="float32"), num_hidden=CLASSES, name="fc3")
    net = mx.sym.SoftmaxOutput(net, name="softmax")

    def run(library):
        made = module(library, net, 2, initializer=mx.init.Uniform(0.5))
        made.init_optimizer("local", name, {"learning_rate": 0.1, **OPTIMIZERS[name]})
        return values(train(made, batches(3)))

    assert {str(value.dtype) for value in side_by_side(run).values()} == {"float32", "float64"}


# ---------------------------------------------------------------------- types


def dense(data, name, size, hidden):
    """A layer that MXNet has for float16 on a CPU too, where its FullyConnected and dot are not."""
    weight = mx.sym.Variable(f"{name}_weight", shape=(1, size, hidden))
    return mx.sym.sum(mx.sym.broadcast_mul(mx.sym.expand_dims(data, axis=2), weight), axis=1)


def half(dtype):
    """data -> tanh of 4, normalised with parameters of float32 -> softmax over 3, the weights of ``dtype``."""
    hidden = mx.sym.tanh(dense(mx.sym.Cast(mx.sym.Variable("data"), dtype=dtype), "a", WIDTH, 4))
    hidden = mx.sym.BatchNorm(mx.sym.Cast(hidden, dtype="float32"), fix_gamma=False, name="norm")
    scores = dense(mx.sym.Cast(hidden, dtype=dtype), "b", 4, CLASSES)
    return mx.sym.SoftmaxOutput(mx.sym.Cast(scores, dtype="float32"), name="softmax")


@pytest.mark.parametrize("multi_precision", [False, True])
@pytest.mark.parametrize("dtype", ["float16", "float64"])
@pytest.mark.parametrize("name", ["sgd", "adam", "nag"])
@pytest.mark.parametrize(("contexts", "kvstore"), PLACES[:2])
@pytest.mark.filterwarnings("ignore:Accumulating with float16")
def test_other_types(name, dtype, multi_precision, contexts, kvstore):
    def run(library):
        made = module(library, half(dtype), contexts, initializer=mx.init.Uniform(0.5))
        settings = {"learning_rate": 0.05, "multi_precision": multi_precision, **OPTIMIZERS[name]}
        made.init_optimizer(kvstore, name, settings)
        return values(train(made, batches(3)))

    found = {name: str(value.dtype) for name, value in side_by_side(run).items()}
    assert (found["a_weight"], found["norm_gamma"], found["norm_moving_mean"]) == (dtype, "float32", "float32")


@pytest.mark.parametrize("described", ["float16", "float64", "uint8", "int32"])
def test_inputs_of_other_types(described):
    """The description's type is the executor's; batches are converted to it."""
    data = [mx.io.DataDesc("data", (ROWS, WIDTH), dtype=described)]
    whole = [mx.io.DataBatch([(b.data[0] * 9).abs().astype("int32")], b.label) for b in batches(2)]

    def run(library):
        made = module(library, mlp("float32"), 2, data=data, initializer=mx.init.Uniform(0.3))
        made.init_optimizer()
        train(made, whole)
        assert made._exec_group.execs[0].arg_dict["data"].dtype == np.dtype(described)
        return values(made)

    side_by_side(run)


# ---------------------------------------------------------------------- schedules and multipliers

SCHEDULERS = {
    "factor": lambda: mx.lr_scheduler.FactorScheduler(2, 0.5, base_lr=0.3),
    "steps": lambda: mx.lr_scheduler.MultiFactorScheduler([2, 4], 0.1, base_lr=0.3),
    "poly": lambda: mx.lr_scheduler.PolyScheduler(6, base_lr=0.3, warmup_steps=2),
    "cosine": lambda: mx.lr_scheduler.CosineScheduler(6, base_lr=0.3, warmup_steps=2, warmup_begin_lr=0.1),
}


@pytest.mark.parametrize("scheduler", SCHEDULERS)
@pytest.mark.parametrize("name", ["sgd", "adam", "adagrad"])
def test_schedules_and_multipliers(scheduler, name):
    """From the symbol, from set_lr_mult and set_wd_mult, and from a scheduler, all at once."""

    def run(library):
        made = module(library, mlp(lr_mult=0.5, wd_mult=3.0), 2)
        made.init_optimizer("local", name, {"lr_scheduler": SCHEDULERS[scheduler](), "wd": 0.1})
        train(made, batches(3))
        made._optimizer.set_lr_mult({"fc2_weight": 0.1})
        made._optimizer.set_wd_mult({"fc1_weight": 2.0})
        train(made, batches(3, seed=1))
        return {**values(made), "updates": np.array(made._optimizer.num_update)}

    assert side_by_side(run)["updates"] == 6


def test_a_learning_rate_that_a_program_changes_between_steps():
    def run(library):
        made = module(library, mlp(), 2)
        made.init_optimizer("device", "sgd", {"learning_rate": 0.1, "momentum": 0.9})
        for rate in (0.2, 0.05, 0.4):
            made._optimizer.lr = rate
            train(made, batches(2))
            made._optimizer.rescale_grad *= 0.5
        return values(made)

    side_by_side(run)


# ---------------------------------------------------------------------- kvstores


@pytest.mark.parametrize("on_kvstore", ["0", "1"])
@pytest.mark.parametrize("kvstore", ["local", "device", "local_update_cpu", "local_allreduce_device", "instance"])
def test_kvstores_of_every_kind(kvstore, on_kvstore, monkeypatch):
    monkeypatch.setenv("MXNET_UPDATE_ON_KVSTORE", on_kvstore)

    def run(library):
        made = module(library, mlp(), 3)
        store = mx.kv.create("device") if kvstore == "instance" else kvstore
        made.init_optimizer(store, "sgd", {"learning_rate": 0.1, "momentum": 0.9})
        return values(train(made, batches()))

    side_by_side(run)


@pytest.mark.parametrize("kvstore", [None, "device", "instance"])
def test_kvstores_over_one_context(kvstore):
    def run(library):
        made = module(library, mlp())
        store = mx.kv.create("local") if kvstore == "instance" else kvstore
        made.init_optimizer(store, "adam", {"learning_rate": 0.1})
        return {**values(train(made, batches())), "stores": np.array(made._kvstore is not None)}

    assert side_by_side(run)["stores"] == (kvstore == "instance")


def test_compressed_gradients():
    def run(library):
        made = module(library, mlp(), 2, compression_params={"type": "2bit", "threshold": 0.05})
        made.init_optimizer("device", "sgd", {"learning_rate": 0.5})
        return values(train(made, batches()))

    side_by_side(run)


# ---------------------------------------------------------------------- sparse parameters


def sparse(words=20):
    weight = mx.sym.Variable("embed_weight", stype="row_sparse")
    embedded = mx.sym.contrib.SparseEmbedding(
        mx.sym.Variable("data"), weight=weight, input_dim=words, output_dim=3, name="embed"
    )
    return mx.sym.SoftmaxOutput(mx.sym.FullyConnected(embedded, num_hidden=CLASSES, name="fc"), name="softmax")


@pytest.mark.parametrize("name", ["sgd", "adam", "ftrl", "adagrad"])
@pytest.mark.parametrize(("contexts", "kvstore"), [*PLACES, (2, "local")])
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_sparse_rows_that_a_batch_needs(name, contexts, kvstore):
    random = np.random.RandomState(0)
    some = [
        mx.io.DataBatch([mx.nd.array(random.randint(0, 20, (ROWS, WIDTH)))], [mx.nd.array(random.randint(0, 3, ROWS))])
        for _ in range(3)
    ]

    def run(library):
        made = module(library, sparse(), contexts, initializer=mx.init.Uniform(0.3))
        made.init_optimizer(kvstore, name, {"learning_rate": 0.1})
        train(made, some, rows_of=lambda given: {"embed_weight": given.data[0].reshape((-1,))})
        return values(made)

    side_by_side(run)


@pytest.mark.parametrize("contexts", [1, 2])
def test_sparse_data_in_rows(contexts):
    random = np.random.RandomState(0)
    dense_rows = (random.rand(2, ROWS, WIDTH) < 0.4) * random.rand(2, ROWS, WIDTH)

    def run(library):
        weight = mx.sym.Variable("w_weight", shape=(WIDTH, CLASSES))
        net = mx.sym.sparse.dot(mx.sym.Variable("data", stype="csr"), weight)
        made = module(library, mx.sym.SoftmaxOutput(net, name="softmax"), contexts, initializer=mx.init.One())
        made.init_optimizer("local", "sgd", {"learning_rate": 0.1})
        labels = [mx.nd.array(np.arange(ROWS) % 3)]
        return values(train(made, [mx.io.DataBatch([mx.nd.array(rows).tostype("csr")], labels) for rows in dense_rows]))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        side_by_side(run)
