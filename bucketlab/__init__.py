"""See inside bucketed, multi-context training on Apache MXNet 1.9.1: slices, shared arrays and memory."""

from bucketlab._engine import mx
from bucketlab.executor_group import DataParallelExecutorGroup

__all__ = ["DataParallelExecutorGroup", "mx"]
