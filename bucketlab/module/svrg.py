"""SVRGModule: training with stochastic variance reduced gradients.

Beside the weights that are trained, an older copy of them is kept, with the mean of its gradient over all
data. A batch changes the weights by its gradient, less its gradient at the older copy, plus that mean: the
same on average, with less variance the closer the copy is. See Johnson and Zhang, "Accelerating Stochastic
Gradient Descent using Predictive Variance Reduction" (2013).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from bucketlab._engine import mx
from bucketlab.errors import NotReadyError
from bucketlab.module.base import check_data
from bucketlab.module.module import Module

FULL = "_full"
"""What the names of mean gradients end in, where a kvstore holds them beside the parameters."""


class SVRGModule(Module):
    """A Module whose gradients are corrected by those of an older copy of its weights.

    ``update_freq``: the copy is taken, and its gradient over all data computed, every so many epochs.
    :meth:`fit` does that by itself; a loop written by hand calls :meth:`update_full_grads` before the first
    training batch. Raises TypeError or ValueError for an ``update_freq`` that is no positive integer.

    >>> module = SVRGModule(symbol, update_freq=2)
    >>> module.fit(train, optimizer_params={"learning_rate": 0.025}, num_epoch=10)
    """

    starts_from_last_mean = True
    """Whether the sum over all data starts from the last mean, as in mxnet.contrib, or from zero."""

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
        update_freq: int | None = None,
        *,
        split: str = "balanced",
    ):
        if not isinstance(update_freq, int) or isinstance(update_freq, bool):
            raise TypeError(f"update_freq is {update_freq!r}; give a number of epochs, an int")
        if update_freq <= 0:
            raise ValueError(f"update_freq is {update_freq}; give a number of epochs, 1 or more")
        settings = (
            symbol,
            data_names,
            label_names,
            logger,
            context,
            work_load_list,
            fixed_param_names,
            state_names,
            group2ctxs,
        )
        super().__init__(*settings, compression_params, split=split)
        self.update_freq = update_freq
        self._mod_aux = Module(*settings, split=split)
        self._param_dict: list[dict[str, Any]] | None = None
        self._ctx_len = len(self._context)

    # ------------------------------------------------------------------ both modules

    def _reset_bind(self) -> None:
        super()._reset_bind()
        self._mod_aux._reset_bind()

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
        """Make executors, for training also those of the older copy. Takes and raises what Module.bind does.

        With ``shared_module``, an SVRGModule, the older copy is shared too.
        """
        if self.binded and not force_rebind:
            super().bind(data_shapes, label_shapes)
            return
        before, copy_before = dict(vars(self)), dict(vars(self._mod_aux))
        shared_copy = getattr(shared_module, "_mod_aux", None)
        if shared_copy is not None and not shared_copy.params_initialized:
            shared_copy = None
        try:
            super().bind(
                data_shapes,
                label_shapes,
                for_training,
                inputs_need_grad,
                force_rebind,
                shared_module,
                grad_req,
                host=host,
            )
            if for_training:
                self._mod_aux.bind(data_shapes, label_shapes, True, inputs_need_grad, True, shared_copy, grad_req)
            elif self._mod_aux.binded:
                self._mod_aux._reset_bind()
        except BaseException:
            vars(self).update(before)
            vars(self._mod_aux).update(copy_before)
            raise

    def reshape(self, data_shapes: Any, label_shapes: Any = None) -> None:
        """Take batches of other shapes from now on, in both."""
        super().reshape(data_shapes, label_shapes)
        if self._mod_aux.binded:
            self._mod_aux.reshape(data_shapes, label_shapes)

    def forward(self, data_batch: Any, is_train: bool | None = None) -> None:
        """Run a batch; for training through the older copy, too, which :meth:`update_full_grads` takes."""
        is_train = self.for_training if is_train is None else bool(is_train)
        if is_train and self.binded and not self._mod_aux.params_initialized:
            raise NotReadyError("forward() for training needs all gradients: call update_full_grads(train_data) first")
        super().forward(data_batch, is_train)
        if is_train:
            self._mod_aux.forward(data_batch, True)

    def backward(self, out_grads: Any = None) -> None:
        """Gradients of the last training batch, at the weights and at their older copy."""
        super().backward(out_grads)
        if self._mod_aux.binded:
            self._mod_aux.backward(out_grads)

    def update(self) -> None:
        """Correct the gradients, in place, and take one step of the optimizer."""
        self._require("update()", optimizer=True)
        self._update_svrg_gradients()
        super().update()

    @staticmethod
    def load(prefix: str, epoch: int, load_optimizer_states: bool = False, **kwargs: Any) -> Module:
        """A module from a checkpoint, ready to bind: a plain Module unless ``update_freq`` is given."""
        loaded = Module.load(
            prefix, epoch, load_optimizer_states, **{k: v for k, v in kwargs.items() if k != "update_freq"}
        )
        if "update_freq" not in kwargs:
            return loaded
        module = SVRGModule(loaded.symbol, **kwargs)
        module._arg_params, module._aux_params = loaded._arg_params, loaded._aux_params
        module._preload_opt_states = loaded._preload_opt_states
        module.params_initialized = True
        return module

    # ------------------------------------------------------------------ a look inside

    def held_arrays(self) -> list[Any]:
        """All arrays: those of the weights, of their older copy, and the means over all data."""
        from bucketlab.memory.protocol import HeldArray

        means = [
            HeldArray("weights", i, str(context), "other", name + FULL, mean)
            for i, (context, table) in enumerate(zip(self._context, self._param_dict or ()))
            for name, mean in table.items()
        ]
        return [*self._parts()[0], *means]

    def held_pools(self) -> list[Any]:
        """The working pools of both."""
        return self._parts()[1]

    def _parts(self) -> tuple[list[Any], list[Any]]:
        from bucketlab.memory.protocol import collect

        return collect(weights=SimpleNamespace(**vars(self)), copy=self._mod_aux)

    # ------------------------------------------------------------------ optimizer

    def init_optimizer(
        self,
        kvstore: Any = "local",
        optimizer: Any = "sgd",
        optimizer_params: Any = (("learning_rate", 0.01),),
        force_init: bool = False,
    ) -> None:
        """Choose how corrected gradients change parameters; the mean over all data is zero then."""
        if self.optimizer_initialized and not force_init:
            super().init_optimizer(kvstore, optimizer, optimizer_params)
            return
        super().init_optimizer(kvstore, optimizer, optimizer_params, force_init)
        self._param_dict = self._zeros()
        if self._kvstore is not None:
            for name, zeros in self._param_dict[0].items():
                self._kvstore.init(name + FULL, zeros.as_in_context(mx.cpu()))

    def _zeros(self) -> list[dict[str, Any]]:
        """For each context, a dense array of zeros for every parameter that has a gradient."""
        group = self._exec_group
        return [
            {
                name: mx.nd.zeros(block[i].shape, ctx=block[i].context, dtype=block[i].dtype)
                for name, block in zip(group.held_names, group.grad_arrays or ())
                if block[i] is not None
            }
            for i in range(self._ctx_len)
        ]

    def _make_optimizer(self, optimizer: Any, optimizer_params: Any, exchange: Any, scale: float) -> Any:
        names = exchange.index_names(self._exec_group.held_names)
        if isinstance(optimizer, str):
            settings = {"rescale_grad": scale, **dict(optimizer_params), "param_idx2name": names}
            return _SVRGOptimizer(default_optimizer=optimizer, **settings)
        return _SVRGOptimizer(super()._make_optimizer(optimizer, optimizer_params, exchange, scale))

    # ------------------------------------------------------------------ the gradient over all data

    def _begin_epoch(self, train_data: Any, epoch: int) -> None:
        """Take a new copy of the weights when it is time. The data is used up by that, and begins anew."""
        if epoch % self.update_freq == 0:
            self.update_full_grads(train_data)
        train_data.reset()

    def _end_epoch(self, train_data: Any) -> None:
        """Nothing: every epoch begins with a reset, and one more would shuffle once more than mxnet.contrib."""

    def update_full_grads(self, train_data: Any) -> None:
        """Take a copy of the weights, and the mean of its gradient over all batches of ``train_data``.

        Raises ValueError for an iterator that yields nothing, NotReadyError before init_optimizer().
        """
        self._require("update_full_grads()", optimizer=True)
        check_data("train_data", train_data, "__iter__", "reset")
        copy = self._mod_aux
        if not copy.binded:
            raise NotReadyError("update_full_grads() needs executors for training; bind with for_training=True")
        arg_params, aux_params = self.get_params()
        copy.set_params(arg_params=arg_params, aux_params=aux_params)
        sums = self._param_dict if self.starts_from_last_mean and self._param_dict else self._zeros()
        count, pad, rows = 0, 0, 0
        train_data.reset()
        for batch in train_data:
            copy.forward(batch, is_train=True)
            copy.backward()
            group = copy._exec_group
            for name, block in zip(group.held_names, group.grad_arrays):
                for table, grad in zip(sums, block):
                    if grad is not None:
                        table[name] += grad.tostype("default")
            count, pad = count + 1, getattr(batch, "pad", None) or 0
            rows = getattr(train_data, "batch_size", None) or copy._rows()
        if not count:
            raise ValueError("train_data yielded no batch; give an iterator with at least one batch")
        for table in sums:
            for name in table:
                table[name] /= count - pad / rows
        self._param_dict = sums
        if self._kvstore is not None:
            for name in sums[0]:
                self._accumulate_kvstore(name, [table[name] for table in sums])

    def _accumulate_kvstore(self, key: str, value: list[Any]) -> None:
        """Sum what contexts and workers have of a mean in the kvstore, and give each its part."""
        self._kvstore.push(key + FULL, value)
        self._kvstore._barrier()
        self._kvstore.pull(key + FULL, out=value)
        self._allocate_gradients(key, value)

    def _allocate_gradients(self, key: str, value: Sequence[Any]) -> None:
        """Each context corrects its gradient by its part, so that the parts add up to the whole."""
        parts = self._ctx_len * (self._kvstore.num_workers if self._kvstore is not None else 1)
        for table, total in zip(self._param_dict or (), value):
            table[key] = total / parts

    def _update_svrg_gradients(self) -> None:
        """Replace every gradient by the corrected one."""
        group, copy = self._exec_group, self._mod_aux._exec_group
        for name, block, old_block in zip(group.held_names, group.grad_arrays, copy.grad_arrays):
            for table, grad, old in zip(self._param_dict or (), block, old_block):
                if grad is not None:
                    self._svrg_grads_update_rule(grad, old, table[name])

    def _svrg_grads_update_rule(
        self, g_curr_batch_curr_weight: Any, g_curr_batch_special_weight: Any, g_special_weight_all_batch: Any
    ) -> Any:
        """The batch's gradient less that at the older copy plus the mean, written into the first."""
        grad, old = g_curr_batch_curr_weight, g_curr_batch_special_weight
        if grad.stype != "default":
            dense = grad.tostype("default") - old.tostype("default") + g_special_weight_all_batch
            dense.tostype(grad.stype).copyto(grad)
            return grad
        grad -= old
        grad += g_special_weight_all_batch
        return grad


