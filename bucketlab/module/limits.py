"""The largest shapes that a MutableModule takes: from what was given, and compared with what comes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from bucketlab.errors import ShapeError
from bucketlab.shapes import BOTH_FORMS, BatchShapes, DataDesc, batch_axis, describe, is_per_context
from bucketlab.slicing import slices_of

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Limits:
    """Maxima by name as they were given (for all contexts, or for each), and the whole maximum once it is known."""

    given_shapes: tuple[Mapping[str, Shape], ...]
    nested: bool
    known: BatchShapes | None = None

    @classmethod
    def given(cls, data: Any, label: Any, names: Sequence[str], contexts: int) -> Limits:
        """Limits from max_data_shapes and max_label_shapes. Raises ShapeError for what cannot be one."""
        sides = [
            _by_context(shapes, argument, names, contexts)
            for argument, shapes in (("max_data_shapes", data), ("max_label_shapes", label))
            if shapes
        ]
        nested = any(len(side) > 1 for side in sides)
        count = contexts if nested else 1
        tables = [{name: shape for side in sides for name, shape in side[i % len(side)].items()} for i in range(count)]
        return cls(tuple(tables), nested)

    @property
    def maximum(self) -> BatchShapes:
        assert self.known is not None
        return self.known

    def for_shapes(self, shapes: BatchShapes) -> Limits:
        """The whole maximum for batches of this form.

        An array without one may be as large as it is in ``shapes`` (on any context), and have as many rows as the
        maximum has, if it has the batch's rows now.
        """
        if self.nested and not shapes.per_context:
            raise ShapeError(
                f"max_data_shapes or max_label_shapes has one list for each context, and data_shapes one for all; "
                f"{BOTH_FORMS}"
            )
        largest: dict[str, Shape] = {}
        for desc in _all(shapes):
            largest[desc.name] = _largest([desc.shape, largest.get(desc.name, desc.shape)])
        tables = [self.given_shapes[i if self.nested else 0] for i in range(len(shapes.data))]
        rows = [_rows(shapes, i, table) for i, table in enumerate(tables)]

        def most(i: int, desc: Any) -> Any:
            if desc.name in tables[i]:
                return _sized(desc, tables[i][desc.name])
            axis, (now, then) = batch_axis(desc.layout), rows[i]
            shape = largest[desc.name]
            if 0 <= axis < len(shape) and then is not None and desc.shape[axis] == now:
                shape = (*shape[:axis], max(then, shape[axis]), *shape[axis + 1 :])
            return _sized(desc, shape)

        return replace(self, known=_mapped(shapes, most))

    def above(self, shapes: BatchShapes, workload: Sequence[float]) -> list[str]:
        """What of ``shapes`` is larger than the maximum, in words."""
        found = []
        for where, given, limits in self._compared(shapes, workload):
            for desc in given:
                limit = limits.get(desc.name)
                if limit is None:
                    continue
                if len(limit) != len(desc.shape):
                    raise ShapeError(
                        f"{desc.name!r}{where} has shape {desc.shape} and the maximum {limit}; give as many axes"
                    )
                if all(size <= most for size, most in zip(desc.shape, limit)):
                    continue
                found.append(f"{desc.name!r}{where} has shape {desc.shape}, above the maximum {limit}")
        return found

    def _compared(
        self, shapes: BatchShapes, workload: Sequence[float]
    ) -> list[tuple[str, list[Any], dict[str, Shape]]]:
        """(where, descriptions, limits by name): of the whole batch, or context by context where a form is nested."""
        most = self.maximum
        if not shapes.per_context and not most.per_context:
            return [("", [*shapes.data, *(shapes.label or ())], _table([*most.data, *(most.label or ())]))]
        count = len(shapes.data) if shapes.per_context else len(workload)
        given, limits = _parts(shapes, workload, count), _parts(most, workload, len(workload))
        return [(f" for context {i}", given[i], _table(limits[min(i, len(limits) - 1)])) for i in range(count)]

    def raised(self, shapes: BatchShapes) -> Limits:
        """Limits that take these shapes as well; labels that the batch lacks follow its rows.

        Raises ShapeError for a batch in the other form.
        """
        most = self.maximum
        if shapes.per_context != most.per_context:
            raise ShapeError(
                f"the batch does not have the form of the maximum, which can only grow in its own; {BOTH_FORMS}"
            )
        sizes: dict[tuple[int, str], Shape] = {}
        for side in (shapes.data, shapes.label or ()):
            for i, one in enumerate(side if shapes.per_context else [side]):
                sizes.update({(i, desc.name): desc.shape for desc in one})

        rows = [self._raised_rows(i, sizes) for i in range(len(most.data) if most.per_context else 1)]

        def raised(i: int, desc: Any) -> Any:
            shape, axis = _largest([desc.shape, sizes.get((i, desc.name), desc.shape)]), batch_axis(desc.layout)
            before, after = rows[i]
            if (i, desc.name) not in sizes and 0 <= axis < len(shape) and shape[axis] == before is not None:
                shape = (*shape[:axis], max(before, after), *shape[axis + 1 :])
            return _sized(desc, shape)

        return replace(self, known=_mapped(most, raised))

    def _raised_rows(self, i: int, sizes: Mapping[tuple[int, str], Shape]) -> tuple[Any, Any]:
        """Rows of a context's (or the flat batch's) maximum, and of its batch: of the first array that has any."""
        most = self.maximum
        for desc in most.data[i] if most.per_context else most.data:
            axis, shape = batch_axis(desc.layout), sizes.get((i, desc.name))
            if shape is not None and 0 <= axis < len(shape) == len(desc.shape):
                return desc.shape[axis], shape[axis]
        return None, None


def _by_context(shapes: Any, argument: str, names: Sequence[str], contexts: int) -> list[dict[str, Shape]]:
    nested = is_per_context(shapes, argument)
    if nested and len(shapes) != contexts:
        raise ShapeError(
            f"{argument} has lists for {len(shapes)} context(s) and there are {contexts}; give one for each"
        )
    tables = []
    for one in shapes if nested else [shapes]:
        table = {desc.name: desc.shape for desc in (describe(entry, argument) for entry in one or ())}
        unknown = [name for name in table if name not in names]
        if unknown:
            raise ShapeError(f"{argument} names {unknown}; the module's data and labels are {list(names)}")
        tables.append(table)
    return tables


def _all(shapes: BatchShapes) -> list[Any]:
    """Every description, context by context."""
    sides = [*shapes.data, *(shapes.label or ())]
    return [desc for one in sides for desc in one] if shapes.per_context else sides


def _rows(shapes: BatchShapes, i: int, table: Mapping[str, Shape]) -> tuple[int | None, int | None]:
    """Rows of a context (or of the whole flat batch) now, and in the maximum: of the first array that has one."""
    for desc in shapes.data[i] if shapes.per_context else shapes.data:
        axis = batch_axis(desc.layout)
        if desc.name in table and 0 <= axis < len(desc.shape) == len(table[desc.name]):
            return desc.shape[axis], table[desc.name][axis]
    return None, None


def _parts(shapes: BatchShapes, workload: Sequence[float], count: int) -> list[list[Any]]:
    """Descriptions of each context; of a flat batch, of its slices."""
    if shapes.per_context:
        sides = [shapes.of_context(i, None) for i in range(len(shapes.data))]
    elif shapes.rows is None:
        sides = [shapes.of_context(i, None) for i in range(count)]
    else:
        slices = slices_of(shapes.rows, workload)
        sides = [shapes.of_context(i, part.stop - part.start) for i, part in enumerate(slices)]
    return [[*data, *label] for data, label in sides]


def _table(descs: Sequence[Any]) -> dict[str, Shape]:
    return {desc.name: desc.shape for desc in descs}


def _mapped(shapes: BatchShapes, change: Callable[[int, Any], Any]) -> BatchShapes:
    """The same descriptions, each changed by ``change(context, description)``; context 0 where there is one list."""

    def side(descs: Any) -> Any:
        if descs is None:
            return None
        if shapes.per_context:
            return tuple(tuple(change(i, desc) for desc in one) for i, one in enumerate(descs))
        return tuple(change(0, desc) for desc in descs)

    return BatchShapes(side(shapes.data), side(shapes.label), shapes.per_context)


def _sized(desc: Any, shape: Shape) -> Any:
    if len(shape) != len(desc.shape):
        raise ShapeError(f"{desc.name!r} has shape {desc.shape} and the maximum {shape}; give as many axes")
    return DataDesc(desc.name, tuple(shape), desc.dtype, desc.layout)


def _largest(shapes: Sequence[Shape]) -> Shape:
    """The largest size on every axis."""
    if len({len(shape) for shape in shapes}) > 1:
        raise ShapeError(f"an array has shapes {list(shapes)}, of different numbers of axes")
    return tuple(max(sizes) for sizes in zip(*shapes))
