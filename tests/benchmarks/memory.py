"""Bytes by the engine's own counters, over the ideal: the hungriest bucket alone under mx.mod.

Every figure comes from a process of its own (:mod:`memory_case`), as the counters and the engine's caches want it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from tqdm import tqdm

from .report import Report

MODELS = ("lstm", "mlp", "fused")
CHILD = Path(__file__).with_name("memory_case.py")


@dataclass(frozen=True)
class Case:
    """One training run: so many ``buckets`` up to ``longest`` steps, met in this ``order`` after the ``default`` one.

    ``namespace`` is "mxnet", "bucketlab" or "arena" (bucketlab with working_memory="arena"). With ``varying`` batches
    have as many rows as fit the same number of tokens, else 16. ``only`` is the single bucket to run.
    """

    model: str = "lstm"
    contexts: int = 1
    buckets: int = 10
    varying: bool = False
    default: str = "largest"
    order: str = "rising"
    namespace: str = "mxnet"
    longest: int = 50
    only: int | None = None

    @property
    def lengths(self) -> list[int]:
        return sorted({max(1, round(self.longest * (i + 1) / self.buckets)) for i in range(self.buckets)})

    def rows(self, length: int) -> int:
        if not self.varying:
            return 16
        whole = 16 * self.longest // length
        return max(self.contexts, whole // self.contexts * self.contexts)


def cases(buckets: Iterable[int], counts: Iterable[int], models: Iterable[str]) -> list[Case]:
    """The unrolled LSTM in every order and with every default; the others as they suffer most."""
    found = []
    for count in counts:
        for number in buckets:
            many = Case(contexts=count, buckets=number)
            if "lstm" in models:
                found.append(many)
                if number > 1:
                    found += [replace(many, default=which) for which in ("middle", "smallest")]
                    found += [replace(many, order=order, default="middle") for order in ("falling", "random")]
                    found.append(replace(many, varying=True))
            if number > 1:
                found += [replace(many, model=m, default="smallest") for m in ("mlp", "fused") if m in models]
    return found


def measure(case: Case) -> dict[str, Any]:
    """Run a case in a process of its own; raises RuntimeError with what it wrote when it fails."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, str(CHILD), json.dumps(asdict(case))], capture_output=True, text=True, env=environment
    )
    if done.returncode:
        raise RuntimeError(f"{case} ended with {done.returncode}:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])  # type: ignore[no-any-return]


def run(chosen: Iterable[Case]) -> Report:
    """Measure each case under mx.mod and bucketlab, and what is ideal for it."""
    known: dict[Case, int] = {}

    def ideal(case: Case) -> int:
        # Which of them is hungriest is not certain where rows vary: the shortest, the middle one or the longest.
        lengths = case.lengths
        alone = {lengths[-1]} if not case.varying else {lengths[0], lengths[len(lengths) // 2], lengths[-1]}
        singles = [replace(case, only=one, default="largest", order="rising") for one in sorted(alone)]
        for one in singles:
            if one not in known:
                known[one] = measure(one)["bytes"]
        return max(known[one] for one in singles)

    rows = []
    for case in tqdm(list(chosen), desc="memory", unit="case", disable=None):
        best = ideal(case)
        theirs = measure(case)
        ours = measure(replace(case, namespace="bucketlab"))
        arena = measure(replace(case, namespace="arena")) if case.varying else None
        rows.append(
            {
                "model": case.model,
                "contexts": case.contexts,
                "buckets": len(case.lengths),
                "rows": "varying" if case.varying else "same",
                "default": case.default,
                "order": case.order,
                "ideal": best,
                "mx.mod": theirs["bytes"] / best,
                "ours": ours["bytes"] / best,
                "ours, arena": arena["bytes"] / best if arena else None,
                "operators": ours["beside"] / best,
                "equal": "yes" if theirs["weights"] == ours["weights"] == (arena or ours)["weights"] else "no",
            }
        )
    return Report(
        "memory",
        "Memory over the ideal",
        rows,
        {"ideal": ",", "mx.mod": ".3f", "ours": ".3f", "ours, arena": ".3f", "operators": ".3f"},
        "ideal: bytes of the hungriest bucket alone under mx.mod, by the engine's counters; others are parts of it.\n"
        "operators: what of ours no array and no working memory holds. equal: whether the weights end with the same "
        "bits.",
    )
