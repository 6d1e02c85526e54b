"""See inside bucketed, multi-context training on Apache MXNet 1.9.1: slices, shared arrays and memory."""

from bucketlab import data, models
from bucketlab._engine import mx
from bucketlab.executor_group import DataParallelExecutorGroup
from bucketlab.memory import Ledger, Snapshot, aliases, memory, same_memory, snapshot
from bucketlab.module.base import BaseModule
from bucketlab.module.bucketing import BucketingModule
from bucketlab.module.module import Module

__all__ = [
    "BaseModule",
    "BucketingModule",
    "DataParallelExecutorGroup",
    "Ledger",
    "Module",
    "Snapshot",
    "aliases",
    "data",
    "memory",
    "models",
    "mx",
    "same_memory",
    "snapshot",
]
