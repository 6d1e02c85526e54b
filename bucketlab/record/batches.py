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
    for shape, axis in _first_arrays(batch):
        if shape:
            rows += shape[axis]
            places += shape[0] * shape[1] if len(shape) > 1 else shape[0]
    pad = min(max(int(getattr(batch, "pad", None) or 0), 0), rows)
    tokens = getattr(batch, "valid_tokens", None)
    slots = getattr(batch, "slots", None)
    if tokens is not None:
        tokens = int(tokens)
        slots = int(slots) if slots is not None else places
    return BatchFacts(getattr(batch, "bucket_key", None), rows, pad, tokens, slots)


def _first_arrays(batch: Any) -> list[tuple[tuple[int, ...], int]]:
    """Shape and batch axis of the first data array, once per context when the batch comes already cut."""
    data = getattr(batch, "data", None)
    if not data:
        return []
    descriptions = getattr(batch, "provide_data", None) or [None]
    if isinstance(data[0], (list, tuple)):
        firsts = [
            (part[0], described[0] if described else None)
            for part, described in zip(data, _padded(descriptions, len(data)))
            if part
        ]
    else:
        firsts = [(data[0], descriptions[0])]
    return [(tuple(array.shape), _batch_axis(described)) for array, described in firsts]


def _padded(descriptions: Any, count: int) -> list[Any]:
    return [*descriptions, *[None] * (count - len(descriptions))]


def _batch_axis(description: Any) -> int:
    layout = getattr(description, "layout", None) or "N"
    axis: int = layout.find("N")
    return max(axis, 0)
