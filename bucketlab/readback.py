"""What a forward pass leaves behind, read back by rows: outputs, predictions, what a metric sees."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import numpy as np

from bucketlab.bound import BoundShapes
from bucketlab.errors import DescriptionError, ShapeError
from bucketlab.feeding import NDArray, as_array, is_array
from bucketlab.rows import RowAxis, check_rows


class Readback:
    """Reads what the executors of one set of shapes hold after a forward pass.

    ``pad`` rows at the end of the batch are filler, or ``pads`` at the end of each part of a batch that came as a list.
    ``unnamed`` are arguments that nobody said what they are: the labels, where none were named at bind.
    """

    def __init__(
        self,
        bound: BoundShapes,
        contexts: Sequence[Any],
        output_names: Sequence[str],
        label_names: Sequence[str] | None,
        label_layouts: Sequence[int] | None,
        unnamed: Sequence[str],
    ):
        self.bound = bound
        self.contexts = contexts
        self.output_names = output_names
        self.label_names = label_names
        self.label_layouts = label_layouts
        self.pad = 0
        self.pads: list[int] | None = None
        self._unnamed = unnamed
        self._whole = bound.flat and len(bound.active) == 1

    def ran(self, pad: int, pads: list[int] | None = None) -> None:
        """A batch has run."""
        self.pad, self.pads = pad, pads

    def output_shapes(self) -> list[tuple[str, tuple[int, ...]]]:
        """Name and shape of each output, joined over the contexts."""
        shapes = []
        for name, parts, where in zip(self.output_names, self.bound.context_outputs, self.bound.row_axes):
            shape = list(parts[0].shape)
            if where.axis >= 0 and len(parts) > 1:
                shape[where.axis] = sum(part.shape[where.axis] for part in parts)
            shapes.append((name, tuple(shape)))
        return shapes

    def outputs(self, merge: bool, begin: int = 0, end: int | None = None) -> list[Any]:
        """Outputs of the last forward pass, as arrays that stay what they are.

        Merged: one array per output with all rows in the batch's order. Else ``[output][context]``, without contexts
        that rested. Raises ShapeError where contexts' outputs differ in other axes than rows.
        """
        bound = self.bound
        results = []
        for k in range(len(self.output_names))[begin:end]:
            parts = bound.context_outputs[k]
            if not merge:
                results.append([part.copy() for part in parts])
            else:
                results.append(merged(parts, bound.row_axes[k], f"output {self.output_names[k]!r}"))
        return results

    def predicted(self) -> list[Any]:
        """Outputs of the last forward pass without padded rows, as arrays of their own.

        Where contexts have shapes of their own that do not join, an output is a list with one array for each context.
        """
        bound = self.bound
        if self._whole and not self.pad:
            return [parts[0].copy() for parts in bound.context_outputs]
        valid = [self.valid_rows(i) for i in bound.active]
        if not any(rows is None or rows for rows in valid):
            raise ShapeError(f"the batch has pad {self.pad}, and no more rows than that: there is none to predict")
        results: list[Any] = []
        for k, parts in enumerate(bound.context_outputs):
            kept = [
                part if rows is None or not axes[k].steps else axes[k].cut(part, slice(0, rows))
                for part, rows, axes in zip(parts, valid, bound.context_row_axes)
                if rows != 0
            ]
            where = bound.row_axes[k]
            if bound.shapes.per_context and not _joins(kept, where):
                results.append([part.copy() for part in kept])
            else:
                results.append(merged(kept, where, f"output {self.output_names[k]!r}"))
        return results

    def update_metric(self, eval_metric: Any, labels: Any, pre_sliced: bool, fed: Any = None) -> None:
        """Show each context's labels and outputs to a metric, in order of contexts, without padded rows.

        ``labels``: the batch's labels, or with ``pre_sliced`` (and in the per-context form) one list for each context.
        ``fed`` are those that the executors were fed: where they are asked for again, they are not cut again.
        """
        bound = self.bound
        only = labels[0] if type(labels) is list and len(labels) == 1 else None
        if self._whole and type(only) is NDArray and not (self.pad or pre_sliced):
            # What comes of all that is below in the most common case: one context, one label, no padding.
            eval_metric.update_dict(OrderedDict(zip(self._label_names(0, 1), labels)), bound.named_outputs[0])
            return
        lists: Any = (list, tuple, type(None))
        if not isinstance(labels, lists):
            raise DescriptionError(f"labels is {type(labels).__name__}; give a list of arrays, as batch.label is")
        cut = pre_sliced or bound.shapes.per_context
        some = self._check_cut_labels(labels) if cut else any(label is not None for label in labels or ())
        for at, i in enumerate(bound.active):
            valid = self.valid_rows(i) if self.pad else None
            if valid == 0 or (some and cut and not labels[at]):
                continue
            shown = self._labels_of(labels, cut, at, i, fed) if some else OrderedDict()
            outputs = bound.named_outputs[at]
            if valid is not None:
                keep = slice(0, valid)
                outputs = OrderedDict(
                    (name, where.cut(out, keep) if where.steps else out)
                    for (name, out), where in zip(outputs.items(), bound.context_row_axes[at])
                )
                axes = self.label_layouts or [0] * len(shown)
                shown = OrderedDict(
                    (name, RowAxis(axis).cut(label, keep)) for (name, label), axis in zip(shown.items(), axes)
                )
            eval_metric.update_dict(shown, outputs)

    def _check_cut_labels(self, labels: Any) -> bool:
        """Whether some context has labels, of labels that come as one list for each."""
        given, active = list(labels or ()), len(self.bound.active)
        if not all(entry is None or isinstance(entry, (list, tuple)) for entry in given):
            raise ShapeError(
                f"labels are one list for all contexts, and the batch came cut: give one list for each of the {active}"
            )
        if not any(given):
            return False
        if len(given) != active:
            raise ShapeError(
                f"labels has lists for {len(given)} context(s), and {active} ran this batch; give one for each"
            )
        return True

    def valid_rows(self, i: int) -> int | None:
        """Rows of context ``i`` that are no padding; None when all are."""
        parts = self.bound.parts
        if not self.pad or not parts:
            return None
        if not isinstance(self.pad, (int, np.integer)) or self.pad < 0:
            raise DescriptionError(f"the batch's pad is {self.pad!r}; expected a number of rows")
        part = parts[i]
        rows = part.stop - part.start
        if self.pads is not None:
            inside = max(0, rows - self.pads[self.bound.active.index(i)])
        else:
            inside = max(0, min(part.stop, parts[-1].stop - self.pad) - part.start)
        return None if inside == rows else inside

    def labels_on(self, at: int) -> Sequence[str]:
        """Names of the labels of the context that is active at ``at``."""
        shapes = self.bound.shapes
        own = shapes.label[at] if shapes.per_context and shapes.label is not None else ()
        return [desc.name for desc in own] or self.label_names or self._unnamed

    def _label_names(self, at: int, count: int) -> Sequence[str]:
        """The same for so many labels that a metric is to see, where the network has no use for any."""
        return self.labels_on(at) or [f"label{number}" for number in range(count)]

    def _labels_of(self, labels: Any, cut: bool, at: int, i: int, fed: Any) -> OrderedDict[str, Any]:
        bound, own = self.bound, labels[at] if cut else labels
        names = self._label_names(at, len(own))
        if cut or len(bound.active) == 1:
            return OrderedDict((name, as_array(label, None)) for name, label in zip(names, own))
        table = bound.execs[i].arg_dict
        as_fed = labels is fed and self.label_names is not None
        shown = OrderedDict()
        for name, label, axis in zip(names, labels, self.label_layouts or [0] * len(labels)):
            if as_fed and name in table:
                shown[name] = table[name]
            elif axis < 0 or not bound.slices:
                shown[name] = label
            else:
                check_rows(label, RowAxis(axis), bound.shapes.rows or 0, f"label {name!r}")
                shown[name] = RowAxis(axis).cut(as_array(label, None), bound.slices[i])
        return shown

    def cut_out_grads(self, out_grads: Any) -> list[list[Any]]:
        bound = self.bound
        given = out_grads if isinstance(out_grads, (list, tuple)) else [out_grads]
        grads: list[Any] = [
            [_grad(one) for one in own] if isinstance(own, (list, tuple)) else _grad(own) for own in given
        ]
        if bound.shapes.per_context and grads and isinstance(grads[0], (list, tuple)):
            return self._own_out_grads(grads)
        # Losses make gradients of their own, so those at the end may be left out; the engine says which are none.
        if len(grads) > len(self.output_names):
            raise ShapeError(
                f"out_grads has {len(grads)} arrays and there are {len(self.output_names)} outputs: {self.output_names}"
            )
        counts = self._entries()
        cut: list[list[Any]] = [[] for _ in bound.active]
        for k, (grad, where) in enumerate(zip(grads, bound.row_axes)):
            begin = 0
            what = f"out_grads for output {self.output_names[k]!r}"
            if len(bound.active) > 1 and where.axis >= 0 and bound.shapes.per_context:
                check_rows(grad, RowAxis(where.axis), sum(counts[k]), what)
            elif len(bound.active) > 1 and where.axis >= 0 and where.steps:
                check_rows(grad, where, bound.shapes.rows or 0, what)
            # An output without rows is one of each context: it takes a gradient for each, or one for all.
            apart = bound.shapes.per_context or (where.axis >= 0 and not where.steps)
            whole = len(bound.active) == 1 or (
                not where.steps and grad.shape == bound.execs[bound.active[0]].outputs[k].shape
            )
            for at, i in enumerate(bound.active):
                if whole:
                    part = grad
                elif apart:
                    part = RowAxis(max(where.axis, 0)).cut(grad, slice(begin, begin + counts[k][at]))
                    begin += counts[k][at]
                else:
                    part = where.cut(grad, bound.slices[i]) if bound.slices else grad
                expected = bound.execs[i].outputs[k].shape
                if part.shape != expected:
                    raise ShapeError(
                        f"{what} has shape {grad.shape}; {self.contexts[i]} "
                        f"expected {expected} of it and would get {part.shape}"
                    )
                cut[at].append(part.as_in_context(self.contexts[i]))
        return cut

    def _own_out_grads(self, grads: Sequence[Any]) -> list[list[Any]]:
        """out_grads that come as one list for each context that ran."""
        bound = self.bound
        expected = [[part.shape for part in parts] for parts in zip(*bound.context_outputs)]
        given = [[tuple(grad.shape) for grad in one] for one in grads]
        if given != expected:
            raise ShapeError(
                f"out_grads has shapes {given} by context; expected {expected}, one list for each context that ran "
                f"with an array for each of {self.output_names}"
            )
        return [[grad.as_in_context(self.contexts[i]) for grad in one] for i, one in zip(bound.active, grads)]

    def _entries(self) -> list[list[int]]:
        """``[output][active context]``: entries along the row axis."""
        return [
            [part.shape[max(where.axis, 0)] for part in parts]
            for parts, where in zip(self.bound.context_outputs, self.bound.row_axes)
        ]


def _grad(given: Any) -> Any:
    if not is_array(given):
        kind = type(given).__name__
        raise DescriptionError(f"out_grads has {kind}; expected an NDArray or a numpy array for each output")
    return as_array(given, given.dtype)


def merged(parts: Sequence[Any], where: RowAxis, what: str) -> Any:
    """Parts of all contexts as one array of its own."""
    if len(parts) == 1:
        return parts[0].copy()
    if not _joins(parts, where):
        raise ShapeError(
            f"{what} has shapes {[part.shape for part in parts]} over the contexts, which do not join along axis "
            f"{where.axis}; ask with merge_multi_context=False"
        )
    joined = where.join(parts)
    return joined.copy() if joined is parts[0] else joined


def _joins(parts: Sequence[Any], where: RowAxis) -> bool:
    """Whether arrays agree in all axes but that of the rows; those without rows are taken as one."""
    if where.axis < 0:
        return True
    return len({part.shape[: where.axis] + part.shape[where.axis + 1 :] for part in parts}) == 1
