"""Getting a batch into the executors: one engine call for each array and context, made ready at bind."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from bucketlab._calls import OperatorCall
from bucketlab._engine import mx

NDArray = mx.nd.NDArray


@lru_cache(maxsize=None)
def _engine_has_gpus() -> bool:
    return bool(mx.runtime.Features().is_enabled("CUDA"))


class InputFeed:
    """One input of a batch on its way to the executors.

    ``targets`` are (rows of the batch or None for all of it, array of the executor), one for each context that works.
    """

    def __init__(self, name: str, axis: int, targets: Sequence[tuple[slice | None, Any]]):
        self.name = name
        self.targets = tuple(targets)
        self._axis = axis
        self._direct = all(array.stype == "default" for _, array in self.targets)
        self._cpu = all(array.context.device_type == "cpu" for _, array in self.targets)
        self.calls = tuple(self._call(part, array) for part, array in self.targets) if self._direct else ()

    def _call(self, part: slice | None, array: Any) -> OperatorCall:
        if part is None:
            return OperatorCall("_copyto", [array], [array])
        return OperatorCall("slice_axis", [array], [array], axis=self._axis, begin=part.start, end=part.stop)

    def aim(self, source: Any) -> bool:
        """Point the ready calls at ``source``. False when this source has to be copied piece by piece instead."""
        if not self._direct or (_engine_has_gpus() and not (self._cpu and source.context.device_type == "cpu")):
            return False
        for call in self.calls:
            call.read_from(source)
        return True

    def copy(self, source: Any) -> None:
        """Cut and copy with conversions of type, storage and context as needed."""
        for part, array in self.targets:
            piece = source
            if part is not None:
                begin, end = part.start, part.stop
                piece = (
                    source[begin:end]
                    if self._axis == 0
                    else mx.nd.slice_axis(source, axis=self._axis, begin=begin, end=end)
                )
            piece.copyto(array)


def as_array(source: Any, dtype: Any) -> Any:
    """``source`` as an NDArray; numpy arrays and lists are taken with the type of the input they are for."""
    if isinstance(source, NDArray):
        return source
    return mx.nd.array(np.asarray(source), dtype=dtype)
