"""See inside bucketed, multi-context training on Apache MXNet 1.9.1: slices, shared arrays and memory."""

# First of all: it repairs numpy, and where mxnet cannot be imported it says why before anything else fails.
from bucketlab._engine import mx  # isort: skip

from bucketlab import data, models
from bucketlab.executor_group import DataParallelExecutorGroup
from bucketlab.free import bind
from bucketlab.memory import Ledger, Snapshot, aliases, counters, memory, same_memory, snapshot
from bucketlab.memory.forecast import Forecast, forecast
from bucketlab.metrics import RealTokens
from bucketlab.module.base import BaseModule
from bucketlab.module.bucketing import BucketingModule
from bucketlab.module.module import Module
from bucketlab.module.mutable import MutableModule
from bucketlab.module.python import PythonLossModule, PythonModule
from bucketlab.module.sequential import SequentialModule
from bucketlab.module.svrg import SVRGModule
from bucketlab.patching import patch
from bucketlab.record import Recorder, Timeline, timeline
from bucketlab.record.report import save_report
from bucketlab.widgets import Lab, PlanExplorer

__all__ = [
    "BaseModule",
    "BucketingModule",
    "DataParallelExecutorGroup",
    "Forecast",
    "Lab",
    "Ledger",
    "Module",
    "MutableModule",
    "PlanExplorer",
    "PythonLossModule",
    "PythonModule",
    "RealTokens",
    "Recorder",
    "SVRGModule",
    "SequentialModule",
    "Snapshot",
    "Timeline",
    "aliases",
    "bind",
    "counters",
    "data",
    "forecast",
    "memory",
    "models",
    "mx",
    "patch",
    "same_memory",
    "save_report",
    "snapshot",
    "timeline",
]
