"""Shapes of buckets that nobody has given, told from those of buckets that are known."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import numpy as np

from bucketlab.errors import BucketError, ShapeError
from bucketlab.memory.planned import Bucket
from bucketlab.shapes import DataDesc, batch_axis

__all__ = ["ShapeRule", "ShapesOf"]

ShapesOf = Callable[[Any, int], tuple[Any, Any]]


class ShapeRule:
    """Shapes of any bucket at any number of rows, told from those that are known.

    Rows stand on the batch axis of each layout. A size that equals the key (or one part of a pair) in all known
    buckets goes with the key. ``given(key, rows)`` says it instead.
    """

    def __init__(self, buckets: Sequence[Bucket], given: ShapesOf | None = None):
        self._known = {bucket.key: bucket.shapes for bucket in reversed(buckets)}
        self._given = given
        self._like: dict[Any, int | None] | None = None

    def shapes(self, key: Hashable, rows: int) -> tuple[Any, Any]:
        """(data_shapes, label_shapes). Raises BucketError where they cannot be told."""
        if isinstance(rows, bool) or rows < 1:
            raise ShapeError(f"bucket {key!r}: rows is {rows!r}; give a whole number of at least 1")
        if self._given is not None:
            data, label = self._given(key, rows)
            return data, label
        known = self._known.get(key)
        template = known if known is not None else next(iter(self._known.values()))
        if template.per_context:
            raise BucketError(
                f"bucket {key!r}: contexts have shapes of their own, which rows do not tell; give shapes_of(key, rows)"
            )
        lengths = None if known is not None else self._parts(key)
        data, label = (
            [self._resized(desc, rows, lengths) for desc in descs] for descs in (template.data, template.label or ())
        )
        return data, label or None

    def _resized(self, desc: Any, rows: int, lengths: tuple[int, ...] | None) -> Any:
        axis = batch_axis(desc.layout)
        shape = []
        for at, size in enumerate(desc.shape):
            part = None if lengths is None else self._rules()[desc.name, at]
            shape.append(rows if at == axis else size if part is None or lengths is None else lengths[part])
        return DataDesc(desc.name, tuple(shape), desc.dtype, desc.layout)

    def _parts(self, key: Hashable) -> tuple[int, ...]:
        kinds = {len(known) if isinstance(known, tuple) else 1 for known in self._known}
        parts = key if isinstance(key, tuple) else (key,)
        if kinds != {len(parts)} or not all(isinstance(part, (int, np.integer)) for part in parts):
            raise BucketError(
                f"bucket {key!r} is not among those forecast, {list(self._known)}, and its shapes do not follow from "
                f"theirs; give shapes_of(key, rows)"
            )
        return tuple(int(part) for part in parts)

    def _rules(self) -> dict[Any, int | None]:
        """For each (array, axis), the part of the key that its size is; None where it is always the same."""
        if self._like is None:
            self._like = {}
            sizes: dict[Any, list[tuple[int, tuple[Any, ...]]]] = {}
            for key, shapes in self._known.items():
                for desc in (*shapes.data, *(shapes.label or ())):
                    for at, size in enumerate(desc.shape):
                        parts = key if isinstance(key, tuple) else (key,)
                        sizes.setdefault((desc.name, at), []).append((size, parts))
            for where, seen in sizes.items():
                same = [j for j in range(len(seen[0][1])) if all(size == parts[j] for size, parts in seen)]
                constant = len({size for size, _ in seen}) == 1 and len(seen) > 1
                self._like[where] = same[0] if same and not constant else None
        return self._like
