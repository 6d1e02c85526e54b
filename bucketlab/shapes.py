"""What a batch looks like: names, shapes, dtypes and layouts of its arrays, for all contexts alike or one by one.

Two forms are told apart by nesting. *Flat*: one list of descriptions, cut over the contexts along each array's batch
axis. *Per context*: a list with one such list for every context, and nothing is cut. An element whose first item is a
string is a description, so ``[("data", (8, 4))]`` is flat and ``[[("data", (8, 4))], [("data", (6, 4))]]`` is not.
"""

from __future__ import annotations

import operator
import warnings
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from bucketlab._engine import mx
from bucketlab.errors import DescriptionError, ShapeError

DataDesc = mx.io.DataDesc

BOTH_FORMS = (
    "give either one list for all contexts, [('data', (8, 4))], "
    "or one list for each context, [[('data', (8, 4))], [('data', (6, 4))]]"
)


def batch_axis(layout: str | None) -> int:
    """The axis that counts rows: where the layout has its N; 0 without a layout; -1 for a layout without N."""
    return 0 if layout is None else layout.find("N")


def describe(entry: Any, argument: str = "data_shapes") -> Any:
    """One entry as a DataDesc with plain integers. Raises ShapeError for anything that is no (name, shape)."""
    if isinstance(entry, DataDesc):
        desc = entry
    else:
        try:
            desc = DataDesc(*entry)
        except TypeError as error:
            raise DescriptionError(
                f"{argument} has the entry {entry!r}; expected (name, shape) or a DataDesc"
            ) from error
    if not isinstance(desc.name, str):
        raise DescriptionError(f"{argument} has an entry named {desc.name!r}; expected a string")
    try:
        shape = tuple(map(operator.index, desc.shape))
    except TypeError as error:
        raise DescriptionError(
            f"{argument}: {desc.name!r} has shape {desc.shape!r}; expected a tuple of integers"
        ) from error
    if any(size < 1 for size in shape):
        raise ShapeError(f"{argument}: {desc.name!r} has shape {shape}; every size must be at least 1")
    if isinstance(entry, DataDesc) and isinstance(entry.shape, tuple) and shape == entry.shape:
        return entry
    return DataDesc(desc.name, shape, desc.dtype, desc.layout)


def _is_description(entry: Any) -> bool:
    return isinstance(entry, DataDesc) or (
        isinstance(entry, (list, tuple)) and bool(entry) and isinstance(entry[0], str)
    )


def is_per_context(shapes: Any, argument: str = "data_shapes") -> bool:
    """Whether ``shapes`` has one list for every context. Raises ShapeError when it mixes both forms."""
    try:
        entries = list(shapes)
    except TypeError:
        raise DescriptionError(f"{argument} is {shapes!r}; {BOTH_FORMS}") from None
    flat = [_is_description(entry) for entry in entries]
    if any(flat):
        if not all(flat):
            raise ShapeError(f"{argument} mixes two forms: {entries!r}; {BOTH_FORMS}")
        return False
    nested = [isinstance(entry, (list, tuple)) for entry in entries if entry is not None]
    if entries and not all(nested):
        raise DescriptionError(f"{argument} is {entries!r}; {BOTH_FORMS}")
    return bool(entries)


def _named_once(descs: Sequence[Any], argument: str) -> None:
    names = [desc.name for desc in descs]
    if len(set(names)) < len(names):
        raise ShapeError(f"{argument} names an array twice: {names}")


@dataclass(frozen=True)
class BatchShapes:
    """The shapes of one batch. ``data`` and ``label`` hold DataDesc: one tuple, or one tuple for each context.

    ``label`` is None when the batch has no labels.
    """

    data: tuple[Any, ...]
    label: tuple[Any, ...] | None
    per_context: bool

    @cached_property
    def key(self) -> Hashable:
        """Equal for batches that the same executors can run."""

        def fact(desc: Any) -> Hashable:
            return desc.name, desc.shape, np.dtype(desc.dtype).str, desc.layout

        def facts(descs: Any) -> Hashable:
            if descs is None:
                return None
            if self.per_context:
                return tuple(tuple(map(fact, one)) for one in descs)
            return tuple(map(fact, descs))

        return self.per_context, facts(self.data), facts(self.label)

    @cached_property
    def rows(self) -> int | None:
        """Rows of the whole batch, in the flat form; None when no array has a batch axis.

        Raises ShapeError when the arrays disagree.
        """
        rows: int | None = None
        first: Any = None
        for argument, descs in (("data_shapes", self.data), ("label_shapes", self.label or ())):
            for desc in descs:
                axis = batch_axis(desc.layout)
                if axis < 0:
                    continue
                if axis >= len(desc.shape):
                    raise ShapeError(
                        f"{argument}: {desc.name!r} has shape {desc.shape} and layout {desc.layout!r}, "
                        f"whose batch axis {axis} it lacks"
                    )
                if rows is None:
                    rows, first = desc.shape[axis], desc
                elif desc.shape[axis] != rows:
                    raise ShapeError(
                        f"{argument}: {desc.name!r} has {desc.shape[axis]} rows (shape {desc.shape}, batch axis "
                        f"{axis}) where {first.name!r} has {rows}; all arrays of a batch need the same rows"
                    )
        return rows

    def context_rows(self, index: int) -> int | None:
        """Rows of one context, in the per-context form: those of its first data array that has a batch axis."""
        for desc in self.data[index]:
            axis = batch_axis(desc.layout)
            if 0 <= axis < len(desc.shape):
                return int(desc.shape[axis])
        return None

    @property
    def data_list(self) -> Any:
        """``data`` as mx.mod keeps it: a list, or a tuple of lists."""
        return tuple(map(list, self.data)) if self.per_context else list(self.data)

    @property
    def label_list(self) -> Any:
        if self.label is None:
            return None
        return tuple(map(list, self.label)) if self.per_context else list(self.label)

    def of_context(self, index: int, rows: int | None) -> tuple[list[Any], list[Any]]:
        """Data and label descriptions of one context, which takes ``rows`` rows of a flat batch."""
        if self.per_context:
            return list(self.data[index]), list(self.label[index]) if self.label is not None else []
        return [_resized(d, rows) for d in self.data], [_resized(d, rows) for d in self.label or ()]

    def in_words(self) -> str:
        """The shapes as an error message shows them."""
        return f"data_shapes={_plain(self.data)}, label_shapes={_plain(self.label)}"


