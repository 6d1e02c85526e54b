"""Executors bound to one set of shapes over the contexts, and the prepared calls that run them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from operator import is_
from typing import Any

import numpy as np

from bucketlab._calls import BackwardCall, ForwardCall, Program
from bucketlab._engine import mx
from bucketlab.errors import ShapeError
from bucketlab.feeding import InputFeed
from bucketlab.rows import RowAxis, row_axis_of_outputs
from bucketlab.shapes import BatchShapes, batch_axis


class BoundShapes:
    """``execs[i]`` runs context ``i``; contexts that are not ``active`` have no rows in this batch and rest.

    ``slices`` are rows of the batch for each context, None where every context has shapes of its own.
    """

    def __init__(
        self,
        symbol: Any,
        shapes: BatchShapes,
        slices: Sequence[slice] | None,
        execs: Sequence[Any],
        active: Sequence[int],
        declared_layouts: Sequence[int],
    ):
        self.symbol = symbol
        self.shapes = shapes
        self.slices = None if slices is None else list(slices)
        self.execs = list(execs)
        self.active = tuple(active)
        self.rests = len(self.active) < len(self.execs)
        """Whether some context has no rows."""
        self._declared = tuple(declared_layouts)
        self._programs: dict[tuple[bool, bool], Program] = {}
        self.flat = not shapes.per_context
        self.labelled = bool(shapes.label)
        self._data = [desc.name for desc in shapes.data] if self.flat else []
        self._label = [desc.name for desc in shapes.label or ()] if self.flat else []
        descs = (*shapes.data, *(shapes.label or ())) if self.flat else ()
        self.array_shapes = tuple(desc.shape for desc in descs)
        self.kinds = tuple((desc.name, desc.layout, np.dtype(desc.dtype)) for desc in descs)
        self._named: tuple[Any, Any] = (None, None)
        # The arrays that the ready calls read when they run next; None once they did, so that nothing is held on to.
        self._aimed: Any = None

    def takes(self, batch: Any) -> bool:
        """Whether a batch can be fed as it is: flat, with arrays of the bound shapes, in the bound order.

        This is looked at for every batch, so it reads as little as it can, and aims the ready calls on the way.
        """
        data, label = getattr(batch, "data", None), getattr(batch, "label", None)
        if type(data) is not list or not (label is None or type(label) is list):
            return self._fits(batch, data, label)
        feeds = self._all_feeds if label else self.data_feeds
        sources = [*data, *label] if label else [*data]
        if not data or len(data) != len(self._data) or len(sources) != len(feeds):
            return False
        for feed, source in zip(feeds, sources):
            if not feed.aim(source):
                return feed.takes(source) and self._fits(batch, data, label)
        if not self._in_order(batch, label):
            return False
        self._aimed = sources
        return True

    def _fits(self, batch: Any, data: Any, label: Any) -> bool:
        """The same for a batch whose arrays are to be copied piece by piece."""
        if not isinstance(data, (list, tuple)) or not (label is None or isinstance(label, (list, tuple))):
            return False
        feeds = self._all_feeds if label else self.data_feeds
        sources = [*data, *(label or ())]
        if not data or len(data) != len(self._data) or len(sources) != len(feeds):
            return False
        return all(feed.takes(source) for feed, source in zip(feeds, sources)) and self._in_order(batch, label)

    def _in_order(self, batch: Any, label: Any) -> bool:
        """Whether the names that the batch gives its arrays, if any, are those that are bound."""
        data_names, label_names = getattr(batch, "provide_data", None), getattr(batch, "provide_label", None)
        if data_names is self._named[0] and label_names is self._named[1]:
            return True
        for names, given in ((self._data, data_names), (self._label if label else [], label_names)):
            if given and [entry[0] for entry in given] != names:
                return False
        # Held, not only compared by identity: another list must not come to lie where this one was.
        self._named = (data_names, label_names)
        return True

    def describes(self, batch: Any) -> bool:
        """Whether what a batch says of its arrays, but for their shapes, is what is bound here."""
        provided = (*(getattr(batch, "provide_data", None) or ()), *(getattr(batch, "provide_label", None) or ()))
        return all(
            getattr(entry, "layout", layout) == layout and np.dtype(getattr(entry, "dtype", dtype)) == dtype
            for entry, (_, layout, dtype) in zip(provided, self.kinds)
        )

    @cached_property
    def data_feeds(self) -> tuple[InputFeed, ...]:
        return self._feeds(self.shapes.data) if self.flat else ()

    @cached_property
    def label_feeds(self) -> tuple[InputFeed, ...]:
        return self._feeds(self.shapes.label or ()) if self.flat else ()

    @cached_property
    def _all_feeds(self) -> tuple[InputFeed, ...]:
        return self.data_feeds + self.label_feeds

    def _feeds(self, descs: Sequence[Any]) -> tuple[InputFeed, ...]:
        """Flat form only: a feed for each description, without targets where the symbol does not take the array."""
        feeds = []
        for desc in descs:
            axis = batch_axis(desc.layout)
            targets = []
            for i in self.active:
                array = self.execs[i].arg_dict.get(desc.name)
                if array is not None:
                    cut = self.slices if axis >= 0 and len(self.active) > 1 else None
                    targets.append((cut[i] if cut is not None else None, array))
            feeds.append(InputFeed(desc.name, desc.shape, axis, targets))
        return tuple(feeds)

    def feed_and_forward(self, data: Sequence[Any], label: Sequence[Any] | None, is_train: bool) -> None:
        """Copy a flat batch in and run every active context, as one program where all its arrays allow it."""
        feeds = self.data_feeds if label is None else self._all_feeds
        sources = data if label is None else [*data, *label]
        aimed, self._aimed = self._aimed, None
        ready = aimed is not None and len(aimed) == len(sources) and all(map(is_, aimed, sources))
        if not ready:
            self._check_count("data", data, self._data)
            if label is not None:
                self._check_count("label", label, self._label)
            ready = all(feed.aim(source) for feed, source in zip(feeds, sources))
            for feed, source in zip(feeds, sources):
                if not ready and not feed.takes(source):
                    feed.refuse(source)
        if ready:
            key = (label is not None, is_train)
            program = self._programs.get(key)
            if program is None:
                calls = [call for feed in feeds for call in feed.calls]
                program = self._programs[key] = Program([*calls, *self._forward_calls(is_train)])
            try:
                program.run()
                return
            except mx.base.MXNetError:
                # Direct calls take no array of another type; copying piece by piece converts, or says what is wrong.
                pass
        for feed, source in zip(feeds, sources):
            feed.copy(source)
        self.forward(is_train)

    def _check_count(self, kind: str, given: Sequence[Any], names: Sequence[str]) -> None:
        if len(given) != len(names):
            raise ShapeError(f"the batch has {len(given)} {kind} array(s); expected {len(names)}: {list(names)}")

    def forward(self, is_train: bool) -> None:
        """Run every active context on what its arrays hold."""
        Program(self._forward_calls(is_train)).run()

    def _forward_calls(self, is_train: bool) -> list[ForwardCall]:
        return [ForwardCall(self.execs[i], is_train) for i in self.active]

    @cached_property
    def backward_program(self) -> Program:
        return Program([BackwardCall(self.execs[i]) for i in self.active])

    @cached_property
    def parts(self) -> Sequence[slice] | None:
        """Rows of the whole batch that each context has, one after another; None where nothing counts rows."""
        if self.flat:
            return self.slices
        counts = [self.shapes.context_rows(i) for i in range(len(self.shapes.data))]
        begin, parts = 0, []
        for count in [*counts, *[0] * (len(self.execs) - len(counts))]:
            if count is None:
                return None
            parts.append(slice(begin, begin + count))
            begin += count
        return parts

    @cached_property
    def row_axes(self) -> list[RowAxis]:
        """Where each output has its rows, on the first context: in the flat form, on all of them."""
        return self._row_axes_of(0)

    @cached_property
    def context_row_axes(self) -> list[list[RowAxis]]:
        """The same for each active context: where every one has shapes of its own, entries for a row may differ."""
        return [self.row_axes if self.flat or i == 0 else self._row_axes_of(i) for i in self.active]

    def _row_axes_of(self, index: int) -> list[RowAxis]:
        names = set(self.symbol.list_arguments())
        data, label = self.shapes.of_context(index, self._rows_of(index))
        descs = [desc for desc in (*data, *label) if desc.name in names]
        return row_axis_of_outputs(
            self.symbol,
            {desc.name: desc.shape for desc in descs},
            {desc.name: batch_axis(desc.layout) for desc in descs},
            self._declared,
        )

    def _rows_of(self, index: int) -> int | None:
        if self.slices is None:
            return None
        part = self.slices[index]
        return max(1, part.stop - part.start)

    @cached_property
    def context_outputs(self) -> list[list[Any]]:
        """``[output][active context]``: the engine's own arrays, which the next forward pass overwrites."""
        count = len(self._declared)
        return [[self.execs[i].outputs[k] for i in self.active] for k in range(count)]

    @cached_property
    def named_outputs(self) -> list[OrderedDict[str, Any]]:
        """The same by context and name, as metrics take them."""
        names = self.symbol.list_outputs()
        return [OrderedDict(zip(names, self.execs[i].outputs)) for i in self.active]


