"""SequentialModule: modules in a chain, the outputs of one being the data of the next."""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from bucketlab._engine import mx
from bucketlab.errors import BucketlabError, NotReadyError, ShapeError
from bucketlab.feeding import check_batch, same_arrays
from bucketlab.module import links
from bucketlab.module.base import BaseModule
from bucketlab.module.module import DEFAULT_INITIALIZER
from bucketlab.module.python import PythonModule
from bucketlab.requests import as_params
from bucketlab.shapes import is_per_context
from bucketlab.slicing import SliceReport


class SequentialModule(BaseModule):
    """A chain of modules, of any kind, trained as one.

    >>> chain = SequentialModule()
    >>> chain.add(Module(features, label_names=None))
    >>> chain.add(Module(classifier), take_labels=True, auto_wiring=True)
    >>> chain.fit(train, num_epoch=1)
    """

    META_TAKE_LABELS = "take_labels"
    META_AUTO_WIRING = "auto_wiring"

    def __init__(self, logger: Any = logging):
        super().__init__(logger=logger)
        self._modules: list[Any] = []
        self._metas: list[dict[str, Any]] = []
        self._data_shapes: Any = None
        self._label_shapes: Any = None
        self._grad_req: Any = None
        self._cut = False
        # Labels of the last batch and their descriptions, when it had them in another order than is bound.
        self._moved_labels: tuple[Any, Any] | None = None
        self._optimizer: Any = None
        self._settings: dict[str, Any] = {}
        self._meta_keys = {getattr(type(self), name) for name in dir(type(self)) if name.startswith("META_")}

    def add(self, module: Any, **kwargs: Any) -> SequentialModule:
        """Put a module at the end of the chain, and return the chain.

        ``take_labels=True``: it gets the labels of the batch (those it names, where it names some of them
        only) and takes part in ``update_metric``. ``auto_wiring=True``: the outputs of the module before it
        are its data in order, whatever their names. The chain has to be bound again. Raises ValueError for
        another keyword, TypeError for what is no module.
        """
        unknown = sorted(set(kwargs) - self._meta_keys)
        if unknown:
            raise ValueError(f"add() does not know {unknown}; choose among {sorted(self._meta_keys)}")
        if not all(callable(getattr(module, name, None)) for name in ("bind", "forward", "get_outputs")):
            raise TypeError(f"module is {type(module).__name__}; expected one that can bind, forward and get_outputs")
        if any(module is other for other in (self, *self._modules)):
            raise ValueError("this module is in the chain already; make another one to use it twice")
        self._modules.append(module)
        self._metas.append(kwargs)
        self.binded = self.params_initialized = self.optimizer_initialized = False
        return self

    # ------------------------------------------------------------------ names and shapes

    @property
    def data_names(self) -> Sequence[str]:
        return self._modules[0].data_names if self._modules else []

    @property
    def output_names(self) -> Sequence[str]:
        return self._modules[-1].output_names if self._modules else []

    @property
    def data_shapes(self) -> Any:
        """Descriptions of the first module's data."""
        self._require("data_shapes", params=False)
        return self._modules[0].data_shapes

    @property
    def label_shapes(self) -> Any:
        """Descriptions of the labels; None when no module takes any."""
        self._require("label_shapes", params=False)
        return self._label_shapes

    @property
    def output_shapes(self) -> Any:
        """Name and shape of each output of the last module."""
        self._require("output_shapes", params=False)
        return self._modules[-1].output_shapes

    @property
    def _total_exec_bytes(self) -> int:  # type: ignore[override]
        if not self.binded:
            return 0
        from bucketlab.memory import memory

        return memory(self).distinct

    def _takes_labels(self, i: int) -> bool:
        return bool(self._metas[i].get(self.META_TAKE_LABELS))

    def _wired(self, i: int) -> bool:
        return bool(self._metas[i].get(self.META_AUTO_WIRING))

    @contextmanager
    def _at(self, i: int) -> Iterator[None]:
        """Say in errors which module of the chain they come from."""
        try:
            yield
        except BucketlabError as error:
            raise type(error)(f"module {i} ({type(self._modules[i]).__name__}): {error}") from error

    # ------------------------------------------------------------------ binding

    def bind(
        self,
        data_shapes: Any,
        label_shapes: Any = None,
        for_training: bool = True,
        inputs_need_grad: bool = False,
        force_rebind: bool = False,
        shared_module: Any = None,
        grad_req: Any = "write",
    ) -> None:
        """Bind every module, each to what the one before it gives out.

        Modules that are bound already are bound anew and keep their parameters. ``grad_req`` may be a dict
        over the arguments of all modules. Raises ShapeError and others as Module.bind, naming the module; all
        modules are then as they were.
        """
        if self.binded and not force_rebind:
            self.logger.warning("Already bound: bind() does nothing; pass force_rebind=True to bind anew")
            return
        if shared_module is not None:
            raise ValueError("shared_module is not for SequentialModule; share between the modules of the chains")
        if inputs_need_grad and not for_training:
            raise ValueError("inputs_need_grad=True needs for_training=True: without training there are no gradients")
        if not self._modules:
            raise NotReadyError("bind() needs a module in the chain: call add(module) first")
        requests = links.requests(self._modules, grad_req)
        label_shapes = label_shapes or None
        before = links.states(self._modules)
        try:
            given = data_shapes
            for i, module in enumerate(self._modules):
                with self._at(i):
                    if self._wired(i):
                        given = links.renamed(given, module.data_names)
                    elif i > 0:
                        links.check_handover(given, module.data_names)
                    if isinstance(module, PythonModule):
                        given = links.flat(given)
                    module.bind(
                        data_shapes=given,
                        label_shapes=self._labels_for(i, label_shapes, is_per_context(given)),
                        for_training=for_training,
                        inputs_need_grad=bool(inputs_need_grad or (for_training and i > 0)),
                        force_rebind=force_rebind or bool(getattr(module, "binded", False)),
                        shared_module=None,
                        grad_req=requests[i],
                    )
                    given = links.handed_on(module)
        except BaseException:
            links.restore(before)
            raise
        self._data_shapes, self._grad_req = data_shapes, grad_req
        self._label_shapes = label_shapes if any(map(self._takes_labels, range(len(self._modules)))) else None
        self.for_training, self.inputs_need_grad = for_training, inputs_need_grad
        self.binded = True
        self._notify("bind", None)

    def _labels_for(self, i: int, label_shapes: Any, nested: bool) -> Any:
        """Descriptions of the labels that module ``i`` takes, in the form of its data."""
        if label_shapes is None or not self._takes_labels(i):
            return None
        described = label_shapes if nested else links.flat(label_shapes, "label_shapes")
        return links.picked(described, described, links.label_names(self._modules[i]))

    # ------------------------------------------------------------------ parameters and optimizer

    def get_params(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Parameters of all modules, on the host: copies that stay what they are."""
        self._require("get_params()")
        arg_params: dict[str, Any] = {}
        aux_params: dict[str, Any] = {}
        for module in self._modules:
            args, auxs = module.get_params()
            arg_params.update(args)
            aux_params.update(auxs)
        return arg_params, aux_params

    def init_params(
        self,
        initializer: Any = DEFAULT_INITIALIZER,
        arg_params: Mapping[str, Any] | None = None,
        aux_params: Mapping[str, Any] | None = None,
        allow_missing: bool = False,
        force_init: bool = False,
        allow_extra: bool = False,
    ) -> None:
        """Set the parameters of every module: each takes its own from the dicts.

        All modules' are checked before any is written. Raises ValueError for a name that two modules use or,
        unless ``allow_extra``, none has, RuntimeError for a missing one.
        """
        if self.params_initialized and not force_init:
            return
        self._require("init_params()", params=False)
        kinds = {"parameter": arg_params, "auxiliary state": aux_params}
        givens = {kind: as_params(kind, given) for kind, given in kinds.items()}
        shares = self._checked(givens, initializer, allow_missing, allow_extra, force_init)
        for i, (module, own) in enumerate(zip(self._modules, shares)):
            with self._at(i):
                module.init_params(
                    initializer=initializer,
                    arg_params=own["parameter"],
                    aux_params=own["auxiliary state"],
                    allow_missing=allow_missing,
                    force_init=force_init,
                    allow_extra=True,
                )
        # Modules that keep their names to themselves show them only now.
        self._check_distinct([{name for table in module.get_params() for name in table} for module in self._modules])
        self.params_initialized = True

    def _checked(
        self,
        givens: Mapping[str, Any],
        initializer: Any,
        allow_missing: bool,
        allow_extra: bool,
        force_init: bool = True,
    ) -> list[dict[str, Any]]:
        """What each module takes, by kind, once all of it is found to fit. Raises as init_params does."""
        known = [links.parameter_names(module) for module in self._modules]
        self._check_distinct(known)
        if not allow_extra and None not in known:
            links.check_known(self._modules, givens.values(), [names or set() for names in known])
        shares = [{kind: links.share(given, names) for kind, given in givens.items()} for names in known]
        for i, (module, own) in enumerate(zip(self._modules, shares)):
            if force_init or not getattr(module, "params_initialized", False):
                with self._at(i):
                    links.check_params(module, own, initializer, allow_missing)
        return shares

    def _check_distinct(self, known: Sequence[Iterable[str] | None]) -> None:
        owner: dict[str, int] = {}
        for i, names in enumerate(known):
            for name in names or ():
                if name in owner:
                    kinds = [f"module {at} ({type(self._modules[at]).__name__})" for at in (owner[name], i)]
                    raise ShapeError(f"parameter {name!r} is in {kinds[0]} and in {kinds[1]}; name layers apart")
                owner[name] = i

    def init_optimizer(
        self,
        kvstore: Any = "local",
        optimizer: Any = "sgd",
        optimizer_params: Any = (("learning_rate", 0.01),),
        force_init: bool = False,
    ) -> None:
        """Choose how gradients change parameters, for every module.

        Modules after the first work with copies of an optimizer that is given as an object, so that its
        counts and multipliers belong to one set of parameters; they follow its settings when these are
        changed between steps.
        """
        self._require("init_optimizer()")
        if self.optimizer_initialized and not force_init:
            self.logger.warning("Optimizer is initialised already: init_optimizer() does nothing; pass force_init=True")
            return
        instance = isinstance(optimizer, mx.optimizer.Optimizer)
        named = instance and bool(optimizer.idx2name)
        for i, module in enumerate(self._modules):
            own = optimizer
            if instance and i > 0:
                own = copy.deepcopy(optimizer)
                if not named:
                    own.idx2name = {}
            module.init_optimizer(
                kvstore=kvstore, optimizer=own, optimizer_params=optimizer_params, force_init=force_init
            )
        self._optimizer = optimizer if instance else None
        self._settings = links.settings(optimizer) if instance else {}
        self.optimizer_initialized = True

    def _follow_settings(self) -> None:
        """Bring what was changed on the optimizer given, such as its ``lr``, to the copies of it."""
        now = links.settings(self._optimizer)
        changed = {name: value for name, value in now.items() if self._settings.get(name, value) != value}
        self._settings = now
        for module in self._modules[1:] if changed else ():
            for inner in (module, getattr(module, "_curr_module", None)):
                own = getattr(inner, "_optimizer", None)
                if own is not None and own is not self._optimizer:
                    vars(own).update(changed)

    # ------------------------------------------------------------------ running

    def prepare(self, data_batch: Any, sparse_row_id_fn: Any = None) -> None:
        """Get ready for a batch that comes next: the first module its bucket, all their sparse rows."""
        self._require("prepare()", params=False)
        batch = links.one_batch(data_batch)
        row_ids = sparse_row_id_fn(data_batch) if sparse_row_id_fn is not None else {}
        for i, module in enumerate(self._modules):
            names = links.parameter_names(module)
            own = row_ids if names is None else {name: ids for name, ids in row_ids.items() if name in names}
            of_own = (lambda _, own=own: own) if own else None
            if i == 0:
                module.prepare(self._batch_for(0, batch, batch.data), sparse_row_id_fn=of_own)
            elif own:
                # What this module will be fed is not known yet, so no bucket can be bound for it.
                links.executing(module).prepare(batch, sparse_row_id_fn=of_own)

    def forward(self, data_batch: Any, is_train: bool | None = None) -> None:
        """Run a batch through the chain. Raises as Module.forward, naming the module; shapes then stay."""
        self._require("forward()")
        is_train = self.for_training if is_train is None else bool(is_train)
        batch = links.one_batch(data_batch)
        check_batch(batch, self.data_names)
        if self._label_shapes is not None:
            labels = getattr(batch, "label", None)
            described = getattr(batch, "provide_label", None) or self._label_shapes
            links.check_labels(described, labels, batch.data, self._modules[0].data_shapes)
        places = links.places(self._modules)
        ran: list[Any] = []
        try:
            self._run(batch, is_train, ran)
        except BaseException:
            links.go_back(places)
            links.forget(ran)
            raise
        self._cut = links.is_nested(batch.data)
        self._moved_labels = self._moved_labels_of(batch)
        if self._label_shapes is not None and not self._cut:
            labels, moved = getattr(batch, "label", None), self._moved_labels
            if moved is not None:
                labels = links.picked(*moved, [entry[0] for entry in self._label_shapes])
            self._label_shapes = links.resized(self._label_shapes, labels)
        self._notify("forward", data_batch)

    def _moved_labels_of(self, batch: Any) -> tuple[Any, Any] | None:
        labels, described = getattr(batch, "label", None), links.flat(getattr(batch, "provide_label", None))
        bound = links.flat(self._label_shapes)
        moved = labels and described and bound and [entry[0] for entry in described] != [entry[0] for entry in bound]
        return (labels, described) if moved else None

    def _run(self, batch: Any, is_train: bool, ran: list[Any]) -> None:
        """Run the modules one after another, and note in ``ran`` those that have."""
        data, last = batch.data, len(self._modules) - 1
        for i, module in enumerate(self._modules):
            given = self._batch_for(i, batch, data)
            if isinstance(module, PythonModule):
                module._pad = given.pad or 0
            with self._at(i):
                module.forward(given, is_train=is_train)
                ran.append(module)
                if i < last:
                    data = links.outputs(module)

    def _batch_for(self, i: int, batch: Any, data: Any) -> Any:
        """A batch with ``data`` under the names that module ``i`` has for it, and the labels it takes."""
        module = self._modules[i]
        if isinstance(module, PythonModule):
            data = links.joined(data)
        nested = links.is_nested(data)
        if i > 0:
            names = module.data_names if self._wired(i) else self._modules[i - 1].output_names
            provided = links.provided(names, data)
        else:
            provided = getattr(batch, "provide_data", None)
            provided = provided if nested or not provided else links.flat(provided)
            provided = links.renamed(provided, module.data_names) if provided and self._wired(i) else provided
        label, described = getattr(batch, "label", None), getattr(batch, "provide_label", None)
        if links.has_symbol(module) and not self._takes_labels(i):
            label = described = None
        elif label:
            entries = described or self._label_shapes
            if not nested:
                label, entries, described = (
                    links.joined(label, entries),
                    links.flat(entries),
                    links.flat(described),
                )
            names = links.label_names(module)
            label, described = links.picked(label, entries, names), links.picked(described, described, names)
        return links.batch_like(batch, data, label, provided, described)

    def backward(self, out_grads: Any = None) -> None:
        """Gradients of the last training batch, from the last module to the first."""
        self._require("backward()")
        for i in reversed(range(len(self._modules))):
            module = self._modules[i]
            with self._at(i):
                if i > 0 and self._grad_req != "write":
                    links.clear_input_grads(module)
                module.backward(out_grads=out_grads)
                if i > 0:
                    out_grads = links.input_grads(module)
                    if isinstance(self._modules[i - 1], PythonModule):
                        out_grads = links.joined(out_grads)

    def update(self) -> None:
        """One step of the optimizer in every module."""
        self._require("update()", optimizer=True)
        if self._optimizer is not None:
            self._follow_settings()
        for module in self._modules:
            module.update()
        self._notify("update", None)

    def get_outputs(self, merge_multi_context: bool = True) -> list[Any]:
        """Outputs of the last module."""
        self._require("get_outputs()")
        return self._modules[-1].get_outputs(merge_multi_context=merge_multi_context)

    def get_input_grads(self, merge_multi_context: bool = True) -> list[Any]:
        """Gradients of the first module's data. NotReadyError unless bound with ``inputs_need_grad``."""
        self._require("get_input_grads()")
        if not self.inputs_need_grad:
            raise NotReadyError("get_input_grads() needs bind(..., inputs_need_grad=True)")
        return self._modules[0].get_input_grads(merge_multi_context=merge_multi_context)

    def get_states(self, merge_multi_context: bool = True) -> list[Any]:
        """States of all modules, one module's after another's."""
        self._require("get_states()")
        return [
            state
            for module in self._modules
            if links.state_count(module)
            for state in module.get_states(merge_multi_context=merge_multi_context)
        ]

    def set_states(self, states: Any = None, value: Any = None) -> None:
        """Set the states of all modules, in the order of get_states, or all to one number."""
        self._require("set_states()")
        if (states is None) == (value is None):
            raise ValueError("set_states takes either states or value, and exactly one of them")
        counts = [links.state_count(module) for module in self._modules]
        if states is not None and len(states) != sum(counts):
            raise ShapeError(f"states has {len(states)} entries and the modules of the chain have {counts}")
        kept = [
            [[part.copy() for part in state] for state in module.get_states(merge_multi_context=False)] if count else []
            for module, count in zip(self._modules, counts)
        ]
        begin = 0
        try:
            for i, (module, count) in enumerate(zip(self._modules, counts)):
                with self._at(i):
                    if count:
                        module.set_states(None if states is None else list(states[begin : begin + count]), value)
                begin += count
        except BaseException:
            for module, old in zip(self._modules, kept):
                if old:
                    module.set_states(old)
            raise

    def update_metric(self, eval_metric: Any, labels: Any, pre_sliced: bool = False) -> None:
        """Show a metric the outputs of every module that takes labels; padded rows do not count."""
        self._require("update_metric()")
        cut = pre_sliced or self._cut
        moved = self._moved_labels
        flat = moved[1] if moved is not None and same_arrays(labels, moved[0]) else links.flat(self._label_shapes)
        for i, module in enumerate(self._modules):
            if self._takes_labels(i):
                names = links.label_names(module)
                own = [links.picked(one, flat, names) for one in labels] if cut else links.picked(labels, flat, names)
                with self._at(i):
                    module.update_metric(eval_metric, own, cut)
        self._notify("metric", eval_metric)

    def _batch_of(self, data: Any) -> Any:
        first = self._modules[0]
        return first._batch_of(data) if isinstance(first, BaseModule) else super()._batch_of(data)

    def _predicted(self, batch: Any) -> list[Any]:
        last = self._modules[-1]
        return last._predicted(batch) if isinstance(last, BaseModule) else super()._predicted(batch)

    def _predicted_axes(self) -> list[int]:
        last = self._modules[-1]
        return last._predicted_axes() if isinstance(last, BaseModule) else super()._predicted_axes()

    def install_monitor(self, mon: Any) -> None:
        """Let a monitor see the executors of every module."""
        self._require("install_monitor()", params=False)
        for module in self._modules:
            module.install_monitor(mon)

    # ------------------------------------------------------------------ a look inside

    def slices(self) -> SliceReport:
        """How the current batch lies over the contexts of the first module."""
        self._require("slices()", params=False)
        return self._modules[0].slices()

    def memory(self, process: bool = False) -> Any:
        """Where the bytes are: a ledger by module, context and role; ``process=True`` adds heap and resident size."""
        from bucketlab.memory import memory

        return memory(self, process=process)
