"""Private functions of mxnet.module that programs import by name: the same calls, on our parts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bucketlab.feeding import as_array
from bucketlab.rows import RowAxis
from bucketlab.shapes import check_names, describe, parse

__all__ = [
    "_check_names_match",
    "_load_data",
    "_load_general",
    "_load_label",
    "_merge_multi_context",
    "_parse_data_desc",
]


def _parse_data_desc(
    data_names: Sequence[str], label_names: Sequence[str], data_shapes: Any, label_shapes: Any
) -> tuple[Any, Any]:
    """Shapes as lists of DataDesc, or None without labels. Raises ShapeError for other names."""
    shapes = parse(data_names, label_names, data_shapes, label_shapes)
    return shapes.data_list, shapes.label_list


def _check_names_match(data_names: Sequence[str], data_shapes: Any, name: str, throw: bool) -> None:
    """Compare the names of ``data_shapes`` with ``data_names``; raise ShapeError or warn when they differ."""
    check_names(data_names, [describe(entry, f"{name}_shapes") for entry in data_shapes], name, throw)


def _load_general(data: Any, targets: Any, major_axis: Sequence[int]) -> None:
    """Copy each array of ``data`` to its target.

    A target is an array; or a list of arrays, for a source that comes cut; or a list of (rows, array), for a
    source that is cut along its ``major_axis`` (-1: each gets the whole).
    """
    for source, target, axis in zip(data, targets, major_axis):
        if not isinstance(target, (list, tuple)):
            as_array(source, target.dtype).copyto(target)
        elif isinstance(source, (list, tuple)):
            for piece, array in zip(source, target):
                as_array(piece, array.dtype).copyto(array)
        else:
            for rows, array in target:
                RowAxis(axis).cut(as_array(source, array.dtype), rows).copyto(array)


def _load_data(batch: Any, targets: Any, major_axis: Sequence[int]) -> None:
    """Copy the data of a batch, or of a batch for each context, to targets of (rows, array)."""
    _load(batch, "data", targets, major_axis)


def _load_label(batch: Any, targets: Any, major_axis: Sequence[int]) -> None:
    """Copy the labels of a batch, or of a batch for each context, to targets of (rows, array)."""
    _load(batch, "label", targets, major_axis)


def _load(batch: Any, kind: str, targets: Any, major_axis: Sequence[int]) -> None:
    if not isinstance(batch, list):
        _load_general(getattr(batch, kind), targets, major_axis)
        return
    sources = [list(arrays) for arrays in zip(*(getattr(part, kind) for part in batch))]
    _load_general(sources, [[array for _, array in target] for target in targets], major_axis)


def _merge_multi_context(outputs: Any, major_axis: Sequence[int]) -> list[Any]:
    """Each output's parts joined along its axis on the first part's context; -1: the first part."""
    return [RowAxis(axis).join(parts) for parts, axis in zip(outputs, major_axis)]
