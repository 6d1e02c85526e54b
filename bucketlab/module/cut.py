"""Batches that come cut already: for each context a list of arrays, or a batch of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from bucketlab._engine import mx
from bucketlab.errors import ShapeError
from bucketlab.feeding import check_array, is_array
from bucketlab.shapes import BOTH_FORMS, BatchShapes, DataDesc, describe, parse

DataBatch = mx.io.DataBatch


def is_cut(arrays: Any, kind: str) -> bool:
    """Whether there is a list of arrays for every context. Raises ShapeError when some entries are and some are not."""
    nested = [isinstance(entry, (list, tuple)) or entry is None for entry in arrays]
    if any(nested) and not all(nested):
        raise ShapeError(
            f"the batch's {kind} mixes two forms: {[_shape_or_list(entry) for entry in arrays]}; give one list of "
            f"arrays for all contexts, or a list with one list of arrays for each"
        )
    return bool(nested) and nested[0]


def _shape_or_list(entry: Any) -> Any:
    if entry is None:
        return None
    if isinstance(entry, (list, tuple)):
        return [_shape_or_list(one) for one in entry]
    return tuple(entry.shape) if hasattr(entry, "shape") else entry


def described(
    arrays: Sequence[Any], provided: Any, bound: Any, names: Sequence[str], kind: str, group: Any
) -> list[Any]:
    """Descriptions with the arrays' own shapes; names and layouts from the batch, else as bound.

    Types are those that the group has for these names: arrays of other types are converted when they are fed.
    """
    for at, array in enumerate(arrays):
        if not is_array(array):
            check_array(repr(names[at]) if at < len(names) else f"{kind}[{at}]", array, ())
    if provided and len(provided) == len(arrays):
        like = [describe(entry, f"provide_{kind}") for entry in provided]
    elif bound and len(bound) == len(arrays):
        like = list(bound)
    elif len(names) == len(arrays):
        like = [DataDesc(name, array.shape) for name, array in zip(names, arrays)]
    else:
        raise ShapeError(f"the batch has {len(arrays)} {kind} array(s); expected {list(names)}")
    found = [DataDesc(desc.name, tuple(array.shape), desc.dtype, desc.layout) for desc, array in zip(like, arrays)]
    return _typed(found, group)


def _typed(descs: Sequence[Any], group: Any) -> list[Any]:
    """Descriptions with the types that the group has for their names."""
    table = group.execs[0].arg_dict
    types = [np.dtype(table[desc.name].dtype).type if desc.name in table else desc.dtype for desc in descs]
    return [DataDesc(desc.name, desc.shape, dtype, desc.layout) for desc, dtype in zip(descs, types)]


def as_bound(shapes: BatchShapes, group: Any) -> BatchShapes:
    """Shapes with the types that are bound: arrays of other types are converted when they are fed."""

    def typed(side: Any) -> Any:
        if side is None:
            return None
        return tuple(tuple(_typed(one, group)) for one in side) if shapes.per_context else tuple(_typed(side, group))

    return BatchShapes(typed(shapes.data), typed(shapes.label), shapes.per_context)


def fitting(
    batch: Any, group: Any, data_names: Sequence[str], label_names: Sequence[str], labels_too: bool
) -> tuple[Any, BatchShapes | None]:
    """A batch with lists for each context, its arrays in the bound order, and its shapes when others are bound.

    Raises ShapeError naming the context and the array.
    """
    count, shapes = len(group.contexts), group._bound.shapes
    if len(batch.data) > count:
        raise ShapeError(f"the batch has data for {len(batch.data)} contexts and the module has {count}; {BOTH_FORMS}")
    data, descs = _side(batch.data, _provided(batch, "data"), shapes.data, group, data_names, "data")
    label = getattr(batch, "label", None)
    labels, label_descs = label, None
    named = bool(label_names or shapes.label or getattr(batch, "provide_label", None))
    if label and named and not all(entry is None or len(entry) == 0 for entry in label):
        if not is_cut(label, "label"):
            raise ShapeError(f"the batch has data for each context and one list of labels for all; {BOTH_FORMS}")
        if len(label) != len(batch.data):
            raise ShapeError(
                f"the batch has labels for {len(label)} context(s) and data for {len(batch.data)}; give one list for "
                f"each, or None for one without labels"
            )
        bound = shapes.label if shapes.label is not None else ()
        labels, label_descs = _side(label, _provided(batch, "label"), bound, group, label_names, "label")
    names = label_names if label_descs is None else [desc.name for one in label_descs for desc in one or ()]
    found = parse(data_names, list(dict.fromkeys(names)), descs, label_descs, count)
    if data is not batch.data or labels is not label:
        if labels is not None and labels is not label:
            group.moved_labels = label, labels
        batch = _moved(batch, data, labels)
    if not shapes.per_context or _facts(found.data) != _facts(shapes.data):
        return batch, found
    given, held = _facts(found.label or ()), _facts(shapes.label or ((),) * len(found.data))
    other = [i for i, (own, bound) in enumerate(zip(given, held)) if own and own != bound]
    if not other:
        return batch, None
    if labels_too or not all(held[i] for i in other):
        return batch, found
    i = other[0]
    raise ShapeError(
        f"context {i}: the batch has labels {given[i]} with the data that is bound, expected {held[i]}; call reshape() "
        f"when labels change their shapes and data does not"
    )


def _facts(descs: Any) -> list[list[tuple[str, tuple[int, ...]]]]:
    return [[(desc.name, desc.shape) for desc in one] for one in descs]


def _provided(batch: Any, kind: str) -> Any:
    provided = getattr(batch, f"provide_{kind}", None)
    if not provided:
        return None
    if any(
        one is not None and (not isinstance(one, (list, tuple)) or (one and isinstance(one[0], str)))
        for one in provided
    ):
        raise ShapeError(f"the batch has {kind} for each context and provide_{kind} is {provided!r}; {BOTH_FORMS}")
    return provided


def _side(
    arrays: Any, provided: Any, bound: Any, group: Any, names: Sequence[str], kind: str
) -> tuple[Any, list[Any]]:
    """Arrays of every context in one order, that of ``bound`` or ``names``, and their descriptions."""
    bounds = list(bound) if group._bound.shapes.per_context else [bound] * len(arrays)
    order = [desc.name for desc in next((one for one in bounds if one), ())] or list(names)
    kept: list[Any] = []
    descs: list[Any] = []
    moved = False
    for i, own in enumerate(arrays):
        if not own:
            if kind == "data":
                raise ShapeError(
                    f"the batch has no data for context {i}: its entry is {own!r}; a batch for fewer contexts "
                    f"leaves the last ones out"
                )
            kept.append(own)
            descs.append(None)
            continue
        like = bounds[i] if i < len(bounds) else bounds[0] if bounds else None
        try:
            described_here = provided[i] if provided and i < len(provided) else None
            found = described(own, described_here, like, names, kind, group)
        except ShapeError as error:
            raise ShapeError(f"context {i}: {error}") from error
        given = [desc.name for desc in found]
        if given != order and sorted(given) == sorted(order):
            at = [given.index(name) for name in order]
            own, found, moved = [own[k] for k in at], [found[k] for k in at], True
        kept.append(own)
        descs.append(found)
    return (kept if moved else arrays), descs


def _moved(batch: Any, data: Any, label: Any) -> Any:
    """The batch with other lists of arrays, whose order is the bound one now."""
    return DataBatch(
        data,
        label,
        pad=getattr(batch, "pad", None),
        index=getattr(batch, "index", None),
        bucket_key=getattr(batch, "bucket_key", None),
    )


def fitting_list(batches: list[Any], group: Any) -> tuple[list[Any], BatchShapes | None]:
    """A list of batches, one for each context, and their shapes when others are bound."""
    count, shapes = len(group.contexts), group._bound.shapes
    if not batches:
        raise ShapeError("the batch is an empty list; give one batch for each context")
    if len(batches) > count:
        raise ShapeError(f"the batch is a list of {len(batches)} for {count} context(s); give one batch for each")
    for i, batch in enumerate(batches):
        if not getattr(batch, "data", None):
            raise ShapeError(f"entry {i} of the list of batches has no data arrays; expected {group.data_names}")
    given = [[tuple(getattr(array, "shape", ())) for array in batch.data] for batch in batches]
    held = [[group.execs[i].arg_dict[name].shape for name in group.data_names] for i in group._bound.active]
    if given == held:
        return batches, None
    data_bound = shapes.data[0] if shapes.per_context else shapes.data
    label_bound = (shapes.label[0] if shapes.per_context else shapes.label) if shapes.label else None
    data, labels = [], []
    for i, batch in enumerate(batches):
        label = getattr(batch, "label", None)
        try:
            data.append(
                described(batch.data, getattr(batch, "provide_data", None), data_bound, group.data_names, "data", group)
            )
            labels.append(
                described(
                    label,
                    getattr(batch, "provide_label", None),
                    label_bound,
                    group.label_names or [],
                    "label",
                    group,
                )
                if label and (getattr(batch, "provide_label", None) or label_bound or group.label_names)
                else None
            )
        except ShapeError as error:
            raise ShapeError(f"context {i}: {error}") from error
    names = [desc.name for desc in next((one for one in labels if one), ())]
    return batches, parse(group.data_names, names, data, labels, count)
