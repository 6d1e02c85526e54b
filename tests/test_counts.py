"""The counts that speed rests on: engine calls, copies, waits and binds, exactly. Times are nobody's business here."""

from __future__ import annotations

from collections import Counter
from contextlib import contextmanager

import pytest

import bucketlab as bl
from bucketlab import _calls, mx

PUSHES = ("MXImperativeInvokeEx", "MXExecutorForward", "MXExecutorBackwardEx")
WAITS = ("MXNDArrayWaitAll", "MXNDArrayWaitToRead", "MXNDArrayWaitToWrite", "MXNDArraySyncCopyToCPU")
ARRAYS = (
    "MXNDArrayCreate", "MXNDArrayCreateEx", "MXNDArrayCreateEx64", "MXNDArrayCreateNone", "MXNDArraySlice",
    "MXNDArraySlice64", "MXNDArrayAt", "MXNDArrayAt64", "MXNDArrayReshape", "MXNDArrayReshape64",
    "MXNDArraySyncCopyFromCPU", "MXExecutorOutputs",
)  # fmt: skip
BINDS = ("MXExecutorBindEX", "MXExecutorSimpleBindEx", "MXExecutorReshapeEx")
GRAPHS = (
    "MXSymbolInferShapeEx", "MXSymbolInferShapePartialEx", "MXSymbolInferType", "MXSymbolInferTypePartial",
    "MXSymbolCopy", "MXShallowCopySymbol", "MXSymbolSaveToJSON", "MXSymbolListArguments", "MXSymbolListAuxiliaryStates",
    "MXSymbolListAttr",
)  # fmt: skip
KVSTORE = ("MXKVStorePushEx", "MXKVStorePullWithSparseEx", "MXKVStorePushPullEx", "MXKVStorePullRowSparseEx")


@pytest.fixture
def counted(monkeypatch):
    """``with counted() as calls``: how often each of the engine's functions is called, by whomever.

    A call that is made ready holds its function, so this fixture comes before whatever is bound.
    """
    calls: Counter = Counter()
    library = mx.base._LIB

    def counting(name, function):
        def call(*arguments):
            calls[name] += 1
            return function(*arguments)

        return call

    for name in (*PUSHES, *WAITS, *ARRAYS, *BINDS, *GRAPHS, *KVSTORE):
        monkeypatch.setattr(library, name, counting(name, getattr(library, name)))
    for name in ("MXNDArrayGetShapeEx", "MXNDArrayGetShapeEx64"):
        monkeypatch.setattr(_calls._QUICK, name, counting("shape asked", getattr(_calls._QUICK, name)))

    @contextmanager
    def count():
        mx.nd.waitall()
        calls.clear()
        found: Counter = Counter()
        yield found
        found.update(calls)

    return count


class Silent(mx.metric.EvalMetric):
    """A metric that reads nothing: what it costs to show it a batch is ours alone."""

    def __init__(self):
        super().__init__("silent")
        self.shown = 0

    def update(self, labels, preds):
        self.shown += len(labels) + len(preds)


def contexts(count):
    return [mx.cpu(number) for number in range(count)]


def batch(rows=16, columns=7, key=None):
    data, label = mx.nd.ones((rows, columns)), mx.nd.zeros((rows,))
    descs = [mx.io.DataDesc("data", (rows, columns))], [mx.io.DataDesc("softmax_label", (rows,))]
    return mx.io.DataBatch([data], [label], pad=0, bucket_key=key, provide_data=descs[0], provide_label=descs[1])


def trained(layers=2, count=1, kvstore="local", **optimizer):
    """A perceptron that has taken two steps: what the first one makes is there, and the second has looked at it."""
    first = batch()
    module = bl.Module(bl.models.mlp(hidden=(5,) * layers), context=contexts(count))
    module.bind(first.provide_data, first.provide_label)
    module.init_params()
    settings = {"learning_rate": 0.1, "momentum": 0.9, **optimizer}
    module.init_optimizer(kvstore, optimizer_params=settings)
    for _ in range(2):
        step(module, first)
    return module


def step(module, one, metric=None):
    module.forward_backward(one)
    module.update()
    if metric is not None:
        module.update_metric(metric, one.label)


