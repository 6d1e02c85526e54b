"""A batch as a caller gives it, made to fit the executors that are bound: order of arrays, form, and shapes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bucketlab._engine import mx
from bucketlab.errors import ShapeError
from bucketlab.shapes import BOTH_FORMS, BatchShapes, DataDesc, describe, parse

DataBatch = mx.io.DataBatch


def fitting(
    batch: Any, group: Any, data_names: Sequence[str], label_names: Sequence[str]
) -> tuple[Any, BatchShapes | None]:
    """The batch in the order in which the executors are fed, and its shapes when they are not those that are bound.

    Raises ShapeError naming the array, what was given and what was expected.
    """
    if isinstance(batch, list):
        return _list_of_batches(batch, group)
    data = batch.data
    if data and group.takes(batch):
        return batch, None
    if data is None or len(data) == 0:
        raise ShapeError(f"the batch has no data arrays; expected {list(data_names)}")
    if isinstance(data[0], (list, tuple)):
        return batch, _per_context(batch, group, data_names, label_names)
    shapes = group._bound.shapes
    if shapes.per_context:
        return batch, _flat_shapes(batch, data_names, label_names, None)
    if len(data) != len(shapes.data):
        raise ShapeError(
            f"the batch has {len(data)} data array(s) and the module takes {len(shapes.data)}: "
            f"{[desc.name for desc in shapes.data]}"
        )
    batch = _in_order(batch, shapes)
    if all(tuple(source.shape) == desc.shape for source, desc in zip(batch.data, shapes.data)):
        _check_labels(batch, shapes)
        return batch, None
    return batch, _flat_shapes(batch, data_names, label_names, shapes)


def _names(provided: Any) -> list[str]:
    return [entry[0] for entry in provided]


def _in_order(batch: Any, shapes: BatchShapes) -> Any:
    """The batch with its arrays in the bound order, by the names it gives them itself."""
    data, label = batch.data, getattr(batch, "label", None)
    data_order = _order(getattr(batch, "provide_data", None), [d.name for d in shapes.data], "data", data)
    bound_labels = [d.name for d in shapes.label or ()]
    label_order = _order(getattr(batch, "provide_label", None), bound_labels, "label", label) if label else None
    if data_order is None and label_order is None:
        return batch
    moved = DataBatch(
        [data[i] for i in data_order] if data_order else data,
        [label[i] for i in label_order] if label_order and label else label,
        pad=getattr(batch, "pad", None),
        index=getattr(batch, "index", None),
        bucket_key=getattr(batch, "bucket_key", None),
    )
    moved.provide_data = _moved(getattr(batch, "provide_data", None), data_order)
    moved.provide_label = _moved(getattr(batch, "provide_label", None), label_order)
    return moved


def _moved(provided: Any, order: list[int] | None) -> Any:
    return [provided[i] for i in order] if provided and order else provided


def _order(provided: Any, expected: list[str], kind: str, arrays: Any) -> list[int] | None:
    """Positions of the expected names among those provided; None when they stand in order already."""
    if not provided or not expected:
        return None
    names = _names(provided)
    if names == expected:
        return None
    if sorted(names) != sorted(expected):
        if kind == "label":
            return None
        raise ShapeError(f"the batch names its {kind} arrays {names}; the module takes {expected}")
    if len(names) != len(arrays):
        raise ShapeError(f"the batch has {len(arrays)} {kind} array(s) and provide_{kind} names {names}")
    return [names.index(name) for name in expected]


def _check_labels(batch: Any, shapes: BatchShapes) -> None:
    """Labels alone never change what is bound, so they must be as bound when the data is."""
    label = getattr(batch, "label", None)
    if not label or shapes.label is None:
        return
    if len(label) != len(shapes.label):
        raise ShapeError(
            f"the batch has {len(label)} label array(s) and the module takes {len(shapes.label)}: "
            f"{[desc.name for desc in shapes.label]}"
        )
    for source, desc in zip(label, shapes.label):
        if tuple(source.shape) != desc.shape:
            raise ShapeError(
                f"label {desc.name!r} has shape {tuple(source.shape)}, expected {desc.shape} with data of shape "
                f"{[d.shape for d in shapes.data]}"
            )


def _described(arrays: Sequence[Any], provided: Any, bound: Any, names: Sequence[str], kind: str) -> list[Any]:
    """Descriptions with the arrays' own shapes; names, types and layouts from the batch, else as bound."""
    if provided and len(provided) == len(arrays):
        like = [describe(entry, f"provide_{kind}") for entry in provided]
    elif bound is not None and len(bound) == len(arrays):
        like = list(bound)
    elif len(names) == len(arrays):
        like = [DataDesc(name, array.shape) for name, array in zip(names, arrays)]
    else:
        raise ShapeError(f"the batch has {len(arrays)} {kind} array(s); expected {list(names)}")
    return [DataDesc(desc.name, tuple(array.shape), desc.dtype, desc.layout) for desc, array in zip(like, arrays)]


