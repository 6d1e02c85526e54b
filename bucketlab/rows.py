"""Rows of arrays: which axis counts them, and cutting or joining along it.

A language model's output often has a row for every token: its first axis is rows times steps. Whether the steps of one
row lie together (batch-major) or the rows of one step do (time-major) follows from the layout of the data.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bucketlab._engine import mx
from bucketlab.errors import ShapeError


@dataclass(frozen=True)
class RowAxis:
    """Where an array has its rows: ``axis`` (-1: nowhere), ``steps`` entries for each row, and in which order."""

    axis: int = 0
    steps: int = 1
    time_major: bool = False

    def cut(self, array: Any, part: slice) -> Any:
        """The entries that belong to rows ``part``; the whole array when it has no rows."""
        if self.axis < 0:
            return array
        if self.steps > 1 and self.time_major:
            shape = array.shape
            rows = shape[self.axis] // self.steps
            split = (*shape[: self.axis], self.steps, rows, *shape[self.axis + 1 :])
            kept = mx.nd.slice_axis(array.reshape(split), axis=self.axis + 1, begin=part.start, end=part.stop)
            count = (part.stop - part.start) * self.steps
            return kept.reshape((*shape[: self.axis], count, *shape[self.axis + 1 :]))
        begin, end = part.start * self.steps, part.stop * self.steps
        if begin == 0 and end == array.shape[self.axis]:
            return array
        if self.axis == 0:
            return array[begin:end]
        return mx.nd.slice_axis(array, axis=self.axis, begin=begin, end=end)

    def join(self, parts: Sequence[Any]) -> Any:
        """One array of all rows, in order, on the context of the first part. One part is returned as it is."""
        if len(parts) == 1 or self.axis < 0:
            return parts[0]
        home = [part.as_in_context(parts[0].context) for part in parts]
        if self.steps > 1 and self.time_major:
            shape = parts[0].shape
            before, after = shape[: self.axis], shape[self.axis + 1 :]
            split = [part.reshape((*before, self.steps, -1, *after)) for part in home]
            return mx.nd.concat(*split, dim=self.axis + 1).reshape((*before, -1, *after))
        return mx.nd.concat(*home, dim=self.axis)


def row_axis_of_outputs(
    symbol: Any, shapes: dict[str, tuple[int, ...]], axes: dict[str, int], declared: Sequence[int]
) -> list[RowAxis]:
    """Where each output has its rows: the axis that grows when every input gets twice the rows.

    ``shapes`` are the inputs', ``axes`` their batch axes (-1: none). Where the symbol does not take another number of
    rows, the ``declared`` layouts are believed.
    """
    batch = [shapes[name][axis] for name, axis in axes.items() if axis >= 0]
    if not batch:
        return [RowAxis(axis) for axis in declared]
    rows, time_major = batch[0], any(axis > 0 for axis in axes.values())
    doubled = {
        name: tuple(2 * size if i == axes.get(name, -1) else size for i, size in enumerate(shape))
        for name, shape in shapes.items()
    }
    try:
        _, outputs, _ = symbol.infer_shape_partial(**shapes)
        _, grown, _ = symbol.infer_shape_partial(**doubled)
    except mx.base.MXNetError:
        return [RowAxis(axis) for axis in declared]
    found = []
    for output, larger, axis in zip(outputs, grown, declared):
        if len(output) != len(larger) or 0 in output or 0 in larger:
            found.append(RowAxis(axis))
            continue
        changed = [i for i, (size, other) in enumerate(zip(output, larger)) if size != other]
        if len(changed) != 1 or output[changed[0]] % rows:
            found.append(RowAxis(axis, 0) if not changed else RowAxis(axis))
            continue
        steps = output[changed[0]] // rows
        found.append(RowAxis(changed[0], steps, time_major and steps > 1))
    return found


def check_rows(array: Any, where: RowAxis, rows: int, name: str) -> None:
    """Refuse an array that does not have an entry for every row."""
    if where.axis < 0:
        return
    expected = rows * where.steps
    if where.axis >= len(array.shape) or array.shape[where.axis] != expected:
        raise ShapeError(f"{name} has shape {array.shape}; expected {expected} entries on axis {where.axis}")
