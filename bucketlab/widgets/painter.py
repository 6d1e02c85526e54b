"""Paints when something changed: at most so often, newest wins, and never misses the last change.

Painting shares its processor and Python's lock with the training that it shows, so it keeps to a share of the time.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

__all__ = ["Painter"]

_IDLE_SECONDS = 2.0
_SHARE = 0.03
"""Of the time that passes, what may go into painting, by the thread's processor time."""

_LONGEST_GAP = 1.0
"""Seconds between paints, however long one takes: a dashboard is to look alive."""


class Painter:
    """Calls ``paint()`` on a thread of its own after :meth:`touch`, at most ``max_hz`` times a second.

    Where that would take more than a thirtieth of the time it paints less often, but about once a second. However often
    it is touched, the last touch is followed by a paint. The thread exists only while there is work.
    """

    def __init__(self, paint: Callable[[], None], max_hz: float):
        if isinstance(max_hz, bool) or not max_hz > 0:
            raise ValueError(f"max_hz is {max_hz!r}; give a positive number of updates a second")
        self._paint = paint
        self._gap = 1.0 / max_hz
        self._condition = threading.Condition()
        self._touched = self._painting = self._hurry = self._closed = False
        self._thread: threading.Thread | None = None

    def touch(self) -> None:
        """Something changed. Cheap: the thread that trains calls it every step."""
        if self._touched:
            return
        with self._condition:
            if self._closed:
                return
            self._touched = True
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="bucketlab painter", daemon=True)
                self._thread.start()
            else:
                self._condition.notify_all()

    def _work(self) -> None:
        while True:
            with self._condition:
                woken = self._condition.wait_for(lambda: self._touched or self._closed, _IDLE_SECONDS)
                if self._closed or not woken:
                    self._thread = None
                    return
                self._touched, self._painting = False, True
            began, busy = time.perf_counter(), time.thread_time()
            try:
                self._paint()
            finally:
                with self._condition:
                    self._painting = False
                    self._condition.notify_all()
            taken = time.thread_time() - busy
            gap = max(self._gap, min(taken / _SHARE, _LONGEST_GAP))
            with self._condition:
                self._condition.wait_for(
                    lambda: self._closed or self._hurry, max(gap - (time.perf_counter() - began), 0.0)
                )

    def flush(self, timeout: float = 5.0) -> bool:
        """Wait until all that was touched is painted; False when that takes more than ``timeout`` seconds."""
        with self._condition:
            self._hurry = True
            self._condition.notify_all()
            try:
                return self._condition.wait_for(lambda: self._closed or not (self._touched or self._painting), timeout)
            finally:
                self._hurry = False

    def close(self) -> None:
        with self._condition:
            self._closed = True
            self._condition.notify_all()
