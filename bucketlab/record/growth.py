"""Reads what a watched module holds when its structure changes, and only then."""

from __future__ import annotations

import time
import weakref
from collections import deque
from collections.abc import Hashable, Iterator
from typing import Any
from weakref import WeakSet

from bucketlab.memory.ledger import Ledger, memory
from bucketlab.record.holdings import Reader
from bucketlab.record.timeline import Growth, Timeline, growth_of

__all__ = ["MemoryWatch"]


_SHARE = 0.02
"""Of the time that passes, what may go into whole ledgers."""


class MemoryWatch:
    """Follows one module. A step costs it a comparison; executors that are new cost a reading.

    It keeps no executor alive: what a module lets go of is gone.
    """

    def __init__(self, module: Any, history: int):
        self._module = module
        self._events: deque[Growth] = deque(maxlen=history)
        self._announced: WeakSet[Any] = WeakSet()
        self._used: WeakSet[Any] = WeakSet()
        self._met: set[Any] = set()
        self._last: weakref.ref[Any] | None = None
        self._waiting: tuple[str, Hashable, int] | None = None
        self._switches = 0
        self._reader = Reader()
        self._held = self._reader.read(module if getattr(module, "binded", False) else [])
        self._start = self._held.total
        self._ledger, self._ledger_due = memory([]), 0.0
        for executor, shapes in executors(module):
            self._announced.add(executor)
            self._met.add(shapes)

    @property
    def ledger(self) -> Ledger:
        """The whole ledger as it was read last: at the end of an epoch, or when the structure changed.

        A ledger takes longer than what events need, so it is not read at every one of them.
        """
        return self._ledger

    def keep_ledger(self) -> None:
        began = time.perf_counter()
        self._ledger = memory(self._module)
        now = time.perf_counter()
        self._ledger_due = now + (now - began) / _SHARE

    def timeline(self) -> Timeline:
        return Timeline(self._start, tuple(self._events), self._switches)

    def structure(self, kind: str, bucket: Hashable, step: int) -> None:
        """A bucket was bound, switched to, reshaped or released; ``step`` is the one that needs it."""
        if kind == "switch":
            self._switches += 1
        elif kind != "reshape":  # whether anything was bound for a reshape shows when its first batch comes
            for executor, shapes in executors(self._module, bucket):
                self._announced.add(executor)
                self._met.add((bucket, shapes))
            self._read(kind, bucket, step)

    def forward(self, bucket: Hashable, step: int) -> None:
        """A batch has been pushed to the engine, in this step."""
        if self._waiting is not None:
            self.updated()
        first, shapes = next(executors(self._module), (None, None))
        if first is None or (self._last is not None and self._last() is first):
            return
        self._last = weakref.ref(first)
        if first in self._used:
            return
        kind = "first use"
        if first not in self._announced:
            kind = "bound again" if (bucket, shapes) in self._met else "reshape"
        self._met.add((bucket, shapes))
        self._used.update(executor for executor, _ in executors(self._module))
        self._waiting = (kind, bucket, step)

    def updated(self) -> None:
        """The step has done all that allocates: what executors and optimizer took for it is there, or promised."""
        if self._waiting is not None:
            waiting, self._waiting = self._waiting, None
            self._read(*waiting)

    def _read(self, kind: str, bucket: Hashable, step: int) -> None:
        before, self._held = self._held, self._reader.read(self._module)
        event = growth_of(step, kind, bucket, before, self._held)
        if event.changes or kind != "first use":
            self._events.append(event)
        if time.perf_counter() >= self._ledger_due:
            self.keep_ledger()


def executors(module: Any, bucket: Hashable = None) -> Iterator[tuple[Any, Any]]:
    """The executors that run now, or those of a bucket, with what tells their shapes from others.

    Of a chain, all modules' one after another.
    """
    inner = (getattr(module, "_buckets", None) or {}).get(bucket) if bucket is not None else None
    if inner is None:
        inner = getattr(module, "_curr_module", None)
    if inner is not None:
        yield from executors(inner)
        return
    for part in getattr(module, "_modules", None) or ():
        yield from executors(part)
    group = getattr(module, "_exec_group", None)
    if group is None:
        return
    # Asked for as an attribute, executors that were let go of would be bound again.
    bound = vars(group).get("_bound")
    if bound is not None:
        yield from ((executor, bound.shapes.key) for executor in bound.execs)
    elif "execs" in vars(group):
        shapes = str((group.data_shapes, group.label_shapes))
        yield from ((executor, shapes) for executor in group.execs)
