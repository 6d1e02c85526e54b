"""Engine calls made ready once and run many times, with no Python between the calls of one program.

A :class:`Program` is the only way that bucketlab's hot path talks to the engine. Its calls run from one C loop, so a
keyboard interrupt comes before all of them or after all of them, never in between: that is what makes an update of
many arrays one thing.
"""

from __future__ import annotations

import ctypes
import operator
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

from bucketlab._engine import mx

_LIB = mx.base._LIB
# For calls that neither block nor call back: these keep Python's lock, which others might not give back at once.
_QUICK = ctypes.PyDLL(_LIB._name, handle=_LIB._handle)
_run = operator.methodcaller("__call__")
_handles: dict[str, ctypes.c_void_p] = {}


def _operator_handle(name: str) -> ctypes.c_void_p:
    if name not in _handles:
        handle = ctypes.c_void_p()
        mx.base.check_call(_LIB.NNGetOpHandle(name.encode(), ctypes.byref(handle)))
        _handles[name] = handle
    return _handles[name]


def _pointers(arrays: Sequence[Any]) -> Any:
    return (ctypes.c_void_p * len(arrays))(*[array.handle.value for array in arrays])


def _strings(values: Iterable[str]) -> Any:
    encoded = [value.encode() for value in values]
    return (ctypes.c_char_p * len(encoded))(*encoded)


class OperatorCall:
    """One operator on fixed arrays: ``inputs`` are read, ``outputs`` written in place.

    >>> a, b = mx.nd.ones((2,)), mx.nd.zeros((2,))
    >>> Program([OperatorCall("elemwise_add", [a, a], [b])]).run()
    """

    def __init__(self, name: str, inputs: Sequence[Any], outputs: Sequence[Any], **attributes: Any):
        self._arrays = (list(inputs), list(outputs))
        self._inputs = _pointers(inputs)
        self._outputs = _pointers(outputs)
        self._count = ctypes.c_int(len(outputs))
        self._outputs_at = ctypes.cast(self._outputs, ctypes.c_void_p)
        self._types = ctypes.POINTER(ctypes.c_int)()
        self._head = (
            _operator_handle(name),
            ctypes.c_int(len(inputs)),
            self._inputs,
            ctypes.byref(self._count),
            ctypes.byref(self._outputs_at),
        )
        self._sent: dict[str, Any] = {"": None}
        self._values: Any = None
        self.set(**attributes)

    def set(self, **attributes: Any) -> bool:
        """Replace the operator's attributes; they are sent as text, floats with every digit.

        True if programs that hold this call have to be made anew, since there are other attributes than before.
        """
        if self._sent.keys() == attributes.keys():
            for place, (name, before) in enumerate(self._sent.items()):
                if attributes[name] is not before:
                    self._values[place] = str(attributes[name]).encode()
                    self._sent[name] = attributes[name]
            return False
        self._keys = _strings(attributes)
        self._values = _strings(map(str, attributes.values()))
        self.ready = partial(
            _LIB.MXImperativeInvokeEx,
            *self._head,
            ctypes.c_int(len(attributes)),
            self._keys,
            self._values,
            ctypes.byref(self._types),
        )
        self._sent = attributes
        return True

    def replace(self, name: str, value: Any) -> None:
        """Replace one attribute that was sent before."""
        self._values[list(self._sent).index(name)] = str(value).encode()
        self._sent[name] = value

    @property
    def inputs(self) -> Any:
        """The handles that are read, to be written by position; the caller keeps their arrays alive until it ran."""
        return self._inputs


class ForwardCall:
    """The forward pass of one bound executor."""

    def __init__(self, executor: Any, is_train: bool):
        self._executor = executor
        self.ready = partial(_LIB.MXExecutorForward, executor.handle, ctypes.c_int(int(is_train)))


class BackwardCall:
    """The backward pass of one bound executor, from its own loss (no head gradients)."""

    def __init__(self, executor: Any):
        self._executor = executor
        self.ready = partial(
            _LIB.MXExecutorBackwardEx, executor.handle, ctypes.c_uint(0), (ctypes.c_void_p * 0)(), ctypes.c_int(1)
        )


def shape_question(shape: Sequence[int]) -> Callable[[Any], bool]:
    """A function that tells whether the array of a handle has this shape.

    It asks the engine and builds nothing in Python: a third of the time that ``array.shape == shape`` takes.
    """
    wide = mx.runtime.Features().is_enabled("INT64_TENSOR_SIZE")
    ask = _QUICK.MXNDArrayGetShapeEx64 if wide else _QUICK.MXNDArrayGetShapeEx
    told = ctypes.c_int()
    sizes = ctypes.POINTER(ctypes.c_int64 if wide else ctypes.c_int)()
    told_at, sizes_at = ctypes.byref(told), ctypes.byref(sizes)
    count, expected = len(shape), list(shape)

    def fits(handle: Any) -> bool:
        return not ask(handle, told_at, sizes_at) and told.value == count and sizes[:count] == expected

    return fits


class Program:
    """Calls that are pushed to the engine one after another from one C loop.

    Raises ``MXNetError`` with the engine's own text at the first call that is refused; those after it are not tried.
    """

    __slots__ = ("_ready", "calls")

    def __init__(self, calls: Sequence[Any]):
        self.calls = tuple(calls)
        self._ready = tuple(call.ready for call in self.calls)

    def run(self) -> None:
        if any(map(_run, self._ready)):
            raise mx.base.MXNetError(mx.base.py_str(_LIB.MXGetLastError()))
