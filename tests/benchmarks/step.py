"""A training step against the floor: what the Python around the engine costs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from tqdm import tqdm

import bucketlab
from bucketlab import mx

from .contenders import Contender, Floor, ModuleContender, difference
from .report import Report
from .timing import interleaved
from .workloads import WORKLOADS, Workload

KVSTORES = ("none", "local", "device")

Case = tuple[str, int, str, bool]
"""Workload, contexts, kvstore, and whether there is a metric."""


def cases(workloads: Sequence[str], counts: Sequence[int], kvstores: Sequence[str]) -> list[Case]:
    """All combinations that mean something: mx.mod has no kvstore on one context, on several it needs one."""
    found = []
    for name in workloads:
        for count in counts:
            for kvstore in kvstores:
                if (count == 1) == (kvstore == "none"):
                    found += [(name, count, kvstore, metric) for metric in (False, True)]
    return found


def run(chosen: Iterable[Case], rounds: int) -> Report:
    """Time each case for so many steps of every contender."""
    loads: dict[str, Workload] = {}
    rows = []
    for name, count, kvstore, metric in tqdm(list(chosen), desc="step", unit="case", disable=None):
        if name not in loads:
            loads = {name: WORKLOADS[name]()}
        rows.append(_row(loads[name], count, kvstore, metric, rounds))
    return Report(
        "step",
        "A step against the floor",
        rows,
        {
            "floor us": ".0f", "mx.mod us": ".0f", "ours us": ".0f", "mx.mod / floor": ".2f",
            "ours / floor": ".2f", "ours / mx.mod": ".2f", "difference": "g",
        },
        "Steps of all contenders in turn; ratios are medians over the steps. difference: the largest between any two "
        "weights after all steps.",
    )  # fmt: skip


def _row(load: Workload, count: int, kvstore: str, metric: bool, rounds: int) -> dict[str, Any]:
    store = None if kvstore == "none" else kvstore
    ours = ModuleContender(bucketlab, load, count, store, metric)
    theirs = ModuleContender(mx.mod, load, count, store, metric)
    floor = Floor(load, count, ours.weights(), store, metric)
    contenders: dict[str, Contender] = {"floor": floor, "mx.mod": theirs, "ours": ours}
    # Once through all buckets: what is bound and allocated at the first batch is no part of a step.
    for batch in load.batches:
        for contender in contenders.values():
            contender.step(batch)
    turns = {
        name: lambda number, step=contender.step: step(load.batches[number % len(load.batches)])
        for name, contender in contenders.items()
    }
    times = interleaved(turns, rounds)
    weights = ours.weights()
    return {
        "workload": load.name,
        "contexts": count,
        "kvstore": kvstore,
        "metric": "yes" if metric else "no",
        **{f"{name} us": times.median(name) * 1e6 for name in turns},
        "mx.mod / floor": times.ratio("mx.mod", "floor"),
        "ours / floor": times.ratio("ours", "floor"),
        "ours / mx.mod": times.ratio("ours", "mx.mod"),
        "difference": max(difference(weights, other.weights()) for other in (floor, theirs)),
    }
