"""Run, Pause, Step and Stop: flags that training looks at once a step, at the boundary between two steps."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from bucketlab.errors import StopTraining

__all__ = ["ACTIVE", "RunControl"]

ACTIVE = frozenset(("running", "pausing", "paused", "stepping", "stopping"))


class RunControl:
    """What a person asked of a run, and where the run is.

    ``state`` is one of: idle, running, pausing (asked, the step goes on), paused, stepping, stopping; then
    finished, stopped or failed. Any thread may call; only the one that trains calls :meth:`gate`.
    ``changed()`` is called after each change of state, on the thread that caused it.
    """

    def __init__(self, changed: Callable[[], None] = lambda: None):
        self._condition = threading.Condition()
        self._changed = changed
        self._hold = self._stop = self._interrupted = self._waiting = self._stopped = False
        self._credits = 0
        self._state = "idle"

    @property
    def state(self) -> str:
        return self._state

    @property
    def active(self) -> bool:
        return self._state in ACTIVE

    def begin(self, paused: bool = False) -> None:
        """A run starts, held before its first step if ``paused``. Raises RuntimeError while one goes on."""
        with self._condition:
            if self.active:
                raise RuntimeError(f"this module is training already ({self._state}); wait() for it or stop() it first")
            self._hold, self._credits = paused, 0
            self._stop = self._interrupted = self._waiting = self._stopped = False
            self._state = "pausing" if paused else "running"
        self._changed()

    def end(self, failed: bool = False) -> None:
        """The run is over: finished, stopped or failed."""
        with self._condition:
            self._state = "failed" if failed else "stopped" if self._stopped else "finished"
            self._condition.notify_all()
        self._changed()

    @property
    def pending(self) -> bool:
        """The next :meth:`gate` will hold or stop."""
        return self._hold or self._stop or self._interrupted

    # Asked by a person. Each returns whether it changed anything.

    def run(self) -> bool:
        """Go on from a pause."""
        return self._ask(lambda: self._hold, hold=False, credits=0)

    def pause(self) -> bool:
        """Hold at the end of the current step."""
        return self._ask(lambda: not self._hold, hold=True)

    def step(self, count: int = 1) -> bool:
        """From a pause, run ``count`` steps more and hold again; asked again before that, they add up."""
        if isinstance(count, bool) or not isinstance(count, int) or count < 1:
            raise ValueError(f"count is {count!r}; give how many steps to run, 1 or more")
        return self._ask(lambda: self._hold, credits=self._credits + count)

    def stop(self) -> bool:
        """End the run at the next step boundary."""
        return self._ask(lambda: True, stop=True)

    def interrupt(self) -> None:
        """Stop, asked by a signal handler: takes no lock, since its own thread may be holding it."""
        self._interrupted = True

    def _ask(
        self,
        applies: Callable[[], bool],
        *,
        hold: bool | None = None,
        credits: int | None = None,
        stop: bool = False,
    ) -> bool:
        with self._condition:
            if not self.active or self._stop or not applies():
                return False
            self._hold = self._hold if hold is None else hold
            self._credits = self._credits if credits is None else credits
            self._stop = stop
            self._settle()
            self._condition.notify_all()
        self._changed()
        return True

    def _settle(self) -> None:
        if self._stop:
            self._state = "stopping"
        elif not self._hold:
            self._state = "running"
        elif self._credits:
            self._state = "stepping"
        else:
            self._state = "paused" if self._waiting else "pausing"

    def gate(self) -> float:
        """Called between two steps: holds while paused and returns for how many seconds.

        Raises :class:`~bucketlab.errors.StopTraining` when a stop was asked for.
        """
        held = 0.0
        if self._hold and not self._stop:
            held = self._held()
        if self._stop or self._interrupted:
            self._stopped = True
            raise StopTraining("stopped at a step boundary")
        return held

    def _held(self) -> float:
        began = time.perf_counter()
        with self._condition:
            while self._hold and not self._stop and not self._interrupted and not self._credits:
                if not self._waiting:
                    self._waiting = True
                    self._settle()
                    self._condition.notify_all()
                    self._changed()
                # An interrupt sets its flag without a notification, so look again now and then.
                self._condition.wait(0.1)
            self._waiting = False
            self._credits = max(self._credits - 1, 0)
            if not self._stop:
                self._state = "stepping" if self._hold else "running"
        self._changed()
        return time.perf_counter() - began

    def wait_while(self, states: frozenset[str], timeout: float | None = None) -> bool:
        """Wait until the state is none of these; False when ``timeout`` seconds pass first."""
        with self._condition:
            return self._condition.wait_for(lambda: self._state not in states, timeout)
