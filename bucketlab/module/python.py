"""PythonModule and PythonLossModule: computations written in Python that stand where a module can stand."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from bucketlab._engine import mx
from bucketlab.errors import NotReadyError, ShapeError
from bucketlab.feeding import as_array, check_array, check_batch, is_array
from bucketlab.module.base import BaseModule, check_metric
from bucketlab.rows import RowAxis
from bucketlab.shapes import batch_axis, describe


class PythonModule(BaseModule):
    """A module without parameters or executors; a subclass writes ``forward``, ``backward`` and the output
    shapes.

    What a subclass leaves out does nothing: there are no parameters to initialise, update or return.
    ``label_names`` is None for a module that takes no labels.

    >>> class Doubled(PythonModule):
    ...     def _compute_output_shapes(self):
    ...         return [("doubled_output", self.data_shapes[0].shape)]
    ...     def forward(self, data_batch, is_train=None):
    ...         self.outputs = [2 * data_batch.data[0]]
    ...     def get_outputs(self, merge_multi_context=True):
    ...         return self.outputs
    """

    _pad = 0

    def __init__(
        self,
        data_names: Sequence[str],
        label_names: Sequence[str] | None,
        output_names: Sequence[str],
        logger: Any = logging,
    ):
        super().__init__(logger=logger)
        self._data_names = list(data_names)
        self._label_names = None if label_names is None else list(label_names)
        self._output_names = output_names
        self._data_shapes: Any = None
        self._label_shapes: Any = None
        self._output_shapes: Any = None

    # ------------------------------------------------------------------ names and shapes

    @property
    def data_names(self) -> list[str]:
        return self._data_names

    @property
    def output_names(self) -> Sequence[str]:
        return self._output_names

    @property
    def data_shapes(self) -> Any:
        """Descriptions of the data arrays; None before bind."""
        return self._data_shapes

    @property
    def label_shapes(self) -> Any:
        """Descriptions of the labels; None without labels."""
        return self._label_shapes

    @property
    def output_shapes(self) -> Any:
        """Name and shape of each output; None before bind."""
        return self._output_shapes

    def _compute_output_shapes(self) -> Any:
        """Name and shape of each output, from ``data_shapes`` and ``label_shapes``, which are set by then."""
        raise NotImplementedError(f"{type(self).__name__} does not say its output shapes")

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
        """Take note of the shapes, in the order of the names. Nothing is allocated, so there is nothing to
        share.

        Raises ShapeError for names that are not this module's, ValueError for a ``grad_req`` other than
        'write'.
        """
        if self.binded and not force_rebind:
            self.logger.warning("Already bound: bind() does nothing; pass force_rebind=True to bind anew")
            return
        if grad_req != "write":
            raise ValueError(
                f"grad_req is {grad_req!r}; {type(self).__name__} writes its input gradients anew and "
                f"takes only 'write'"
            )
        if inputs_need_grad and not for_training:
            raise ValueError("inputs_need_grad=True needs for_training=True: without training there are no gradients")
        data = _in_names(data_shapes, self._data_names, "data")
        label = _in_names(label_shapes, self._label_names, "label") if label_shapes else None
        before = dict(vars(self))
        self.for_training, self.inputs_need_grad = for_training, inputs_need_grad
        self._data_shapes, self._label_shapes = data, label
        try:
            self._output_shapes = self._compute_output_shapes()
        except BaseException:
            vars(self).update(before)
            raise
        self.binded = True
        self._notify("bind", None)

    # ------------------------------------------------------------------ no parameters

    def get_params(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Two empty dicts. A subclass that has parameters returns them."""
        return {}, {}

    def init_params(
        self,
        initializer: Any = mx.init.Uniform(0.01),  # noqa: B008
        arg_params: Any = None,
        aux_params: Any = None,
        allow_missing: bool = False,
        force_init: bool = False,
        allow_extra: bool = False,
    ) -> None:
        """Nothing to initialise. A subclass that has parameters sets them here."""
        self.params_initialized = True

    def init_optimizer(
        self,
        kvstore: Any = "local",
        optimizer: Any = "sgd",
        optimizer_params: Any = (("learning_rate", 0.01),),
        force_init: bool = False,
    ) -> None:
        """Nothing to optimise. A subclass that has parameters makes its optimizer here."""
        self.optimizer_initialized = True

    def update(self) -> None:
        """Nothing to update. A subclass that has parameters steps them here."""

    def install_monitor(self, mon: Any) -> None:
        """Nothing to watch: there is no executor."""

    # ------------------------------------------------------------------ metric

    def _measure(self, eval_metric: Any, batch: Any) -> None:
        self._pad = getattr(batch, "pad", 0) or 0
        super()._measure(eval_metric, batch)

    def update_metric(self, eval_metric: Any, labels: Any, pre_sliced: bool = False) -> None:
        """Show the outputs and labels to a metric, without rows that are known to be padding.

        A module bound without labels shows nothing. With ``pre_sliced`` the labels come as one list for each
        context.
        """
        if self._label_shapes is None:
            return
        if pre_sliced:
            labels = [RowAxis(batch_axis(d.layout)).join(parts) for d, parts in zip(self._label_shapes, zip(*labels))]
        outputs = self.get_outputs()
        if self._pad:
            labels = [_without(label, d, self._pad) for label, d in zip(labels, self._label_shapes)]
            outputs = [_without(output, d, self._pad) for output, d in zip(outputs, self._output_shapes)]
        check_metric(eval_metric)
        eval_metric.update(labels, outputs)
        self._notify("metric", eval_metric)


