"""A batch as a caller gives it, made to fit the executors that are bound: order of arrays, form, and shapes."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

from bucketlab._engine import mx
from bucketlab.errors import BucketError, ShapeError, SliceError
from bucketlab.feeding import check_array, check_batch, is_array
from bucketlab.module import cut
from bucketlab.module.cut import described
from bucketlab.shapes import BatchShapes, DataDesc, describe, is_per_context, parse
from bucketlab.slicing import row_counts

DataBatch = mx.io.DataBatch


def fitting(
    batch: Any, group: Any, data_names: Sequence[str], label_names: Sequence[str], labels_too: bool = False
) -> tuple[Any, BatchShapes | None]:
    """The batch in the order in which the executors are fed, and its shapes when they are not those that are bound.

    Labels of other shapes with data of the bound ones are refused, unless ``labels_too``: then they are other shapes.
    Raises ShapeError naming the array, what was given and what was expected.
    """
    if isinstance(batch, list):
        return cut.fitting_list(_parts_in_order(batch, group), group)
    check_batch(batch, data_names)
    group.moved_labels = None
    data, label = batch.data, getattr(batch, "label", None)
    if data and group.takes(batch):
        return batch, None
    if not data:
        raise ShapeError(f"the batch has no data arrays; expected {list(data_names)}")
    shapes = group._bound.shapes
    if label and (all(one is None for one in label) or _fills_a_place(label, shapes, group, label_names)):
        batch, label = _with(batch, data, None), None
    if cut.is_cut(data, "data"):
        return cut.fitting(batch, group, data_names, label_names, labels_too)
    _check_arrays("data", data, data_names)
    _check_arrays("label", label or (), label_names)
    if shapes.per_context:
        return batch, _flat_shapes(batch, data_names, label_names, None, group)
    if len(data) != len(shapes.data):
        raise ShapeError(
            f"the batch has {len(data)} data array(s) and the module takes {len(shapes.data)}: "
            f"{[desc.name for desc in shapes.data]}"
        )
    if shapes.label is None and label and group.for_training and set(label_names) & set(group.arg_names):
        # Bound without labels, and the network learns from some: it would learn from zeros.
        return batch, _flat_shapes(batch, data_names, label_names, shapes, group)
    batch = _in_order(batch, shapes)
    if label and batch.label is not label:
        group.moved_labels = label, batch.label
    as_bound = all(tuple(source.shape) == desc.shape for source, desc in zip(batch.data, shapes.data))
    if as_bound and (not labels_too or _labels_fit(batch, shapes)):
        _check_labels(batch, shapes)
        return batch, None
    return batch, _flat_shapes(batch, data_names, label_names, shapes, group)


def bucket_key(batch: Any) -> Hashable:
    """The bucket of a batch, or the one of all batches of a list. Raises BucketError where these differ."""
    if not isinstance(batch, list):
        key: Hashable = getattr(batch, "bucket_key", None)
        return key
    keys = [getattr(part, "bucket_key", None) for part in batch]
    if any(key != keys[0] for key in keys):
        raise BucketError(f"the batch is a list of batches of buckets {keys}; all of them need the same bucket_key")
    return keys[0] if keys else None


def announced_shapes(batch: Any, data_names: Sequence[str], label_names: Sequence[str]) -> tuple[Any, Any]:
    """Data and label shapes to bind for a batch: as it describes its arrays, with the shapes that they have.

    None where it describes none.
    """
    if isinstance(batch, list):
        sides = list(zip(*(announced_shapes(part, data_names, label_names) for part in batch)))
        return (list(sides[0]) if all(sides[0]) else None), (list(sides[1]) if any(sides[1]) else None)
    label = getattr(batch, "label", None)
    described = getattr(batch, "provide_label", None)
    if not described and label and len(label) == len(label_names):
        described = list(zip(label_names, [getattr(array, "shape", ()) for array in label]))
    return _sized(getattr(batch, "provide_data", None), getattr(batch, "data", None)), _sized(described, label)


def check_arrays(batch: Any, data_names: Sequence[str], label_names: Sequence[str]) -> None:
    """Refuse a batch for what can be told before anything is bound for it: its form, and how many arrays it has."""
    for part in batch if isinstance(batch, list) else [batch]:
        check_batch(part, data_names)
        label = list(getattr(part, "label", None) or ())
        _check_side("data", part.data, data_names)
        if label_names and any(one is not None for one in label):
            _check_side("label", label, label_names)


def _check_side(kind: str, arrays: Sequence[Any], names: Sequence[str]) -> None:
    for own in arrays if cut.is_cut(arrays, kind) else [arrays]:
        if own is None and kind == "label":
            continue
        if len(own or ()) != len(names):
            count = len(own or ())
            raise ShapeError(f"the batch has {count} {kind} array(s) and the module takes {len(names)}: {list(names)}")
        _check_arrays(kind, own, names)


def _sized(described: Any, arrays: Any) -> Any:
    """Descriptions with the shapes of the arrays; as they are where these do not tell."""
    if not described or not isinstance(arrays, (list, tuple)) or len(described) != len(arrays):
        return described
    if is_per_context(described):
        return [_sized(one, own) for one, own in zip(described, arrays)]
    if not all(map(is_array, arrays)):
        return described
    descs = [describe(entry) for entry in described]
    return [DataDesc(d.name, tuple(array.shape), d.dtype, d.layout) for d, array in zip(descs, arrays)]


def announced_rows(source: Any) -> list[tuple[Hashable, int]]:
    """(bucket, rows) of all sizes of batches that an iterator or a plan says it gives; empty when it does not say.

    Read are ``batch_rows`` (bucket to several numbers), else ``batch_sizes`` (bucket to number, or one for each of
    ``keys``).
    """
    several = getattr(source, "batch_rows", None)
    if isinstance(several, Mapping):
        return [(key, rows) for key, numbers in several.items() for rows in numbers]
    sizes, keys = getattr(source, "batch_sizes", None), getattr(source, "keys", None)
    if isinstance(sizes, Mapping):
        return list(sizes.items())
    if isinstance(sizes, (list, tuple)) and isinstance(keys, (list, tuple)):
        return list(zip(keys, sizes))
    return []


def check_announced(sources: Iterable[Any], workload: Sequence[float], split: str) -> None:
    """Refuse iterators and plans that have a batch which the contexts cannot share. Raises SliceError."""
    for source in sources:
        for bucket, rows in announced_rows(source):
            try:
                row_counts(rows, workload, split)
            except SliceError as error:
                raise SliceError(f"bucket {bucket!r}: {error}") from None


def _with(batch: Any, data: Any, label: Any) -> Any:
    """A batch with other lists of arrays, and all else of the one given."""
    made = DataBatch(
        data,
        label,
        pad=getattr(batch, "pad", None),
        index=getattr(batch, "index", None),
        bucket_key=getattr(batch, "bucket_key", None),
    )
    made.provide_data = getattr(batch, "provide_data", None)
    made.provide_label = getattr(batch, "provide_label", None) if label else None
    return made


def _fills_a_place(label: Sequence[Any], shapes: BatchShapes, group: Any, label_names: Sequence[str]) -> bool:
    """Whether labels are no arrays, such as ``[0]``, and the network has no use for any."""
    unused = shapes.label is None and not set(label_names) & set(group.arg_names)
    return unused and not any(is_array(one) or isinstance(one, (list, tuple)) for one in label)


def _check_arrays(kind: str, arrays: Sequence[Any], names: Sequence[str]) -> None:
    """Refuse what is no array of numbers."""
    for at, array in enumerate(arrays):
        if not is_array(array):
            check_array(repr(names[at]) if at < len(names) else f"{kind}[{at}]", array, ())


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
    moved = _with(
        batch,
        [data[i] for i in data_order] if data_order else data,
        [label[i] for i in label_order] if label_order and label else label,
    )
    moved.provide_data = _moved(getattr(batch, "provide_data", None), data_order)
    moved.provide_label = _moved(getattr(batch, "provide_label", None), label_order)
    return moved


def _parts_in_order(parts: list[Any], group: Any) -> list[Any]:
    """The batches of a list, one for each context, each in the bound order."""
    shapes, group.moved_labels = group._bound.shapes, None
    if shapes.per_context:
        shapes = BatchShapes(shapes.data[0], shapes.label[0] if shapes.label else None, False)
    moved = [_in_order(part, shapes) if getattr(part, "data", None) else part for part in parts]
    if all(one is part for one, part in zip(moved, parts)):
        return parts
    group.moved_labels = [getattr(part, "label", None) for part in parts], [part.label for part in moved]
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


def _labels_fit(batch: Any, shapes: BatchShapes) -> bool:
    given = [tuple(source.shape) for source in getattr(batch, "label", None) or ()]
    return not given or given == [desc.shape for desc in shapes.label or ()]


def _flat_shapes(
    batch: Any, data_names: Sequence[str], label_names: Sequence[str], bound: BatchShapes | None, group: Any
) -> BatchShapes:
    provided = getattr(batch, "provide_data", None)
    data = described(batch.data, provided, bound and bound.data, data_names, "data", group)
    label, provided = getattr(batch, "label", None), getattr(batch, "provide_label", None)
    # Labels without a name anywhere are for a metric alone.
    if label and (provided or label_names or (bound and bound.label)):
        labels = described(label, provided, bound and bound.label, label_names, "label", group)
        return parse(data_names, [desc.name for desc in labels], data, labels)
    return parse(data_names, [], data, None)
