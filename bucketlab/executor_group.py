"""DataParallelExecutorGroup: one executor per context, each batch cut over them.

A batch goes through here top to bottom: shapes are cut (:mod:`bucketlab.slicing`), executors are bound for them once
and kept (:mod:`bucketlab.binding`), arrays are fed (:mod:`bucketlab.feeding`), the executors run
(:mod:`bucketlab.bound`), outputs and gradients are read back by rows (:mod:`bucketlab.rows`).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import repeat
from typing import Any

import numpy as np

from bucketlab import binding
from bucketlab._engine import mx
from bucketlab.binding import ContextMemory
from bucketlab.bound import BoundShapes, BoundTable
from bucketlab.errors import DescriptionError, NotReadyError, ShapeError, StaleError, last_line
from bucketlab.executors import declarations
from bucketlab.feeding import as_array, check_array, check_batch, same_arrays
from bucketlab.losses import AveragingLoss, averaging_losses, warn_if_uneven
from bucketlab.memory.protocol import HeldArray, HeldPool, held
from bucketlab.readback import Readback, merged
from bucketlab.requests import (
    as_params,
    check_contexts,
    check_distinct,
    check_params,
    check_states,
    names_of,
    prepare_group2ctxs,
    resolve_grad_req,
)
from bucketlab.rows import RowAxis
from bucketlab.shapes import BOTH_FORMS, BatchShapes, DataDesc, batch_axis, is_per_context, parse
from bucketlab.sharing import SMALL_GRAPH, GroupMemory, engine_settings
from bucketlab.slicing import ContextSlice, SliceReport, check_workload, divisor, slices_of

OF_EXECUTORS = ("_bound", "_read", "execs", "data_arrays", "label_arrays", "state_arrays", "input_grad_arrays")
"""Attributes that go when a group lets go of its executors, and come back with them."""


class DataParallelExecutorGroup:
    """Executors of one symbol over several contexts.

    Takes what ``mxnet.module.executor_group.DataParallelExecutorGroup`` takes, and ``split``, the rule by which rows go
    to contexts (see :func:`bucketlab.slicing.row_counts`), and ``working_memory``: ``"shared"`` block by block as the
    engine does it, or laid into one ``"arena"`` (see :mod:`bucketlab.memory.arena`). With a ``shared_group`` all
    parameters, gradients, auxiliary states, inputs and the working memory are that group's. Raises ShapeError,
    SliceError, ValueError; nothing is bound or allocated then.

    ``data_shapes`` may have one list for each context instead of one for all; batches then come cut already.
    """

    def __init__(
        self,
        symbol: Any,
        contexts: Sequence[Any],
        workload: Sequence[float],
        data_shapes: Any,
        label_shapes: Any,
        param_names: Sequence[str],
        for_training: bool,
        inputs_need_grad: bool,
        shared_group: DataParallelExecutorGroup | None = None,
        logger: Any = logging,
        fixed_param_names: Sequence[str] | None = None,
        grad_req: Any = "write",
        state_names: Sequence[str] | None = None,
        group2ctxs: Any = None,
        *,
        split: str = "balanced",
        working_memory: str = "shared",
    ):
        if not isinstance(symbol, mx.sym.Symbol):
            raise TypeError(f"symbol is {type(symbol).__name__}; expected an mx.sym.Symbol")
        self.symbol = symbol
        self.contexts = check_contexts(contexts)
        self.workload = list(check_workload(workload, len(self.contexts), "workload"))
        self.split = split
        self.logger = logger
        if param_names is None:
            raise TypeError("param_names is None; give the names of the arguments that are parameters")
        self.param_names = names_of("param_names", param_names)
        self.arg_names = symbol.list_arguments()
        self.aux_names = symbol.list_auxiliary_states()
        check_distinct([*self.arg_names, *self.aux_names])
        held = set(self.param_names)
        self.held_names = tuple(name for name in self.arg_names if name in held)
        self.for_training = for_training
        self.inputs_need_grad = inputs_need_grad
        self.fixed_param_names = names_of("fixed_param_names", fixed_param_names)
        self.state_names = names_of("state_names", state_names)
        check_states(self.state_names, self.arg_names)
        self.group2ctxs = prepare_group2ctxs(group2ctxs, len(self.contexts))
        self.output_names = symbol.list_outputs()
        self.num_outputs = len(self.output_names)
        self.output_layouts = [batch_axis(symbol[i].attr("__layout__")) for i in range(self.num_outputs)]
        if shared_group is not None and not hasattr(shared_group, "_memory"):
            raise TypeError(
                f"shared_group is a {type(shared_group).__name__}; expected a bucketlab.DataParallelExecutorGroup"
            )
        if shared_group is not None and len(shared_group.contexts) < len(self.contexts):
            raise ShapeError(
                f"shared_group has executors on {len(shared_group.contexts)} context(s) and {len(self.contexts)} are "
                f"asked "
                f"for: {', '.join(map(str, self.contexts))}; share with a group on at least as many"
            )
        shapes = _given_shapes(data_shapes, label_shapes, len(self.contexts))
        first = shapes.data[0] if shapes.per_context else shapes.data
        if not first:
            raise ShapeError(f"data_shapes is empty; {BOTH_FORMS}")
        self.data_names = [desc.name for desc in first]
        self.grad_req = resolve_grad_req(
            grad_req if for_training else "null",
            self.arg_names,
            self.param_names,
            self.data_names if inputs_need_grad else [],
            self.fixed_param_names,
        )
        self.trained_names = tuple(name for name in self.held_names if self.grad_req[name] != "null")
        # A group on fewer contexts than its giver shares with the first of them.
        self._memory: GroupMemory = (
            shared_group._memory
            if shared_group is not None
            else GroupMemory([ContextMemory.on(context) for context in self.contexts], working_memory)
        )
        self._memory.groups.add(self)
        self._bounds = BoundTable()
        # What each context was bound to last: data and label descriptions.
        self._parts: dict[int, Any] = {}
        # Gradients of inputs that add up, for every shape: executors come and go, what was added up stays.
        self._sums: list[dict[binding.ArrayNeed, Any]] = [{} for _ in self.contexts]
        self._averages: tuple[AveragingLoss, ...] | None = None
        self._monitors: list[Any] = []
        self._callbacks: list[tuple[Any, bool] | None] = [None] * len(self.contexts)
        # Rows of the last batch, when it came as a list of batches: what gradients are divided by.
        self.listed_rows: int | None = None
        # Labels of the last batch as it had them, and in the bound order, when it had them in another one.
        self.moved_labels: tuple[Any, Any] | None = None
        self.bind_exec(shapes, None)

    # ------------------------------------------------------------------ binding

    def bind_exec(self, data_shapes: Any, label_shapes: Any, shared_group: Any = None, reshape: bool = False) -> None:
        """Make the executors for these shapes current, binding them when they are met for the first time."""
        shapes = (
            data_shapes
            if isinstance(data_shapes, BatchShapes)
            else _given_shapes(data_shapes, label_shapes, len(self.contexts))
        )
        bound = self._bounds.get(shapes.key)
        if bound is None:
            bound = self._bounds.add(shapes.key, self._bind(shapes))
        self._use(bound)

    def reshape(self, data_shapes: Any, label_shapes: Any) -> None:
        """Take batches of other shapes from now on. Parameters and gradients stay where they are.

        Shapes that were seen before cost nothing. Raises ShapeError or SliceError and changes nothing.
        """
        self.bind_exec(data_shapes, label_shapes, reshape=True)

    def turn_to(self, batch: Any) -> bool:
        """Make the executors current that a flat batch of these shapes had before; False, and nothing else, without."""
        current, data, label = self._bound, getattr(batch, "data", None), getattr(batch, "label", None)
        if type(data) is not list or not (label is None or type(label) is list):
            return False
        shapes = tuple([getattr(array, "shape", None) for array in [*data, *(label or ())]])
        bound = self._bounds.of_arrays(shapes, current.kinds) if current.flat else None
        if bound is None or not current.describes(batch) or not bound.takes(batch):
            return False
        self._use(bound)
        return True

    def decide_slices(self, data_shapes: Any) -> list[int]:
        """The batch axis of each description; sets ``batch_size`` and ``slices``."""
        shapes = _given_shapes(data_shapes, None, len(self.contexts))
        self.batch_size, self.slices = shapes.rows, self._slices(shapes)
        return [batch_axis(desc.layout) for desc in shapes.data]

    def _slices(self, shapes: BatchShapes) -> list[slice] | None:
        if shapes.per_context or shapes.rows is None:
            return None
        few = shapes.rows < len(self.contexts)
        return slices_of(shapes.rows, self.workload, self.split, together=few and self._rows_depend(shapes))

    def _rows_depend(self, shapes: BatchShapes) -> bool:
        """Whether what one row gives depends on the others: a batch of few rows then stays whole, on one context."""
        return bool(self.aux_names) or bool(self._averaging(shapes))

    def _averaging(self, shapes: BatchShapes) -> tuple[AveragingLoss, ...]:
        """Losses that average over the rows of their own context, looked for once."""
        if self._averages is None:
            descs = [desc for part in shapes.of_context(0, None) for desc in part]
            axes = {desc.name: batch_axis(desc.layout) for desc in descs}
            self._averages = averaging_losses(self.symbol, {desc.name: desc.shape for desc in descs}, axes)
        return self._averages

    def _warn_if_uneven(self, shapes: BatchShapes, slices: Sequence[slice] | None) -> None:
        if shapes.per_context:
            rows = [shapes.context_rows(i) or 0 for i in range(len(shapes.data))]
        else:
            rows = [part.stop - part.start for part in slices or ()]
        if self.for_training and len({count for count in rows if count}) > 1:
            step = None if shapes.per_context else divisor(self.workload)
            warn_if_uneven(self._averaging(shapes), rows, step, self._memory.told)

    def _bind(self, shapes: BatchShapes) -> BoundShapes:
        slices, count = self._slices(shapes), len(self.contexts)
        if shapes.per_context:
            active = list(range(len(shapes.data)))
        else:
            active = [i for i in range(count) if slices is None or slices[i].stop > slices[i].start]
        needs: dict[int, binding.Requirements] = {}
        unchecked: dict[Any, binding.Requirements] = {}
        parts: dict[int, Any] = {}
        for i in range(count):
            # Contexts that rest are bound for a row, or as they were last: programs expect an executor on each.
            rows = None if slices is None else max(1, slices[i].stop - slices[i].start)
            if i in active or not shapes.per_context:
                parts[i] = shapes.of_context(i, rows)
            else:
                parts[i] = self._parts.get(i) or shapes.of_context(0, rows)
            known = self._known_requirements(i, *parts[i])
            if known is not None:
                unchecked.setdefault(tuple((need.shape, need.dtype) for need in known.inputs), known)
            needs[i] = known or self._requirements(i, *parts[i])
        self._warn_if_uneven(shapes, slices)
        # Where nothing but training is asked for there is nothing to look for, and nothing to be told.
        plain = self.for_training and not any(self.group2ctxs) and not self._declarations
        with engine_settings(self._memory.working_memory, backend=not plain):
            execs = self._checked_executors(needs, parts, unchecked.values())
        self._parts = parts
        for executor in execs.values():
            for monitor in self._monitors:
                monitor.install(executor)
        return BoundShapes(self.symbol, shapes, slices, list(execs.values()), active, self.output_layouts)

    def _checked_executors(
        self,
        needs: Mapping[int, binding.Requirements],
        parts: Mapping[int, Any],
        unchecked: Iterable[binding.Requirements],
    ) -> dict[int, Any]:
        """The executors; where the engine refuses to make them, what does not fit is said by name."""
        before = [(memory, dict(memory.inputs), dict(memory.input_grads)) for memory in self._memory.contexts]
        sums = [dict(of_context) for of_context in self._sums]
        try:
            for one in unchecked:
                if not self._memory.tried.cover(one.inputs):
                    binding.check_known(self.symbol, one)
            execs = self._executors(needs)
            for one in needs.values():
                self._memory.tried.add(one.inputs)
            return execs
        except ShapeError as refused:
            error = refused
        for memory, inputs, input_grads in before:
            memory.inputs, memory.input_grads = inputs, input_grads
        self._sums = sums
        for i, part in parts.items():
            self._requirements(i, *part)
        raise error

    def _executors(self, needs: Mapping[int, binding.Requirements]) -> dict[int, Any]:
        """An executor for each context: on the shared working memory, or as its new owner if it needs more."""
        memory = self._memory

        def bound(shared: bool) -> dict[int, Any]:
            return {i: self._bind_one(i, need, shared) for i, need in needs.items()}

        if memory.arenas:
            grows = memory.inputs_grow(needs)
            execs = bound(shared=False)
            memory.lay_into_arenas(execs, grows)
            return execs
        if not memory.has_pool:
            execs, room = memory.owners(bound, self._small)
            memory.give_pool(execs, needs, room)
            return execs
        grows = memory.inputs_grow(needs)
        if grows or memory.looks_hungrier(needs):
            execs, room = memory.owners(bound, self._small)
            if grows or memory.owns_more(list(execs.values())) is not False:
                memory.give_pool(execs, needs, room)
                return execs
        with memory.sharing_plans():
            execs = bound(shared=True)
        if memory.grew() or memory.outgrew():
            alone, room = memory.owners(bound, self._small)
            if memory.outgrew() or memory.owns_more(list(alone.values())):
                memory.give_pool(alone, needs, room)
                return alone
        return execs

    @cached_property
    def _small(self) -> bool:
        return not any(self.group2ctxs) and len(self.symbol.get_internals()) <= SMALL_GRAPH

    def _known_requirements(self, i: int, data: Sequence[Any], label: Sequence[Any]) -> binding.Requirements | None:
        return binding.known_requirements(
            self.arg_names,
            self.aux_names,
            self._declarations,
            self._memory.contexts[i],
            [*data, *label],
            self.param_names,
            self.grad_req,
            self.group2ctxs[i],
        )

    @cached_property
    def _declarations(self) -> dict[str, dict[str, str]]:
        return declarations(self.symbol)

    def _requirements(self, i: int, data: Sequence[Any], label: Sequence[Any]) -> binding.Requirements:
        return binding.requirements(
            self.symbol,
            self._memory.contexts[i],
            [*data, *label],
            self.param_names,
            self.grad_req,
            self.group2ctxs[i],
        )

    def _bind_one(self, i: int, need: binding.Requirements, shared: bool) -> Any:
        memory = self._memory.contexts[i]
        pool = memory.pool if shared else None
        return binding.bind(self.symbol, memory, need, self.grad_req, self.group2ctxs[i], pool, self._sums[i])

    def _bind_ith_exec(self, i: int, data_shapes: Any, label_shapes: Any, shared_group: Any) -> Any:
        """A new executor of context ``i`` for shapes that are cut already."""
        data, label = [DataDesc(*d) if not isinstance(d, DataDesc) else d for d in data_shapes], label_shapes or []
        return self._bind_one(i, self._requirements(i, data, label), shared=True)

    def _sliced_shape(self, shapes: Any, i: int, major_axis: Sequence[int]) -> list[Any]:
        """The descriptions of context ``i``'s part of ``shapes``."""
        part = self.slices[i] if self.slices else None
        return [
            DataDesc(
                desc.name,
                tuple(part.stop - part.start if part and at == axis else size for at, size in enumerate(desc.shape)),
                desc.dtype,
                desc.layout,
            )
            for desc, axis in zip(shapes, major_axis)
        ]

    def _use(self, bound: BoundShapes) -> None:
        self._note_callbacks()
        for executor, callback in zip(bound.execs, self._callbacks):
            if callback is not None and executor._monitor_callback is not callback[0]:
                executor._monitor_callback, executor._monitor_all = callback
                mx.base.check_call(
                    mx.base._LIB.MXExecutorSetMonitorCallbackEX(executor.handle, callback[0], None, int(callback[1]))
                )
        if self._monitors:
            kept = {id(one) for one in (bound, *self._bounds.values())}
            self._unwatch(one for one in self._every_bound() if id(one) not in kept)
        self._bound = bound
        self.__dict__.update(self._bounds.shown(bound, self._collect_arrays))

    def let_go(self) -> None:
        """Forget all executors, to be bound again when they are needed. What just ran stays until another runs."""
        current = self.__dict__.get("_bound")
        self._unwatch(bound for bound in self._bounds.values() if bound is not current)
        self._bounds.clear()
        if current is not None and current is self._memory.ran:
            self._memory.outdated.append(self)
        else:
            self.drop_executors()

    def _note_callbacks(self) -> None:
        """A callback that a program sets on an executor is its context's: executors for other shapes call it too."""
        current = self.__dict__.get("_bound")
        for i, executor in enumerate(current.execs if current is not None else ()):
            if executor._monitor_callback is not None:
                self._callbacks[i] = (executor._monitor_callback, executor._monitor_all)

    def drop_executors(self) -> None:
        """Give up the executors at once; whoever asks for them has them bound again."""
        self._note_callbacks()
        self.release_monitors()
        self._bounds.clear()
        for name in OF_EXECUTORS:
            self.__dict__.pop(name, None)

    def release_monitors(self) -> None:
        """Have monitors let go of all executors: they would keep them, and show what they hold."""
        self._unwatch(self._every_bound())

    def _every_bound(self) -> list[BoundShapes]:
        current = self.__dict__.get("_bound")
        others = [bound for bound in self._bounds.values() if bound is not current]
        return others if current is None else [*others, current]

    def _unwatch(self, bounds: Iterable[BoundShapes], monitors: Sequence[Any] | None = None) -> None:
        gone = {id(executor) for bound in bounds for executor in bound.execs}
        for monitor in self._monitors if monitors is None else monitors:
            if isinstance(getattr(monitor, "exes", None), list):
                monitor.exes = [executor for executor in monitor.exes if id(executor) not in gone]

    def revive(self) -> None:
        """Bind the executors again that were let go of, for the shapes they had; nothing if they are there."""
        if "_bound" not in self.__dict__:
            self.bind_exec(self._shapes, None)

    def __getattr__(self, name: str) -> Any:
        # Reached only for what is not there: executors that were let go of are bound again for the shapes they had.
        if name in OF_EXECUTORS and "_shapes" in self.__dict__:
            self.revive()
            return self.__dict__[name]
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def _collect_arrays(self, bound: BoundShapes) -> dict[str, Any]:
        """Attributes of executors and their arrays, in the forms that programs written for mx.mod read."""
        shapes, execs = bound.shapes, bound.execs
        first_data = shapes.data[0] if shapes.per_context else shapes.data
        first_label = shapes.label or ()
        if shapes.per_context:
            first_label = next((one for one in first_label if one), ())
        data_names = [desc.name for desc in first_data]
        label_names = [desc.name for desc in first_label] if shapes.label is not None else None
        label_layouts = [batch_axis(desc.layout) for desc in first_label] if shapes.label is not None else None

        def fed(names: Sequence[str]) -> Any:
            if shapes.per_context:
                tables = [execs[i].arg_dict for i in bound.active]
                return [[table[name] for name in names if name in table] for table in tables]
            parts = bound.slices or [slice(i, i + 1) for i in range(len(execs))]
            return [
                [(parts[i], e.arg_dict[name]) for i, e in enumerate(execs)]
                for name in names
                if name in execs[0].arg_dict
            ]

        def each(names: Iterable[str], table: str) -> list[list[Any]]:
            return [[getattr(e, table).get(name) for e in execs] for name in names]

        known = {*self.param_names, *data_names, *self.state_names}
        unnamed = [name for name in self.arg_names if name not in known]
        return {
            "_shapes": shapes,
            "_read": Readback(bound, self.contexts, self.output_names, label_names, label_layouts, unnamed),
            "execs": execs,
            "slices": bound.slices,
            "batch_size": shapes.rows if not shapes.per_context else None,
            "data_shapes": shapes.data_list,
            "label_shapes": shapes.label_list,
            "data_names": data_names,
            "label_names": label_names,
            "data_layouts": [batch_axis(desc.layout) for desc in first_data],
            "label_layouts": label_layouts,
            "data_arrays": fed(data_names),
            "label_arrays": fed(label_names) if label_names is not None else None,
            "param_arrays": each(self.held_names, "arg_dict"),
            "grad_arrays": each(self.held_names, "grad_dict") if self.for_training else None,
            "state_arrays": each(self.state_names, "arg_dict"),
            "aux_arrays": each(self.aux_names, "aux_dict"),
            "input_grad_arrays": each(data_names, "grad_dict") if self.inputs_need_grad else None,
        }

    @property
    def shared_data_arrays(self) -> list[dict[str, Any]]:
        """For each context, by name, the array behind every argument that is no parameter."""
        return [memory.inputs for memory in self._memory.contexts[: len(self.contexts)]]

    @property
    def _total_exec_bytes(self) -> int:
        """Bytes of all arrays and working memory of this group, each byte counted once."""
        from bucketlab.memory import memory

        return memory(self).distinct

    # ------------------------------------------------------------------ parameters

    def set_params(
        self, arg_params: Mapping[str, Any], aux_params: Mapping[str, Any] | None, allow_extra: bool = False
    ) -> None:
        """Write host parameters into every context. Names, shapes and extra entries are checked before any is written.

        Raises ValueError for a name that the symbol does not have, unless ``allow_extra``.
        """
        params, aux = self._param_tables()
        arg_params, aux_params = as_params("parameter", arg_params) or {}, as_params("auxiliary state", aux_params)
        for kind, given, known in (("parameter", arg_params, params), ("auxiliary state", aux_params, aux)):
            check_params(kind, given or {}, {name: arrays[0] for name, arrays in known.items()}, allow_extra)
        for given, known in ((arg_params, params), (aux_params, aux)):
            for name, value in (given or {}).items():
                for target in known.get(name, ()):
                    if value.dtype != target.dtype:
                        value = value.astype(target.dtype)
                    value.copyto(target)

    def _param_tables(self) -> tuple[dict[str, list[Any]], dict[str, list[Any]]]:
        arguments = {name: [e.arg_dict[name] for e in self.execs] for name in self.arg_names}
        return arguments, {name: [e.aux_dict[name] for e in self.execs] for name in self.aux_names}

    def get_params(self, arg_params: Mapping[str, Any], aux_params: Mapping[str, Any]) -> None:
        """Write the mean over contexts of every parameter and auxiliary state into the host arrays that are given.

        Those of groups that share this one's memory count, too; a name that nobody has is passed over.
        """
        if aux_params:
            mx.nd.waitall()
        for kind, host in (("parameter", arg_params), ("auxiliary state", aux_params)):
            for name, target in host.items():
                block = self._memory.arrays(kind, name)[: len(self.contexts)]
                if block:
                    _mean(block).astype(target.dtype).copyto(target)

    # ------------------------------------------------------------------ running

    def forward(self, data_batch: Any, is_train: bool | None = None) -> None:
        """Feed a batch and run every context that has rows of it.

        ``data_batch``: a batch in the bound form, or a list of batches, one for each context (cut already).
        """
        is_train = self.for_training if is_train is None else bool(is_train)
        bound, memory = self._bound, self._memory
        if memory.outdated:
            memory.let_go_of_outdated(self)
        if memory.arenas:
            memory.take_turn(bound)
        if bound.rests and is_train:
            self._level_aux()
        before, memory.ran = memory.ran, None
        fed = None
        try:
            if isinstance(data_batch, list) or not bound.flat:
                self._feed_cut_and_run(data_batch, is_train)
            else:
                label = getattr(data_batch, "label", None)
                bound.feed_and_forward(data_batch.data, label if label and bound.labelled else None, is_train)
                self._read.ran(getattr(data_batch, "pad", 0) or 0)
                self.listed_rows = None
                fed = label if len(bound.active) > 1 else None
        except ShapeError:
            # Refused before anything was fed: what ran last can still be read.
            memory.ran = before
            raise
        except (AttributeError, TypeError):
            memory.ran = before
            for one in data_batch if isinstance(data_batch, list) else [data_batch]:
                check_batch(one, self.data_names)
            raise
        memory.ran, memory.ran_training, memory.fed = bound, is_train, fed
        if bound.rests and is_train:
            self._spread_aux()

    def _feed_cut_and_run(self, data_batch: Any, is_train: bool) -> None:
        """A batch that comes cut already. Raises ShapeError before anything is fed."""
        bound = self._bound
        if isinstance(data_batch, list):
            self._feed_list(data_batch)
            bound.forward(is_train)
            pads = [getattr(batch, "pad", 0) or 0 for batch in data_batch]
            self._read.ran(sum(pads), pads=pads)
            self.listed_rows = bound.parts[-1].stop if bound.parts else None
        else:
            self._feed_per_context(data_batch, is_train)
            bound.forward(is_train)
            self._read.ran(getattr(data_batch, "pad", 0) or 0)
            self.listed_rows = None

    def takes(self, data_batch: Any) -> bool:
        """Whether a batch can be fed to the current executors as it is."""
        return self._bound.takes(data_batch)

    def _feed_list(self, batches: Sequence[Any]) -> None:
        if len(batches) != len(self._bound.active):
            raise ShapeError(
                f"the batch is a list of {len(batches)} and {len(self._bound.active)} contexts are bound; give one "
                f"for each"
            )
        plan = []
        for i, batch in zip(self._bound.active, batches):
            plan += self._copies(i, self.data_names, batch.data)
            if self.label_names and getattr(batch, "label", None):
                plan += self._copies(i, self.label_names, batch.label)
        for source, target in plan:
            source.copyto(target)

    def _feed_per_context(self, batch: Any, is_train: bool) -> None:
        shapes, label = self._bound.shapes, list(getattr(batch, "label", None) or ())
        some = any(label)
        plan = []
        for at, i in enumerate(self._bound.active):
            plan += self._copies(i, [desc.name for desc in shapes.data[at]], batch.data[at])
            if some and label[at]:
                plan += self._copies(i, self._read.labels_on(at), label[at])
        for source, target in plan:
            source.copyto(target)
        for at, i in enumerate(self._bound.active):
            if some and is_train and not label[at]:
                # Others have labels: what an earlier batch left here must not be learnt again.
                for name in self.label_names or ():
                    if name in self._bound.execs[i].arg_dict:
                        self._bound.execs[i].arg_dict[name][:] = 0

    def _copies(self, i: int, names: Sequence[str], sources: Sequence[Any]) -> list[tuple[Any, Any]]:
        """(array of a batch, where it goes on context ``i``) for each. Raises ShapeError for one that does not fit."""
        table, plan = self._bound.execs[i].arg_dict, []
        for name, source in zip(names, sources):
            if name in table:
                check_array(repr(name), source, table[name].shape, f" on {self.contexts[i]}")
                plan.append((as_array(source, table[name].dtype), table[name]))
        return plan

    def _settle_aux(self) -> None:
        """Wait until auxiliary states are what they will be.

        BatchNorm changes them in its backward pass and the engine does not know, so that reading them does not wait.
        """
        if self.aux_names:
            mx.nd.waitall()

    def _level_aux(self) -> None:
        """Before some contexts rest: give all of them the mean, so that what the others learn is not averaged away."""
        self._settle_aux()
        for block in self.aux_arrays:
            mean = _mean(block)
            for array in block:
                mean.copyto(array)

    def _spread_aux(self) -> None:
        """After some contexts rested: they take the mean of those that ran, as one context with all rows would have."""
        self._settle_aux()
        active = set(self._bound.active)
        for block in self.aux_arrays:
            mean = _mean([array for i, array in enumerate(block) if i in active])
            for i, array in enumerate(block):
                if i not in active:
                    mean.copyto(array)

    def backward(self, out_grads: Any = None) -> None:
        """Gradients of the last training batch. ``out_grads``: one array for each output, in their order.

        Losses, and outputs that pass no gradient on, need none and may be left out at the end. Raises NotReadyError
        without a forward pass for training, StaleError when another bucket or shape has run in the same working memory
        since, ValueError naming out_grads when one is missing for an output that is no loss.
        """
        if not self.for_training:
            raise NotReadyError("backward() needs executors for training; bind with for_training=True")
        bound = self._current("backward()")
        if not self._memory.ran_training:
            raise NotReadyError(
                "backward() needs forward(batch, is_train=True) before it; the last one was for inference"
            )
        without = out_grads is None or (isinstance(out_grads, (list, tuple)) and not out_grads)
        heads = [] if without else self._read.cut_out_grads(out_grads)
        try:
            if without:
                bound.backward_program.run()
            for i, grads in zip(bound.active, heads):
                bound.execs[i].backward(out_grads=grads)
        except mx.base.MXNetError as error:
            missing = self.output_names[len(heads[0]) if heads else 0 :]
            if not missing:
                raise
            raise ValueError(
                f"backward() needs out_grads for outputs that are no loss, one array for each, and has none for "
                f"{missing}: {last_line(error)}"
            ) from None
        if bound.rests:
            self._rest_gradients()
        self._memory.graded = bound
        if bound.rests:
            # Some operators, BatchNorm among them, update their running statistics in the backward pass.
            self._spread_aux()

    def _rest_gradients(self) -> None:
        """Contexts without rows have gradient zero; sums that add up over batches stay as they are."""
        for i in set(range(len(self.contexts))) - set(self._bound.active):
            for name, grad in self.execs[i].grad_dict.items():
                if grad is None or self.grad_req[name] != "write":
                    continue
                if grad.stype == "default":
                    grad[:] = 0
                else:
                    # Rows of zeros are rows all the same: lazy optimizers would move their weights.
                    mx.nd.sparse.zeros(grad.stype, grad.shape, grad.context, grad.dtype).copyto(grad)

    def _current(self, call: str) -> BoundShapes:
        bound, ran = self._bound, self._memory.ran
        if ran is bound:
            return bound
        if ran is None:
            raise NotReadyError(f"{call} needs forward() before it")
        raise StaleError(
            f"{call}: another bucket, shape or module has run in the same working memory since this one did "
            f"({ran.shapes.in_words()} ran last); call forward() with this batch again"
        )

    # ------------------------------------------------------------------ results

    def get_output_shapes(self) -> list[tuple[str, tuple[int, ...]]]:
        """Name and shape of each output, joined over the contexts."""
        return self._read.output_shapes()

    def get_outputs(self, merge_multi_context: bool = True, begin: int = 0, end: int | None = None) -> list[Any]:
        """Outputs of the last forward pass, as arrays that stay what they are.

        Merged: one array per output with all rows in the batch's order. Else ``[output][context]``, without contexts
        that rested. Raises ShapeError where contexts' outputs differ in other axes than rows.
        """
        self._current("get_outputs()")
        return self._read.outputs(merge_multi_context, begin, end)

    def predicted(self) -> list[Any]:
        """Outputs of the last forward pass without padded rows, as arrays of their own."""
        self._current("outputs")
        return self._read.predicted()

    def update_metric(self, eval_metric: Any, labels: Any, pre_sliced: bool = False) -> None:
        """Show each context's labels and outputs to a metric, in order of contexts, without padded rows.

        ``labels``: the batch's labels, or with ``pre_sliced`` (and in the per-context form) one list for each context.
        """
        self._current("update_metric()")
        if self.moved_labels is not None and same_arrays(labels, self.moved_labels[0]):
            labels = self.moved_labels[1]
        self._read.update_metric(eval_metric, labels, pre_sliced, self._memory.fed)

    def get_input_grads(self, merge_multi_context: bool = True) -> list[Any]:
        """Gradients of the data arrays in the order of data_shapes, as arrays of their own; None for 'null'."""
        if not self.inputs_need_grad:
            raise NotReadyError("get_input_grads() needs bind(..., inputs_need_grad=True)")
        bound, graded = self._bound, self._memory.graded
        if graded is None:
            raise NotReadyError("get_input_grads() needs backward() before it")
        results: list[Any] = []
        for k, name in enumerate(self.data_names):
            if graded is not bound and self.grad_req[name] == "write":
                raise StaleError(
                    f"get_input_grads(): the last backward pass was of another bucket, shape or module "
                    f"({graded.shapes.in_words()}), in the same memory; call backward() for this batch first"
                )
            parts = [bound.execs[i].grad_dict[name] for i in bound.active]
            if parts[0] is None:
                results.append(None if merge_multi_context else parts)
            elif not merge_multi_context:
                results.append([part.copy() for part in parts])
            else:
                results.append(merged(parts, RowAxis(self.data_layouts[k]), f"gradient of {name!r}"))
        return results

    def get_states(self, merge_multi_context: bool = True) -> list[Any]:
        """States: one array with all rows each, or ``[state][context]``."""
        if not merge_multi_context:
            return self.state_arrays
        return [
            merged([block[i] for i in self._bound.active], RowAxis(0), f"state {name!r}")
            for name, block in zip(self.state_names, self.state_arrays)
        ]

    def set_states(self, states: Any = None, value: Any = None) -> None:
        """Set the states to arrays (merged, or ``[state][context]`` as get_states gives them) or all to one number."""
        if (states is None) == (value is None):
            raise ValueError("set_states takes either states or value, and exactly one of them")
        if states is None:
            if not isinstance(value, (int, float, np.number)):
                raise TypeError(f"value is {type(value).__name__}; give a number, or arrays as states")
            for block in self.state_arrays:
                for array in block:
                    array[:] = value
            return
        if not isinstance(states, (list, tuple)):
            raise DescriptionError(
                f"states is {type(states).__name__}; give a list with an array for each of {self.state_names}"
            )
        if len(states) != len(self.state_names):
            raise ShapeError(
                f"states has {len(states)} entries and there are {len(self.state_names)}: {self.state_names}"
            )
        plan = []
        for name, given, block in zip(self.state_names, states, self.state_arrays):
            targets = [block[i] for i in self._bound.active]
            if isinstance(given, (list, tuple)):
                pieces = [given[i] for i in self._bound.active] if len(given) == len(block) else list(given)
                if len(pieces) != len(targets):
                    raise ShapeError(f"state {name!r} is given for {len(pieces)} context(s), expected {len(targets)}")
            else:
                whole = (sum(target.shape[0] for target in targets), *targets[0].shape[1:])
                check_array(f"state {name!r}", given, whole)
                pieces, begin = [], 0
                for target in targets:
                    pieces.append(given if len(targets) == 1 else given[begin : begin + target.shape[0]])
                    begin += target.shape[0]
            for piece, target in zip(pieces, targets):
                check_array(f"state {name!r}", piece, target.shape, f" on {target.context}")
                plan.append((as_array(piece, target.dtype), target))
        for piece, target in plan:
            if piece is not target:
                piece.copyto(target)

    def install_monitor(self, mon: Any) -> None:
        """Let a monitor see every executor of the group, those that are bound later included.

        One that sees them already comes before others again, and sees them once.
        """
        if not callable(getattr(mon, "install", None)):
            raise TypeError(f"the monitor is {type(mon).__name__}; expected an mx.mon.Monitor, or one with install()")
        self._unwatch(self._every_bound(), [mon])
        self._monitors = [*(monitor for monitor in self._monitors if monitor is not mon), mon]
        seen: set[int] = set()
        for bound in self._every_bound():
            for executor in bound.execs:
                if id(executor) not in seen:
                    seen.add(id(executor))
                    mon.install(executor)

    # ------------------------------------------------------------------ what it looks like inside

    def held_arrays(self) -> Iterator[HeldArray]:
        """What there is now, for :mod:`bucketlab.memory`; executors that were let go of are not bound again for it."""
        roles = {**dict.fromkeys(self.param_names, "parameter"), **dict.fromkeys(self.state_names, "state")}
        roles.update(dict.fromkeys(self.label_names or (), "label"))
        roles.update(dict.fromkeys(self.data_names, "data"))
        bound = self.__dict__.get("_bound")
        for i, context in enumerate(self.contexts):
            memory = self._memory.contexts[i]
            arguments = {name: memory.params.weights[name] for name in self.held_names}
            gradients = {name: memory.params.grads.get(name) for name in self.held_names}
            outputs: dict[str, Any] = {}
            if bound is not None:
                executor = bound.execs[i]
                arguments, gradients = executor.arg_dict, executor.grad_dict
                outputs = dict(zip(self.output_names, executor.outputs))
            inputs = {name: array for name, array in memory.inputs.items() if name not in arguments}
            aux = {name: memory.aux[name] for name in self.aux_names}
            where = str(context)
            arguments = {**arguments, **inputs}
            of_arguments = [roles.get(name, "other") for name in arguments]
            yield from held(None, i, where, of_arguments, arguments, arguments.values())
            gradients = {name: array for name, array in gradients.items() if array is not None}
            of_gradients = ["gradient" if roles.get(name) == "parameter" else "input_gradient" for name in gradients]
            yield from held(None, i, where, of_gradients, gradients, gradients.values())
            others = [(need.name, a) for need, a in self._sums[i].items() if a is not gradients.get(need.name)]
            yield from held(None, i, where, repeat("input_gradient"), *zip(*others)) if others else ()
            if self._memory.arenas and self._memory.arenas[i].buffer is not None:
                yield HeldArray(None, i, where, "pool", "arena", self._memory.arenas[i].buffer)
            yield from held(None, i, where, repeat("auxiliary"), aux, aux.values())
            yield from held(None, i, where, repeat("output"), outputs, outputs.values())

    def _execs_now(self) -> list[list[Any]]:
        """The executors of every set of shapes that is bound now, the current one first."""
        current = self.__dict__.get("_bound")
        return [bound.execs for bound in ([] if current is None else [current]) + list(self._bounds.values())]

    def held_pools(self) -> Iterator[HeldPool]:
        """Every executor that is bound now, those for other shapes included.

        The owner of the working memory is told of by the group that it belongs to, or by all when that let go of it.
        """
        seen = {
            id(executor)
            for group in self._memory.groups
            if group is not self
            for execs in group._execs_now()
            for executor in execs
        }
        owners = [memory.pool for memory in self._memory.contexts[: len(self.contexts)]]
        for execs in (*self._execs_now(), owners):
            for i, executor in enumerate(execs):
                if executor is not None and id(executor) not in seen:
                    seen.add(id(executor))
                    yield HeldPool(None, i, str(self.contexts[i]), executor)

    def slice_report(self, bucket: Any = None) -> SliceReport:
        """How the current batch lies over the contexts."""
        bound, contexts = self._bound, []
        inputs = dict.fromkeys((*self.data_names, *(self.label_names or ())))
        for i, context in enumerate(self.contexts):
            table = bound.execs[i].arg_dict if i in bound.active else {}
            shapes = tuple((name, table[name].shape) for name in inputs if name in table)
            part = bound.parts[i] if bound.parts else slice(0, 0)
            valid = self._read.valid_rows(i)
            rows = part.stop - part.start
            contexts.append(ContextSlice(str(context), part.start, part.stop, rows if valid is None else valid, shapes))
        return SliceReport(
            bucket,
            bound.parts[-1].stop if bound.parts else 0,
            self._read.pad,
            "per context" if bound.shapes.per_context else self.split,
            tuple(float(w) for w in self.workload),
            tuple(contexts),
        )


def _mean(block: Sequence[Any]) -> Any:
    """The mean over contexts on the CPU, summed in their order as mx.mod does; a single array is copied."""
    total = block[0].copyto(mx.cpu()) if block[0].stype == "default" else block[0].as_in_context(mx.cpu())
    for other in block[1:]:
        total = total + other.as_in_context(mx.cpu())
    return total if len(block) == 1 else total / len(block)


def _given_shapes(data_shapes: Any, label_shapes: Any, contexts: int) -> BatchShapes:
    """Shapes as a group takes them: its names are whatever the descriptions say."""
    nested = is_per_context(data_shapes)
    entries = list(data_shapes)
    first = entries[0] if nested else entries
    names = [entry[0] for entry in first]
    labels = list(label_shapes) if isinstance(label_shapes, Iterable) else []
    firsts = next((one for one in labels if one), []) if nested else labels
    return parse(names, [entry[0] for entry in firsts], data_shapes, label_shapes, contexts)