# Two inputs are copied to each context, or cut there. Two gradients are one sum; of four, mx.mod adds three, and their
# sum to the first: three calls. One kernel updates the first context; the others get a copy of its weights.
STEP = {
    1: {"MXImperativeInvokeEx": 2 + 1, "MXExecutorForward": 1, "MXExecutorBackwardEx": 1},
    2: {"MXImperativeInvokeEx": 4 + 1 + 1 + 1, "MXExecutorForward": 2, "MXExecutorBackwardEx": 2},
    4: {"MXImperativeInvokeEx": 8 + 3 + 1 + 3, "MXExecutorForward": 4, "MXExecutorBackwardEx": 4},
}


@pytest.mark.parametrize("layers", [2, 60])
@pytest.mark.parametrize("count", STEP)
def test_a_step_is_so_many_calls_whatever_the_number_of_parameters(counted, count, layers):
    module, one, metric = trained(layers, count), batch(), Silent()
    with counted() as calls:
        step(module, one, metric)
    # The shapes of two arrays are asked for, nothing is allocated or cut in Python, nothing waits.
    assert calls == {**STEP[count], "shape asked": 2}
    assert metric.shown == 2 * count


@pytest.mark.parametrize(("kvstore", "count"), [(None, 1), ("device", 1), (None, 2), ("device", 2), ("device", 4)])
def test_no_kvstore_within_the_process_costs_more_calls(counted, kvstore, count):
    module, one = trained(2, count, kvstore), batch()
    with counted() as calls:
        step(module, one)
    assert calls == {**STEP[count], "shape asked": 2}


def test_the_program_of_an_update_holds_the_counters_too():
    module = trained(count=2)
    fused = module._update.plan(module._exec_group.trained_names).fused
    kinds = Counter(type(call).__name__ for call in fused.program.calls)
    # A sum, a kernel, a copy; the counts by parameter and those of the optimizer move in the same C loop.
    assert kinds == {"OperatorCall": 3, "Assign": 2}


@pytest.mark.parametrize(
    ("settings", "kernels"),
    [
        ({}, 1),
        # Weights decay and biases do not: they lie side by side, and are two ranges.
        ({"wd": 0.01}, 2),
        ({"momentum": 0.0}, 1),
    ],
)
def test_one_kernel_for_each_range_of_equal_multipliers(counted, settings, kernels):
    module, one = trained(60, **settings), batch()
    with counted() as calls:
        step(module, one)
    assert calls["MXImperativeInvokeEx"] == 2 + kernels


@pytest.mark.parametrize("optimizer", ["sgd", "nag", "signum", "adam", "rmsprop", "ftrl"])
def test_every_fused_optimizer_is_one_kernel(counted, optimizer):
    first = batch()
    module = bl.Module(bl.models.mlp(hidden=(5,) * 20))
    module.bind(first.provide_data, first.provide_label)
    module.init_params()
    module.init_optimizer(optimizer=optimizer, optimizer_params={"learning_rate": 0.01})
    step(module, first)
    step(module, first)
    with counted() as calls:
        step(module, first)
    assert calls == {**STEP[1], "shape asked": 2}


def test_a_changed_learning_rate_or_scale_costs_no_call(counted):
    module, one = trained(), batch()
    with counted() as calls:
        for rate, scale in ((0.1, 0.5), (0.2, 0.5), (0.2, 0.25)):
            module._optimizer.lr, module._optimizer.rescale_grad = rate, scale
            step(module, one)
    assert calls == {name: 3 * number for name, number in {**STEP[1], "shape asked": 2}.items()}


@pytest.mark.parametrize("count", [1, 2])
def test_a_new_shape_is_bound_once_and_a_known_one_never(counted, count):
    module, whole, part = trained(count=count), batch(16), batch(12)
    with counted() as calls:
        step(module, part)
    assert calls["MXExecutorBindEX"] == count
    with counted() as calls:
        for one in (whole, part, whole, part):
            step(module, one)
    assert sum(calls[name] for name in (*BINDS, *GRAPHS)) == 0
    assert sum(calls[name] for name in (*ARRAYS, *WAITS)) == 0
    assert {name: calls[name] for name in PUSHES} == {name: 4 * number for name, number in STEP[count].items()}


