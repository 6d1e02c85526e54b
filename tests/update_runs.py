"""The same training run twice: by mx.mod, and by executors bound to FlatParameters with an Update."""

from __future__ import annotations

from typing import Any

import numpy as np

from bucketlab import mx
from bucketlab.training.exchange import Exchange, open_exchange
from bucketlab.training.flat import FlatParameters, ParamSpec
from bucketlab.training.update import Update

COLUMNS = 7


def mlp(dtype: str = "float32", sparse: bool = False) -> Any:
    """Two layers of odd sizes, so that padding and vector remainders matter."""
    data = mx.sym.Variable("data")
    if sparse:
        weight = mx.sym.Variable("embed_weight", stype="row_sparse")
        data = mx.sym.sparse.Embedding(
            data, weight=weight, input_dim=20, output_dim=3, sparse_grad=True, name="embed"
        )
    if dtype != "float32":
        data = mx.sym.Cast(data, dtype=dtype)
    net = mx.sym.FullyConnected(data, num_hidden=13, name="fc1")
    net = mx.sym.Activation(net, act_type="tanh")
    net = mx.sym.FullyConnected(net, num_hidden=5, name="fc2")
    if dtype != "float32":
        net = mx.sym.Cast(net, dtype="float32")
    return mx.sym.SoftmaxOutput(net, name="softmax")


def mixed() -> Any:
    """A float16 parameter before float32 layers, and one with multipliers of its own."""
    data = mx.sym.Cast(mx.sym.Variable("data"), dtype="float16")
    scale = mx.sym.Variable("scale_weight", shape=(1, COLUMNS), dtype="float16")
    net = mx.sym.Cast(mx.sym.broadcast_mul(data, scale), dtype="float32")
    bias = mx.sym.Variable("fc1_bias", lr_mult=0.5, wd_mult=2.0)
    net = mx.sym.FullyConnected(net, num_hidden=13, name="fc1", bias=bias)
    net = mx.sym.Activation(net, act_type="tanh")
    net = mx.sym.FullyConnected(net, num_hidden=5, name="fc2")
    return mx.sym.SoftmaxOutput(net, name="softmax")


def batches(rows: int, count: int, seed: int = 0, high: int | None = None) -> list[Any]:
    """Batches of ``rows`` rows."""
    rng = np.random.RandomState(seed)
    result = []
    for _ in range(count):
        data = rng.randint(0, high, (rows, COLUMNS)) if high else rng.uniform(-1, 1, (rows, COLUMNS))
        label = rng.randint(0, 5, (rows,))
        result.append(mx.io.DataBatch([mx.nd.array(data)], [mx.nd.array(label)]))
    return result


def first_values(symbol: Any, rows: int, seed: int = 3) -> dict[str, Any]:
    """Host parameters, in each one's own dtype and storage."""
    rng = np.random.RandomState(seed)
    shapes, _, _ = symbol.infer_shape(data=(rows, COLUMNS))
    types, _, _ = symbol.infer_type(data="float32")
    attributes = symbol.attr_dict()
    values = {}
    for name, shape, dtype in zip(symbol.list_arguments(), shapes, types):
        if name in ("data", "softmax_label"):
            continue
        value = mx.nd.array(rng.uniform(-0.5, 0.5, shape), dtype=dtype)
        sparse = attributes.get(name, {}).get("__storage_type__") == "1"
        values[name] = value.tostype("row_sparse") if sparse else value
    return values


class Ours:
    """Executors of all contexts over flat parameters, and the update; what a Module does, in few lines."""

    def __init__(
        self,
        symbol: Any,
        contexts: list[Any],
        values: dict[str, Any],
        rows: int,
        grad_req: Any = "write",
        stores: list[FlatParameters] | None = None,
        grad_stypes: dict[str, str] | None = None,
    ):
        self.symbol, self.contexts, self.rows = symbol, contexts, rows
        self.names = tuple(name for name in symbol.list_arguments() if name in values)
        self.stores = stores or [FlatParameters(context) for context in contexts]
        self.values = values
        share = rows // len(contexts)
        stypes = grad_stypes or {}
        self.execs = []
        for store, context in zip(self.stores, contexts):
            req = {name: grad_req if isinstance(grad_req, str) else grad_req[name] for name in self.names}
            store.ensure(
                [
                    ParamSpec(name, one.shape, one.dtype, one.stype, stypes.get(name, one.stype), req[name])
                    for name, one in ((name, values[name]) for name in self.names)
                ]
            )
            for name in self.names:
                values[name].copyto(store.weights[name])
            inputs = {
                "data": mx.nd.zeros((share, COLUMNS), context),
                "softmax_label": mx.nd.zeros((share,), context),
            }
            self.execs.append(
                symbol.bind(
                    context,
                    {**inputs, **{name: store.weights[name] for name in self.names}},
                    args_grad={name: store.grads[name] for name in self.names if req[name] != "null"},
                    grad_req={**dict.fromkeys(inputs, "null"), **req},
                )
            )

    def init_optimizer(self, kvstore: Any, optimizer: Any, settings: dict[str, Any], **more: Any) -> None:
        """As Module.init_optimizer."""
        exchange = open_exchange(kvstore, self.contexts, self.values, **more)
        settings = {"rescale_grad": 1.0 / (self.rows * exchange.workers), **settings}
        made = optimizer_for(exchange, self.names, optimizer, settings, self.symbol)
        self.update = Update.create(self.stores, self.names, made, exchange, self.values)

    @property
    def optimizer(self) -> Any:
        return self.update.optimizer

    def forward_backward(self, batch: Any, active: Any = None) -> None:
        """Gradients of the batch's slices in the active contexts."""
        share = self.rows // len(self.contexts)
        for number, executor in enumerate(self.execs):
            if active is None or number in active:
                rows = slice(number * share, (number + 1) * share)
                batch.data[0][rows].copyto(executor.arg_dict["data"])
                batch.label[0][rows].copyto(executor.arg_dict["softmax_label"])
                executor.forward(is_train=True)
                executor.backward()

    def weights(self, context: int = 0) -> dict[str, np.ndarray]:
        """All parameters of a context."""
        return {name: self.stores[context].weights[name].asnumpy() for name in self.names}


def optimizer_for(exchange: Exchange, names: Any, optimizer: Any, settings: Any, symbol: Any = None) -> Any:
    """An optimizer that knows the names of its indices, as a module makes it."""
    if isinstance(optimizer, str):
        index_names = exchange.index_names(names)
        return mx.optimizer.create(optimizer, sym=symbol, param_idx2name=index_names, **settings)
    optimizer.idx2name = exchange.index_names(names)
    return optimizer


def reference(
    symbol: Any,
    contexts: list[Any],
    values: dict[str, Any],
    rows: int,
    grad_req: Any = "write",
    **module: Any,
) -> Any:
    """An mx.mod.Module that starts from the same values."""
    mod = mx.mod.Module(symbol, context=contexts, **module)
    mod.bind([("data", (rows, COLUMNS))], [("softmax_label", (rows,))], grad_req=grad_req)
    mod.init_params(arg_params=dict(values))
    return mod


def cpus(count: int) -> list[Any]:
    """That many contexts."""
    return [mx.cpu(number) for number in range(count)]


def assert_same(ours: Ours, mod: Any) -> None:
    """Every parameter equals mx.mod's to the bit, by context (its get_params averages, which rounds)."""
    for context, executor in enumerate(mod._exec_group.execs):
        for name, value in ours.weights(context).items():
            theirs = executor.arg_dict[name].asnumpy()
            np.testing.assert_array_equal(value, theirs, err_msg=f"{name} in context {context}")
