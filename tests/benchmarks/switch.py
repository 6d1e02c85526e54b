"""Going from bucket to bucket, from shape to shape, and having many of them."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from tqdm import tqdm

import bucketlab as bl
from bucketlab import mx

from .report import Report
from .timing import Timings, interleaved
from .workloads import DATA, LABEL, perceptron

SPACES = {"mx.mod": mx.mod, "ours": bl}
ROWS, MOST = 8, 200
SETTINGS = {"learning_rate": 0.01, "momentum": 0.9}


def run(bucket_counts: Sequence[int], rounds: int) -> list[Report]:
    """What a switch takes, what a known shape costs, and what a step does as buckets become more."""
    return [_switches(rounds), _known_shapes(rounds), _growth(bucket_counts, rounds)]


def _sym_gen(key: int) -> tuple[Any, Any, Any]:
    words = mx.sym.Embedding(mx.sym.Variable("data"), input_dim=50, output_dim=8, name="embed")
    hidden = mx.sym.FullyConnected(mx.sym.mean(words, axis=1), num_hidden=16, name="fc1")
    scores = mx.sym.FullyConnected(mx.sym.Activation(hidden, act_type="relu"), num_hidden=5, name="fc2")
    return mx.sym.SoftmaxOutput(scores, name="softmax"), DATA, LABEL


def _batch(key: int) -> Any:
    return mx.io.DataBatch(
        [mx.nd.ones((ROWS, key))],
        [mx.nd.zeros((ROWS,))],
        bucket_key=key,
        provide_data=[mx.io.DataDesc("data", (ROWS, key))],
        provide_label=[mx.io.DataDesc("softmax_label", (ROWS,))],
    )


class _Buckets:
    """A module of many small buckets, and a batch for each of them."""

    def __init__(self, namespace: Any, most: int):
        self.module = namespace.BucketingModule(_sym_gen, most)
        self._first = _batch(most)
        self.module.bind(self._first.provide_data, self._first.provide_label)
        self.module.init_params(mx.init.Uniform(0.08))
        self.module.init_optimizer(optimizer="sgd", optimizer_params=SETTINGS)
        self.batches: list[Any] = []
        self.metric = mx.metric.Accuracy()

    def grow(self, count: int) -> None:
        while len(self.batches) < count:
            batch = _batch(self._first.bucket_key - len(self.batches))
            self.batches.append(batch)
            self.step(batch)

    def step(self, batch: Any) -> None:
        self.module.forward_backward(batch)
        self.module.update()
        self.module.update_metric(self.metric, batch.label)


def _switches(rounds: int, count: int = 8, times: int = 500) -> Report:
    """There and back between bound buckets; what is left of the loop itself is taken off."""
    made = {name: _Buckets(space, count) for name, space in SPACES.items()}
    for buckets in made.values():
        buckets.grow(count)

    def turn(switch: Any, batches: Sequence[Any]) -> Any:
        plan = [(batch.bucket_key, batch.provide_data, batch.provide_label) for batch in batches] * times

        def go(number: int) -> None:
            for key, data, label in plan:
                switch(key, data, label)

        return go

    turns = {name: turn(buckets.module.switch_bucket, buckets.batches) for name, buckets in made.items()}
    turns["loop"] = turn(lambda key, data, label: None, made["ours"].batches)
    found = interleaved(turns, rounds, clock=time.process_time)
    each = {name: (found.median(name) - found.median("loop")) / (times * count) * 1e6 for name in made}
    rows = [{"mx.mod us": each["mx.mod"], "ours us": each["ours"]}]
    return Report(
        "switch", "Switching to a bound bucket", rows, {"mx.mod us": ".2f", "ours us": ".2f"}, "Processor time of one."
    )


def _known_shapes(rounds: int) -> Report:
    """Batches of two sizes by turns, against batches of one size; all of them were there before."""
    rows = []
    for name, hidden in (("mlp", (32, 32)), ("narrow60", (16,) * 60)):
        found = _two_sizes(perceptron(name, hidden, count=2), rounds)
        row: dict[str, Any] = {"workload": name}
        for space in SPACES:
            row[f"{space} us"] = found.median(space) * 1e6
            row[f"{space} / one size"] = found.ratio(space, f"{space} one")
        rows.append(row)
    formats = {f"{space} us": ".0f" for space in SPACES} | {f"{space} / one size": ".2f" for space in SPACES}
    return Report("shapes", "A shape seen before", rows, formats, "A step with batches of 16 and 12 rows by turns.")


def _two_sizes(load: Any, rounds: int) -> Timings:
    modules = {}
    for name, space in SPACES.items():
        for kind in (name, f"{name} one"):
            modules[kind] = module = space.Module(*load.sym_gen(0))
            module.bind(*load.shapes(0))
            module.init_params(mx.init.Uniform(0.08))
            module.init_optimizer(optimizer="sgd", optimizer_params=SETTINGS)
    whole = load.batches
    cut = [mx.io.DataBatch([batch.data[0][:12]], [batch.label[0][:12]]) for batch in whole]

    def turn(module: Any, plan: Sequence[Any]) -> Any:
        def go(number: int) -> None:
            for batch in plan:
                module.forward_backward(batch)
                module.update()

        return go

    plans = {"": [whole[0], cut[0], whole[1], cut[1]], " one": [whole[0], whole[1]] * 2}
    seconds: dict[str, list[float]] = {}
    # Each library by itself: what the other leaves to be cleared away would count for whoever comes next.
    for name in SPACES:
        turns = {name + kind: turn(modules[name + kind], plan) for kind, plan in plans.items()}
        for go in turns.values():
            go(0)
        seconds.update(interleaved(turns, max(2, rounds // 2)).seconds)
    return Timings({name: [taken / 4 for taken in found] for name, found in seconds.items()})


def _growth(bucket_counts: Iterable[int], rounds: int) -> Report:
    counts = sorted(bucket_counts)
    made = {name: _Buckets(space, counts[-1]) for name, space in SPACES.items()}
    rng = np.random.RandomState(0)
    rows = []
    for count in tqdm(counts, desc="growth", unit="count", disable=None):
        for buckets in made.values():
            buckets.grow(count)
        order = rng.randint(count, size=rounds).tolist()
        turns = {
            name: lambda number, own=buckets, order=order: own.step(own.batches[order[number]])
            for name, buckets in made.items()
        }
        found = interleaved(turns, rounds)
        rows.append(
            {
                "buckets": count,
                **{f"{name} us": found.median(name) * 1e6 for name in made},
                "ours / mx.mod": found.ratio("ours", "mx.mod"),
            }
        )
    formats = {"mx.mod us": ".0f", "ours us": ".0f", "ours / mx.mod": ".2f"}
    return Report("growth", "A step as buckets become more", rows, formats, "A tiny net; a bucket at random each step.")