class _SVRGOptimizer(mx.optimizer.Optimizer):
    """The optimizer that a program asked for, which also lets a kvstore keep mean gradients beside the
    parameters.

    A mean gradient is assigned and not optimised. It goes by its parameter's name and ``_full``.
    """

    def __init__(self, default_optimizer: Any, **kwargs: Any):
        own = default_optimizer
        own = self.default_opt = mx.optimizer.create(own, **kwargs) if isinstance(own, str) else own
        super().__init__(
            rescale_grad=own.rescale_grad,
            param_idx2name=own.idx2name,
            wd=own.wd,
            clip_gradient=own.clip_gradient,
            learning_rate=own.lr,
            lr_scheduler=own.lr_scheduler,
            begin_num_update=own.begin_num_update,
            multi_precision=own.multi_precision,
        )

    # What programs read and set on the optimizer of a module is the one they asked for.

    @property
    def rescale_grad(self) -> float:
        return self.default_opt.rescale_grad

    @rescale_grad.setter
    def rescale_grad(self, value: float) -> None:
        self.default_opt.rescale_grad = value

    @property
    def lr(self) -> float:
        return self.default_opt.lr

    @lr.setter
    def lr(self, value: float) -> None:
        self.default_opt.lr = value

    @property
    def idx2name(self) -> dict[Any, str]:
        return self.default_opt.idx2name

    @idx2name.setter
    def idx2name(self, value: dict[Any, str]) -> None:
        self.default_opt.idx2name = value

    def _is_mean(self, index: Any) -> bool:
        name = self.idx2name.get(index, index)
        known = set(self.idx2name.values())
        return isinstance(name, str) and name.endswith(FULL) and name[: -len(FULL)] in known

    def create_state(self, index: Any, weight: Any) -> Any:
        """The state of the optimizer asked for; None for a mean gradient."""
        return None if self._is_mean(index) else self.default_opt.create_state(index, weight)

    def update(self, index: Any, weight: Any, grad: Any, state: Any) -> None:
        """Optimise a parameter, or assign a mean gradient."""
        if self._is_mean(index):
            weight[:] = grad
        else:
            self.default_opt.update(index, weight, grad, state)
