"""Every module that a program makes, recorded without its doing: for scripts that know nothing of this."""

from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

from bucketlab.memory.aliasing import AliasReport, aliases_of
from bucketlab.memory.ledger import Ledger, memory
from bucketlab.module import links
from bucketlab.module.base import BaseModule
from bucketlab.record.attach import attach
from bucketlab.record.current import bucket_slices, module_contexts
from bucketlab.record.events import MetricEvent
from bucketlab.record.recorder import Recorder
from bucketlab.record.summary import RunSummary
from bucketlab.record.timeline import Timeline
from bucketlab.slicing import SliceReport

__all__ = ["ModuleRun", "Watch"]

_PACKAGE = str(Path(__file__).parent.parent / "_")[:-1]


@dataclass(frozen=True)
class ModuleRun:
    """What became of one module: how it was bound and trained, how its batches lay, where its bytes were.

    ``gone`` tells that the program had let go of it by the end; slices and ledger are then the last read.
    """

    kind: str
    contexts: tuple[str, ...]
    gone: bool
    summary: RunSummary
    metrics: tuple[MetricEvent, ...]
    timeline: Timeline
    slices: tuple[SliceReport, ...]
    ledger: Ledger

    @property
    def aliases(self) -> AliasReport:
        """Which of its arrays were the same memory."""
        return aliases_of(self.ledger.snapshot)

    def to_dict(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "contexts": list(self.contexts),
            "gone": self.gone,
            "summary": self.summary.to_dict(),
            "timeline": self.timeline.to_dict(),
            "slices": [report.to_dict() for report in self.slices],
            "ledger": self.ledger.to_dict(),
        }


class Watch:
    """While it is active, records every module of bucketlab that is made.

    Modules inside others (the buckets of a BucketingModule, the links of a chain) are seen through those. A
    module that the program lets go of is held until the program makes another one: then its memory is read for
    the last time.

    >>> with Watch() as watch:
    ...     program()
    >>> watch.modules()
    """

    def __init__(self) -> None:
        self._watched: list[_Watched] = []
        self._init: Any = None

    def __enter__(self) -> Watch:
        original = self._init = BaseModule.__init__

        @functools.wraps(original)
        def noticed(module: Any, *args: Any, **kwargs: Any) -> None:
            original(module, *args, **kwargs)
            if not _made_by_a_module(module, sys._getframe(1)):
                for watched in self._watched:
                    watched.let_go()
                self._watched.append(_Watched(module, self._hide))

        BaseModule.__init__ = noticed  # type: ignore[assignment, method-assign]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        BaseModule.__init__ = self._init  # type: ignore[method-assign]

    def _hide(self, module: Any) -> None:
        for watched in self._watched:
            if watched.module() is module:
                watched.stop()
                self._watched.remove(watched)
                return

    def modules(self) -> tuple[ModuleRun, ...]:
        """What was recorded of each module that was bound, in the order of their making; it ends here."""
        for watched in list(self._watched):
            watched.look_inside()
        return tuple(watched.result() for watched in self._watched if watched.bound)


def _made_by_a_module(module: Any, frame: FrameType | None) -> bool:
    """Whether a module of ours makes this one for itself: what calls its constructor is such a method."""
    while frame is not None and frame.f_locals.get("self") is module:
        frame = frame.f_back
    if frame is None:
        return False
    return isinstance(frame.f_locals.get("self"), BaseModule) and frame.f_code.co_filename.startswith(_PACKAGE)


class _Watched:
    """One module. Its recorder goes by a weak reference, so that it is in no cycle and ends when let go of."""

    def __init__(self, module: Any, hide: Callable[[Any], None]):
        self.module = weakref.ref(module)
        self.bound = False
        self._held: Any = None
        self._hide = hide
        self._kind = type(module).__name__
        self._contexts: tuple[str, ...] = ()
        self._slices: tuple[SliceReport, ...] = ()
        self._ledger: Ledger = memory([])
        stand_in = weakref.proxy(module)
        self._recorder = Recorder(stand_in)
        self._detach = attach(stand_in, self._hear)

    def _hear(self, kind: str, module: Any, detail: Any) -> None:
        self._held = module
        if kind == "bind":
            self.bound = True
            self.look_inside()

    def look_inside(self) -> None:
        """What is inside this module is seen through it."""
        module = self.module()
        if module is not None and self.bound:
            for inner in links.within(module)[1:]:
                self._hide(inner)

    def let_go(self) -> None:
        """Read what there is of the module now, and hold it no longer."""
        module, self._held = self.module(), None
        if module is not None and module.binded:
            self._contexts = module_contexts(module)
            self._slices, self._ledger = bucket_slices(module), memory(module)

    def stop(self) -> None:
        """Record no longer."""
        self._held = None
        try:
            self._recorder.close()
            self._detach()
        except ReferenceError:
            # The module is gone, and its observers with it.
            pass

    def result(self) -> ModuleRun:
        """What there is to tell; the module is looked at for the last time."""
        self.let_go()
        self.stop()
        return ModuleRun(
            self._kind,
            self._contexts,
            self.module() is None,
            self._recorder.summary(),
            self._recorder.metrics,
            self._recorder.timeline(),
            self._slices,
            self._ledger,
        )
