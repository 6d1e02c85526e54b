"""The main job, end to end: a bucketed language model on real sentences, and what there is to see of it."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from tqdm import tqdm

from bucketlab import data, models
from bucketlab._engine import mx
from bucketlab.memory import AliasReport, Ledger, aliases, memory
from bucketlab.module.bucketing import BucketingModule
from bucketlab.record.attach import attach
from bucketlab.record.report import save_report
from bucketlab.slicing import SliceReport
from bucketlab.widgets.session import Session

__all__ = ["DemoResult", "run_demo"]


@dataclass(frozen=True)
class DemoResult:
    """What a demo ended with. ``perplexities``: of the training sentences, one for each whole epoch."""

    steps: int
    perplexities: tuple[float, ...]
    stopped: bool
    slices: SliceReport
    sharing: AliasReport
    ledger: Ledger
    report: Path


def run_demo(
    report: str | os.PathLike[str] = "bucketlab-report.html",
    *,
    epochs: int = 12,
    seconds: float = 50.0,
    sentences: int | None = None,
    buckets: int = 6,
    rows: int = 32,
    hidden: int = 64,
    contexts: int = 2,
    seed: int = 0,
    progress: bool | None = None,
    say: Callable[[str], None] = partial(print, flush=True),  # noqa: B008
) -> DemoResult:
    """Train an LSTM on the JupyterLab sentences, then say how it ran and write ``report``, one offline page.

    Training ends after ``epochs``, or at the first step boundary after ``seconds`` or an interrupt (Ctrl-C).
    ``sentences`` takes the first so many; ``rows`` is the most of a batch; ``progress`` None shows the bar on
    a terminal only. Seeds mxnet's random numbers. Raises ValueError before it trains for what cannot work.

    >>> run_demo("report.html", epochs=2).perplexities  # doctest: +SKIP
    (300.4, 172.5)
    """
    page = _writable(report)
    for name, count in {"epochs": epochs, "contexts": contexts, "hidden": hidden}.items():
        if count < 1:
            raise ValueError(f"{name} is {count}; give 1 or more")
    if not seconds > 0:
        raise ValueError(f"seconds is {seconds}; give a positive number")
    devices = [mx.cpu(i) for i in range(contexts)]
    text: Any = data.corpus("jupyterlab-fr", min_count=2)
    if sentences is not None:
        text = text.take(range(min(sentences, len(text))))
    plan = data.plan_buckets(text.lengths, k=buckets, budget=data.Budget.rows(rows), contexts=devices)
    train = data.BucketIter(text, plan, seed=seed)
    say(f"{text}\n\n{plan}\n")
    mx.random.seed(seed)
    module = BucketingModule(
        models.lstm_lm(vocab=len(text.vocab), hidden=hidden, embed=hidden),
        default_bucket_key=train.default_bucket_key,
        context=devices,
    )
    told = _Telling(Session.of(module), len(train), epochs, seconds, progress, say)
    with told:
        module.fit(
            train,
            eval_metric=mx.metric.Perplexity(ignore_label=train.ignore_label),
            num_epoch=epochs,
            initializer=mx.init.Xavier(),
            optimizer="adam",
            optimizer_params={"learning_rate": 0.01},
        )
    result = told.result(module, page)
    say(f"\nSlices: how the last batch was cut\n{result.slices}")
    say(f"\nSharing: arrays with the same mN are the same memory\n{result.sharing}")
    say(f"\nMemory: every byte, by context and role\n{result.ledger}")
    if len(result.perplexities) > 1:
        first, last = result.perplexities[0], result.perplexities[-1]
        say(f"\nPerplexity {first:.1f} in the first epoch, {last:.1f} in epoch {len(result.perplexities)}")
    say(f"Report: {page} (one file, opens offline)")
    return result


def _writable(report: str | os.PathLike[str]) -> Path:
    """The report's path, if a file can be written there: known before a minute of training, not after."""
    page = Path(report)
    if page.is_dir():
        raise ValueError(f"report is {str(report)!r}, a folder; give the name of a file")
    if not os.access(page if page.exists() else page.parent, os.W_OK):
        raise ValueError(f"report is {str(report)!r}, which cannot be written; give another place")
    return page


class _Telling:
    """Shows a run on the terminal as it goes, and ends it when its time is up."""

    def __init__(
        self,
        session: Session,
        steps_an_epoch: int,
        epochs: int,
        seconds: float,
        progress: bool | None,
        say: Callable[[str], None],
    ):
        self._session, self._say = session, say
        self._steps_an_epoch, self._seconds = steps_an_epoch, seconds
        self._detach = attach(session.module, self._observe)
        # Listening keeps the session open from here to the end, whatever the run does.
        self._leave = session.listen(lambda: None)
        self._bar = tqdm(
            total=epochs * steps_an_epoch,
            unit="step",
            file=sys.stderr,
            disable=None if progress is None else not progress,
            dynamic_ncols=True,
            leave=False,
        )

    def __enter__(self) -> None:
        self._until = time.perf_counter() + self._seconds
        self._why = "stopped"

    def __exit__(self, *_: object) -> None:
        self._bar.close()
        self._detach()
        self._leave()

    def _observe(self, kind: str, module: Any, detail: Any) -> None:
        recorder = self._session.recorder
        if kind == "step":
            step, readings = recorder.last_step, recorder.metrics
            facts = [f"epoch {detail[0] + 1}", f"bucket {step.bucket if step else '-'}"]
            facts += [f"{name} {value:.1f}" for name, value in (readings[-1].values if readings else ())]
            self._bar.set_postfix_str(", ".join(facts), refresh=False)
            self._bar.update()
            if time.perf_counter() > self._until:
                self._why = f"the {self._seconds:g} seconds are up: stopped"
                self._session.control.stop()
        elif kind == "epoch":
            done = recorder.epochs[-1]
            self._line(detail, f"{done.steps} steps", done.values, done.seconds)

    def _line(self, epoch: int, steps: str, values: Any, seconds: float) -> None:
        metrics = "".join(f"   {name} {value:7.1f}" for name, value in values)
        with self._bar.external_write_mode(file=sys.stdout):
            self._say(f"epoch {epoch + 1}   {steps}{metrics}   {seconds:.1f} s")

    def result(self, module: Any, page: Path) -> DemoResult:
        recorder, look = self._session.recorder, self._session.look
        last, epochs = recorder.last_step, recorder.epochs
        stopped = self._session.control.state == "stopped"
        if last is None or look.slices is None:
            raise RuntimeError("the training was stopped before its first step: there is nothing to show")
        if len(epochs) <= last.epoch:
            partial = [step for step in recorder.steps if step.epoch == last.epoch]
            values = recorder.metrics[-1].values if recorder.metrics else ()
            of = f"{len(partial)} of {self._steps_an_epoch} steps"
            self._line(last.epoch, of, values, sum(step.seconds for step in partial))
        if stopped:
            self._say(f"{self._why} after step {recorder.step_count}; what follows is what there is so far")
        save_report(page, module, recorder, title="bucketlab: a bucketed language model")
        return DemoResult(
            recorder.step_count,
            tuple(dict(epoch.values)["perplexity"] for epoch in epochs),
            stopped,
            look.slices,
            aliases(module),
            memory(module),
            page,
        )
