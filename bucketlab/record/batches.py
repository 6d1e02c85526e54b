"""What one batch tells of itself, read from its shapes alone: no array is copied, converted or waited for."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, NamedTuple

__all__ = ["BatchFacts", "batch_facts"]


class BatchFacts(NamedTuple):
    """Bucket, rows (filler included), filler rows, real tokens and places for tokens of a batch."""

    bucket: Hashable
    rows: int
    pad: int
    tokens: int | None
    slots: int | None


def batch_facts(batch: Any) -> BatchFacts:
    """Read a batch's facts. ``tokens`` and ``slots`` are None for a batch without ``valid_tokens``.

    Works for a flat batch (arrays with all rows) and for one cut by context (a list of arrays per context).
    """
    rows, places = 0, 0
    for shape, axis, first in _data_arrays(batch):
        if shape:
            rows += shape[axis] if first else 0
            places += shape[0] * shape[1] if len(shape) > 1 else shape[0]
    pad = min(max(int(getattr(batch, "pad", None) or 0), 0), rows)
    tokens = getattr(batch, "valid_tokens", None)
    slots = getattr(batch, "slots", None)
    if tokens is not None:
        tokens = int(tokens)
        slots = int(slots) if slots is not None else places
    return BatchFacts(getattr(batch, "bucket_key", None), rows, pad, tokens, slots)


def _data_arrays(batch: Any) -> list[tuple[tuple[int, ...], int, bool]]:
    """Shape and batch axis of every data array, and whether it is the first of its context."""
    data = getattr(batch, "data", None)
    if not data:
        return []
    described = getattr(batch, "provide_data", None)
    cut = isinstance(data[0], (list, tuple))
    found = []
    for context, arrays in enumerate(data if cut else [data]):
        names = described[context] if cut and described else described
        for i, array in enumerate(arrays):
            axis = _batch_axis(names[i]) if names and i < len(names) else 0
            found.append((tuple(array.shape), axis, i == 0))
    return found


def _batch_axis(description: Any) -> int:
    layout = getattr(description, "layout", None) or "N"
    axis: int = layout.find("N")
    return max(axis, 0)
