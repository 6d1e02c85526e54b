"""``score`` and ``predict`` against the forward passes that they consist of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tqdm import tqdm

import bucketlab as bl
from bucketlab import mx
from bucketlab._calls import ForwardCall

from .contenders import _feed, _run
from .report import Report
from .timing import interleaved
from .workloads import WORKLOADS, Workload

SPACES = {"mx.mod": mx.mod, "ours": bl}


class Batches(mx.io.DataIter):
    """Hands out batches that were made before, so that nothing but the module is measured."""

    def __init__(self, load: Workload):
        super().__init__(load.rows)
        self._batches, self._at = load.batches, 0
        self.provide_data, self.provide_label = load.shapes(load.keys[0])

    def reset(self) -> None:
        self._at = 0

    def next(self) -> Any:
        if self._at == len(self._batches):
            raise StopIteration
        self._at += 1
        return self._batches[self._at - 1]


class RawForward:
    """The forward passes alone: inputs copied in, executors run, the metric or a copy of the output."""

    def __init__(self, load: Workload, start: dict[str, Any]):
        self._executors = {}
        for key in load.keys:
            symbol = load.sym_gen(key)[0]
            shapes = {desc.name: desc.shape for part in load.shapes(key) for desc in part}
            executor = symbol.simple_bind(mx.cpu(), grad_req="null", **shapes)
            executor.copy_params_from(start, allow_extra_params=True)
            self._executors[key] = (executor, *_feed(executor), ForwardCall(executor, False).ready)

    def _outputs(self, batches: Any) -> Any:
        batches.reset()
        for batch in batches:
            executor, data, label, forward = self._executors[batch.bucket_key]
            data.inputs[0], label.inputs[0] = batch.data[0].handle.value, batch.label[0].handle.value
            _run((data.ready, label.ready, forward))
            yield batch, executor.outputs

    def score(self, batches: Any, metric: Any) -> list[tuple[str, float]]:
        metric.reset()
        for batch, outputs in self._outputs(batches):
            metric.update(batch.label, outputs)
        return metric.get_name_value()

    def predict(self, batches: Any) -> Any:
        return mx.nd.concat(*[outputs[0].copy() for _, outputs in self._outputs(batches)], dim=0)


def run(names: Sequence[str], rounds: int) -> Report:
    """Time passes over all batches of each workload."""
    rows = []
    for name in tqdm(names, desc="score", unit="workload", disable=None):
        rows += _rows(WORKLOADS[name](), rounds)
    return Report(
        "score",
        "Score and predict against raw forward",
        rows,
        {
            "raw us": ".0f", "mx.mod us": ".0f", "ours us": ".0f", "mx.mod / raw": ".2f", "ours / raw": ".2f",
            "difference": "g",
        },
        "For one batch. difference: the largest between any two results.",
    )  # fmt: skip


def _rows(load: Workload, rounds: int) -> list[dict[str, Any]]:
    modules = {name: _module(space, load) for name, space in SPACES.items()}
    start, aux = modules["ours"].get_params()
    modules["mx.mod"].set_params(start, aux)
    contenders: dict[str, Any] = {"raw": RawForward(load, start), **modules}
    batches, rows = Batches(load), []
    calls: dict[str, Callable[[Any], Any]] = {
        "score": lambda one: one.score(batches, load.metric()),
        "predict": lambda one: one.predict(batches),
    }
    for call, do in calls.items():
        results = [do(one) for one in contenders.values()]
        turns = {name: lambda number, one=one, do=do: do(one) for name, one in contenders.items()}
        times = interleaved(turns, rounds)
        count = len(load.batches)
        rows.append(
            {
                "workload": load.name,
                "call": call,
                **{f"{name} us": times.median(name) / count * 1e6 for name in contenders},
                "mx.mod / raw": times.ratio("mx.mod", "raw"),
                "ours / raw": times.ratio("ours", "raw"),
                "difference": max(_difference(results[0], other) for other in results[1:]),
            }
        )
    return rows


def _difference(one: Any, other: Any) -> float:
    if isinstance(one, list):
        return max(abs(a - b) for (_, a), (_, b) in zip(one, other))
    return float(abs(one - other).max().asscalar())


def _module(namespace: Any, load: Workload) -> Any:
    default = load.keys[0]
    if len(load.keys) > 1:
        module = namespace.BucketingModule(load.sym_gen, default)
    else:
        module = namespace.Module(*load.sym_gen(default))
    module.bind(*load.shapes(default), for_training=False)
    module.init_params(mx.init.Uniform(0.08))
    return module
