"""Shapes of buckets before their first batch comes."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

from bucketlab.errors import BucketError
from bucketlab.shapes import DataDesc, batch_axis

BucketShapes = dict[Hashable, tuple[Any, Any]]


def shapes_of(plan: Any, default_key: Hashable, data: Sequence[Any], label: Sequence[Any] | None) -> BucketShapes:
    """(data_shapes, label_shapes) for every bucket of ``plan``, in the order to bind them in.

    ``plan``: a mapping of key to such a pair, an iterator that has ``shapes()``, or a BucketPlan with whole numbers as
    keys, whose buckets then look as the default one (``data``, ``label``) does with other rows and another length.
    """
    if isinstance(plan, Mapping):
        return dict(plan)
    if callable(getattr(plan, "shapes", None)):
        return dict(plan.shapes())
    if not hasattr(plan, "bind_order") or not hasattr(plan, "batch_sizes"):
        raise BucketError(
            f"prebind takes a mapping of key to (data_shapes, label_shapes), an iterator with shapes() such as "
            f"BucketIter, "
            f"or a BucketPlan; given {type(plan).__name__}"
        )
    if not all(isinstance(key, int) for key in (default_key, *plan.keys)):
        raise BucketError(
            f"the plan's keys are {list(plan.keys)}: from a plan alone only lengths can be bound; give the iterator "
            f"instead"
        )
    rows = dict(zip(plan.keys, plan.batch_sizes))
    like = {key: ([_resized(d, rows[key], default_key, key) for d in data],
                  [_resized(d, rows[key], default_key, key) for d in label or ()] or None)
            for key in plan.bind_order}  # fmt: skip
    return like


def _resized(desc: Any, rows: int, length: Any, new_length: Any) -> Any:
    """A description with other rows on its batch axis, and the new length wherever the default length stands."""
    axis = batch_axis(desc.layout)
    shape = tuple(rows if at == axis else new_length if size == length else size for at, size in enumerate(desc.shape))
    return DataDesc(desc.name, shape, desc.dtype, desc.layout)