class PythonLossModule(PythonModule):
    """A loss in Python: it gives out the scores it takes in, and makes their gradient.

    ``grad_func(scores, labels)`` returns the gradient with respect to the scores, an NDArray or numpy array
    of their shape; or a subclass writes ``_backward_impl``, which sets ``_scores_grad`` from ``_scores`` and
    ``_labels``. The output is named ``name + '_output'``. Raises ValueError for other than one data and one
    label name.

    >>> loss = PythonLossModule(grad_func=lambda scores, labels: scores - labels)
    """

    def __init__(
        self,
        name: str = "pyloss",
        data_names: Sequence[str] = ("data",),
        label_names: Sequence[str] = ("softmax_label",),
        logger: Any = logging,
        grad_func: Callable[[Any, Any], Any] | None = None,
    ):
        for argument, names in (("data_names", data_names), ("label_names", label_names)):
            if isinstance(names, str) or names is None or len(names) != 1:
                raise ValueError(f"{argument} is {names!r}; PythonLossModule takes exactly one, such as ['data']")
        if grad_func is not None and not callable(grad_func):
            raise TypeError(f"grad_func is {grad_func!r}; expected a function of (scores, labels)")
        super().__init__(data_names, label_names, [f"{name}_output"], logger=logger)
        self._name = name
        self._scores: Any = None
        self._labels: Any = None
        self._scores_grad: Any = None
        self._grad_func = grad_func

    def _compute_output_shapes(self) -> Any:
        scores = self._data_shapes[0]
        return [type(scores)(f"{self._name}_output", scores.shape, scores.dtype, scores.layout)]

    def forward(self, data_batch: Any, is_train: bool | None = None) -> None:
        """Keep the scores, and the labels. Raises ShapeError for a training batch without a label or of other rows."""
        self._require("forward()", params=False)
        is_train = self.for_training if is_train is None else bool(is_train)
        check_batch(data_batch, self._data_names)
        labels = getattr(data_batch, "label", None)
        self._check_arrays(data_batch.data, labels)
        if is_train and not labels:
            raise ShapeError(
                f"the batch has no label; {type(self).__name__} takes {self._label_names} (in a "
                f"SequentialModule, add it with take_labels=True)"
            )
        self._scores = as_array(data_batch.data[0], None)
        self._labels = as_array(labels[0], None) if labels else None
        self._scores_grad = None
        self._pad = getattr(data_batch, "pad", 0) or 0
        self._notify("forward", data_batch)

    def _check_arrays(self, data: Any, labels: Any) -> None:
        """Refuse a batch of other than one data array and, if any, one label of as many rows."""
        rows: dict[int, str] = {}
        for kind, arrays, shapes in (("data", data, self._data_shapes), ("label", labels or (), self._label_shapes)):
            names = self._data_names if kind == "data" else self._label_names
            if len(arrays) != 1 and (arrays or kind == "data"):
                raise ShapeError(f"the batch has {len(arrays)} {kind} array(s); a loss takes exactly one: {names}")
            for array, entry in zip(arrays, shapes or ()):
                if not is_array(array):
                    check_array(repr(entry.name), array, entry.shape)
                axis = batch_axis(entry.layout)
                if 0 <= axis < len(array.shape):
                    rows.setdefault(array.shape[axis], f"{entry.name!r} of shape {tuple(array.shape)}")
        if len(rows) > 1:
            raise ShapeError(f"the batch has {' and '.join(rows.values())}; they need the same rows")

    def get_outputs(self, merge_multi_context: bool = True) -> list[Any]:
        """The scores; with ``merge_multi_context=False`` as those of the one context there is."""
        if self._scores is None:
            raise NotReadyError("get_outputs() needs forward() before it")
        return [self._scores] if merge_multi_context else [[self._scores]]

    def backward(self, out_grads: Any = None) -> None:
        """Make the gradient of the scores. A loss is where gradients begin, so it takes no ``out_grads``."""
        if out_grads is not None:
            raise ValueError(
                f"out_grads is given, and {type(self).__name__} is a loss: gradients begin here, leave it out"
            )
        if not self.for_training:
            raise NotReadyError("backward() needs training; bind with for_training=True")
        if self._scores is None:
            raise NotReadyError("backward() needs forward(batch, is_train=True) before it")
        self._backward_impl()

    def _backward_impl(self) -> None:
        if self._grad_func is None:
            raise NotImplementedError(f"{type(self).__name__} has no grad_func and no _backward_impl of its own")
        if self._labels is None:
            raise NotReadyError(
                "backward() needs forward(batch, is_train=True) before it; the last batch had no labels"
            )
        grad = self._grad_func(self._scores, self._labels)
        if not isinstance(grad, mx.nd.NDArray):
            if not is_array(np.asarray(grad)):
                raise TypeError(f"grad_func returned {grad!r}; expected an NDArray or a numpy array of numbers")
            grad = mx.nd.array(np.asarray(grad), ctx=self._scores.context, dtype=self._scores.dtype)
        if grad.shape != self._scores.shape:
            raise ShapeError(
                f"grad_func returned shape {grad.shape}; expected that of the scores, {self._scores.shape}"
            )
        self._scores_grad = grad

    def get_input_grads(self, merge_multi_context: bool = True) -> list[Any]:
        """The gradient of the scores; with ``merge_multi_context=False`` that of the one context."""
        if self._scores_grad is None:
            raise NotReadyError("get_input_grads() needs backward() before it")
        return [self._scores_grad] if merge_multi_context else [[self._scores_grad]]


def _in_names(shapes: Any, names: Sequence[str] | None, kind: str) -> list[Any]:
    """Descriptions of arrays whose names are ``names``, in that order. Raises ShapeError."""
    descs = [describe(entry, f"{kind}_shapes") for entry in shapes]
    given = [desc.name for desc in descs]
    if given != list(names or []):
        raise ShapeError(
            f"{kind}_shapes names {given}, and the module was made with {kind}_names={names}, in that order"
        )
    return descs


def _without(array: Any, entry: Any, pad: int) -> Any:
    """An array without its last ``pad`` rows."""
    axis = batch_axis(getattr(entry, "layout", None))
    return array if axis < 0 else RowAxis(axis).cut(array, slice(0, array.shape[axis] - pad))