class BoundTable:
    """The executors that a group has, by the key of their shapes, the least lately used ones first.

    What a group shows of them is kept here and not on them, where it would lead back to them: executors are big, and
    are to go when they are let go of, not when the garbage collector comes by.
    """

    def __init__(self) -> None:
        self._by_key: dict[Any, BoundShapes] = {}
        # By the shapes of a flat batch's arrays, and all else that is known of them.
        self._by_arrays: dict[Any, BoundShapes] = {}
        self._shown: dict[BoundShapes, dict[str, Any]] = {}

    def __iter__(self) -> Iterator[Any]:
        return iter(self._by_key)

    def __len__(self) -> int:
        return len(self._by_key)

    def get(self, key: Any) -> BoundShapes | None:
        return self._by_key.get(key)

    def of_arrays(self, shapes: Any, kinds: Any) -> BoundShapes | None:
        """Those for a flat batch of arrays with these shapes, and with these names, layouts and types."""
        return self._by_arrays.get((shapes, kinds))

    def values(self) -> list[BoundShapes]:
        return list(self._by_key.values())

    def add(self, key: Any, bound: BoundShapes) -> BoundShapes:
        self._by_key[key] = self._by_arrays[bound.array_shapes, bound.kinds] = bound
        return bound

    def shown(self, bound: BoundShapes, make: Callable[[BoundShapes], dict[str, Any]]) -> dict[str, Any]:
        """What a group shows of these executors, made once."""
        if bound not in self._shown:
            self._shown[bound] = make(bound)
        return self._shown[bound]

    def use(self, key: Any) -> None:
        """Move to the end."""
        self._by_key[key] = self._by_key.pop(key)

    def forget(self, key: Any) -> None:
        bound = self._by_key.pop(key)
        self._shown.pop(bound, None)
        if self._by_arrays.get((bound.array_shapes, bound.kinds)) is bound:
            del self._by_arrays[bound.array_shapes, bound.kinds]

    def clear(self) -> None:
        for table in (self._by_key, self._by_arrays, self._shown):
            table.clear()
