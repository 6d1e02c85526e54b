"""Getting a batch into the executors: one engine call for each array and context, made ready at bind."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from bucketlab._calls import OperatorCall, shape_question
from bucketlab._engine import mx
from bucketlab.errors import DescriptionError, ShapeError

NDArray = mx.nd.NDArray


@cache
def _engine_has_gpus() -> bool:
    return bool(mx.runtime.Features().is_enabled("CUDA"))


class InputFeed:
    """One input of a batch on its way to the executors.

    ``shape`` is that of the whole batch's array, ``targets`` are (rows of it or None for all, array of the executor),
    one for each context that works.
    """

    def __init__(self, name: str, shape: tuple[int, ...], axis: int, targets: Sequence[tuple[slice | None, Any]]):
        self.name = name
        self.targets = tuple(targets)
        self._shape, self._axis = shape, axis
        self._has_shape = shape_question(shape)
        self._direct = all(array.stype == "default" for _, array in self.targets)
        # Between devices copies are made piece by piece.
        self._one_device = not _engine_has_gpus()
        self._cpu = all(array.context.device_type == "cpu" for _, array in self.targets)
        self.calls = tuple(self._call(part, array) for part, array in self.targets) if self._direct else ()
        self._slots = tuple(call.inputs for call in self.calls)

    def _call(self, part: slice | None, array: Any) -> OperatorCall:
        if part is None:
            return OperatorCall("_copyto", [array], [array])
        return OperatorCall("slice_axis", [array], [array], axis=self._axis, begin=part.start, end=part.stop)

    def aim(self, source: Any) -> bool:
        """Point the ready calls at an array; False for one of another shape, or that they cannot read.

        The caller keeps the array alive until they ran.
        """
        if type(source) is not NDArray or not self._direct:
            return False
        handle = source.handle
        if not self._has_shape(handle):
            return False
        if not self._one_device and not (self._cpu and source.context.device_type == "cpu"):
            return False
        for slot in self._slots:
            slot[0] = handle.value
        return True

    def takes(self, source: Any) -> bool:
        """Whether something is an array of the bound shape, whatever its type, storage and device."""
        return is_array(source) and source.shape == self._shape

    def refuse(self, source: Any) -> None:
        """Raise ShapeError for an array that it does not take."""
        check_array(repr(self.name), source, self._shape)
        raise DescriptionError(f"{self.name!r} is given as an array that cannot be read: {source!r}")

    def copy(self, source: Any) -> None:
        """Cut and copy with conversions of type, storage and context as needed; numpy arrays are taken too."""
        for part, array in self.targets:
            source = piece = as_array(source, array.dtype)
            if part is not None:
                begin, end = part.start, part.stop
                piece = (
                    source[begin:end]
                    if self._axis == 0
                    else mx.nd.slice_axis(source, axis=self._axis, begin=begin, end=end)
                )
            piece.copyto(array)


def is_array(source: Any) -> bool:
    """Whether something is an NDArray or a numpy array of numbers."""
    return isinstance(source, NDArray) or (isinstance(source, np.ndarray) and source.dtype.kind in "biuf")


def same_arrays(one: Any, other: Any) -> bool:
    """Whether two lists, or lists of lists, hold the same arrays in the same order."""
    if one is other:
        return True
    lists = isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)) and len(one) == len(other)
    return lists and all(map(same_arrays, one, other))


def check_array(what: str, source: Any, shape: Sequence[int], where: str = "") -> None:
    """Raise ShapeError for what is no array of this shape."""
    if not is_array(source):
        kind = f"an array of {source.dtype}" if isinstance(source, np.ndarray) else type(source).__name__
        raise DescriptionError(f"{what}{where} is given as {kind}; expected an NDArray or a numpy array of numbers")
    if tuple(source.shape) != tuple(shape):
        raise ShapeError(f"{what}{where} is given with shape {tuple(source.shape)}, expected {tuple(shape)}")


def as_array(source: Any, dtype: Any) -> Any:
    """``source`` as an NDArray; numpy arrays and lists are taken with the type of the input they are for."""
    if isinstance(source, NDArray):
        return source
    return mx.nd.array(np.asarray(source), dtype=dtype)


def check_batch(batch: Any, data_names: Sequence[str]) -> None:
    """Refuse what is no batch, and say what would be one."""
    data, label = getattr(batch, "data", None), getattr(batch, "label", None)
    if isinstance(data, (list, tuple)) and (label is None or isinstance(label, (list, tuple))):
        return
    if batch is None or (data is None and not hasattr(batch, "data")) or isinstance(batch, np.ndarray):
        found = f"the batch is {type(batch).__name__}"
    elif not isinstance(data, (list, tuple)):
        found = f"the batch's data is {type(data).__name__}"
    else:
        found = f"the batch's label is {type(label).__name__}"
    raise DescriptionError(
        f"{found}; give a DataBatch whose data is a list of arrays for {list(data_names)}, and a list as its label"
    )