def _flat_shapes(
    batch: Any, data_names: Sequence[str], label_names: Sequence[str], bound: BatchShapes | None
) -> BatchShapes:
    data = _described(batch.data, getattr(batch, "provide_data", None), bound and bound.data, data_names, "data")
    label = getattr(batch, "label", None)
    if label:
        described = _described(
            label, getattr(batch, "provide_label", None), bound and bound.label, label_names, "label"
        )
        return parse(data_names, [desc.name for desc in described], data, described)
    return parse(data_names, [], data, None)


def _per_context(
    batch: Any, group: Any, data_names: Sequence[str], label_names: Sequence[str]
) -> BatchShapes | None:
    """Shapes of a batch that comes cut, a list of arrays for each context."""
    count, label = len(group.contexts), getattr(batch, "label", None)
    if len(batch.data) > count:
        raise ShapeError(f"the batch has data for {len(batch.data)} contexts and the module has {count}; {BOTH_FORMS}")
    shapes = group._bound.shapes
    bound_data = shapes.data if shapes.per_context else [shapes.data] * count
    bound_label = (shapes.label if shapes.per_context else [shapes.label] * count) if shapes.label else [None] * count
    provide_data = getattr(batch, "provide_data", None) or [None] * len(batch.data)
    provide_label = getattr(batch, "provide_label", None) or [None] * len(batch.data)

    def like(bound: Any, i: int) -> Any:
        return bound[i] if i < len(bound) else bound[0]

    data = [
        _described(arrays, provide_data[i], like(bound_data, i), data_names, "data")
        for i, arrays in enumerate(batch.data)
    ]
    labels = None
    if label and any(label):
        labels = [
            _described(arrays, provide_label[i], like(bound_label, i), label_names, "label") if arrays else None
            for i, arrays in enumerate(label)
        ]
    found = parse(data_names, label_names, data, labels, count)
    return None if found.key == shapes.key else found


def _list_of_batches(batches: list[Any], group: Any) -> tuple[list[Any], BatchShapes | None]:
    """A list of batches, one for each context."""
    if not batches:
        raise ShapeError("the batch is an empty list; give one batch for each context")
    if len(batches) > len(group.contexts):
        raise ShapeError(f"the batch is a list of {len(batches)} for {len(group.contexts)} context(s)")
    shapes = group._bound.shapes
    given = [[tuple(array.shape) for array in batch.data] for batch in batches]
    held = [
        [group.execs[i].arg_dict[name].shape for name in group.data_names] for i in group._bound.active
    ]
    if given == held:
        return batches, None
    data_bound = shapes.data[0] if shapes.per_context else shapes.data
    label_bound = (shapes.label[0] if shapes.per_context else shapes.label) if shapes.label else None
    data = [
        _described(batch.data, getattr(batch, "provide_data", None), data_bound, group.data_names, "data")
        for batch in batches
    ]
    labels = None
    if all(getattr(batch, "label", None) for batch in batches):
        labels = [
            _described(batch.label, getattr(batch, "provide_label", None), label_bound, group.label_names or [], "label")
            for batch in batches
        ]
    names = [desc.name for desc in labels[0]] if labels else []
    return batches, parse(group.data_names, names, data, labels, len(group.contexts))
