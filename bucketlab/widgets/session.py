"""A module's training: watched, steered, in the background or in the foreground. No widgets in here."""

from __future__ import annotations

import atexit
import functools
import inspect
import signal
import threading
import time
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from bucketlab._engine import mx
from bucketlab.errors import StopTraining
from bucketlab.memory import Snapshot, counters, snapshot
from bucketlab.record import Recorder
from bucketlab.record.attach import attach, attached
from bucketlab.record.current import current_slices
from bucketlab.slicing import SliceReport
from bucketlab.widgets.control import ACTIVE, RunControl

__all__ = ["Look", "Session"]


class Look(NamedTuple):
    """What was seen at a step boundary: newest cut, arrays, the engine's counts; or what went wrong."""

    slices: SliceReport | None = None
    arrays: Snapshot | None = None
    counted: dict[str, int] | None = None
    structure: int = 0
    slices_fault: Exception | None = None
    arrays_fault: Exception | None = None


class Session:
    """One module with its recorder and its run control; all that look at the module share it, see :meth:`of`.

    While it is open, ``module.fit`` is steered too: in the main thread an interrupt means to stop at the
    next step boundary (a second one interrupts at once). ``look`` is read on the training thread,
    ``max_hz`` times a second at most and at pauses and ends; arrays only after something was bound or
    reshaped.
    """

    def __init__(self, module: Any, max_hz: float = 10.0):
        self.module = module
        self.look = Look()
        self._listeners: tuple[Callable[[], None], ...] = ()
        self.control = RunControl(self._tell)
        self.recorder = Recorder(module, metric_hz=max_hz)
        self._gap = 1.0 / max_hz
        self._due = 0.0
        self._stale = 1
        self._ran: set[Hashable] = set()
        self._steered = False
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        self.error: BaseException | None = None
        """What ended the last run, if it failed."""

        self._detach = attach(module, self._observe, gate=True)
        self._own_fit = module.fit
        self._steer_fit()

    @classmethod
    def of(cls, module: Any, max_hz: float = 10.0) -> Session:
        """The session that watches this module already, else a new one."""
        for observer in attached(module):
            owner = getattr(observer, "__self__", None)
            if isinstance(owner, cls):
                return owner
        return cls(module, max_hz)

    # Running

    def fit(self, *args: Any, paused: bool = False, seed: int | None = None, **kwargs: Any) -> None:
        """Run ``module.fit(*args, **kwargs)`` in a background thread and return at once.

        mxnet's random numbers belong to a thread: the new one is seeded with ``seed``, or else with a
        number drawn from the caller's, so that ``mx.random.seed`` before this call makes the run
        reproducible. Raises RuntimeError while a run goes on.
        """
        self.control.begin(paused)
        try:
            drawn = int(mx.nd.random.randint(0, 2**31 - 1, shape=(1,)).asscalar()) if seed is None else seed
            scope = _thread_scope(drawn)
            self._thread = threading.Thread(
                target=self._in_background, args=(scope, args, kwargs), name="bucketlab training", daemon=True
            )
            self._thread.start()
        except BaseException:
            self.control.end(failed=True)
            raise

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for the run to end and raise what it raised; False when ``timeout`` seconds pass first."""
        if threading.current_thread() is self._thread:
            raise RuntimeError("wait() was called by the training thread itself, which it would wait for")
        if not self.control.wait_while(ACTIVE, timeout):
            return False
        if self._thread is not None:
            self._thread.join()
        if self._error is not None:
            raise self._error
        return True

    def _in_background(self, scope: Any, args: Any, kwargs: Any) -> None:
        # A daemon thread still pushing to the engine while the interpreter goes down would crash it.
        atexit.register(self._leave)
        try:
            with scope():
                self._train(args, kwargs, self._hold_first)
        except BaseException as error:
            self._error = error
        finally:
            atexit.unregister(self._leave)

    def _leave(self) -> None:
        self.control.stop()
        self.control.wait_while(ACTIVE, 10.0)

    def _hold_first(self) -> None:
        self._sample(force=True)
        self._broadcast("paused", self.control.gate())

    def _steer_fit(self) -> None:
        @functools.wraps(self._own_fit)
        def steered_fit(*args: Any, **kwargs: Any) -> Any:
            if threading.current_thread() is self._thread and self.control.active:
                return self._own_fit(*args, **kwargs)
            self.control.begin()
            with _interrupts(self.control.interrupt):
                return self._train(args, kwargs)

        self._steered_fit = steered_fit
        self.module.fit = steered_fit

    def _train(self, args: Any, kwargs: Any, first: Callable[[], None] = lambda: None) -> Any:
        self.error = self._error = None
        self._steered, failed = True, True
        self._broadcast("begin", None)
        try:
            try:
                first()
                result = self._own_fit(*args, **kwargs)
            except StopTraining:
                result = None
            failed = False
            return result
        except BaseException as error:
            self.error = error
            raise
        finally:
            self._broadcast("end", None)
            self._sample(force=True)
            self._steered = False
            self.control.end(failed)
            self._close_when_idle()

    # Watching: on the training thread

    def _observe(self, kind: str, module: Any, detail: Any) -> None:
        if kind in ("bind", "reshape"):
            # Once more after the next step: a new bucket's optimizer state is made by its first update.
            self._stale = 2
        elif kind == "step":
            last = self.recorder.last_step
            if last is not None and last.bucket not in self._ran:
                # A bucket's outputs are made by its first run, which may come long after it was bound.
                self._ran.add(last.bucket)
                self._stale = max(self._stale, 1)
            self._sample()
            if self.control.pending:
                self._sample(force=True)
                held = self.control.gate()
                if held:
                    self._broadcast("paused", held)
        elif kind == "update" and not self._steered:
            # A loop written by hand has no step boundary; after the update is the next best.
            self._sample()

    def _broadcast(self, kind: str, detail: Any) -> None:
        observer = getattr(self.module, "_observer", None)
        if observer is not None:
            observer(kind, self.module, detail)

    def _sample(self, force: bool = False) -> None:
        now = time.perf_counter()
        if force or self._stale or now >= self._due:
            self._due = now + self._gap
            self.look = self._see()
        self._tell()

    def _see(self) -> Look:
        look = self.look
        last = self.recorder.last_step
        try:
            cut = current_slices(self.module, last.pad if last else 0)
            look = look._replace(slices=cut, slices_fault=None)
        except Exception as fault:
            look = look._replace(slices_fault=fault)
        if self._stale and getattr(self.module, "binded", True):
            self._stale -= 1
            seen = look.arrays.records if look.arrays else None
            try:
                look = look._replace(arrays=snapshot(self.module), counted=counters.read(), arrays_fault=None)
            except Exception as fault:
                look = look._replace(arrays_fault=fault)
            if look.arrays is None or look.arrays_fault or look.arrays.records != seen:
                look = look._replace(structure=look.structure + 1)
        return look

    # Telling

    def listen(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call ``listener()`` whenever something may have changed, on any thread; returns what ends it."""
        self._listeners = (*self._listeners, listener)

        def leave() -> None:
            self._listeners = tuple(kept for kept in self._listeners if kept != listener)
            if not self._listeners:
                self.control.run()
                self._close_when_idle()

        return leave

    def _close_when_idle(self) -> None:
        if not self._listeners and not self.control.active:
            self.close()

    def _tell(self) -> None:
        for listener in self._listeners:
            listener()

    def close(self) -> None:
        """Stop watching and give the module its own ``fit`` back."""
        if self.module.__dict__.get("fit") is self._steered_fit:
            if inspect.ismethod(self._own_fit):
                del self.module.fit
            else:
                self.module.fit = self._own_fit
        self._detach()
        self.recorder.close()


@contextmanager
def _interrupts(interrupt: Callable[[], None]) -> Iterator[None]:
    """In the main thread, let the first SIGINT call ``interrupt`` and a second one do what it did before."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGINT)
    if not callable(before):
        yield
        return
    asked = False

    def handler(number: int, frame: Any) -> None:
        nonlocal asked
        if asked:
            before(number, frame)
        asked = True
        interrupt()

    signal.signal(signal.SIGINT, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _thread_scope(seed: int) -> Callable[[], Any]:
    """What mxnet keeps per thread, as in this one: context and attributes; with fresh names and a seed."""
    context = mx.context.current_context()
    attributes = dict(mx.AttrScope._current.value._attr) if hasattr(mx.AttrScope._current, "value") else {}

    @contextmanager
    def scope() -> Iterator[None]:
        mx.random.seed(seed)
        with context, mx.AttrScope(**attributes), mx.name.NameManager():
            yield

    return scope
