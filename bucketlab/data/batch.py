"""One batch, and what it knows of itself."""

from __future__ import annotations

from typing import Any

import numpy as np

from bucketlab._engine import mx
from bucketlab.data.keys import Key, key_text


def on_host(values: np.ndarray, dtype: str) -> Any:
    """An NDArray on the CPU; ``mx.nd.array`` spends five times as long on what it does beside the copy."""
    array = mx.nd.empty(values.shape, mx.cpu(), dtype)
    array._sync_copyfrom(np.ascontiguousarray(values, dtype))
    return array


class BucketBatch(mx.io.DataBatch):
    """A batch that knows which of its rows are real, and where each comes from.

    ``index[r]`` is the sequence in row ``r``. The last ``pad`` rows are filler: repeats whose labels are
    ignored. ``valid_rows`` and ``valid_tokens`` count what is real, ``valid_labels`` the labels that count;
    ``rows_per_context`` and ``valid_rows_per_context`` say how the contexts share them.
    """

    def __init__(
        self,
        data: list[Any],
        label: list[Any],
        *,
        bucket_key: Key,
        pad: int,
        index: np.ndarray,
        provide_data: list[Any],
        provide_label: list[Any],
        valid_tokens: int,
        valid_labels: int,
        rows_per_context: tuple[int, ...],
    ) -> None:
        super().__init__(data, label, pad, index, bucket_key, provide_data, provide_label)
        self.valid_rows = len(index) - pad
        self.valid_tokens = valid_tokens
        self.valid_labels = valid_labels
        self.rows_per_context = rows_per_context
        starts = np.cumsum((0, *rows_per_context[:-1]))
        self.valid_rows_per_context = tuple(
            int(min(max(self.valid_rows - start, 0), rows)) for start, rows in zip(starts, rows_per_context)
        )

    def __repr__(self) -> str:
        return (
            f"BucketBatch(bucket {key_text(self.bucket_key)}, {len(self.index)} rows, "
            f"{self.valid_rows} real with {self.valid_tokens} tokens)"
        )

    __str__ = __repr__