def _plain(descs: Any) -> Any:
    if descs is None:
        return None
    return [(d.name, d.shape) if isinstance(d, DataDesc) else _plain(d) for d in descs]


def _resized(desc: Any, rows: int | None) -> Any:
    axis = batch_axis(desc.layout)
    if axis < 0 or rows is None:
        return desc
    shape = (*desc.shape[:axis], rows, *desc.shape[axis + 1 :])
    return DataDesc(desc.name, shape, desc.dtype, desc.layout)


def parse(
    data_names: Sequence[str],
    label_names: Sequence[str],
    data_shapes: Any,
    label_shapes: Any,
    contexts: int | None = None,
) -> BatchShapes:
    """Data and label shapes as given by a caller, checked against the names and the number of contexts.

    Data names must match; label names that differ are warned of, since not every module consumes its labels.
    Raises ShapeError.
    """
    if data_shapes is None:
        raise ShapeError(f"data_shapes is None; {BOTH_FORMS}")
    if label_shapes is not None and not isinstance(label_shapes, Iterable):
        raise DescriptionError(f"label_shapes is {label_shapes!r}; {BOTH_FORMS}")
    if label_shapes is not None and not list(label_shapes):
        label_shapes = None
    per_context = is_per_context(data_shapes)
    if label_shapes is not None:
        labels = list(label_shapes)
        if all(entry is None or (isinstance(entry, (list, tuple)) and not entry) for entry in labels):
            label_shapes = None
        elif is_per_context(labels, "label_shapes") != per_context:
            raise ShapeError(
                f"data_shapes is {_form(per_context)} and label_shapes is {_form(not per_context)}: {BOTH_FORMS}"
            )
    if not per_context:
        shapes = BatchShapes(
            _described(data_shapes, "data_shapes"),
            None if label_shapes is None else _described(label_shapes, "label_shapes"),
            False,
        )
        check_names(data_names, shapes.data, "data", True)
        check_names(label_names, shapes.label or (), "label", False)
        return shapes
    data = tuple(_described(one, f"data_shapes[{i}]") for i, one in enumerate(data_shapes))
    if contexts is not None and len(data) > contexts:
        raise ShapeError(f"data_shapes has lists for {len(data)} contexts, and there are {contexts}")
    for i, one in enumerate(data):
        check_names(data_names, one, "data", True, i)
    label = None
    if label_shapes is not None:
        label = tuple(
            () if one is None else _described(one, f"label_shapes[{i}]") for i, one in enumerate(label_shapes)
        )
        if len(label) != len(data):
            raise ShapeError(
                f"label_shapes has lists for {len(label)} contexts and data_shapes for {len(data)}; give one for each"
            )
        for i, one in enumerate(label):
            if one:
                check_names(label_names, one, "label", False, i)
    return BatchShapes(data, label, True)


def _form(per_context: bool) -> str:
    return "per context" if per_context else "one list for all contexts"


def _described(shapes: Any, argument: str) -> tuple[Any, ...]:
    descs = tuple(describe(entry, argument) for entry in shapes)
    _named_once(descs, argument)
    return descs


def check_names(
    expected: Sequence[str], descs: Sequence[Any], kind: str, refuse: bool, context: int | None = None
) -> None:
    """Compare the names of ``descs`` with those the module was made with; raise ShapeError or warn."""
    given = [desc.name for desc in descs]
    if sorted(given) == sorted(expected):
        return
    of = "" if context is None else f" for context {context}"
    text = f"{kind}_shapes names {given}{of}, and the module was made with {kind}_names={list(expected)}"
    if refuse:
        raise ShapeError(text)
    warnings.warn(text, stacklevel=4)
