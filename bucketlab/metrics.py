"""Metrics that look at real tokens only, as throughput and gradients do."""

from __future__ import annotations

from typing import Any

import numpy as np

from bucketlab._engine import mx
from bucketlab.errors import ShapeError

__all__ = ["RealTokens"]


class RealTokens(mx.metric.EvalMetric):
    """Any metric of mxnet, shown only the positions whose label is not ``ignore_label``.

    Padding is easy to predict or impossible, so a metric that counts it says more about the buckets than about the
    model. ``metric`` is what ``mx.metric.create`` takes: a name, a metric, a function, a list of these. Labels may have
    any shape; predictions have a row for each of their places, as (places, classes) or as labels' shape and classes.
    Raises ShapeError for others.

    >>> module.fit(train, eval_metric=bl.RealTokens("acc"), num_epoch=3)
    """

    def __init__(self, metric: Any, ignore_label: float = 0):
        self._metric = metric if isinstance(metric, mx.metric.EvalMetric) else mx.metric.create(metric)
        self._ignore_label = ignore_label
        inner = self._metric
        super().__init__(inner.name, inner.output_names, inner.label_names, has_global_stats=inner._has_global_stats)

    def update(self, labels: Any, preds: Any) -> None:
        """Show the metric what is real of labels and predictions; nothing at all where nothing is."""
        if len(labels) != len(preds):
            raise ShapeError(f"{len(labels)} label(s) are given and {len(preds)} prediction(s); give one for each")
        pairs = [self._real(label, pred) for label, pred in zip(labels, preds)]
        if all(label.shape[0] for label, _ in pairs):
            self._metric.update([label for label, _ in pairs], [pred for _, pred in pairs])

    def _real(self, label: Any, pred: Any) -> tuple[Any, Any]:
        places = label.size
        if pred.shape[: label.ndim] == label.shape:
            rows = pred.reshape((places, *pred.shape[label.ndim :]))
        elif pred.shape[0] == places:
            rows = pred
        else:
            raise ShapeError(
                f"predictions have shape {pred.shape} and labels {label.shape}; expected {(places, '...')} or "
                f"{(*label.shape, '...')}"
            )
        values = label.asnumpy().reshape(-1)
        real = np.flatnonzero(values != self._ignore_label)
        if len(real) == places:
            return label.reshape((places,)), rows
        if not len(real):
            # mxnet has no arrays of length 0.
            return np.zeros(0), rows
        kept = mx.nd.array(real, ctx=pred.context, dtype="int64")
        return mx.nd.array(values[real], ctx=label.context, dtype=values.dtype), mx.nd.take(rows, kept)

    # What has been counted, and how it is told, is the metric's own.

    def reset(self) -> None:
        self._metric.reset()

    def reset_local(self) -> None:
        self._metric.reset_local()

    def get(self) -> Any:
        return self._metric.get()

    def get_global(self) -> Any:
        return self._metric.get_global()
