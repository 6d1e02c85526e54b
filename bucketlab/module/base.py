"""BaseModule: what every module can do once it can bind, run and update: fit, score, predict, parameter files."""

from __future__ import annotations

import logging
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from bucketlab._engine import mx
from bucketlab.errors import CheckpointError, NotReadyError, ShapeError, StopTraining, last_line
from bucketlab.failures import tell

BatchEndParam = mx.model.BatchEndParam
Observer = Callable[[str, "BaseModule", Any], None]


def _as_list(given: Any) -> list[Any]:
    """A list or tuple as a list, anything else as a list of one."""
    return list(given) if isinstance(given, (list, tuple)) else [given]


def _check_input_names(
    symbol: Any, names: Sequence[str], typename: str, throw: bool, arguments: Sequence[str] | None = None
) -> None:
    """Compare names with the symbol's arguments; raise ValueError or warn when one is not among them.

    ``arguments`` are the symbol's, where they are known: a long graph takes a while to list them.
    """
    if arguments is None:
        arguments = symbol.list_arguments() if names else ()
    for name in names:
        if name not in arguments:
            endings = ("_weight", "_bias", "_gamma", "_beta")
            likely = [argument for argument in arguments if not argument.endswith(endings)]
            text = f"{typename}_names has {name!r}, which the symbol does not take; did you mean one of {likely}?"
            if throw:
                raise ValueError(text)
            warnings.warn(text, stacklevel=3)


def metric_of(given: Any) -> Any:
    """A metric from itself, or from anything that ``mx.metric.create`` takes. Raises ValueError for other names."""
    if isinstance(given, mx.metric.EvalMetric):
        return given
    try:
        return mx.metric.create(given)
    except AssertionError as error:
        raise ValueError(f"eval_metric is {given!r}: {error}") from None


def check_metric(given: Any, outputs: Sequence[str] = (), labels: Sequence[str] = ()) -> None:
    """Refuse what is no metric, where one is needed as it is, and one for other than these outputs and labels."""
    if not isinstance(given, mx.metric.EvalMetric) and not hasattr(given, "update_dict"):
        raise TypeError(f"eval_metric is {given!r}; expected an mx.metric.EvalMetric, such as mx.metric.create('acc')")
    for one in getattr(given, "metrics", None) or [given]:
        for argument, known in (("output_names", outputs), ("label_names", labels)):
            unknown = [name for name in getattr(one, argument, None) or () if known and name not in known]
            if unknown:
                raise ValueError(
                    f"eval_metric {getattr(one, 'name', one)!r} has {argument} {unknown}; there are {list(known)}"
                )


def check_data(argument: str, data: Any, *needed: str) -> None:
    """Refuse what is no data iterator."""
    missing = [name for name in needed if not hasattr(data, name)]
    if missing:
        raise TypeError(
            f"{argument} is {type(data).__name__}, which has no {' and no '.join(missing)}; expected a data iterator, "
            f"such as mx.io.NDArrayIter"
        )


def check_callbacks(**given: Any) -> None:
    """Refuse what cannot be called back."""
    for argument, callbacks in given.items():
        for callback in _as_list(callbacks) if callbacks is not None else ():
            if not callable(callback):
                raise TypeError(f"{argument} has {callback!r}; expected a function, or a list of them")


