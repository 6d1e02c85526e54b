"""What happened while a module trained: frozen events and the recorder that collects them."""

from bucketlab.record.events import EpochEvent, Event, MetricEvent, StepEvent, StructureEvent
from bucketlab.record.recorder import Recorder
from bucketlab.record.summary import BucketTotals, RunSummary
from bucketlab.record.timeline import Growth, Timeline, timeline

__all__ = [
    "BucketTotals",
    "EpochEvent",
    "Event",
    "Growth",
    "MetricEvent",
    "Recorder",
    "RunSummary",
    "StepEvent",
    "StructureEvent",
    "Timeline",
    "timeline",
]
