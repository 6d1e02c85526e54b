"""A stand-in for mx.rnn.BucketSentenceIter: the same arguments, without its faults."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from bucketlab.data.iterator import BucketIter
from bucketlab.errors import DataError


class BucketSentenceIter(BucketIter):
    """Takes what ``mx.rnn.BucketSentenceIter`` takes, in the same places.

    What differs: nothing is dropped unless ``buckets`` are given that do not hold it, and then a warning
    counts it; a bucket's last batch is filled and says so by ``pad`` (``last="drop"`` is the old way);
    without ``buckets`` there is one for each length of at least ``batch_size`` sentences, and one more for
    the longest sentence; the order comes from ``seed`` and can be left alone (``shuffle=False``), saved and
    restored; ``buckets`` is not sorted in place; ``index`` names the sentence of each row; padding enters
    the data as 0 when ``invalid_label`` is negative, where an embedding would have clipped it.
    """

    _ids_may_be_ignored = True

    def __init__(
        self,
        sentences: Any,
        batch_size: int,
        buckets: Sequence[int] | None = None,
        invalid_label: int = -1,
        data_name: str = "data",
        label_name: str = "softmax_label",
        dtype: str = "float32",
        layout: str = "NT",
        *,
        seed: int = 0,
        shuffle: bool = True,
        last: str = "fill",
        **more: Any,
    ) -> None:
        kept = list(sentences)
        given = [] if buckets is None else list(buckets)
        bounds = sorted(set(given)) if given else _frequent(kept, batch_size)
        super().__init__(
            kept,
            bounds,
            batch_size,
            seed=seed,
            shuffle=shuffle,
            last=last,
            layout=layout,
            data_name=data_name,
            label_name=label_name,
            ignore_label=invalid_label,
            pad_id=max(invalid_label, 0),
            dtype=dtype,
            label_dtype=more.pop("label_dtype", dtype),
            **more,
        )
        self.data_name = data_name
        self.invalid_label = invalid_label
        self.buckets = list(bounds)
        self.major_axis = layout.find("N")


def _frequent(sentences: Sequence[Any], batch_size: int) -> list[int]:
    if not sentences:
        raise DataError("sentences is empty; give at least one sentence of token ids")
    counts = np.bincount([len(s) for s in sentences])
    longest = len(counts) - 1
    if longest < 1:
        raise DataError(f"all {len(sentences)} sentences are empty; give at least one token id")
    return sorted({int(n) for n in np.flatnonzero(counts >= batch_size) if n} | {longest})
