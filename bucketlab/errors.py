"""The exceptions of bucketlab. Each is also the built-in kind that code written for mxnet expects."""

from __future__ import annotations

__all__ = [
    "BucketError",
    "BucketlabError",
    "BudgetError",
    "CheckpointError",
    "DataError",
    "DescriptionError",
    "EngineError",
    "NotReadyError",
    "ShapeError",
    "SliceError",
    "StaleError",
    "StopTraining",
    "last_line",
]


class BucketlabError(Exception):
    """Any refusal that comes from bucketlab itself."""


class EngineError(BucketlabError, ImportError):
    """mxnet cannot be imported here; says what stands in its way and what to do."""


class ShapeError(BucketlabError, ValueError):
    """A shape, name, dtype or layout that does not fit; names the array, what was given and what was expected."""


class DescriptionError(ShapeError, TypeError):
    """Something that is no description of an array where one belongs."""


class SliceError(BucketlabError, ValueError):
    """A batch or workload that cannot be cut over the contexts."""


class BucketError(BucketlabError, ValueError):
    """A bucket key that is missing, unknown or does not fit its batch."""


class NotReadyError(BucketlabError, RuntimeError):
    """A call that came before the one it needs; says which to call first."""


class StaleError(BucketlabError, RuntimeError):
    """Results that another bucket has overwritten since, or whose forward pass is gone."""


class StopTraining(BucketlabError):
    """Raised by an observer at a step boundary: ``fit`` ends there and leaves the module usable."""


class CheckpointError(BucketlabError, ValueError):
    """A file of parameters or symbols that is missing, cannot be written or holds something else."""


class DataError(BucketlabError, ValueError):
    """Sequences, bounds, corpora or iterator arguments that cannot be used as given."""


class BudgetError(DataError):
    """A budget or waste limit that no plan can keep; names the bucket and what it would need."""


def last_line(error: Exception) -> str:
    """The engine's own words without its stack: MXNet ends its messages with what went wrong."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    words = [line for line in lines if "Check failed" in line or "Error" in line] or lines or [type(error).__name__]
    return words[-1].split("Check failed:")[-1].strip()
