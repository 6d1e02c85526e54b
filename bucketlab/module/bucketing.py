"""BucketingModule: one model, a symbol for every bucket key, all of them on the same memory."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any

from tqdm.auto import tqdm

from bucketlab._engine import mx
from bucketlab.errors import BucketError, NotReadyError
from bucketlab.failures import tell
from bucketlab.module import batches, bucket_params, checkpoints
from bucketlab.module.base import BaseModule, _check_input_names
from bucketlab.module.module import DEFAULT_INITIALIZER, Module
from bucketlab.module.prebind import shapes_of
from bucketlab.module.residency import Residency
from bucketlab.slicing import SliceReport
from bucketlab.training.scale import check_grad_scale

SymGen = Callable[[Any], tuple[Any, Any, Any]]


class BucketingModule(BaseModule):
    """A model whose graph depends on a bucket key, such as the length that sentences are padded to.

    ``sym_gen(key)`` returns (symbol, data_names, label_names) and is called once for each key, under a fresh
    NameManager. Keys are any hashable. Buckets are bound when they are first met; they share parameters, gradients,
    inputs and working memory with the default bucket, and the optimizer's state by the name of the parameter.

    Batches of buckets need not have as many rows. Gradients are divided by those that ran, or with
    ``grad_scale="tokens"`` by their real tokens; see Module.

    A subclass that wants another module class for its buckets names it in ``module_class``.
    """

    module_class: type[Module] = Module

    def __init__(
        self,
        sym_gen: SymGen,
        default_bucket_key: Hashable = None,
        logger: Any = logging,
        context: Any = mx.cpu(),  # noqa: B008
        work_load_list: Sequence[float] | None = None,
        fixed_param_names: Sequence[str] | None = None,
        state_names: Sequence[str] | None = None,
        group2ctxs: Any = None,
        compression_params: Mapping[str, Any] | None = None,
        *,
        split: str = "balanced",
        working_memory: str = "shared",
        grad_scale: str = "rows",
    ):
        super().__init__(logger=logger)
        if default_bucket_key is None:
            raise BucketError("default_bucket_key is None; give the key of the bucket that is bound first")
        if not callable(sym_gen):
            raise TypeError(f"sym_gen is {type(sym_gen).__name__}; expected a function of the bucket key")
        self._sym_gen = sym_gen
        self._default_bucket_key = default_bucket_key
        self._generated: dict[Hashable, tuple[Any, list[str], list[str]]] = {}
        self._context = context
        self._work_load_list = work_load_list
        self._fixed_param_names = list(fixed_param_names or [])
        self._state_names = list(state_names or [])
        self._group2ctxs = group2ctxs
        self._compression_params = compression_params
        self._options = {
            name: value
            for name, value, usual in (("split", split, "balanced"), ("working_memory", working_memory, "shared"))
            if value != usual
        }
        self._split = split
        self._grad_scale = check_grad_scale(grad_scale)
        self._buckets: dict[Hashable, Module] = {}
        self._curr_module: Any = None
        self._curr_bucket_key: Hashable = None
        self._giver: Any = None
        self._grad_req: Any = None
        self._params_dirty = False
        self._monitor: Any = None
        self._preload_opt_states: str | None = None
        self._residency = Residency()
        symbol, data_names, label_names = self._generate(default_bucket_key)
        _check_input_names(symbol, data_names, "data", True)
        _check_input_names(symbol, label_names, "label", False)
        _check_input_names(symbol, self._state_names, "state", True)
        _check_input_names(symbol, self._fixed_param_names, "fixed_param", True)

    # ------------------------------------------------------------------ buckets

    def _call_sym_gen(self, *args: Any, **kwargs: Any) -> Any:
        """The user's sym_gen, with automatic names starting anew, so that every bucket gets the same."""
        with mx.name.NameManager():
            return self._sym_gen(*args, **kwargs)

    def _generate(self, key: Hashable) -> tuple[Any, list[str], list[str]]:
        """Symbol, data names and label names of a bucket, made once."""
        try:
            known = self._generated.get(key)
        except TypeError:
            raise BucketError(f"bucket_key is {key!r}, which is not hashable; use an int, string or tuple") from None
        if known is None:
            made = self._call_sym_gen(key)
            if not isinstance(made, (tuple, list)) or len(made) != 3 or not isinstance(made[0], mx.sym.Symbol):
                raise BucketError(f"sym_gen({key!r}) returned {made!r}; expected (symbol, data_names, label_names)")
            symbol, *names = made
            for argument, given in zip(("data_names", "label_names"), names):
                if isinstance(given, str) or not isinstance(given, (Iterable, type(None))):
                    raise BucketError(f"sym_gen({key!r}) returned {given!r} as {argument}; expected a list of names")
            known = self._generated[key] = (symbol, list(names[0] or []), list(names[1] or []))
        return known

    def _new_module(self, key: Hashable) -> Module:
        symbol, data_names, label_names = self._generate(key)
        return self._module_on(symbol, data_names, label_names)

    def _module_on(self, symbol: Any, data_names: Sequence[str], label_names: Sequence[str]) -> Module:
        return self.module_class(
            symbol,
            data_names,
            label_names,
            logger=self.logger,
            context=self._context,
            work_load_list=self._work_load_list,
            fixed_param_names=[name for name in self._fixed_param_names if name in symbol.list_arguments()],
            state_names=self._state_names,
            group2ctxs=self._group2ctxs,
            compression_params=self._compression_params,
            **self._options,
            **({} if self._grad_scale == "rows" else {"grad_scale": self._grad_scale}),
        )

    def check_batches(self, *sources: Any) -> None:
        """Refuse iterators or plans that have a batch which ``split`` cannot give to the contexts; see Module."""
        holder = self._curr_module or self._new_module(self._default_bucket_key)
        holder.check_batches(*sources)

    def _reset_bind(self) -> None:
        """Forget all executors; parameters and optimizer stay with the module that holds them."""
        if self._giver is not None and self.params_initialized and self._params_dirty:
            self._sync_params_from_devices()
        self._buckets = {}
        self._curr_bucket_key = self._curr_module = None
        self.binded = False

    def bind(
        self,
        data_shapes: Any,
        label_shapes: Any = None,
        for_training: bool = True,
        inputs_need_grad: bool = False,
        force_rebind: bool = False,
        shared_module: Any = None,
        grad_req: Any = "write",
        *,
        host: str = "cpu",
    ) -> None:
        """Bind the default bucket. The others follow when their first batch comes, with the same settings.

        ``host`` says where the host's copies of parameters are made, "cpu" or "context"; see Module.bind.
        With ``force_rebind`` all buckets are bound anew; parameters and optimizer stay. Raises as Module.bind does, and
        leaves this module as it was.
        """
        if shared_module is not None:
            raise ValueError("shared_module is not for BucketingModule: its buckets share among themselves")
        if self.binded and not force_rebind:
            self.logger.warning("Already bound: bind() does nothing; pass force_rebind=True to bind anew")
            return
        key = self._default_bucket_key
        loaded = self._buckets.get(key) if not self.binded else None
        module = loaded if loaded is not None else self._new_module(key)
        if self.params_initialized and loaded is None and self._giver is not None:
            self._hand_over(module)
        with self._residency.binding(key):
            elsewhere: dict[str, Any] = {} if host == "cpu" else {"host": host}
            module.bind(data_shapes, label_shapes, for_training, inputs_need_grad, grad_req=grad_req, **elsewhere)
        others = {} if self.binded else {k: m for k, m in self._buckets.items() if k != key}
        for replaced in self._bound_modules() if self.binded else ():
            replaced._exec_group.release_monitors()
        self.for_training, self.inputs_need_grad, self._grad_req = for_training, inputs_need_grad, grad_req
        self._buckets = {key: module, **others}
        self._curr_module, self._curr_bucket_key, self._giver = module, key, module
        self.binded = True
        if self._monitor is not None:
            module.install_monitor(self._monitor)
        self._notify("bind", key)

    def _hand_over(self, module: Module) -> None:
        """Before a re-bind: parameters, their memory and the optimizer go from the bucket that gave them to another."""
        giver = self._giver
        if self._params_dirty and self.binded:
            self._sync_params_from_devices()
        module._arg_params, module._aux_params = giver._arg_params, giver._aux_params
        module._exec_group, module.params_initialized = giver._exec_group, True
        if giver.optimizer_initialized:
            module._take_update(giver._update, giver._scale)

    def switch_bucket(self, bucket_key: Hashable, data_shapes: Any, label_shapes: Any = None) -> None:
        """Make a bucket current, binding it when it is met for the first time.

        Raises BucketError for a missing key, ShapeError and SliceError for shapes that do not fit; the current bucket
        stays current then.
        """
        if not self.binded:
            raise NotReadyError("switch_bucket() needs bound executors: call bind(data_shapes, label_shapes) first")
        self._make_current(bucket_key, self._bucket(bucket_key, data_shapes, label_shapes))

    def _make_current(self, bucket_key: Hashable, module: Module) -> None:
        if self._curr_module is not module:
            self._curr_module, self._curr_bucket_key = module, bucket_key
            if self._residency.limited:
                self._come_back(bucket_key, module)
            self._notify("switch", bucket_key)

    def _bucket_of(self, batch: Any) -> Module:
        """The bucket of a batch, which is bound to the shapes of its arrays when it is met for the first time."""
        key = batches.bucket_key(batch)
        try:
            known = self._buckets.get(key)
        except TypeError:
            known = None
        if known is not None and known.binded:
            return known
        if key is None:
            return self._bucket(key, None, None)
        names = self._generate(key)[1:]
        # Before it is bound: with a bucket come its own parameters, which would stay.
        batches.check_arrays(batch, *names)
        return self._bucket(key, *batches.announced_shapes(batch, *names))

    def _bucket(self, key: Hashable, data_shapes: Any, label_shapes: Any) -> Module:
        try:
            module = self._buckets.get(key)
        except TypeError:
            raise BucketError(f"bucket_key is {key!r}, which is not hashable; use an int, string or tuple") from None
        if module is not None and module.binded:
            return module
        if key is None:
            raise BucketError(
                "the batch has no bucket_key; set batch.bucket_key, or use an iterator made for buckets such as "
                "BucketIter"
            )
        if data_shapes is None:
            raise BucketError(
                f"bucket {key!r} is not bound and no data_shapes are given (bound: {list(self._buckets)}); batches "
                f"of a "
                f"new bucket need provide_data"
            )
        if module is None:
            module = self._new_module(key)
        try:
            with self._residency.binding(key):
                module.bind(
                    data_shapes,
                    label_shapes,
                    self.for_training,
                    self.inputs_need_grad,
                    shared_module=self._giver,
                    grad_req=self._request_of(module),
                )
        except ValueError as error:
            raise type(error)(f"bucket {key!r}: {error}") from error
        if self._monitor is not None:
            module.install_monitor(self._monitor)
        self._buckets[key] = module
        self._notify("bind", key)
        return module

    def prebind(self, plan: Any, progress: bool | None = None) -> None:
        """Bind buckets before their batches come, with a progress bar (None: only on a terminal).

        ``plan``: an iterator with ``shapes()`` such as BucketIter, a BucketPlan, or a mapping of key to (data_shapes,
        label_shapes). Buckets that are bound already stay. The current bucket stays current.

        >>> module.prebind(train)
        """
        self._require("prebind()")
        default = self._giver._exec_group
        wanted = shapes_of(plan, self._default_bucket_key, default.data_shapes, default.label_shapes)
        missing = [key for key in wanted if key not in self._buckets or not self._buckets[key].binded]
        for key in tqdm(missing, desc="binding", unit="bucket", disable=None if progress is None else not progress):
            self._bucket(key, *wanted[key])

    def release(self, bucket_key: Hashable) -> None:
        """Let go of a bucket's executors and graphs; its next batch binds it again, at no more memory than before.

        Parameters, gradients and optimizer state stay. The bucket that owns the working memory keeps that until a
        hungrier one comes. Raises BucketError for a bucket that is not there.
        """
        module = self._buckets.get(bucket_key)
        if module is None:
            raise BucketError(f"bucket {bucket_key!r} is not bound; bound are {list(self._buckets)}")
        self._residency.gone(bucket_key)
        if module.binded:
            module._exec_group.let_go()
        self._notify("release", bucket_key)

    def limit(self, buckets: int | None = None, heap: int | None = None) -> None:
        """Keep at most so many ``buckets`` bound, or so many bytes of process ``heap`` in their graphs.

        The least used are let go and bound again when needed; who used what is noted while there is a limit, before
        that buckets count in the order in which they were bound. The heap is measured around each bind.
        """
        self._residency = self._residency.under(buckets, heap)
        if self._curr_bucket_key in self._residency:
            self._residency.used(self._curr_bucket_key)
        self._keep_to_limit()

    def _come_back(self, key: Hashable, module: Module) -> None:
        """A bucket has become current: others may have to go for it."""
        if key in self._residency:
            self._residency.used(key)
        else:
            with self._residency.binding(key):
                module._exec_group.revive()
        self._keep_to_limit()

    def _keep_to_limit(self) -> None:
        for key in self._residency.to_let_go():
            if key in self._buckets:
                self.release(key)
            else:
                self._residency.gone(key)

    def _request_of(self, module: Module) -> Any:
        """grad_req for a bucket: by name, as far as the bucket has those of the default bucket."""
        requests = self._grad_req
        if isinstance(requests, (list, tuple)):
            # In the order of the default bucket's arguments; another bucket may list its own otherwise.
            requests = dict(zip(self._checkpoint_symbol().list_arguments(), requests))
        if not isinstance(requests, Mapping):
            return requests
        arguments = set(module.symbol.list_arguments())
        return {name: request for name, request in requests.items() if name in arguments}

    # ------------------------------------------------------------------ names, shapes, symbol

    @property
    def data_names(self) -> list[str]:
        return self._curr_module.data_names if self.binded else self._generate(self._default_bucket_key)[1]

    @property
    def output_names(self) -> list[str]:
        if self.binded:
            return self._curr_module.output_names
        return self._generate(self._default_bucket_key)[0].list_outputs()

    @property
    def data_shapes(self) -> Any:
        self._require("data_shapes", params=False)
        return self._curr_module.data_shapes

    @property
    def label_shapes(self) -> Any:
        self._require("label_shapes", params=False)
        return self._curr_module.label_shapes

    @property
    def output_shapes(self) -> Any:
        self._require("output_shapes", params=False)
        return self._curr_module.output_shapes

    @property
    def symbol(self) -> Any:
        """The symbol of the current bucket."""
        self._require("symbol", params=False)
        return self._curr_module.symbol

    def _checkpoint_symbol(self) -> Any:
        return self._generate(self._default_bucket_key)[0]

    @property
    def _total_exec_bytes(self) -> int:  # type: ignore[override]
        if not self.binded:
            return 0
        from bucketlab.memory import memory

        return memory(self).distinct

    # ------------------------------------------------------------------ parameters and optimizer

    def get_params(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Parameters of all buckets met so far, on the host: copies that stay what they are."""
        if not self.params_initialized:
            raise NotReadyError("get_params() needs parameters: call init_params() or set_params() first")
        if self._params_dirty:
            self._sync_params_from_devices()
        holder = self._curr_module if self._curr_module is not None else self._buckets[self._default_bucket_key]
        return holder.get_params()

    def _sync_params_from_devices(self) -> None:
        """Bring the host's parameters up to what the executors hold; what buckets share is read once."""
        done: set[str] = set()
        for module in self._bound_modules():
            done |= module._sync_params_from_devices(done)
        self._params_dirty = False

    def init_params(
        self,
        initializer: Any = DEFAULT_INITIALIZER,
        arg_params: Any = None,
        aux_params: Any = None,
        allow_missing: bool = False,
        force_init: bool = False,
        allow_extra: bool = False,
    ) -> None:
        """Set the parameters of the buckets that are bound, as Module.init_params does."""
        if self.params_initialized and not force_init:
            return
        self._require("init_params()", params=False)
        givens = {"parameter": arg_params, "auxiliary state": aux_params}
        if self._params_dirty:
            self._sync_params_from_devices()
        bucket_params.initialise(
            self._curr_module, self._others(), givens, initializer, allow_missing, allow_extra
        )
        self._params_dirty = False
        self.params_initialized = True

    def _others(self) -> list[Module]:
        """The buckets that are bound, but for the current one."""
        return [module for module in self._bound_modules() if module is not self._curr_module]

    def _bound_modules(self) -> list[Module]:
        """The buckets that are bound; the current one and the one that gives the memory, though deleted, among them."""
        kept = {id(m): m for m in (*self._buckets.values(), self._curr_module, self._giver) if m is not None}
        return [module for module in kept.values() if module.binded]

    def set_params(
        self,
        arg_params: Any,
        aux_params: Any,
        allow_missing: bool = False,
        force_init: bool = True,
        allow_extra: bool = False,
    ) -> None:
        """Set parameters from dicts, all checked before any is written."""
        if not allow_missing:
            super().set_params(arg_params, aux_params, allow_missing, force_init, allow_extra)
            return
        if self.params_initialized and not force_init:
            warnings.warn(
                "Parameters are initialised already: set_params() does nothing; pass force_init=True to set them anew",
                stacklevel=2,
            )
            return
        self._require("set_params()", params=False)
        givens = {"parameter": arg_params, "auxiliary state": aux_params}
        bucket_params.assign(self._curr_module, self._others(), givens, allow_extra)
        self._params_dirty = True
        self.params_initialized = True

    def init_optimizer(
        self,
        kvstore: Any = "local",
        optimizer: Any = "sgd",
        optimizer_params: Any = (("learning_rate", 0.01),),
        force_init: bool = False,
    ) -> None:
        """Choose how gradients change parameters, for all buckets; see Module.init_optimizer."""
        self._require("init_optimizer()")
        if self.optimizer_initialized and not force_init:
            self.logger.warning("Optimizer is initialised already: init_optimizer() does nothing; pass force_init=True")
            return
        current, waiting = self._curr_module, self._preload_opt_states
        before, current._preload_opt_states = current._preload_opt_states, waiting or current._preload_opt_states
        try:
            current.init_optimizer(kvstore, optimizer, optimizer_params, force_init=force_init)
        except BaseException:
            current._preload_opt_states = before
            raise
        self._preload_opt_states = None
        for module in self._others():
            module.borrow_optimizer(self._curr_module)
        self.optimizer_initialized = True

    # ------------------------------------------------------------------ running

    def prepare(self, data_batch: Any, sparse_row_id_fn: Any = None) -> None:
        """Bind the bucket of a batch that comes next, and pull the rows of sparse parameters that it needs."""
        self._require("prepare()")
        module = self._bucket_of(data_batch)
        module.prepare(data_batch, sparse_row_id_fn=sparse_row_id_fn)

    def forward(self, data_batch: Any, is_train: bool | None = None) -> None:
        """Switch to the bucket of the batch, and run it."""
        self._require("forward()")
        self._curr_module._tokens_to_learn(data_batch, is_train)
        before, bound = (self._curr_bucket_key, self._curr_module), len(self._buckets)
        try:
            self._make_current(batches.bucket_key(data_batch), self._bucket_of(data_batch))
            self._curr_module.forward(data_batch, is_train=is_train)
        except Exception as error:
            if len(self._buckets) > bound:
                del self._buckets[batches.bucket_key(data_batch)]
            self._make_current(*before)
            tell(error, self, data_batch)
            raise
        self._notify("forward", data_batch)

    def backward(self, out_grads: Any = None) -> None:
        """Gradients of the last training batch."""
        self._require("backward()")
        try:
            self._curr_module.backward(out_grads=out_grads)
        except Exception as error:
            tell(error, self)
            raise

    def update(self) -> None:
        """One step of the optimizer on the parameters of the current bucket."""
        self._require("update()", optimizer=True)
        self._params_dirty = True
        self._curr_module.update()
        self._notify("update", None)

    def get_outputs(self, merge_multi_context: bool = True) -> list[Any]:
        """Outputs of the last forward pass, as arrays that stay what they are."""
        self._require("get_outputs()")
        return self._curr_module.get_outputs(merge_multi_context=merge_multi_context)

    def get_input_grads(self, merge_multi_context: bool = True) -> list[Any]:
        """Gradients of the data arrays of the current bucket."""
        self._require("get_input_grads()")
        return self._curr_module.get_input_grads(merge_multi_context=merge_multi_context)

    def get_states(self, merge_multi_context: bool = True) -> list[Any]:
        """States of the current bucket."""
        self._require("get_states()")
        return self._curr_module.get_states(merge_multi_context=merge_multi_context)

    def set_states(self, states: Any = None, value: Any = None) -> None:
        """Set the states, which all buckets share."""
        self._require("set_states()")
        self._curr_module.set_states(states, value)

    def update_metric(self, eval_metric: Any, labels: Any, pre_sliced: bool = False) -> None:
        """Show the last batch's outputs and its labels to a metric; padded rows do not count."""
        self._require("update_metric()")
        self._curr_module.update_metric(eval_metric, labels, pre_sliced)
        self._notify("metric", eval_metric)

    def _batch_of(self, data: Any) -> Any:
        """For the current bucket: an array does not say which it is for."""
        return mx.io.DataBatch([data], bucket_key=self._curr_bucket_key)

    def _predicted(self, batch: Any) -> list[Any]:
        return self._curr_module._predicted(batch)

    def _predicted_axes(self) -> list[int]:
        return self._curr_module._predicted_axes()

    def install_monitor(self, mon: Any) -> None:
        """Let a monitor see all executors, those of buckets to come included."""
        self._require("install_monitor()", params=False)
        self._monitor = mon
        for module in self._buckets.values():
            if module.binded:
                module.install_monitor(mon)

    # ------------------------------------------------------------------ checkpoints

    def save_checkpoint(self, prefix: str, epoch: int, remove_amp_cast: Any = False) -> None:
        """Write parameters, the optimizer's state if asked, and the symbol and key of every bucket.

        The third argument means ``save_optimizer_states``, since that is what ``mx.callback.module_checkpoint`` passes
        there; it keeps its name in mx.mod. Raises BucketError for keys that cannot be written.
        """
        checkpoints.save(self, prefix, epoch, save_optimizer_states=bool(remove_amp_cast))

    @staticmethod
    def load(
        prefix: str,
        epoch: int,
        sym_gen: SymGen | None = None,
        default_bucket_key: Hashable = None,
        *,
        load_optimizer_states: bool = False,
        **kwargs: Any,
    ) -> BucketingModule:
        """A module from a checkpoint of ours or of mx.mod, ready to bind, with the symbols that were saved.

        With ``load_optimizer_states`` init_optimizer goes on from the states that were saved. The number of updates is
        not among them, as in mx.mod: an optimizer that counts, such as Adam, is to be given ``begin_num_update``.
        """
        module = checkpoints.load(BucketingModule, prefix, epoch, sym_gen, default_bucket_key, **kwargs)
        if load_optimizer_states:
            module._preload_opt_states = f"{prefix}-{epoch:04d}.states"
        return module

    def save_optimizer_states(self, fname: str) -> None:
        """Write the optimizer's state to a file; see Module.save_optimizer_states."""
        self._require("save_optimizer_states()", optimizer=True)
        self._curr_module.save_optimizer_states(fname)

    def load_optimizer_states(self, fname: str) -> None:
        """Read the optimizer's state from a file; see Module.load_optimizer_states."""
        self._require("load_optimizer_states()", optimizer=True)
        self._curr_module.load_optimizer_states(fname)

    @staticmethod
    def load_dict(
        sym_dict: Any = None,
        sym_gen: SymGen | None = None,
        default_bucket_key: Hashable = None,
        arg_params: Any = None,
        aux_params: Any = None,
        **kwargs: Any,
    ) -> BucketingModule:
        """A module from symbols by key and parameters that are in memory already, ready to bind."""
        return checkpoints.assemble(
            BucketingModule, sym_dict, sym_gen, default_bucket_key, arg_params, aux_params, **kwargs
        )

    # ------------------------------------------------------------------ a look inside

    def slices(self) -> SliceReport:
        """How the current batch lies over the contexts."""
        self._require("slices()", params=False)
        return self._curr_module._exec_group.slice_report(self._curr_bucket_key)

    def memory(self, process: bool = False) -> Any:
        """Where the bytes are: a ledger by bucket, context and role; ``process=True`` adds heap and resident size."""
        from bucketlab.memory import memory

        return memory(self, process=process)
