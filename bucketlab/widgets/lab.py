"""The dashboard: slices, aliasing, memory and training of one module, live while it trains."""

from __future__ import annotations

import time
from os import PathLike
from typing import Any

import ipywidgets
from markupsafe import Markup

from bucketlab.memory import Snapshot
from bucketlab.memory.aliasing import aliases_of
from bucketlab.memory.ledger import ledger_of
from bucketlab.record import Recorder, RunSummary
from bucketlab.record.current import module_contexts
from bucketlab.record.report import save_report
from bucketlab.slicing import SliceReport
from bucketlab.views.html import aliases_html, ledger_html, slices_html
from bucketlab.views.training import curves_html, summary_html, tick_html
from bucketlab.widgets.painter import Painter
from bucketlab.widgets.panels import Controls, Panel
from bucketlab.widgets.session import Look, Session
from bucketlab.widgets.style import STYLE

__all__ = ["Lab"]

_TRAINING_SECONDS = 1.0
_TITLE = Markup('<p class="bl-lab-title"><b>{}</b> <span>{}</span></p>')
_FAULT = Markup(
    '<p class="bl-failed" role="alert">The recorder could not read something: <b>{}</b>: {}. The training goes on.</p>'
)


class Lab:
    """A live dashboard of a module of bucketlab or mx.mod; as the last expression of a cell it shows itself.

    :meth:`fit` trains in the background, where Run, Pause, Step and Stop work; ``module.fit`` in the
    foreground updates the same dashboard. It is painted at most ``max_hz`` times a second, and for at most
    3 % of the time; a view that fails says so in its place and the training goes on. Several Labs on one
    module show and steer the same run. Raises TypeError for an object that cannot train, ValueError for a
    rate that is not positive.

    >>> lab = bl.Lab(mod)
    >>> lab.fit(train, num_epoch=3)
    >>> lab.wait()
    """

    def __init__(self, module: Any, *, max_hz: float = 10.0):
        self._painter = Painter(self._paint, max_hz)
        self._session = Session.of(module, max_hz)
        self.module = module
        self._shown: Any = None
        self._training_due = 0.0
        self._controls = Controls(self._session.control)
        self._style = ipywidgets.HTML(STYLE)
        self._title = Panel("")
        self._tick = Panel("")
        self._notice = Panel("")
        self._slices = Panel("Slices: the current batch over the contexts", "No batch yet.")
        self._training = Panel("Training", "No step yet.")
        self._memory = Panel("Memory: bytes by context and role", "Nothing is bound yet.")
        self._aliases = Panel("Aliasing: which arrays are the same memory", "Nothing is bound yet.", scroll=True)
        columns = ipywidgets.HBox([_column(self._slices, self._aliases), _column(self._training, self._memory)])
        columns.add_class("bl-columns")
        self.widget = ipywidgets.VBox(
            [self._style, self._title.widget, self._controls.widget, self._tick.widget, self._notice.widget,
             columns]
        )  # fmt: skip
        self.widget.add_class("bl-lab")
        self._paint()
        self._leave = self._session.listen(self._painter.touch)

    # Training

    def fit(self, *args: Any, paused: bool = False, seed: int | None = None, **kwargs: Any) -> None:
        """Run ``module.fit(*args, **kwargs)`` in a background thread; returns at once.

        ``paused`` holds it before the first step. ``seed`` seeds mxnet's random numbers of that thread
        (they are its own); by default a number drawn from the caller's seeds them. An exception appears in
        the dashboard and is raised by :meth:`wait`. Raises RuntimeError while the module is training.
        """
        self._session.fit(*args, paused=paused, seed=seed, **kwargs)

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for the training to end and raise what it raised; False when ``timeout`` seconds pass first.

        An interrupt ends the waiting, not the training. While a cell waits, the kernel may be unable to
        hear buttons.
        """
        ended = self._session.wait(timeout)
        self._painter.flush()
        return ended

    def result(self, timeout: float | None = None) -> RunSummary:
        """The totals once the training has ended. Raises TimeoutError, or what the training raised."""
        if not self.wait(timeout):
            raise TimeoutError(f"the training goes on after {timeout} seconds ({self.state})")
        return self._session.recorder.summary()

    def run(self) -> bool:
        """Go on from a pause. This and the next three tell whether they changed anything; none waits."""
        return self._session.control.run()

    def pause(self) -> bool:
        """Hold the training at the end of the current step."""
        return self._session.control.pause()

    def step(self, count: int = 1) -> bool:
        """From a pause, train ``count`` steps and hold again."""
        return self._session.control.step(count)

    def stop(self) -> bool:
        """End the training at the end of the current step; the module stays usable, so ``fit`` again."""
        return self._session.control.stop()

    # What there is to see

    @property
    def state(self) -> str:
        """idle, running, pausing, paused, stepping, stopping, finished, stopped or failed."""
        return self._session.control.state

    @property
    def error(self) -> BaseException | None:
        """What ended the last run, if it failed."""
        return self._session.error

    @property
    def recorder(self) -> Recorder:
        return self._session.recorder

    @property
    def snapshot(self) -> Snapshot | None:
        """The arrays as last read at a step boundary; None before the first."""
        return self._session.look.arrays

    @property
    def slices(self) -> SliceReport | None:
        """The cut of the newest batch that the dashboard looked at."""
        return self._session.look.slices

    def save_html(self, path: str | PathLike[str]) -> None:
        """Write the same pictures as one file that opens offline."""
        save_report(path, self.module, self.recorder)

    def close(self) -> None:
        """Take the dashboard off the page and stop watching; a paused run goes on, unsteered."""
        self._leave()
        self._painter.close()
        _close(self.widget)

    # Showing it

    def _heading(self) -> tuple[str, str]:
        contexts = module_contexts(self.module)
        over = f"over {', '.join(contexts)}" if contexts else ""
        return type(self.module).__name__, over

    def __repr__(self) -> str:
        name, over = self._heading()
        lines = [f"Lab of {name} {over}: {self.state}".replace(" :", ":")]
        if self.error is not None:
            lines.append(f"{type(self.error).__name__}: {self.error}")
        look = self._session.look
        if look.slices is not None:
            lines += ["", repr(look.slices)]
        if look.arrays is not None:
            book = ledger_of(look.arrays)
            lines += ["", f"memory: {book.distinct:,} bytes, each counted once; {book.declared:,} declared; "
                          f"sharing saves {book.saved:,}"]  # fmt: skip
        if self.recorder.step_count:
            lines += ["", repr(self.recorder)]
        return "\n".join(lines)

    def _repr_mimebundle_(self, **kwargs: Any) -> Any:
        bundle = self.widget._repr_mimebundle_(**kwargs)
        data = bundle[0] if isinstance(bundle, tuple) else bundle
        data["text/plain"] = repr(self)
        return bundle

    # Painting: on the painter's thread

    def _paint(self) -> None:
        session = self._session
        state, look, recorder = session.control.state, session.look, session.recorder
        name, over = self._heading()
        self._title.show(lambda: _TITLE.format(name, over))
        self._controls.show(state, session.error)
        self._tick.show(lambda: self._figures(recorder))
        self._slices.show(lambda: _slices(look))
        if look.structure != self._shown:
            self._shown = look.structure
            if look.structure:
                self._memory.show(lambda: _memory(look))
                self._aliases.show(lambda: _aliases(look))
        self._paint_training(recorder, settled=state not in ("running", "stepping"))

    def _paint_training(self, recorder: Recorder, settled: bool) -> None:
        """Curve and table are large: once a second is enough, and at once where the run holds or ends."""
        now = time.monotonic()
        if recorder.step_count and (settled or now >= self._training_due):
            self._training_due = now + _TRAINING_SECONDS
            self._training.show(lambda: curves_html(recorder.metrics) + summary_html(recorder.summary()))
            self._notice.show(lambda: _faults(recorder))

    @staticmethod
    def _figures(recorder: Recorder) -> str:
        step = recorder.last_step
        if step is None:
            return '<p class="bl-tick"><span>step <b>0</b></span></p>'
        recent = recorder.recent()
        return tick_html(step, recent.metrics, recent)


def _column(*panels: Panel) -> ipywidgets.VBox:
    return ipywidgets.VBox([panel.widget for panel in panels])


def _slices(look: Look) -> str:
    if look.slices_fault is not None:
        raise look.slices_fault
    return '<p class="bl-empty">No batch yet.</p>' if look.slices is None else slices_html(look.slices)


def _memory(look: Look) -> str:
    if look.arrays_fault is not None:
        raise look.arrays_fault
    return "" if look.arrays is None else ledger_html(ledger_of(look.arrays, look.counted))


def _aliases(look: Look) -> str:
    if look.arrays_fault is not None:
        raise look.arrays_fault
    return "" if look.arrays is None else aliases_html(aliases_of(look.arrays))


def _faults(recorder: Recorder) -> str:
    if not recorder.faults:
        return ""
    fault = recorder.faults[-1]
    return _FAULT.format(type(fault).__name__, str(fault))


def _close(widget: ipywidgets.Widget) -> None:
    for child in getattr(widget, "children", ()):
        _close(child)
    widget.close()
