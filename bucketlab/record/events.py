"""What a recorder remembers of a run: small frozen events, each stamped with the step it belongs to."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import asdict, dataclass
from typing import Any, Union

__all__ = ["EpochEvent", "Event", "MetricEvent", "StepEvent", "StructureEvent"]


@dataclass(frozen=True)
class StructureEvent:
    """A bucket was bound, switched to or given other shapes: ``kind`` is "bind", "switch" or "reshape"."""

    step: int
    kind: str
    bucket: Hashable

    def to_dict(self) -> dict[str, Any]:
        return {"event": self.kind, "step": self.step, "bucket": self.bucket}


@dataclass(frozen=True)
class StepEvent:
    """One training step.

    ``step`` counts from 1 over the recorder's life, ``nbatch`` from 0 within the epoch. ``rows`` includes the
    ``pad`` filler rows. ``tokens`` are real, ``slots`` are all places of the batch; both None where a batch
    does not say. ``seconds`` is wall time between two step boundaries, less the time paused; ``bound``
    tells that binding took a part of it.
    """

    step: int
    epoch: int
    nbatch: int
    bucket: Hashable
    rows: int
    pad: int
    tokens: int | None
    slots: int | None
    seconds: float
    bound: bool

    @property
    def valid_rows(self) -> int:
        return self.rows - self.pad

    def to_dict(self) -> dict[str, Any]:
        return {"event": "step", **asdict(self)}


@dataclass(frozen=True)
class MetricEvent:
    """What the run's own metric said after ``step``: its running value within the epoch."""

    step: int
    epoch: int
    values: tuple[tuple[str, float], ...]

    def to_dict(self) -> dict[str, Any]:
        return {"event": "metric", "step": self.step, "epoch": self.epoch, "values": dict(self.values)}


@dataclass(frozen=True)
class EpochEvent:
    """An epoch that ran to its end: steps, seconds (less pauses), real rows and tokens, last metrics."""

    step: int
    epoch: int
    steps: int
    seconds: float
    rows: int
    tokens: int | None
    values: tuple[tuple[str, float], ...]

    def to_dict(self) -> dict[str, Any]:
        return {"event": "epoch", **asdict(self), "values": dict(self.values)}


Event = Union[StructureEvent, StepEvent, MetricEvent, EpochEvent]
