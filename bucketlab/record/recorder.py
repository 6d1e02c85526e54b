"""The recorder: watches a module train and remembers what happened, in constant time and memory per step."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Hashable
from typing import Any

from bucketlab.memory.ledger import Ledger
from bucketlab.record.attach import attach
from bucketlab.record.batches import BatchFacts, batch_facts
from bucketlab.record.events import EpochEvent, Event, MetricEvent, StepEvent, StructureEvent
from bucketlab.record.growth import MemoryWatch
from bucketlab.record.summary import Accumulator, RunSummary
from bucketlab.record.timeline import Timeline

__all__ = ["Recorder"]

_STRUCTURE = frozenset(("bind", "switch", "reshape"))
_UNKNOWN = BatchFacts(None, 0, 0, None, None)


class Recorder:
    """Watches a module train: steps, time and padding by bucket, rates on real rows and tokens, the metric.

    ``history`` bounds each kind of event that is kept; totals cover every step all the same. The run's own
    metric is read on the training thread at most ``metric_hz`` times a second and at the end of each epoch,
    never reset. Nothing waits for the engine. Raises TypeError for an object without ``fit``, ValueError
    for a bad bound.

    >>> recorder = bl.Recorder(mod)
    >>> mod.fit(train, num_epoch=1)
    >>> recorder.summary()
    """

    def __init__(self, module: Any, *, history: int = 10_000, metric_hz: float = 10.0):
        if isinstance(history, bool) or not isinstance(history, int) or history < 1:
            raise ValueError(f"history is {history!r}; give how many events of each kind to keep, 1 or more")
        if not metric_hz > 0:
            raise ValueError(f"metric_hz is {metric_hz!r}; give a positive number of readings a second")
        self.module = module
        self._metric_gap = 1.0 / metric_hz
        self._lock = threading.Lock()
        self._faults: deque[Exception] = deque(maxlen=16)
        self._steps: deque[StepEvent] = deque(maxlen=history)
        self._metrics: deque[MetricEvent] = deque(maxlen=history)
        self._epochs: deque[EpochEvent] = deque(maxlen=history)
        self._structure: deque[StructureEvent] = deque(maxlen=history)
        self._total = Accumulator()
        self._buckets: dict[Hashable, Accumulator] = {}
        self._epoch_total = Accumulator()
        self._epochs_done = 0

        self._mark: float | None = None
        self._fresh = True
        self._batch: Any = None
        self._pending: BatchFacts | None = None
        self._bound = False
        self._nbatch = 0
        self._metric: Any = None
        self._metric_due = 0.0
        self._recent: deque[StepEvent] = deque(maxlen=64)
        self._watch = MemoryWatch(module, history)
        self._detach = attach(module, self._observe)

    # What is kept

    @property
    def steps(self) -> tuple[StepEvent, ...]:
        """The last ``history`` steps."""
        return self._copy(self._steps)

    @property
    def metrics(self) -> tuple[MetricEvent, ...]:
        """Readings of the metric, at most ``metric_hz`` a second: what a training curve is drawn from."""
        return self._copy(self._metrics)

    @property
    def epochs(self) -> tuple[EpochEvent, ...]:
        return self._copy(self._epochs)

    @property
    def structure(self) -> tuple[StructureEvent, ...]:
        """Bindings, switches and reshapes, in order."""
        return self._copy(self._structure)

    @property
    def last_step(self) -> StepEvent | None:
        with self._lock:
            return self._steps[-1] if self._steps else None

    @property
    def step_count(self) -> int:
        return self._total.steps

    def summary(self) -> RunSummary:
        """Totals of every step since the recorder was made."""
        with self._lock:
            values = self._metrics[-1].values if self._metrics else ()
            return RunSummary(
                self._epochs_done,
                self._total.totals(),
                tuple(bucket.totals() for bucket in self._buckets.values()),
                values,
            )

    def recent(self, seconds: float = 2.0) -> RunSummary:
        """The same over the newest steps only: about the last ``seconds``, 64 steps at most."""
        with self._lock:
            window, values = list(self._recent), self._metrics[-1].values if self._metrics else ()
        total = Accumulator()
        buckets: dict[Hashable, Accumulator] = {}
        for step in reversed(window):
            if total.steps and total.seconds >= seconds:
                break
            total.add(step)
            buckets.setdefault(step.bucket, Accumulator(step.bucket)).add(step)
        return RunSummary(self._epochs_done, total.totals(), tuple(b.totals() for b in buckets.values()), values)

    def timeline(self) -> Timeline:
        """What binds, reshapes and first uses added to the module's memory, and in which step."""
        with self._lock:
            return self._watch.timeline()

    @property
    def ledger(self) -> Ledger:
        """The module's memory as it was read last: at the end of an epoch, or when its structure changed."""
        return self._watch.ledger

    def to_dict(self) -> dict[str, Any]:
        """Everything kept, as plain data."""
        return {
            "summary": self.summary().to_dict(),
            "steps": [event.to_dict() for event in self.steps],
            "metrics": [event.to_dict() for event in self.metrics],
            "epochs": [event.to_dict() for event in self.epochs],
            "structure": [event.to_dict() for event in self.structure],
            "timeline": self.timeline().to_dict(),
        }

    def __repr__(self) -> str:
        return repr(self.summary())

    def _repr_html_(self) -> str:
        return self.summary()._repr_html_()

    def _copy(self, events: deque[Any]) -> tuple[Any, ...]:
        with self._lock:
            return tuple(events)

    @property
    def faults(self) -> tuple[Exception, ...]:
        """The newest faults inside the recorder, such as a metric that cannot be read. They stop no run."""
        return tuple(self._faults)

    def close(self) -> None:
        """Stop watching; what was recorded stays."""
        self._finish_pending()
        self._detach()

    # The training thread comes in here

    def _observe(self, kind: str, module: Any, detail: Any) -> None:
        try:
            self._take(kind, detail)
        except Exception as fault:
            self._faults.append(fault)

    def _take(self, kind: str, detail: Any) -> None:
        if kind == "forward":
            # In a loop written by hand no "step" comes: there a step ends where the next batch begins.
            self._finish_pending()
            self._batch = detail
            if self._fresh:
                # Before the first step came binding, or the validation of the epoch before: not this step's
                # time.
                self._mark, self._bound = time.perf_counter(), False
            self._watch.forward(getattr(detail, "bucket_key", None), self._total.steps + 1)
        elif kind == "batch":
            self._batch = detail
            self._watch.forward(getattr(detail, "bucket_key", None), self._total.steps + 1)
        elif kind == "clock":
            self._mark, self._fresh = time.perf_counter(), False
        elif kind == "update":
            self._pending = _UNKNOWN if self._batch is None else batch_facts(self._batch)
            self._batch = None
            self._watch.updated()
        elif kind == "metric":
            self._metric = detail
        elif kind == "step":
            epoch, nbatch = detail
            self._finish(epoch, nbatch)
        elif kind in _STRUCTURE:
            if kind != "switch":
                self._bound = True
            self._emit(self._structure, StructureEvent(self._total.steps, kind, detail))
            self._watch.structure(kind, detail, self._next_step)
        elif kind == "release":
            self._watch.structure(kind, detail, self._next_step)
        elif kind == "epoch":
            self._finish_pending()
            self._end_epoch(detail)
            self._watch.keep_ledger()
        elif kind == "paused":
            if self._mark is not None:
                self._mark += detail
        elif kind == "begin":
            self._begin()
        elif kind == "end":
            self._read_metric()

    @property
    def _next_step(self) -> int:
        """The step that comes next; 0 while there was none: what is bound then serves all."""
        done = self._total.steps + (self._pending is not None)
        return done + 1 if done else 0

    def _begin(self) -> None:
        """A new ``fit``: nothing left of an earlier one counts into its first epoch."""
        self._finish_pending()
        self._mark, self._fresh, self._metric = None, True, None
        self._nbatch = 0
        self._epoch_total = Accumulator()

    def _finish_pending(self) -> None:
        if self._pending is not None:
            self._finish(self._epochs_done, self._nbatch)

    def _finish(self, epoch: int, nbatch: int) -> None:
        now = time.perf_counter()
        facts, self._pending = self._pending or _UNKNOWN, None
        seconds = now - (now if self._mark is None else self._mark)
        self._mark, self._nbatch = now, nbatch + 1
        step = StepEvent(
            self._total.steps + 1,
            epoch,
            nbatch,
            facts.bucket,
            facts.rows,
            facts.pad,
            facts.tokens,
            facts.slots,
            seconds,
            self._bound,
        )
        self._bound = self._fresh = False
        with self._lock:
            self._total.add(step)
            self._epoch_total.add(step)
            if facts.bucket not in self._buckets:
                self._buckets[facts.bucket] = Accumulator(facts.bucket)
            self._buckets[facts.bucket].add(step)
            self._steps.append(step)
            self._recent.append(step)
        if now >= self._metric_due:
            self._metric_due = now + self._metric_gap
            self._read_metric()

    def _end_epoch(self, epoch: int) -> None:
        values = self._read_metric()
        done, self._epoch_total = self._epoch_total, Accumulator()
        self._epochs_done += 1
        self._nbatch, self._mark, self._fresh = 0, None, True
        self._emit(
            self._epochs,
            EpochEvent(self._total.steps, epoch, done.steps, done.seconds, done.rows - done.pad, done.tokens, values),
        )

    def _read_metric(self) -> tuple[tuple[str, float], ...]:
        metric, last = self._metric, self._steps[-1] if self._steps else None
        if metric is None or last is None:
            return ()
        try:
            values = tuple((str(name), float(value)) for name, value in metric.get_name_value())
        except Exception as fault:
            self._faults.append(fault)
            return ()
        if not self._metrics or self._metrics[-1].step != last.step or self._metrics[-1].values != values:
            self._emit(self._metrics, MetricEvent(last.step, last.epoch, values))
        return values

    def _emit(self, kept: deque[Any], event: Event) -> None:
        with self._lock:
            kept.append(event)