def bucketed(count, made):
    def sym_gen(key):
        made.append(key)
        words = mx.sym.Embedding(mx.sym.Variable("data"), input_dim=9, output_dim=4, name="embed")
        scores = mx.sym.FullyConnected(mx.sym.mean(words, axis=1), num_hidden=3, name="scores")
        return mx.sym.SoftmaxOutput(scores, name="softmax"), ("data",), ("softmax_label",)

    first = batch(columns=6, key=6)
    module = bl.BucketingModule(sym_gen, 6, context=contexts(count))
    module.bind(first.provide_data, first.provide_label)
    module.init_params()
    module.init_optimizer(optimizer_params={"learning_rate": 0.1, "momentum": 0.9})
    return module


@pytest.mark.parametrize("count", [1, 2])
def test_a_bucket_costs_one_bind_a_context_and_one_call_of_sym_gen(counted, count):
    made: list = []
    module = bucketed(count, made)
    batches = {key: batch(columns=key, key=key) for key in (6, 4, 5)}
    step(module, batches[6])
    for key in (4, 5):
        with counted() as calls:
            module.prepare(batches[key])
        assert sum(calls[name] for name in BINDS) == calls["MXExecutorBindEX"] == count
        # The module and its group list the arguments once each. The first length that is another one is looked at, once
        # for all contexts: a bind that the engine refuses stays in memory. All else is known from the first bucket.
        looked = {name: calls[name] for name in GRAPHS if calls[name]}
        of_symbol = {"MXSymbolListArguments": 2, "MXSymbolListAuxiliaryStates": 2, "MXSymbolListAttr": 1}
        inferred = {"MXSymbolInferShapePartialEx": 1, "MXSymbolInferTypePartial": 1} if key == 4 else {}
        assert looked == {**of_symbol, **inferred}
    for one in (*batches.values(), *batches.values()):
        step(module, one)
    with counted() as calls:
        for one in batches.values():
            step(module, one)
    assert calls == {name: 3 * number for name, number in {**STEP[count], "shape asked": 2}.items()}
    assert made == [6, 4, 5]


def test_switching_asks_the_engine_for_nothing(counted):
    module = bucketed(1, [])
    batches = [batch(columns=key, key=key) for key in (6, 4)]
    for one in batches:
        step(module, one)
    with counted() as calls:
        for one in batches * 3:
            module.switch_bucket(one.bucket_key, one.provide_data, one.provide_label)
    assert calls == {}


class Batches(mx.io.DataIter):
    def __init__(self, batches):
        super().__init__(16)
        self.batches, self.at = batches, 0
        self.provide_data, self.provide_label = batches[0].provide_data, batches[0].provide_label

    def reset(self):
        self.at = 0

    def next(self):
        if self.at == len(self.batches):
            raise StopIteration
        self.at += 1
        return self.batches[self.at - 1]


@pytest.mark.parametrize("count", [1, 2])
def test_score_copies_no_outputs(counted, count):
    module, data, metric = trained(count=count), Batches([batch() for _ in range(3)]), Silent()
    module.score(data, metric)
    with counted() as calls:
        module.score(data, metric)
    assert calls == {"MXImperativeInvokeEx": 3 * 2 * count, "MXExecutorForward": 3 * count, "shape asked": 3 * 2}


def test_predict_copies_each_output_once_and_joins_all_of_them_at_the_end(counted):
    module, data = trained(), Batches([batch() for _ in range(3)])
    module.predict(data)
    with counted() as calls:
        result = module.predict(data)
    assert result.shape == (48, 10)
    # Two inputs and a copy of the output for each batch, and one call that joins the copies.
    assert calls["MXImperativeInvokeEx"] == 3 * (2 + 1) + 1
    assert calls["MXExecutorForward"] == 3
    assert sum(calls[name] for name in WAITS) == 0


def test_fit_reads_nothing_back_and_binds_nothing(counted):
    module, data = trained(), Batches([batch() for _ in range(4)])
    metric = Silent()
    with counted() as calls:
        module.fit(data, eval_metric=metric, num_epoch=1)
    assert calls["MXExecutorForward"] == calls["MXExecutorBackwardEx"] == 4
    # The metric reads nothing. An epoch's end takes the parameters to the host by copies that nobody waits for.
    assert calls["MXNDArraySyncCopyToCPU"] == 0
    assert sum(calls[name] for name in BINDS) == 0