class BaseModule:
    """A computation that binds to shapes, runs batches, and can be trained with :meth:`fit`.

    Subclasses give the parts (bind, forward, backward, update, ...); the loops here work on any of them.
    """

    _total_exec_bytes: Any = 0

    def __init__(self, logger: Any = logging):
        self.logger = logger
        self.binded = self.params_initialized = self.optimizer_initialized = False
        self.for_training = self.inputs_need_grad = False
        self._symbol: Any = None
        self._observer: Observer | None = None

    # ------------------------------------------------------------------ checks and observation

    def _require(self, call: str, params: bool = True, optimizer: bool = False) -> None:
        """Refuse a call that comes before the one it needs."""
        if not self.binded:
            raise NotReadyError(f"{call} needs bound executors: call bind(data_shapes, label_shapes) first")
        if params and not self.params_initialized:
            raise NotReadyError(f"{call} needs parameters: call init_params() or set_params() first")
        if optimizer and not self.optimizer_initialized:
            raise NotReadyError(f"{call} needs an optimizer: call init_optimizer() first")

    def _notify(self, kind: str, detail: Any = None) -> None:
        if self._observer is not None:
            self._observer(kind, self, detail)

    def check_batches(self, *sources: Any) -> None:
        """Refuse iterators or plans with a batch that the contexts cannot share, before anything is bound.

        ``fit`` asks it of its data. Nothing is refused here; modules that cut batches do.
        """

    # ------------------------------------------------------------------ loops

    def forward_backward(self, data_batch: Any) -> None:
        """Forward for training, then backward."""
        self.forward(data_batch, is_train=True)
        self.backward()

    def fit(
        self,
        train_data: Any,
        eval_data: Any = None,
        eval_metric: Any = "acc",
        epoch_end_callback: Any = None,
        batch_end_callback: Any = None,
        kvstore: Any = "local",
        optimizer: Any = "sgd",
        optimizer_params: Any = (("learning_rate", 0.01),),
        eval_end_callback: Any = None,
        eval_batch_end_callback: Any = None,
        initializer: Any = mx.init.Uniform(0.01),  # noqa: B008
        arg_params: Any = None,
        aux_params: Any = None,
        allow_missing: bool = False,
        force_rebind: bool = False,
        force_init: bool = False,
        begin_epoch: int = 0,
        num_epoch: int | None = None,
        validation_metric: Any = None,
        monitor: Any = None,
        sparse_row_id_fn: Any = None,
    ) -> None:
        """Bind, initialise and train on ``train_data`` from ``begin_epoch`` until ``num_epoch``.

        Arguments are those of ``mx.mod.BaseModule.fit``. Padded rows count in no metric. The epoch callbacks get the
        symbol of the default bucket. Raises ValueError without ``num_epoch`` and for an iterator that yields nothing.
        An observer may end it at a step boundary by raising StopTraining.
        """
        if num_epoch is None:
            raise ValueError("fit needs num_epoch, the number of the epoch to stop before")
        check_data("train_data", train_data, "__iter__", "reset", "provide_data", "provide_label")
        if eval_data is not None:
            check_data("eval_data", eval_data, "__iter__", "reset")
        check_callbacks(
            epoch_end_callback=epoch_end_callback,
            batch_end_callback=batch_end_callback,
            eval_end_callback=eval_end_callback,
            eval_batch_end_callback=eval_batch_end_callback,
        )
        validation_metric = metric_of(eval_metric if validation_metric is None else validation_metric)
        eval_metric = metric_of(eval_metric)
        self.check_batches(train_data, eval_data)
        self.bind(
            data_shapes=train_data.provide_data,
            label_shapes=train_data.provide_label,
            for_training=True,
            force_rebind=force_rebind,
        )
        if monitor is not None:
            self.install_monitor(monitor)
        # Going on with a fit is no fault; only values that would be passed over are worth a warning.
        if not self.params_initialized or force_init or arg_params is not None or aux_params is not None:
            self.init_params(
                initializer=initializer,
                arg_params=arg_params,
                aux_params=aux_params,
                allow_missing=allow_missing,
                force_init=force_init,
            )
        arg_params = aux_params = None
        self.init_optimizer(kvstore=kvstore, optimizer=optimizer, optimizer_params=optimizer_params)
        epoch, nbatch, data_batch = begin_epoch, 0, None
        try:
            for epoch in range(begin_epoch, num_epoch):
                tic = time.time()
                eval_metric.reset()
                nbatch = 0
                self._begin_epoch(train_data, epoch)
                batches = iter(train_data)
                next_data_batch = next(batches, None)
                if next_data_batch is None:
                    raise ValueError(
                        f"train_data yielded no batch in epoch {epoch}; give an iterator with at least one batch, or "
                        f"call its reset()"
                    )
                while next_data_batch is not None:
                    data_batch = next_data_batch
                    if monitor is not None:
                        monitor.tic()
                    self._step(data_batch, eval_metric)
                    next_data_batch = next(batches, None)
                    if next_data_batch is not None:
                        try:
                            self.prepare(next_data_batch, sparse_row_id_fn=sparse_row_id_fn)
                        except Exception as error:
                            tell(error, self, next_data_batch, epoch, nbatch + 1)
                            raise
                    else:
                        train_name_values = eval_metric.get_global_name_value()
                    if monitor is not None:
                        monitor.toc_print()
                    if batch_end_callback is not None:
                        param = BatchEndParam(epoch=epoch, nbatch=nbatch, eval_metric=eval_metric, locals=locals())
                        for callback in _as_list(batch_end_callback):
                            callback(param)
                    self._notify("step", (epoch, nbatch))
                    nbatch += 1
                for name, value in train_name_values:
                    self.logger.info("Epoch[%d] Train-%s=%f", epoch, name, value)
                self.logger.info("Epoch[%d] Time cost=%.3f", epoch, time.time() - tic)
                arg_params, aux_params = self.get_params()
                self.set_params(arg_params, aux_params)
                for callback in _as_list(epoch_end_callback) if epoch_end_callback is not None else ():
                    callback(epoch, self._checkpoint_symbol(), arg_params, aux_params)
                # Copies of all parameters, which would stay through the validation and the next epoch.
                arg_params = aux_params = None
                # Before the validation, which may use the same metric and resets it.
                self._notify("epoch", epoch)
                if eval_data is not None:
                    for name, value in self.score(
                        eval_data,
                        validation_metric,
                        score_end_callback=eval_end_callback,
                        batch_end_callback=eval_batch_end_callback,
                        epoch=epoch,
                    ):
                        self.logger.info("Epoch[%d] Validation-%s=%f", epoch, name, value)
                self._end_epoch(train_data)
        except StopTraining:
            self.logger.info("Training was stopped after batch %d of epoch %d", nbatch, epoch)
            # The next fit begins with a whole epoch.
            train_data.reset()
        except Exception as error:
            tell(error, self, data_batch, epoch, nbatch)
            raise

    def _begin_epoch(self, train_data: Any, epoch: int) -> None:
        """What has to be done before an epoch of fit."""

    def _end_epoch(self, train_data: Any) -> None:
        """What has to be done after an epoch of fit, so that the data can be gone through again."""
        train_data.reset()

    def _step(self, batch: Any, eval_metric: Any) -> None:
        """One batch: gradients, update, metric."""
        self.forward_backward(batch)
        self.update()
        self._measure(eval_metric, batch)

    def _measure(self, eval_metric: Any, batch: Any) -> None:
        if isinstance(batch, list):
            self.update_metric(eval_metric, [part.label for part in batch], pre_sliced=True)
        else:
            self.update_metric(eval_metric, batch.label)

    def _checkpoint_symbol(self) -> Any:
        return self.symbol

    def _eval_batches(self, eval_data: Any, num_batch: int | None, reset: bool, sparse_row_id_fn: Any) -> Iterator[Any]:
        """(number, batch) after a forward pass for inference. Refuses an iterator that yields nothing."""
        check_data("eval_data", eval_data, "__iter__", *(["reset"] if reset else []))
        if reset:
            eval_data.reset()
        if num_batch is not None and num_batch <= 0:
            return
        nbatch = -1
        for nbatch, batch in enumerate(eval_data):
            self.prepare(batch, sparse_row_id_fn=sparse_row_id_fn)
            self.forward(batch, is_train=False)
            yield nbatch, batch
            if nbatch + 1 == num_batch:
                return
        if nbatch < 0:
            raise ValueError(
                "eval_data yielded no batch; give an iterator with at least one batch, or call its reset()"
            )

    def score(
        self,
        eval_data: Any,
        eval_metric: Any,
        num_batch: int | None = None,
        batch_end_callback: Any = None,
        score_end_callback: Any = None,
        reset: bool = True,
        epoch: int = 0,
        sparse_row_id_fn: Any = None,
    ) -> list[tuple[str, float]]:
        """Run ``eval_data`` for inference and return the metric as (name, value) pairs. Padded rows do not count."""
        self._require("score()")
        check_callbacks(batch_end_callback=batch_end_callback, score_end_callback=score_end_callback)
        eval_metric = metric_of(eval_metric)
        eval_metric.reset()
        actual_num_batch = 0
        for nbatch, eval_batch in self._eval_batches(eval_data, num_batch, reset, sparse_row_id_fn):
            self._measure(eval_metric, eval_batch)
            if batch_end_callback is not None:
                param = BatchEndParam(epoch=epoch, nbatch=nbatch, eval_metric=eval_metric, locals=locals())
                for callback in _as_list(batch_end_callback):
                    callback(param)
            actual_num_batch = nbatch + 1
        if score_end_callback is not None:
            param = BatchEndParam(epoch=epoch, nbatch=actual_num_batch, eval_metric=eval_metric, locals=locals())
            for callback in _as_list(score_end_callback):
                callback(param)
        return eval_metric.get_name_value()

    def iter_predict(
        self, eval_data: Any, num_batch: int | None = None, reset: bool = True, sparse_row_id_fn: Any = None
    ) -> Iterator[tuple[list[Any], int, Any]]:
        """Yield (outputs, number, batch) for each batch, without padded rows; the arrays stay what they are.

        Where contexts have shapes of their own that do not join, an output is a list with an array for each context.
        """
        self._require("iter_predict()")
        for nbatch, eval_batch in self._eval_batches(eval_data, num_batch, reset, sparse_row_id_fn):
            yield self._predicted(eval_batch), nbatch, eval_batch

    def predict(
        self,
        eval_data: Any,
        num_batch: int | None = None,
        merge_batches: bool = True,
        reset: bool = True,
        always_output_list: bool = False,
        sparse_row_id_fn: Any = None,
    ) -> Any:
        """Outputs for all rows of an iterator, or of one array (NDArray or numpy), in inference mode.

        Merged over batches unless ``merge_batches`` is False; a single output is returned without its list unless
        ``always_output_list``. Where contexts have shapes of their own that do not join, an output of a batch is a list
        with an array for each context. Raises ShapeError when batches do not merge.
        """
        self._require("predict()")
        if isinstance(eval_data, (mx.nd.NDArray, np.ndarray)):
            data = eval_data if isinstance(eval_data, mx.nd.NDArray) else mx.nd.array(eval_data)
            self.forward(self._batch_of(data), is_train=False)
            outputs = self._predicted(None)
            return outputs if always_output_list or len(outputs) > 1 else outputs[0]
        if not hasattr(eval_data, "__iter__") or not hasattr(eval_data, "reset"):
            raise ValueError(
                f"eval_data is {type(eval_data).__name__}; predict takes a data iterator, an NDArray or a numpy array"
            )
        batches = [
            self._predicted(batch) for _, batch in self._eval_batches(eval_data, num_batch, reset, sparse_row_id_fn)
        ]
        if not batches or not merge_batches:
            return batches
        merged = []
        for parts, axis in zip(zip(*batches), self._predicted_axes()):
            if any(isinstance(part, list) for part in parts):
                raise ShapeError(
                    "outputs of contexts with shapes of their own do not join; ask with merge_batches=False, for a "
                    "list "
                    "by context of each"
                )
            if len({part.shape[:axis] + part.shape[axis + 1 :] for part in parts}) > 1:
                raise ShapeError(
                    f"outputs of shapes {sorted({part.shape for part in parts})} do not merge over batches (buckets "
                    f"differ?); ask with merge_batches=False"
                )
            merged.append(parts[0] if len(parts) == 1 else mx.nd.concat(*parts, dim=axis))
        return merged if always_output_list or len(merged) > 1 else merged[0]

    def _batch_of(self, data: Any) -> Any:
        """A batch of one array that predict() was given."""
        return mx.io.DataBatch([data])

    def _predicted(self, batch: Any) -> list[Any]:
        """Outputs of the last forward pass without padded rows, as arrays of their own."""
        pad = (getattr(batch, "pad", 0) or 0) if batch is not None else 0
        return [output[: output.shape[0] - pad].copy() for output in self.get_outputs()]

    def _predicted_axes(self) -> list[int]:
        """For each output, the axis along which batches follow one another."""
        return [0] * len(self.output_names)

    # ------------------------------------------------------------------ parameter files

    def save_params(self, fname: str) -> None:
        """Write all parameters to a file that mx.mod reads too."""
        arg_params, aux_params = self.get_params()
        arrays = {f"arg:{name}": value.as_in_context(mx.cpu()) for name, value in arg_params.items()}
        arrays.update({f"aux:{name}": value.as_in_context(mx.cpu()) for name, value in aux_params.items()})
        try:
            mx.nd.save(fname, arrays)
        except mx.base.MXNetError as error:
            raise CheckpointError(f"{fname!r} cannot be written: {last_line(error)}") from None

    def load_params(self, fname: str) -> None:
        """Set all parameters from a file that :meth:`save_params` or mx.mod wrote."""
        self.set_params(*read_params(fname))

    def set_params(
        self,
        arg_params: Any,
        aux_params: Any,
        allow_missing: bool = False,
        force_init: bool = True,
        allow_extra: bool = False,
    ) -> None:
        """Set parameters from dicts of name to NDArray; all are checked before any is written."""
        self.init_params(
            initializer=None,
            arg_params=arg_params,
            aux_params=aux_params,
            allow_missing=allow_missing,
            force_init=force_init,
            allow_extra=allow_extra,
        )

    # ------------------------------------------------------------------ what subclasses give

    @property
    def data_names(self) -> Any:
        raise NotImplementedError(f"{type(self).__name__} does not say its data_names")

    @property
    def output_names(self) -> Any:
        raise NotImplementedError(f"{type(self).__name__} does not say its output_names")

    @property
    def data_shapes(self) -> Any:
        raise NotImplementedError(f"{type(self).__name__} does not say its data_shapes")

    @property
    def label_shapes(self) -> Any:
        raise NotImplementedError(f"{type(self).__name__} does not say its label_shapes")

    @property
    def output_shapes(self) -> Any:
        raise NotImplementedError(f"{type(self).__name__} does not say its output_shapes")

    @property
    def symbol(self) -> Any:
        """The symbol that is bound, or None for a module without one."""
        return self._symbol

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
        raise NotImplementedError(f"{type(self).__name__} cannot bind")

    def init_params(
        self,
        initializer: Any = mx.init.Uniform(0.01),  # noqa: B008
        arg_params: Any = None,
        aux_params: Any = None,
        allow_missing: bool = False,
        force_init: bool = False,
        allow_extra: bool = False,
    ) -> None:
        raise NotImplementedError(f"{type(self).__name__} has no parameters to initialise")

    def get_params(self) -> Any:
        raise NotImplementedError(f"{type(self).__name__} has no parameters to give")

    def init_optimizer(
        self,
        kvstore: Any = "local",
        optimizer: Any = "sgd",
        optimizer_params: Any = (("learning_rate", 0.01),),
        force_init: bool = False,
    ) -> None:
        raise NotImplementedError(f"{type(self).__name__} takes no optimizer")

    def prepare(self, data_batch: Any, sparse_row_id_fn: Any = None) -> None:
        """Get ready for a batch that comes next. ``sparse_row_id_fn`` says which rows of sparse parameters it needs."""
        if sparse_row_id_fn is not None:
            warnings.warn(
                f"{type(self).__name__} has no sparse parameters: sparse_row_id_fn is not called", stacklevel=2
            )

    def forward(self, data_batch: Any, is_train: bool | None = None) -> None:
        raise NotImplementedError(f"{type(self).__name__} cannot run forward")

    def backward(self, out_grads: Any = None) -> None:
        raise NotImplementedError(f"{type(self).__name__} cannot run backward")

    def update(self) -> None:
        raise NotImplementedError(f"{type(self).__name__} cannot update")

    def get_outputs(self, merge_multi_context: bool = True) -> Any:
        raise NotImplementedError(f"{type(self).__name__} has no outputs")

    def get_input_grads(self, merge_multi_context: bool = True) -> Any:
        raise NotImplementedError(f"{type(self).__name__} has no input gradients")

    def update_metric(self, eval_metric: Any, labels: Any, pre_sliced: bool = False) -> None:
        raise NotImplementedError(f"{type(self).__name__} cannot update a metric")

    def get_states(self, merge_multi_context: bool = True) -> list[Any]:
        """States, for modules that have any."""
        self._require("get_states()")
        return []

    def set_states(self, states: Any = None, value: Any = None) -> None:
        """Set states, for modules that have any."""
        self._require("set_states()")
        if states or value:
            raise ValueError(f"{type(self).__name__} has no states to set")

    def install_monitor(self, mon: Any) -> None:
        raise NotImplementedError(f"{type(self).__name__} takes no monitor")


