"""Who is compared: a module of mx.mod or of bucketlab, and the floor under both of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np

from bucketlab import mx
from bucketlab._calls import BackwardCall, ForwardCall, OperatorCall
from bucketlab.training.exchange import Scratch, summing
from bucketlab.training.flat import FlatParameters, ParamSpec
from bucketlab.training.kernels import exact_text

from .workloads import Workload

RATE, MOMENTUM = 0.05, 0.9

Weights = Mapping[str, np.ndarray]


class Contender(Protocol):
    """Something that trains."""

    def step(self, batch: Any) -> None:
        """Forward, backward, update, and the metric if there is one."""

    def weights(self) -> Weights:
        """All parameters as the first context has them."""


def contexts(count: int) -> list[Any]:
    return [mx.cpu(number) for number in range(count)]


class ModuleContender:
    """The module of a namespace (``mx.mod`` or ``bucketlab``), used as a training loop uses it."""

    def __init__(self, namespace: Any, load: Workload, count: int, kvstore: str | None = "local", metric: bool = True):
        default = load.keys[0]
        if len(load.keys) > 1:
            self.module = namespace.BucketingModule(load.sym_gen, default, context=contexts(count))
        else:
            self.module = namespace.Module(*load.sym_gen(default), context=contexts(count))
        self.module.bind(*load.shapes(default))
        mx.random.seed(1)
        np.random.seed(1)
        self.module.init_params(mx.init.Uniform(0.08))
        self.module.init_optimizer(kvstore, "sgd", {"learning_rate": RATE, "momentum": MOMENTUM})
        self.metric = load.metric() if metric else None

    def step(self, batch: Any) -> None:
        self.module.forward_backward(batch)
        self.module.update()
        if self.metric is not None:
            self.module.update_metric(self.metric, batch.label)

    def weights(self) -> Weights:
        return {name: value.asnumpy() for name, value in self.module.get_params()[0].items()}


class Floor:
    """The least that Python can do: executors bound beforehand, inputs copied in, one fused call for the optimizer.

    No interface, no checks, no counting of updates; every engine call is made ready at the start. It sums gradients in
    the order of mx.mod's kvstore, so that its weights are the same to the bit.
    """

    def __init__(self, load: Workload, count: int, start: Weights, kvstore: str | None = "local", metric: bool = True):
        self._metric = load.metric() if metric else None
        self._share = load.rows // count
        self._stores = [FlatParameters(context) for context in contexts(count)]
        self._executors: dict[Any, list[Any]] = {}
        for key in load.keys:
            self._executors[key] = [self._bind(load, key, i, start) for i in range(count)]
        self._feeds = {key: [_feed(executor) for executor in execs] for key, execs in self._executors.items()}
        self._forward = {key: [ForwardCall(e, True).ready for e in execs] for key, execs in self._executors.items()}
        self._backward = {key: [BackwardCall(e).ready for e in execs] for key, execs in self._executors.items()}
        self._update = [call.ready for call in self._update_calls(load.rows, kvstore or "local")]

    def _bind(self, load: Workload, key: Any, index: int, start: Weights) -> Any:
        symbol = load.sym_gen(key)[0]
        inputs = {
            desc.name: mx.nd.zeros((self._share, *desc.shape[1:]), contexts(index + 1)[index])
            for part in load.shapes(key)
            for desc in part
        }
        names = [name for name in symbol.list_arguments() if name not in inputs]
        store, first = self._stores[index], load.keys[0]
        store.ensure([ParamSpec(name, start[name].shape) for name in names])
        for name in names:
            store.weights[name][:] = start[name]
        return symbol.bind(
            store.context,
            {**inputs, **{name: store.weights[name] for name in names}},
            args_grad={name: store.grads[name] for name in names},
            grad_req={**dict.fromkeys(inputs, "null"), **dict.fromkeys(names, "write")},
            shared_exec=None if key == first else self._executors[first][index],
        )

    def _update_calls(self, rows: int, order: str) -> list[Any]:
        weights = [store.segments[0].weight for store in self._stores]
        grads = [store.segments[0].grad for store in self._stores]
        self._scratch = Scratch()
        calls, total = [], grads[0]
        if len(grads) > 1:
            total = self._scratch.like(grads[0])
            calls = summing(grads, order, total, lambda: self._scratch.like(grads[0], 1))
        self._momentum = mx.nd.zeros_like(weights[0])
        attributes = {"lr": exact_text(RATE), "wd": "0.0", "momentum": MOMENTUM, "rescale_grad": 1.0 / rows}
        inputs = [weights[0], total, self._momentum]
        calls.append(OperatorCall("sgd_mom_update", inputs, weights[:1], **attributes))
        return [*calls, *(OperatorCall("_copyto", weights[:1], [other]) for other in weights[1:])]

    def step(self, batch: Any) -> None:
        key, data, label = batch.bucket_key, batch.data[0], batch.label[0]
        feeds = self._feeds[key]
        if len(feeds) == 1:
            parts = [(data, label)]
        else:
            cuts = [slice(i * self._share, (i + 1) * self._share) for i in range(len(feeds))]
            parts = [(data[cut], label[cut]) for cut in cuts]
        for (feed_data, feed_label), (data, label) in zip(feeds, parts):
            feed_data.inputs[0], feed_label.inputs[0] = data.handle.value, label.handle.value
            _run((feed_data.ready, feed_label.ready))
        _run(self._forward[key])
        _run(self._backward[key])
        _run(self._update)
        if self._metric is not None:
            for executor, (_, label) in zip(self._executors[key], parts):
                self._metric.update([label], executor.outputs)

    def weights(self) -> Weights:
        return {name: value.asnumpy() for name, value in self._stores[0].weights.items()}


def _feed(executor: Any) -> tuple[OperatorCall, OperatorCall]:
    targets = executor.arg_dict["data"], executor.arg_dict["softmax_label"]
    return tuple(OperatorCall("_copyto", [target], [target]) for target in targets)  # type: ignore[return-value]


def _run(calls: Any) -> None:
    for call in calls:
        if call():
            raise mx.base.MXNetError(mx.base.py_str(mx.base._LIB.MXGetLastError()))


def difference(one: Weights, other: Weights) -> float:
    """The largest difference between any two weights: 0.0 means that all bits agree, but for the sign of zero."""
    return max(float(np.abs(value - other[name]).max()) for name, value in one.items())
