"""How a module's batches lie over its contexts now, for ours and for mx.mod's alike."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from bucketlab.slicing import ContextSlice, SliceReport

__all__ = ["bucket_slices", "current_slices", "module_contexts"]


def current_slices(module: Any, pad: int = 0) -> SliceReport | None:
    """The cut of the batch that ran last; None before anything is bound.

    ``pad`` says how many of its rows are filler, for a module that does not know it itself (any mx.mod one).
    """
    inner, bucket = _current(module)
    return None if inner is None else _report(inner, bucket, pad)


def bucket_slices(module: Any) -> tuple[SliceReport, ...]:
    """The cut of each bucket's newest batch, in the order in which the buckets were bound."""
    buckets = getattr(module, "_buckets", None)
    if buckets is None:
        report = current_slices(module)
        return () if report is None else (report,)
    reports = (_report(inner, key, 0) for key, inner in list(buckets.items()))
    return tuple(report for report in reports if report is not None)


def module_contexts(module: Any) -> tuple[str, ...]:
    """Names of the contexts that a module trains on, known before it is bound."""
    contexts = getattr(module, "_context", None)
    if contexts is None and getattr(module, "_modules", None):
        return module_contexts(module._modules[0])
    if contexts is None:
        return ()
    given = contexts if isinstance(contexts, (list, tuple)) else [contexts]
    return tuple(str(context) for context in given)


def _current(module: Any) -> tuple[Any, Hashable]:
    if hasattr(module, "_curr_module"):
        return module._curr_module, getattr(module, "_curr_bucket_key", None)
    if getattr(module, "_modules", None):
        return _current(module._modules[0])
    return module, None


def _report(inner: Any, bucket: Hashable, pad: int) -> SliceReport | None:
    group = getattr(inner, "_exec_group", None)
    if group is None:
        return None
    if hasattr(group, "slice_report"):
        report: SliceReport = group.slice_report(bucket)
        return report
    names = [d.name for d in (*group.data_shapes, *(group.label_shapes or ()))]
    rows = group.batch_size
    valid = rows - pad
    contexts = []
    for context, cut, executor in zip(group.contexts, group.slices, group.execs):
        shapes = tuple((name, executor.arg_dict[name].shape) for name in names if name in executor.arg_dict)
        real = min(max(valid - cut.start, 0), cut.stop - cut.start)
        contexts.append(ContextSlice(str(context), cut.start, cut.stop, real, shapes))
    return SliceReport(bucket, rows, pad, "mxnet", tuple(map(float, group.workload)), tuple(contexts))