def read_arrays(fname: str) -> Any:
    """What ``mx.nd.save`` wrote. Raises CheckpointError for a file that is missing or something else."""
    try:
        return mx.nd.load(fname)
    except mx.base.MXNetError as error:
        raise CheckpointError(f"{fname!r} cannot be read: {last_line(error)}") from None


def read_symbol(fname: str) -> Any:
    """A symbol from its file. Raises CheckpointError for a file that is missing or something else."""
    try:
        return mx.sym.load(fname)
    except mx.base.MXNetError as error:
        raise CheckpointError(f"{fname!r} cannot be read: {last_line(error)}") from None


def read_params(fname: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Parameters and auxiliary states of a ``.params`` file. Raises CheckpointError naming file and entry."""
    arrays = read_arrays(fname)
    if not isinstance(arrays, dict):
        raise CheckpointError(f"{fname!r} has arrays without names; expected 'arg:NAME' and 'aux:NAME'")
    tables: dict[str, dict[str, Any]] = {"arg": {}, "aux": {}}
    for entry, value in arrays.items():
        kind, _, name = entry.partition(":")
        if kind not in tables or not name:
            raise CheckpointError(f"{fname!r} has the entry {entry!r}; expected 'arg:NAME' or 'aux:NAME'")
        tables[kind][name] = value
    return tables["arg"], tables["aux"]
