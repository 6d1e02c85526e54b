"""Training with and without a dashboard by turns; runs inside of a Jupyter kernel."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

from IPython.display import display

import bucketlab as bl
from bucketlab import mx

from .contenders import contexts
from .workloads import Workload, language_model


class For(mx.io.DataIter):
    """The batches of a workload over and over, for so many seconds; tells what each took."""

    def __init__(self, load: Workload, seconds: float):
        super().__init__(load.rows)
        self._batches, self._seconds, self.count = load.batches, seconds, 0
        self._begin = self._end = (0.0, 0.0)
        self.default_bucket_key = load.keys[0]
        self.provide_data, self.provide_label = load.shapes(load.keys[0])

    def reset(self) -> None:
        pass

    def next(self) -> Any:
        now = time.perf_counter(), time.process_time()
        if self.count == 0:
            self._begin = now
        elif now[0] - self._begin[0] > self._seconds:
            self._end = now
            raise StopIteration
        self.count += 1
        return self._batches[self.count % len(self._batches)]

    @property
    def each(self) -> tuple[float, float]:
        """Seconds, and seconds of the process's processors, of one step."""
        return tuple((end - begin) / self.count for begin, end in zip(self._begin, self._end))  # type: ignore


def _count_paints(lab: Any) -> Callable[[], int]:
    """A function that tells how often the dashboard has been painted from now on."""
    paint, painted = lab._painter._paint, []

    def counted() -> None:
        painted.append(None)
        paint()

    lab._painter._paint = counted
    return lambda: len(painted)


def main(rate: float, rounds: int, seconds: float) -> dict[str, float]:
    # Short sentences, so that there are more steps in a second than paintings.
    load = language_model("dashboard", (5, 10), hidden=32, embed=32, layers=1)
    module = bl.BucketingModule(load.sym_gen, load.keys[0], context=contexts(2))
    settings = {"learning_rate": 0.1}

    def fit(lab: Any, length: float) -> tuple[float, float]:
        batches = For(load, length)
        # The metric waits for the engine at each step, so that a step's time is that of all its work.
        more = {"eval_metric": load.metric(), "optimizer_params": settings, "num_epoch": 1}
        if lab is None:
            module.fit(batches, **more)
        else:
            lab.fit(batches, **more)
            lab.wait()
        return batches.each

    fit(None, 0.5)
    alone, watched, paints, shown = [], [], 0, 0.0
    for _ in range(rounds):
        alone.append(fit(None, seconds))
        lab = bl.Lab(module, max_hz=rate)
        display(lab)
        count = _count_paints(lab)
        watched.append(fit(lab, seconds))
        paints, shown = paints + count(), shown + seconds
        lab.close()
    return {
        "alone": statistics.median(seconds for seconds, _ in alone),
        "watched": statistics.median(seconds for seconds, _ in watched),
        "share": statistics.median(b / a for (a, _), (b, _) in zip(alone, watched)) - 1,
        "processor": statistics.median(b / a for (_, a), (_, b) in zip(alone, watched)) - 1,
        "paints": paints / shown,
    }
