"""Watching a module: its one observer slot shared by many, and mx.mod modules made to fill it too."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from bucketlab.errors import StopTraining

__all__ = ["Observer", "Observers", "attach", "attached"]

Observer = Callable[[str, Any, Any], None]


class Observers:
    """The callable that sits in a module's ``_observer`` slot and passes each event on to everyone attached.

    Everyone hears an event even when one of them raises :class:`StopTraining`; it is raised after the last.
    """

    def __init__(self, observers: tuple[Observer, ...], gates: tuple[Observer, ...] = ()):
        self.observers, self.gates = observers, gates

    def __call__(self, kind: str, module: Any, detail: Any) -> None:
        stop: StopTraining | None = None
        for observer in (*self.observers, *self.gates):
            try:
                observer(kind, module, detail)
            except StopTraining as raised:
                stop = raised
        if stop is not None:
            raise stop

    def without(self, observer: Observer) -> Observers:
        return Observers(
            tuple(kept for kept in self.observers if kept != observer),
            tuple(kept for kept in self.gates if kept != observer),
        )


def attached(module: Any) -> tuple[Observer, ...]:
    """Everyone who watches this module now."""
    slot = getattr(module, "_observer", None)
    if slot is None:
        return ()
    return (*slot.observers, *slot.gates) if isinstance(slot, Observers) else (slot,)


def attach(module: Any, observer: Observer, *, gate: bool = False) -> Callable[[], None]:
    """Let ``observer(kind, module, detail)`` hear a module's events; returns the function that ends it.

    One that may block or stop the run is a ``gate``: it hears each event after all the others.

    A module that has no observer slot (any ``mx.mod`` one) gets it for as long as someone watches, and its
    ``fit`` adds the callbacks that fill it. Raises TypeError for an object that cannot train.
    """
    if not callable(getattr(module, "fit", None)):
        raise TypeError(f"cannot watch {type(module).__name__}: it has no fit(); give a module of bucketlab or mx.mod")
    if not hasattr(module, "_observer"):
        module._observer = None
        _fill_slot_from_callbacks(module)
    slot = module._observer
    if not isinstance(slot, Observers):
        slot = Observers(() if slot is None else (slot,))
    module._observer = Observers(
        slot.observers if gate else (*slot.observers, observer),
        (*slot.gates, observer) if gate else slot.gates,
    )

    def detach() -> None:
        slot = getattr(module, "_observer", None)
        if not isinstance(slot, Observers):
            return
        left = slot.without(observer)
        module._observer = left
        if not attached(module):
            module._observer = None
            _restore(module)

    return detach


def _fill_slot_from_callbacks(module: Any) -> None:
    fit = module.fit
    signature = inspect.signature(fit)

    @functools.wraps(fit)
    def observed_fit(*args: Any, **kwargs: Any) -> Any:
        given = signature.bind(*args, **kwargs)
        events = _CallbackEvents(module)
        for name, callback in (
            ("batch_end_callback", events.batch_end),
            ("epoch_end_callback", events.epoch_end),
            ("eval_end_callback", events.clock),
        ):
            theirs = given.arguments.get(name)
            ours = [] if theirs is None else list(theirs) if isinstance(theirs, (list, tuple)) else [theirs]
            given.arguments[name] = [*ours, callback]
        events.clock()
        try:
            return fit(*given.args, **given.kwargs)
        except StopTraining:
            # mx.mod's fit resets the iterator only at the end of an epoch; without this the next fit would
            # begin where this one was stopped.
            given.arguments["train_data"].reset()
            return None

    observed_fit._bucketlab_wrapped = True  # type: ignore[attr-defined]
    module.fit = observed_fit


def _restore(module: Any) -> None:
    if getattr(module.__dict__.get("fit"), "_bucketlab_wrapped", False):
        del module.fit
        del module._observer


class _CallbackEvents:
    """Turns the callbacks of mx.mod's ``fit`` into the events that bucketlab's own modules send.

    They come after the fact, so the batch is told by "batch", and "clock" marks where the time of a step
    begins.
    """

    def __init__(self, module: Any):
        self._module = module
        self._buckets: set[Any] = set()
        self._current: tuple[Any, Any] | None = None

    def _send(self, kind: str, detail: Any) -> None:
        observer = getattr(self._module, "_observer", None)
        if observer is not None:
            observer(kind, self._module, detail)

    def batch_end(self, param: Any) -> None:
        batch = (param.locals or {}).get("data_batch")
        self._structure(batch)
        self._send("batch", batch)
        self._send("update", None)
        if param.eval_metric is not None:
            self._send("metric", param.eval_metric)
        self._send("step", (param.epoch, param.nbatch))

    def epoch_end(self, epoch: int, *_: Any) -> None:
        self._send("epoch", epoch)
        self.clock()

    def clock(self, *_: Any) -> None:
        self._send("clock", None)

    def _structure(self, batch: Any) -> None:
        buckets = getattr(self._module, "_buckets", None)
        bucket = getattr(batch, "bucket_key", None) if buckets is not None else None
        inner = buckets.get(bucket, self._module) if buckets is not None else self._module
        group = getattr(inner, "_exec_group", None)
        shapes = getattr(group, "data_shapes", None)
        for key in [None] if buckets is None else list(buckets):
            if key not in self._buckets:
                self._buckets.add(key)
                self._send("bind", key)
        if self._current is not None:
            if bucket != self._current[0]:
                self._send("switch", bucket)
            elif shapes != self._current[1]:
                self._send("reshape", bucket)
        self._current = (bucket, shapes)
