"""Module: one symbol, bound over contexts, with its parameters on the host, its optimizer and its checkpoints."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from bucketlab._engine import mx
from bucketlab.errors import BucketlabError, NotReadyError, ShapeError
from bucketlab.executor_group import DataParallelExecutorGroup
from bucketlab.failures import tell
from bucketlab.module import batches
from bucketlab.module.base import BaseModule, _check_input_names, check_metric, read_params, read_symbol
from bucketlab.module.cut import as_bound
from bucketlab.module.values import fill, write, zeros_like
from bucketlab.requests import as_params, check_params, contexts_of, names_of
from bucketlab.shapes import BatchShapes, parse
from bucketlab.slicing import SliceReport, check_workload
from bucketlab.training.exchange import open_exchange
from bucketlab.training.scale import (
    GradientScale,
    TokenCount,
    check_grad_scale,
    check_tokens_can_be_followed,
    tokens_of,
)
from bucketlab.training.update import Update

DEFAULT_INITIALIZER = mx.init.Uniform(0.01)

KINDS = ("parameter", "auxiliary state")

HOSTS = ("cpu", "context")
"""Where the host's copies of parameters may be made."""


class MissingParameterError(BucketlabError, RuntimeError):
    """A parameter that is in the symbol and not among those given."""


class Module(BaseModule):
    """A symbol with parameters. Takes what ``mx.mod.Module`` takes, and ``split``, by which rows go to contexts.

    ``grad_scale`` says what gradients are divided by in each update: "rows" of the batch, or "tokens", which are the
    labels that count in it: ``batch.valid_labels``, else ``batch.valid_tokens``. With "tokens" every update goes by
    the mean over real tokens, however many a batch has; with grad_req="add", over those of all batches since the last
    update. The loss must be a sum over labels (``normalization="null"``), and ``rescale_grad`` is not to be given.

    A subclass that wants another executor group names it in ``executor_group_class``.

    >>> module = Module(symbol, context=[mx.cpu(0), mx.cpu(1)])
    >>> module.bind([("data", (8, 4))], [("softmax_label", (8,))])
    """

    executor_group_class: type[DataParallelExecutorGroup] = DataParallelExecutorGroup

    def __init__(
        self,
        symbol: Any,
        data_names: Sequence[str] | None = ("data",),
        label_names: Sequence[str] | None = ("softmax_label",),
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
        if not isinstance(symbol, mx.sym.Symbol):
            raise TypeError(f"symbol is {type(symbol).__name__}; expected an mx.sym.Symbol")
        self._context = contexts_of(context)
        shares = [1] * len(self._context) if work_load_list is None else work_load_list
        check_workload(shares, len(self._context))
        self._work_load_list = list(shares)
        self._options = {
            name: value
            for name, value, usual in (("split", split, "balanced"), ("working_memory", working_memory, "shared"))
            if value != usual
        }
        self._split = split
        self._group2ctxs = group2ctxs
        self._compression_params = compression_params
        self._symbol = symbol
        self._data_names = names_of("data_names", data_names)
        self._label_names = names_of("label_names", label_names)
        self._state_names = names_of("state_names", state_names)
        self._fixed_param_names = names_of("fixed_param_names", fixed_param_names)
        arguments = symbol.list_arguments()
        _check_input_names(symbol, self._data_names, "data", True, arguments)
        _check_input_names(symbol, self._label_names, "label", False, arguments)
        _check_input_names(symbol, self._state_names, "state", True, arguments)
        _check_input_names(symbol, self._fixed_param_names, "fixed_param", True, arguments)
        inputs = {*self._data_names, *self._label_names, *self._state_names}
        self._param_names = [name for name in arguments if name not in inputs]
        self._aux_names = symbol.list_auxiliary_states()
        self._output_names = symbol.list_outputs()
        # Dictionaries once bound, the Update once an optimizer is there; what needs them asks _require first.
        self._arg_params: Any = None
        self._aux_params: Any = None
        self._params_dirty = False
        self._host = "cpu"
        self._initializer: Any = DEFAULT_INITIALIZER
        self._exec_group: Any = None
        self._data_shapes: Any = None
        self._label_shapes: Any = None
        self._grad_req: Any = None
        self._optimizer: Any = None
        self._kvstore: Any = None
        self._update_on_kvstore: bool | None = None
        self._updater: Any = None
        self._update: Any = None
        self._ran_on: tuple[int, ...] | None = None
        self._scale: GradientScale | None = None
        self._tokens = TokenCount() if check_grad_scale(grad_scale) == "tokens" else None
        self._batch_tokens = 0
        self._preload_opt_states: str | None = None
        # What a group that is gone has left: parameters, which the optimizer works on, without executors.
        self._left: _Keeper | None = None
        # Parameters of a checkpoint that are in none of this symbol's places, but in other buckets'.
        self._of_others: frozenset[str] = frozenset()

    # ------------------------------------------------------------------ names and shapes

    @property
    def data_names(self) -> list[str]:
        return self._data_names

    @property
    def label_names(self) -> list[str]:
        return self._label_names

    @property
    def output_names(self) -> list[str]:
        return self._output_names

    @property
    def data_shapes(self) -> Any:
        """Descriptions of the data arrays: a list, or a tuple of lists, one for each context."""
        self._require("data_shapes", params=False)
        return self._data_shapes

    @property
    def label_shapes(self) -> Any:
        self._require("label_shapes", params=False)
        return self._label_shapes

    @property
    def output_shapes(self) -> list[tuple[str, tuple[int, ...]]]:
        """Name and shape of each output, joined over the contexts."""
        self._require("output_shapes", params=False)
        return self._exec_group.get_output_shapes()

    @property
    def _total_exec_bytes(self) -> int:  # type: ignore[override]
        return 0 if self._exec_group is None else self._exec_group._total_exec_bytes

    # ------------------------------------------------------------------ binding

    def _reset_bind(self) -> None:
        """Forget the executors; parameters and optimizer stay."""
        if self._exec_group is not None and self.params_initialized:
            if self._params_dirty:
                self._sync_params_from_devices()
            self._left = _Keeper(self._exec_group)
        self._exec_group = self._data_shapes = self._label_shapes = None
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
        """Make executors for batches of these shapes.

        ``data_shapes`` and ``label_shapes``: lists of (name, shape) or DataDesc for all contexts, or one such list for
        each context. Bound already: a warning and nothing else, unless ``force_rebind``, which keeps parameters and
        optimizer. With ``shared_module`` parameters, gradients, inputs and working memory are that module's.
        ``host`` says where the host's copy of each parameter is made: on the "cpu", or on the parameter's own "context"
        (the first of several). Raises ShapeError, SliceError, NotReadyError, ValueError; the module is as it was then.
        """
        if self.binded and not force_rebind:
            self.logger.warning("Already bound: bind() does nothing; pass force_rebind=True to bind anew")
            return
        if inputs_need_grad and not for_training:
            raise ValueError("inputs_need_grad=True needs for_training=True: without training there are no gradients")
        if host not in HOSTS:
            raise ValueError(f"host is {host!r}; choose one of {HOSTS}")
        shapes = parse(self._data_names, self._label_names, data_shapes, label_shapes, len(self._context))
        giver = self._check_giver(shared_module) if shared_module is not None else self._kept_memory()
        shared: set[str] = set() if giver is None else giver._memory.filled
        try:
            group = self._make_group(shapes, for_training, inputs_need_grad, giver, grad_req)
        except Exception as error:
            tell(error, self, shapes)
            raise
        if shared_module is not None:
            host = shared_module._host
            self._fill_in(group, shared_module, shared, host)
            self._arg_params, self._aux_params = shared_module._arg_params, shared_module._aux_params
            self._initializer = shared_module._initializer
            if self._tokens is not None and shared_module._tokens is not None:
                self._tokens = shared_module._tokens
            self.params_initialized = True
        elif self.params_initialized:
            if giver is None:
                arg_params, aux_params = (
                    {name: value for name, value in (table or {}).items() if name not in self._of_others}
                    for table in (self._arg_params, self._aux_params)
                )
                self._check_complete(group, arg_params, aux_params)
                group.set_params(arg_params, aux_params)
        else:
            self._arg_params = self._host_arrays(group, "arg", host)
            self._aux_params = self._host_arrays(group, "aux", host)
        if self._exec_group is not None and shared_module is None:
            self._exec_group.release_monitors()
            for monitor in self._exec_group._monitors:
                group.install_monitor(monitor)
        self._exec_group, self._left = group, None
        self._data_shapes, self._label_shapes = group.data_shapes, group.label_shapes
        self.for_training, self.inputs_need_grad, self._grad_req = for_training, inputs_need_grad, grad_req
        self._host, self.binded = host, True
        if shared_module is not None and shared_module.optimizer_initialized:
            self.borrow_optimizer(shared_module)
        elif self._update is not None:
            self._update = self._update.on(self._stores())
            self._update.add_names(group.held_names, self._arg_params, self._symbol)
        self._notify("bind", None)

    def check_batches(self, *sources: Any) -> None:
        """Refuse iterators or plans that have a batch which ``split`` cannot give to the contexts.

        Read is what they say of themselves: ``batch_rows`` or ``batch_sizes``. Raises SliceError naming the bucket.
        """
        batches.check_announced(sources, self._work_load_list, self._split)

    def _make_group(
        self, shapes: BatchShapes, for_training: bool, inputs_need_grad: bool, giver: Any, grad_req: Any
    ) -> DataParallelExecutorGroup:
        return self.executor_group_class(
            self._symbol,
            self._context,
            self._work_load_list,
            shapes.data_list,
            shapes.label_list,
            self._param_names,
            for_training,
            inputs_need_grad,
            giver,
            logger=self.logger,
            fixed_param_names=self._fixed_param_names,
            grad_req=grad_req,
            group2ctxs=self._group2ctxs,
            state_names=self._state_names,
            **self._options,
        )

    def _check_giver(self, shared_module: Any) -> Any:
        if not isinstance(shared_module, Module):
            raise TypeError(f"shared_module is {type(shared_module).__name__}; expected a Module")
        if not shared_module.binded:
            raise NotReadyError("shared_module is not bound: call its bind() first")
        if not shared_module.params_initialized:
            raise NotReadyError("shared_module has no parameters yet: call its init_params() first")
        group = shared_module._exec_group
        if len(group.contexts) < len(self._context):
            raise ShapeError(
                f"shared_module has executors on {len(group.contexts)} context(s), and this module is on "
                f"{len(self._context)}; share with a module on at least as many contexts"
            )
        return group

    def _kept_memory(self) -> Any:
        """On a re-bind: the parameters of the executors that are replaced; inputs and working memory stay behind."""
        if not self.params_initialized:
            return None
        return self._left if self._exec_group is None else _Keeper(self._exec_group)

    def _host_arrays(
        self, group: Any, kind: str, host: str, wanted: Collection[str] | None = None
    ) -> dict[str, Any]:
        """Zeros, one for each parameter (or auxiliary state) or those wanted, of its shape, type and storage."""
        names, blocks = (group.held_names, group.param_arrays) if kind == "arg" else (self._aux_names, group.aux_arrays)
        return {
            name: zeros_like(block[0], None if host == "context" else mx.cpu())
            for name, block in zip(names, blocks)
            if wanted is None or name in wanted
        }

    def _fill_in(self, group: Any, giver: Module, shared: set[str], host: str) -> None:
        """Values for parameters that the giver of the memory lacks: its host's, or made by its initializer.

        The giver learns of them when all are made: an initializer may refuse a name. ``shared`` are those whose memory
        has its values already.
        """
        tables = {"arg": giver._arg_params, "aux": giver._aux_params}
        names = {"arg": group.held_names, "aux": self._aux_names}
        unfilled = {name for own in names.values() for name in own} - shared
        group._memory.unfilled |= unfilled
        made = {
            kind: self._host_arrays(group, kind, host, {name for name in names[kind] if name not in table})
            for kind, table in tables.items()
        }
        if any(made.values()):
            fill([(made, self._symbol.attr_dict())], dict.fromkeys(made), giver._initializer, keep=False)
        known = {
            kind: {n: table[n] for n in names[kind] if n in table and n not in shared} for kind, table in tables.items()
        }
        group.set_params({**known["arg"], **made["arg"]}, {**known["aux"], **made["aux"]})
        group._memory.unfilled -= unfilled
        for kind, table in tables.items():
            table.update(made[kind])

    def _check_complete(self, group: Any, arg_params: Mapping[str, Any], aux_params: Mapping[str, Any]) -> None:
        for kind, names, given in (
            ("parameter", group.held_names, arg_params),
            ("auxiliary state", self._aux_names, aux_params),
        ):
            missing = [name for name in names if name not in given]
            if missing:
                raise MissingParameterError(f"{kind} {', '.join(map(repr, missing))} is missing from those given")

    def reshape(self, data_shapes: Any, label_shapes: Any = None) -> None:
        """Take batches of other shapes from now on, with the same parameters. Seen shapes are not bound again.

        Types stay as they were at bind; arrays of other types are converted when they are fed.
        Raises ShapeError or SliceError and leaves the module as it was.
        """
        self._require("reshape()", params=False)
        shapes = parse(self._data_names, self._label_names, data_shapes, label_shapes, len(self._context))
        self._reshape(as_bound(shapes, self._exec_group))

    def _reshape(self, shapes: BatchShapes) -> None:
        self._exec_group.reshape(shapes, None)
        self._has_turned()

    def _has_turned(self) -> None:
        """Executors for other shapes are current."""
        self._data_shapes, self._label_shapes = self._exec_group.data_shapes, self._exec_group.label_shapes
        self._notify("reshape", None)

    # ------------------------------------------------------------------ parameters

    def get_params(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Parameters and auxiliary states as they are now, on the host: copies that stay what they are."""
        if not self.params_initialized:
            raise NotReadyError("get_params() needs parameters: call init_params() or set_params() first")
        if self._params_dirty or self._behind:
            self._sync_params_from_devices()
        return _copies(self._arg_params), _copies(self._aux_params)

    @property
    def _behind(self) -> bool:
        """Whether a module that shares this one's memory has trained since the host's copies were brought up to it."""
        return self._exec_group is not None and self._exec_group._memory.ahead

    def _sync_params_from_devices(self, done: Collection[str] = ()) -> set[str]:
        """Bring the host's parameters up to what the executors hold, but for those ``done``; returns which."""
        group = self._exec_group
        names = {name for name in (*self._arg_params, *self._aux_params) if name not in done}
        rows = {}
        if self._update_on_kvstore:
            rows = self._all_rows([name for name in names if name in self._update._positions])
            self._update.pull_rows(rows)
        group.get_params(
            {name: value for name, value in self._arg_params.items() if name in names and name not in rows},
            {name: value for name, value in self._aux_params.items() if name in names},
        )
        for name in rows:
            # What the kvstore holds, not a mean of its copies, which may be one bit off.
            target = self._arg_params[name]
            group._memory.contexts[0].params.weights[name].astype(target.dtype).copyto(target)
        self._params_dirty = group._memory.ahead = False
        return names

    def _all_rows(self, names: Collection[str]) -> dict[str, Any]:
        """Row ids that mean the whole of each row_sparse parameter."""
        table = self._exec_group._memory.contexts[0].params.weights
        sparse = [name for name in names if name in table and table[name].stype == "row_sparse"]
        return {name: mx.nd.arange(0, table[name].shape[0], dtype="int64") for name in sparse}

    def init_params(
        self,
        initializer: Any = DEFAULT_INITIALIZER,
        arg_params: Mapping[str, Any] | None = None,
        aux_params: Mapping[str, Any] | None = None,
        allow_missing: bool = False,
        force_init: bool = False,
        allow_extra: bool = False,
    ) -> None:
        """Set every parameter from the dicts given, or by ``initializer`` where a dict is None or may miss some.

        Everything is checked before anything is written. Raises RuntimeError for a missing name, ValueError for an
        unknown name (unless ``allow_extra``) or a wrong shape.
        """
        if self.params_initialized and not force_init:
            warnings.warn(
                "Parameters are initialised already: init_params() does nothing; pass force_init=True to set them anew",
                stacklevel=2,
            )
            return
        self._require("init_params()", params=False)
        givens = {kind: as_params(kind, given) for kind, given in zip(KINDS, (arg_params, aux_params))}
        self._write(self._checked(givens, initializer, allow_missing, allow_extra), givens, initializer)

    def _write(
        self, hosts: Mapping[str, Mapping[str, Any]], givens: Mapping[str, Any], initializer: Any
    ) -> None:
        """Set these host arrays, by kind, and the executors from them: all is checked already."""
        if self._behind and self.params_initialized:
            self._sync_params_from_devices()
        fill([(hosts, self._symbol.attr_dict())], givens, initializer, self.params_initialized)
        self._put(hosts, initializer)
        self._put_elsewhere(givens)

    def _put(self, hosts: Mapping[str, Mapping[str, Any]], initializer: Any) -> None:
        """Bring executors, and what keeps weights besides, to what the host has."""
        self._exec_group.set_params(hosts["parameter"], hosts["auxiliary state"])
        if initializer is not None:
            self._initializer = initializer
        self.params_initialized = True
        self._params_dirty = False
        self._tell_kvstore(hosts["parameter"])

    def _elsewhere(self, kind: str) -> dict[str, Any]:
        """Host arrays of parameters that only modules sharing this one's memory have."""
        own = self._own_hosts()[kind]
        table = (self._arg_params if kind == "parameter" else self._aux_params) or {}
        return {name: array for name, array in table.items() if name not in own}

    def _put_elsewhere(self, givens: Mapping[str, Any]) -> None:
        """Set what is given for parameters of such modules, which get_params() tells of, too."""
        for kind, given in givens.items():
            table = self._elsewhere(kind)
            for name in [name for name in given or () if name in table]:
                for target in (table[name], *self._exec_group._memory.arrays(kind, name)):
                    write(given[name], target)
                self._tell_kvstore({name: table[name]})

    def _checked(
        self, givens: Mapping[str, Any], initializer: Any, allow_missing: bool, allow_extra: bool
    ) -> dict[str, dict[str, Any]]:
        """Host arrays by kind, once all that is given for them is found to fit. Raises as init_params does."""
        hosts = self._own_hosts()
        for kind, given in givens.items():
            known = hosts[kind]
            missing = [name for name in known if given is None or name not in given]
            if missing and given is not None and not allow_missing:
                raise MissingParameterError(
                    f"{kind} {', '.join(map(repr, missing))} is missing from those given; pass allow_missing=True to "
                    f"leave it to the initializer"
                )
            if missing and given is None and initializer is None:
                raise ValueError(
                    f"{kind} {', '.join(map(repr, missing))} has no value: give an initializer, or values for it"
                )
            if given is not None:
                inputs = self._known_inputs(kind).keys() - known.keys()
                params = {name: value for name, value in given.items() if name not in inputs}
                check_params(kind, params, {**self._elsewhere(kind), **known}, allow_extra)
        return hosts

    def _own_hosts(self) -> dict[str, dict[str, Any]]:
        """Host arrays of this symbol by kind; the dictionaries themselves may be shared with modules that have more."""
        own = set(self._aux_names)
        aux = {name: value for name, value in (self._aux_params or {}).items() if name in own}
        return {"parameter": self._own_host_args(), "auxiliary state": aux}

    def _own_host_args(self) -> dict[str, Any]:
        held = set(self._exec_group.held_names)
        return {name: value for name, value in (self._arg_params or {}).items() if name in held}

    def _known_inputs(self, kind: str) -> dict[str, Any]:
        """Arguments that are no parameters: values for them are taken and ignored, as mx.mod does."""
        if kind != "parameter":
            return {}
        return dict(self._exec_group.execs[0].arg_dict)

    def set_params(
        self,
        arg_params: Any,
        aux_params: Any,
        allow_missing: bool = False,
        force_init: bool = True,
        allow_extra: bool = False,
    ) -> None:
        """Set parameters from dicts. With ``allow_missing`` the others stay; then only the executors are written."""
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
        givens = {kind: as_params(kind, given) or {} for kind, given in zip(KINDS, (arg_params, aux_params))}
        elsewhere = {kind: self._elsewhere(kind) for kind in KINDS}
        for kind in KINDS:
            known = {**self._known_inputs(kind), **elsewhere[kind], **self._own_hosts()[kind]}
            check_params(kind, givens[kind], known, allow_extra)
        own = [{n: v for n, v in givens[kind].items() if n not in elsewhere[kind]} for kind in KINDS]
        self._exec_group.set_params(own[0], own[1], allow_extra=allow_extra)
        self._put_elsewhere(givens)
        self._params_dirty = self._exec_group._memory.ahead = True
        self.params_initialized = True
        self._tell_kvstore(givens["parameter"])

    def _tell_kvstore(self, arg_params: Mapping[str, Any]) -> None:
        """Parameters set after init_optimizer stay set, also where a kvstore keeps its own copy of them."""
        if self._update is not None:
            for name, value in arg_params.items():
                self._update.set_weight(name, value)

    # ------------------------------------------------------------------ optimizer

    def init_optimizer(
        self,
        kvstore: Any = "local",
        optimizer: Any = "sgd",
        optimizer_params: Any = (("learning_rate", 0.01),),
        force_init: bool = False,
    ) -> None:
        """Choose how gradients change parameters.

        ``rescale_grad`` is 1 / rows of the batch (times the workers of a synchronous distributed kvstore), or 1 /
        contexts in the per-context form, and follows the batch that ran, unless it is given. With grad_scale="tokens"
        it is 1 / tokens; raises ValueError then for an optimizer, kvstore, loss or grad_req that does not go with it.
        """
        self._require("init_optimizer()")
        if self.optimizer_initialized and not force_init:
            self.logger.warning("Optimizer is initialised already: init_optimizer() does nothing; pass force_init=True")
            return
        if self._params_dirty:
            self._sync_params_from_devices()
        group = self._exec_group
        try:
            optimizer_params = dict(optimizer_params)
        except (TypeError, ValueError):
            raise TypeError(
                f"optimizer_params is {optimizer_params!r}; expected a dict, or pairs of name and value"
            ) from None
        exchange = open_exchange(kvstore, self._context, self._own_host_args(), self._compression_params)
        if self._tokens is not None:
            averages = group._averaging(group._bound.shapes)
            check_tokens_can_be_followed(optimizer, optimizer_params, exchange, averages, self._requests())
        rows = self._rows()
        made = self._make_optimizer(optimizer, optimizer_params, exchange, 1.0 / (rows * exchange.workers))
        given = self._tokens is None and (not isinstance(optimizer, str) or "rescale_grad" in optimizer_params)
        update = Update.create(self._stores(), group.held_names, made, exchange, self._arg_params)
        if self._preload_opt_states is not None:
            update.load(self._preload_opt_states)
            self._preload_opt_states = None
        self._take_update(update, None if given else GradientScale(made, rows, exchange.workers))

    def _make_optimizer(self, optimizer: Any, optimizer_params: Any, exchange: Any, scale: float) -> Any:
        """An optimizer from its name and settings, or the instance given, which learns the names of the parameters."""
        names = exchange.index_names(self._exec_group.held_names)
        if isinstance(optimizer, str):
            settings = {"rescale_grad": scale, **dict(optimizer_params)}
            return mx.optimizer.create(optimizer, sym=self._symbol, param_idx2name=names, **settings)
        if not isinstance(optimizer, mx.optimizer.Optimizer):
            raise TypeError(f"optimizer is {type(optimizer).__name__}; expected a name or an mx.optimizer.Optimizer")
        if optimizer.rescale_grad != scale and self._tokens is None:
            warnings.warn(
                f"The optimizer given has rescale_grad {optimizer.rescale_grad:g}; 1 / rows of a batch is {scale:g}",
                stacklevel=3,
            )
        if not optimizer.idx2name:
            optimizer.idx2name = names
        return optimizer

    def _rows(self) -> int:
        """What gradients are divided by: the rows of the batch, or the contexts where each has its own shapes."""
        rows = self._exec_group.listed_rows or self._exec_group.batch_size
        return rows if rows is not None else len(self._context)

    def _take_update(self, update: Update, scale: GradientScale | None) -> None:
        self._update, self._scale = update, scale
        # On fewer contexts than the optimizer's parameters are on: gradients of the others are not of this batch.
        fewer = len(self._context) < update.contexts
        self._ran_on = tuple(range(len(self._context))) if fewer else None
        self._optimizer = update.optimizer
        self._kvstore = update.kvstore
        self._update_on_kvstore = update.update_on_kvstore
        self._updater = update.updater
        self.optimizer_initialized = True

    def borrow_optimizer(self, shared_module: Any) -> None:
        """Use another module's optimizer and its state, which is held by parameter name.

        Raises TypeError for what is no Module, NotReadyError for one without an optimizer, ShapeError for a parameter
        of the same name and another shape.
        """
        self._require("borrow_optimizer()", params=False)
        if not isinstance(shared_module, Module):
            raise TypeError(f"shared_module is {type(shared_module).__name__}; expected a Module")
        if not shared_module.optimizer_initialized:
            raise NotReadyError("borrow_optimizer needs a module whose init_optimizer() has been called")
        update = shared_module._update.on(self._stores())
        update.add_names(self._exec_group.held_names, self._arg_params, self._symbol)
        self._take_update(update, shared_module._scale)

    def _stores(self) -> list[Any]:
        """Where the parameters of each context are."""
        return [memory.params for memory in self._exec_group._memory.contexts[: len(self._context)]]

    # ------------------------------------------------------------------ running

    def forward(self, data_batch: Any, is_train: bool | None = None) -> None:
        """Run a batch: a DataBatch in the bound form or of other shapes (seen ones cost nothing), or a list of batches.

        Arrays are fed by the names in ``provide_data`` where the batch has them. Raises ShapeError naming the array,
        and leaves the module as it was.
        """
        # What is spelled out here and below, though there are methods for it, is a tenth of a small net's step.
        if not (self.binded and self.params_initialized):
            self._require("forward()")
        tokens = self._tokens_to_learn(data_batch, is_train) if self._tokens is not None else 0
        batch = data_batch
        if isinstance(batch, list) or not self._exec_group.takes(batch):
            batch = self._fitted(batch)
        self._run(batch, is_train)
        self._batch_tokens = tokens
        if self._observer is not None:
            self._notify("forward", data_batch)

    def _fitted(self, batch: Any) -> Any:
        """A batch that is not as bound, as the executors take it; those for its shapes are current then."""
        group = self._exec_group
        if not isinstance(batch, list) and group.turn_to(batch):
            group.moved_labels = None
            self._has_turned()
            return batch
        fitting, shapes = batches.fitting(batch, group, self._data_names, self._label_names)
        if shapes is not None:
            self._reshape(shapes)
        return fitting

    def _tokens_to_learn(self, batch: Any, is_train: bool | None) -> int:
        """Tokens that the gradients of a batch will be sums over; 0 where none are asked for."""
        wanted = self._tokens is not None and (self.for_training if is_train is None else is_train)
        return tokens_of(batch) if wanted else 0

    def _requests(self) -> list[str]:
        """The grad_req of each parameter."""
        return [self._exec_group.grad_req[name] for name in self._exec_group.held_names]

    def _run(self, batch: Any, is_train: bool | None) -> None:
        """Run a batch that fits the current executors."""
        if self._update is not None and self._update.unpulled:
            # No prepare() named the rows of sparse parameters that this batch needs: it gets all of them.
            self._update.pull_rows(self._all_rows(self._update.unpulled))
        try:
            self._exec_group.forward(batch, is_train)
        except Exception as error:
            tell(error, self, batch)
            raise

    def backward(self, out_grads: Any = None) -> None:
        """Gradients of the last training batch; ``out_grads`` for outputs that come from no loss."""
        if not (self.binded and self.params_initialized):
            self._require("backward()")
        try:
            self._exec_group.backward(out_grads=out_grads)
        except Exception as error:
            tell(error, self)
            raise
        if self._tokens is not None:
            self._tokens.ran(self._batch_tokens, "add" in self._requests())

    def update(self) -> None:
        """One step of the optimizer with the gradients at hand."""
        if not (self.binded and self.params_initialized and self.optimizer_initialized and self.for_training):
            self._require("update()", optimizer=True)
            raise NotReadyError("update() needs executors for training; bind with for_training=True")
        self._params_dirty = self._exec_group._memory.ahead = True
        if self._scale is not None:
            self._scale.follow(self._rows() if self._tokens is None else self._tokens.spend())
        self._update.step(self._exec_group.trained_names, self._ran_on)
        if self._observer is not None:
            self._notify("update", None)

    def get_outputs(self, merge_multi_context: bool = True) -> list[Any]:
        """Outputs of the last forward pass, as arrays that stay what they are."""
        self._require("get_outputs()")
        return self._exec_group.get_outputs(merge_multi_context=merge_multi_context)

    def get_input_grads(self, merge_multi_context: bool = True) -> list[Any]:
        """Gradients of the data arrays, in the order of data_shapes."""
        self._require("get_input_grads()")
        return self._exec_group.get_input_grads(merge_multi_context=merge_multi_context)

    def get_states(self, merge_multi_context: bool = True) -> list[Any]:
        """States, each with all rows, or ``[state][context]``."""
        self._require("get_states()")
        return self._exec_group.get_states(merge_multi_context=merge_multi_context)

    def set_states(self, states: Any = None, value: Any = None) -> None:
        """Set the states to arrays, or all to one number."""
        self._require("set_states()")
        self._exec_group.set_states(states, value)

    def update_metric(self, eval_metric: Any, labels: Any, pre_sliced: bool = False) -> None:
        """Show the last batch's outputs and its labels to a metric; padded rows do not count."""
        if not (self.binded and self.params_initialized):
            self._require("update_metric()")
        try:
            self._exec_group.update_metric(eval_metric, labels, pre_sliced)
        except (AttributeError, KeyError):
            check_metric(eval_metric, self._output_names, self._exec_group._read.labels_on(0))
            raise
        if self._observer is not None:
            self._notify("metric", eval_metric)

    def _predicted(self, batch: Any) -> list[Any]:
        return self._exec_group.predicted()

    def _predicted_axes(self) -> list[int]:
        return [max(where.axis, 0) for where in self._exec_group._bound.row_axes]

    def install_monitor(self, mon: Any) -> None:
        """Let a monitor see all executors."""
        self._require("install_monitor()", params=False)
        self._exec_group.install_monitor(mon)

    def prepare(self, data_batch: Any, sparse_row_id_fn: Any = None) -> None:
        """Get ready for a batch that comes next: pull the rows of sparse parameters that ``sparse_row_id_fn`` names."""
        self._require("prepare()", params=False)
        if sparse_row_id_fn is None:
            return
        if self._update is None or not self._update_on_kvstore:
            warnings.warn("Parameters are not updated in a kvstore: sparse_row_id_fn is not needed", stacklevel=2)
            return
        if not callable(sparse_row_id_fn):
            raise TypeError(f"sparse_row_id_fn is {sparse_row_id_fn!r}; expected a function of the batch")
        row_ids = sparse_row_id_fn(data_batch)
        if not isinstance(row_ids, Mapping):
            raise TypeError(f"sparse_row_id_fn returned {type(row_ids).__name__}; expected a dict of name to row ids")
        self._update.pull_rows(row_ids)

    # ------------------------------------------------------------------ checkpoints

    def save_checkpoint(
        self, prefix: str, epoch: int, save_optimizer_states: bool = False, remove_amp_cast: bool = True
    ) -> None:
        """Write ``PREFIX-symbol.json``, ``PREFIX-EPOCH.params`` and, if asked, ``PREFIX-EPOCH.states``."""
        if save_optimizer_states:
            self._require("save_checkpoint() with optimizer states", optimizer=True)
        params, states = f"{prefix}-{epoch:04d}.params", f"{prefix}-{epoch:04d}.states"
        self.save_params(params)
        self._symbol.save(f"{prefix}-symbol.json", remove_amp_cast=remove_amp_cast)
        # To the root logger and in these words, as mx.mod does: programs look for them in their logs.
        logging.info('Saved checkpoint to "%s"', params)
        if save_optimizer_states:
            self.save_optimizer_states(states)
            logging.info('Saved optimizer state to "%s"', states)

    @staticmethod
    def load(prefix: str, epoch: int, load_optimizer_states: bool = False, **kwargs: Any) -> Module:
        """A module from a checkpoint, ready to bind. ``kwargs`` go to the constructor."""
        module = Module(read_symbol(f"{prefix}-symbol.json"), **kwargs)
        module._arg_params, module._aux_params = read_params(f"{prefix}-{epoch:04d}.params")
        module.params_initialized = True
        if load_optimizer_states:
            module._preload_opt_states = f"{prefix}-{epoch:04d}.states"
        return module

    def save_optimizer_states(self, fname: str) -> None:
        """Write the optimizer's state to a file that mx.mod reads too."""
        self._require("save_optimizer_states()", optimizer=True)
        self._update.save(fname)

    def load_optimizer_states(self, fname: str) -> None:
        """Read the optimizer's state from a file of ours or of mx.mod."""
        self._require("load_optimizer_states()", optimizer=True)
        self._update.load(fname)

    # ------------------------------------------------------------------ a look inside

    def slices(self) -> SliceReport:
        """How the current batch lies over the contexts."""
        self._require("slices()", params=False)
        return self._exec_group.slice_report()

    def memory(self, process: bool = False) -> Any:
        """Where the bytes are: a ledger by context and role; ``process=True`` adds heap and resident size."""
        from bucketlab.memory import memory

        return memory(self, process=process)


class _Keeper:
    """Stands for the executors that a re-bind replaces: gives their parameters, not their inputs and working memory."""

    def __init__(self, group: DataParallelExecutorGroup):
        self.contexts = group.contexts
        self._memory = group._memory.without_executors()


def _copies(arrays: Mapping[str, Any] | None) -> dict[str, Any]:
    return {name: value.copy() for name, value in (arrays or {}).items()}
