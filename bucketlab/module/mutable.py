"""MutableModule: batches of any shape up to a maximum, on the memory of the maximum."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterable, Sequence
from contextlib import contextmanager
from typing import Any

from bucketlab._engine import mx
from bucketlab.errors import ShapeError
from bucketlab.module import batches
from bucketlab.module.base import BaseModule, _as_list, read_params, read_symbol
from bucketlab.module.limits import Limits
from bucketlab.module.module import DEFAULT_INITIALIZER, Module
from bucketlab.shapes import BatchShapes, parse
from bucketlab.slicing import SliceReport


class MutableModule(BaseModule):
    """A module whose batches may have other shapes every time, each at most the maximum.

    It is bound at the maximum first; executors for other shapes then run in that memory, with the same
    parameters, gradients and optimizer. Shapes that were seen before are not bound again. Shapes come as one
    list for all contexts or as one list for each, the maxima too; a flat maximum holds for either form, and
    arrays without a maximum may be as large as they are at bind, with the rows of those that have one.

    ``fixed_param_prefix``: a parameter whose name *contains* one of these has no gradient. (Of the programs that
    have such a module some want the name to start with it; here it is enough that it is in the name.)

    A batch above the maximum is refused, or with ``grow`` raises the maximum. ``keep`` limits how many shapes stay
    bound beside the maximum's: graphs cost memory of their own, and the shapes that were not used for longest are let
    go of and bound again when they come back.

    >>> module = MutableModule(symbol, ["data"], ["softmax_label"], max_data_shapes=[("data", (8, 3, 64, 64))])
    >>> module.bind([("data", (4, 3, 48, 64))], [("softmax_label", (4,))])
    """

    module_class: type[Module] = Module

    def __init__(
        self,
        symbol: Any,
        data_names: Sequence[str] | None,
        label_names: Sequence[str] | None,
        logger: Any = logging,
        context: Any = mx.cpu(),  # noqa: B008
        work_load_list: Sequence[float] | None = None,
        max_data_shapes: Any = None,
        max_label_shapes: Any = None,
        fixed_param_prefix: Sequence[str] | None = None,
        *,
        state_names: Sequence[str] | None = None,
        split: str = "balanced",
        grow: bool = False,
        keep: int | None = None,
    ):
        super().__init__(logger=logger)
        if keep is not None and (not isinstance(keep, int) or keep < 1):
            raise ValueError(f"keep is {keep!r}; give the number of shapes to keep bound, at least 1, or None for all")
        self._symbol = symbol
        inputs = {*(data_names or ()), *(label_names or ()), *(state_names or ())}
        parameters = [name for name in symbol.list_arguments() if name not in inputs]
        self._fixed_param_prefix = _as_list(fixed_param_prefix or [])
        self._fixed_param_names = _containing(parameters, self._fixed_param_prefix)
        extra: dict[str, Any] = {} if split == "balanced" else {"split": split}
        self._curr_module = self.module_class(
            symbol,
            data_names,
            label_names,
            logger=logger,
            context=context,
            work_load_list=work_load_list,
            fixed_param_names=self._fixed_param_names,
            state_names=state_names,
            **extra,
        )
        self._context = self._curr_module._context
        self._max_data_shapes, self._max_label_shapes = max_data_shapes, max_label_shapes
        names = [*self._curr_module.data_names, *self._curr_module.label_names]
        self._limits = Limits.given(max_data_shapes, max_label_shapes, names, len(self._context))
        self._grow, self._keep = grow, keep

    # ------------------------------------------------------------------ names and shapes

    @property
    def data_names(self) -> list[str]:
        return self._curr_module.data_names

    @property
    def label_names(self) -> list[str]:
        return self._curr_module.label_names

    @property
    def output_names(self) -> list[str]:
        return self._curr_module.output_names

    @property
    def data_shapes(self) -> Any:
        """Descriptions of the data arrays of the last batch, or as given to bind."""
        return self._curr_module.data_shapes

    @property
    def label_shapes(self) -> Any:
        return self._curr_module.label_shapes

    @property
    def output_shapes(self) -> list[tuple[str, tuple[int, ...]]]:
        return self._curr_module.output_shapes

    @property
    def maximum(self) -> BatchShapes:
        """The largest shapes that there is memory for, once it is bound."""
        self._require("maximum", params=False)
        return self._limits.maximum

    @property
    def _total_exec_bytes(self) -> int:  # type: ignore[override]
        return self._curr_module._total_exec_bytes

    # ------------------------------------------------------------------ binding

    def check_batches(self, *sources: Any) -> None:
        """Refuse iterators or plans that have a batch which ``split`` cannot give to the contexts; see Module."""
        self._curr_module.check_batches(*sources)

    def _reset_bind(self) -> None:
        """Forget the executors; parameters and optimizer stay."""
        self._curr_module._reset_bind()
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
        """Make executors for the maximum, and for batches of these shapes.

        Takes what Module.bind takes; a ``shared_module`` may be a MutableModule too. Raises as Module.bind does,
        and ShapeError for shapes above the maximum; the module is as it was then.
        """
        if self.binded and not force_rebind:
            self.logger.warning("Already bound: bind() does nothing; pass force_rebind=True to bind anew")
            return
        inner = self._curr_module
        shapes = parse(inner.data_names, inner.label_names, data_shapes, label_shapes, len(self._context))
        limits = self._limits.for_shapes(shapes)
        limits = self._raised(limits, shapes)
        largest = limits.maximum
        giver = shared_module._curr_module if isinstance(shared_module, MutableModule) else shared_module
        with _undone(inner):
            inner.bind(
                largest.data_list,
                largest.label_list,
                for_training,
                inputs_need_grad,
                force_rebind,
                giver,
                grad_req,
                host=host,
            )
            if shapes.key != largest.key:
                inner._reshape(shapes)
        self._limits = limits
        self.for_training, self.inputs_need_grad = for_training, inputs_need_grad
        self.params_initialized = inner.params_initialized
        self.optimizer_initialized = inner.optimizer_initialized
        self.binded = True
        self._notify("bind")

    def reshape(self, data_shapes: Any, label_shapes: Any = None) -> None:
        """Take batches of other shapes from now on. Raises ShapeError above the maximum and changes nothing."""
        self._require("reshape()", params=False)
        inner = self._curr_module
        self._take(parse(inner.data_names, inner.label_names, data_shapes, label_shapes, len(self._context)))

    def _take(self, shapes: BatchShapes) -> None:
        """Make the executors for these shapes current, after the maximum's where that has to grow."""
        inner = self._curr_module
        limits = self._raised(self._limits, shapes)
        with _undone(inner):
            if limits is not self._limits:
                inner._reshape(limits.maximum)
            inner._reshape(shapes)
        if limits is not self._limits:
            self.logger.info("The maximum grows to %s", limits.maximum.in_words())
            self._limits = limits
        if self._keep is not None:
            self._let_go(shapes, self._keep)
        self._notify("reshape")

    def _raised(self, limits: Limits, shapes: BatchShapes) -> Limits:
        """The limits, raised if these shapes are above them and they may be."""
        above = limits.above(shapes, self._curr_module._work_load_list)
        if not above:
            return limits
        if self._grow:
            return limits.raised(shapes)
        raise ShapeError(
            f"{'; '.join(above)}: give a larger max_data_shapes or max_label_shapes, or let the maximum follow with "
            f"grow=True"
        )

    def _let_go(self, shapes: BatchShapes, keep: int) -> None:
        """Forget the executors of shapes that were not used for longest, beyond those to keep."""
        bounds = self._curr_module._exec_group._bounds
        bounds.use(shapes.key)
        spare = [key for key in bounds if key != self._limits.maximum.key]
        for key in spare[:-keep]:
            bounds.forget(key)

    # ------------------------------------------------------------------ parameters and optimizer

    def get_params(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Parameters and auxiliary states as they are now, on the host: copies that stay what they are."""
        return self._curr_module.get_params()

    def init_params(
        self,
        initializer: Any = DEFAULT_INITIALIZER,
        arg_params: Any = None,
        aux_params: Any = None,
        allow_missing: bool = False,
        force_init: bool = False,
        allow_extra: bool = False,
    ) -> None:
        """Set every parameter, as Module.init_params does."""
        self._curr_module.init_params(initializer, arg_params, aux_params, allow_missing, force_init, allow_extra)
        self.params_initialized = True

    def set_params(
        self,
        arg_params: Any,
        aux_params: Any,
        allow_missing: bool = False,
        force_init: bool = True,
        allow_extra: bool = False,
    ) -> None:
        """Set parameters from dicts, as Module.set_params does."""
        self._curr_module.set_params(arg_params, aux_params, allow_missing, force_init, allow_extra)
        self.params_initialized = True

    def init_optimizer(
        self,
        kvstore: Any = "local",
        optimizer: Any = "sgd",
        optimizer_params: Any = (("learning_rate", 0.01),),
        force_init: bool = False,
    ) -> None:
        """Choose how gradients change parameters, as Module.init_optimizer does."""
        self._curr_module.init_optimizer(kvstore, optimizer, optimizer_params, force_init=force_init)
        self.optimizer_initialized = True

    def fit(self, train_data: Any, *args: Any, state: str | None = None, **kwargs: Any) -> None:
        """Train as BaseModule.fit does, with its arguments.

        ``state`` names a file of optimizer states that :meth:`save_optimizer_states` or mx.mod wrote, to go on from.
        """
        if state is None:
            super().fit(train_data, *args, **kwargs)
            return
        with open(state, "rb"):
            # A file that is not there is refused before anything is bound.
            pass
        inner = self._curr_module
        before = inner._preload_opt_states
        if self.optimizer_initialized:
            self.load_optimizer_states(state)
        else:
            inner._preload_opt_states = state
        try:
            super().fit(train_data, *args, **kwargs)
        finally:
            if inner._preload_opt_states == state:
                inner._preload_opt_states = before

    # ------------------------------------------------------------------ running

    def forward(self, data_batch: Any, is_train: bool | None = None) -> None:
        """Run a batch of any shape up to the maximum, given in either form, or as a list of batches.

        Raises ShapeError naming the array, what was given and the maximum, and leaves the module as it was.
        """
        self._require("forward()")
        inner = self._curr_module
        batch, shapes = batches.fitting(
            data_batch, inner._exec_group, inner.data_names, inner.label_names, labels_too=True
        )
        if shapes is not None:
            self._take(shapes)
        inner._run(batch, is_train)
        self._notify("forward", data_batch)

    def backward(self, out_grads: Any = None) -> None:
        """Gradients of the last training batch; ``out_grads`` for outputs that come from no loss."""
        self._require("backward()")
        self._curr_module.backward(out_grads=out_grads)

    def update(self) -> None:
        """One step of the optimizer with the gradients at hand."""
        self._require("update()", optimizer=True)
        self._curr_module.update()
        self._notify("update")

    def get_outputs(self, merge_multi_context: bool = True) -> list[Any]:
        """Outputs of the last forward pass, as arrays that stay what they are."""
        return self._curr_module.get_outputs(merge_multi_context=merge_multi_context)

    def get_input_grads(self, merge_multi_context: bool = True) -> list[Any]:
        """Gradients of the data arrays."""
        return self._curr_module.get_input_grads(merge_multi_context=merge_multi_context)

    def get_states(self, merge_multi_context: bool = True) -> list[Any]:
        return self._curr_module.get_states(merge_multi_context=merge_multi_context)

    def set_states(self, states: Any = None, value: Any = None) -> None:
        self._curr_module.set_states(states, value)

    def update_metric(self, eval_metric: Any, labels: Any, pre_sliced: bool = False) -> None:
        """Show the last batch's outputs and its labels to a metric; padded rows do not count."""
        self._curr_module.update_metric(eval_metric, labels, pre_sliced)
        self._notify("metric", eval_metric)

    def prepare(self, data_batch: Any, sparse_row_id_fn: Any = None) -> None:
        """Get ready for a batch that comes next: pull the rows of sparse parameters that it needs."""
        self._curr_module.prepare(data_batch, sparse_row_id_fn=sparse_row_id_fn)

    def install_monitor(self, mon: Any) -> None:
        """Let a monitor see all executors, those of shapes to come included."""
        self._curr_module.install_monitor(mon)

    def _predicted(self, batch: Any) -> list[Any]:
        return self._curr_module._predicted(batch)

    def _predicted_axes(self) -> list[int]:
        return self._curr_module._predicted_axes()

    # ------------------------------------------------------------------ checkpoints

    def save_checkpoint(
        self, prefix: str, epoch: int, save_optimizer_states: bool = False, remove_amp_cast: bool = True
    ) -> None:
        """Write symbol, parameters and, if asked, the optimizer's states, as Module.save_checkpoint does."""
        self._curr_module.save_checkpoint(prefix, epoch, save_optimizer_states, remove_amp_cast)

    @staticmethod
    def load(prefix: str, epoch: int, load_optimizer_states: bool = False, **kwargs: Any) -> MutableModule:
        """A module from a checkpoint, ready to bind. ``kwargs`` go to the constructor, data_names among them."""
        module = MutableModule(read_symbol(f"{prefix}-symbol.json"), **kwargs)
        inner = module._curr_module
        inner._arg_params, inner._aux_params = read_params(f"{prefix}-{epoch:04d}.params")
        inner.params_initialized = module.params_initialized = True
        if load_optimizer_states:
            inner._preload_opt_states = f"{prefix}-{epoch:04d}.states"
        return module

    def save_optimizer_states(self, fname: str) -> None:
        """Write the optimizer's states to a file that ``fit(state=...)`` and mx.mod read."""
        self._curr_module.save_optimizer_states(fname)

    def load_optimizer_states(self, fname: str) -> None:
        """Read the optimizer's states from a file of ours or of mx.mod."""
        self._curr_module.load_optimizer_states(fname)

    # ------------------------------------------------------------------ a look inside

    def slices(self) -> SliceReport:
        """How the current batch lies over the contexts."""
        return self._curr_module.slices()

    def memory(self, process: bool = False) -> Any:
        """Where the bytes are: a ledger by context and role; ``process=True`` adds heap and resident size."""
        from bucketlab.memory import memory

        return memory(self, process=process)


def _containing(parameters: Sequence[str], prefixes: Iterable[str]) -> list[str]:
    """The parameters whose names contain one of the prefixes; a prefix that none contains is warned of."""
    fixed: list[str] = []
    for prefix in prefixes:
        if not isinstance(prefix, str):
            raise TypeError(f"fixed_param_prefix has {prefix!r}; expected strings, parts of parameters' names")
        found = [name for name in parameters if prefix in name]
        if not found:
            warnings.warn(
                f"fixed_param_prefix has {prefix!r}, which no parameter's name contains; known: {list(parameters)}",
                stacklevel=3,
            )
        fixed += [name for name in found if name not in fixed]
    return fixed


@contextmanager
def _undone(module: Module) -> Any:
    """If binding fails half-way, the module is put back as it was."""
    before = dict(vars(module))
    group = module._exec_group
    back: Callable[[], None] | None = None
    if group is not None:
        bound = group._bound
        back = lambda: group._use(bound)  # noqa: E731
    try:
        yield
    except BaseException:
        vars(module).clear()
        vars(module).update(before)
        if back is not None:
            back()
        raise
