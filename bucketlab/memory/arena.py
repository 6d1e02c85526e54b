"""One arena for each context, into which the working memory of every executor is laid.

The engine shares working memory block by block, which fits badly when buckets differ in batch size: blocks go with the
batch, their number with the length. Here an executor's blocks, which have no memory before its first run, are pointed
into one array that all executors of the context use in turn. Then there are as many bytes as the hungriest one needs,
and no more, in any order.

This writes three fields of the engine's structures, so it is an option that the caller turns on, and it is refused
where :func:`proved` does not show that it works in this process. Two executors that use one arena must not run at once:
whoever runs another one than before waits for the engine first (see ``GroupMemory.take_turn``).
"""

from __future__ import annotations

import ctypes
from functools import lru_cache
from typing import Any

import numpy as np

from bucketlab._engine import mx
from bucketlab.errors import NotReadyError
from bucketlab.memory.addresses import pool_places
from bucketlab.memory.proof import layout

__all__ = ["Arena", "proved", "refuse_unless_proved"]

ALIGNMENT = 64
"""Bytes to which the engine's own allocations are aligned, and its kernels expect."""

_DATA, _STATIC, _DELAYED = 0, 80, 81
"""Offsets in a chunk: the address of its data, whether somebody else owns it, whether it is still to be allocated."""


def _padded(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def _blocks(executor: Any) -> list[tuple[int, int]]:
    """(address of the chunk, bytes) of each block of an executor that has no memory yet."""
    found, counts = pool_places([executor], layout())
    if counts[0] is None:
        raise NotReadyError("the executor's working memory cannot be read in this process: use working_memory='shared'")
    rows = zip(found.owner.tolist(), found.block_bytes.tolist(), found.allocated.tolist())
    return [(owner, size) for owner, size, allocated in rows if size and not allocated]


class _Lease:
    """Keeps a buffer as long as an executor points into it, and until the engine has run all that still uses it.

    An executor's own operators know nothing of the buffer, so the engine would free it under those that are under way.
    """

    def __init__(self, buffer: Any):
        self.buffer = buffer

    def __del__(self, wait: Any = mx.nd.waitall) -> None:
        wait()


class Arena:
    """Bytes that the executors of one context use in turn."""

    def __init__(self, context: Any):
        self.context = context
        self._lease: _Lease | None = None

    @property
    def buffer(self) -> Any:
        """The array that they use, None before the first one is laid into it."""
        return None if self._lease is None else self._lease.buffer

    @property
    def capacity(self) -> int:
        """Bytes that executors may need; the buffer has some more, to start at an aligned address."""
        return 0 if self.buffer is None else self.buffer.size - ALIGNMENT

    def needs(self, executor: Any) -> int:
        """Bytes that a bound executor, never run, would take of the arena."""
        return sum(_padded(size) for _, size in _blocks(executor))

    def grow(self, nbytes: int) -> None:
        """A new buffer of at least so many bytes; executors laid into the old one keep that alive."""
        self._lease = _Lease(mx.nd.empty((_padded(nbytes) + ALIGNMENT,), ctx=self.context, dtype=np.uint8))

    def lay(self, executor: Any) -> None:
        """Point the working memory of a bound executor, never run, into the arena."""
        blocks = _blocks(executor)
        if not blocks:
            return
        base = ctypes.c_uint64.from_address(ctypes.c_uint64.from_address(self.buffer.handle.value).value).value
        offset = -base % ALIGNMENT
        if sum(_padded(size) for _, size in blocks) > self.capacity:
            raise NotReadyError(f"an arena of {self.capacity} bytes does not hold the executor: grow it first")
        executor._arena = self._lease
        for chunk, size in blocks:
            ctypes.c_uint64.from_address(chunk + _DATA).value = base + offset
            ctypes.c_uint8.from_address(chunk + _STATIC).value = 1
            ctypes.c_uint8.from_address(chunk + _DELAYED).value = 0
            offset += _padded(size)


@lru_cache(maxsize=1)
def proved() -> str:
    """Why an arena cannot be used in this process; empty where it can. Runs two small executors once."""
    if not layout().dense:
        return layout().reason or "the engine's arrays cannot be read"
    try:
        return _prove()
    except Exception as error:  # whatever happens here means that it does not work
        return f"the trial of an arena raised {type(error).__name__}: {error}"


def _prove() -> str:
    x = mx.sym.Variable("x")
    hidden = mx.sym.FullyConnected(x, num_hidden=5, name="fc")
    symbol = mx.sym.LinearRegressionOutput(mx.sym.Activation(hidden, act_type="tanh") * 2, mx.sym.Variable("y"))
    arena = Arena(mx.cpu())
    results = []
    for rows in (3, 7, 3, 7):
        sides = []
        for laid in (False, True):
            shapes = {"x": (rows, 4), "y": (rows, 5), "fc_weight": (5, 4), "fc_bias": (5,)}
            arrays = {
                name: mx.nd.array(np.linspace(-1, 1, int(np.prod(shape))).reshape(shape))
                for name, shape in shapes.items()
            }
            grads = {name: mx.nd.zeros(shapes[name]) for name in ("fc_weight", "fc_bias")}
            executor = symbol.bind(mx.cpu(), arrays, args_grad=grads)
            if laid:
                if arena.needs(executor) > arena.capacity:
                    arena.grow(arena.needs(executor))
                arena.lay(executor)
            executor.forward(is_train=True)
            executor.backward()
            mx.nd.waitall()
            sides.append([*executor.outputs[0].asnumpy().ravel(), *grads["fc_weight"].asnumpy().ravel()])
            if laid:
                data = ctypes.c_uint64.from_address(
                    ctypes.c_uint64.from_address(executor.outputs[0].handle.value).value
                )
                base = ctypes.c_uint64.from_address(ctypes.c_uint64.from_address(arena.buffer.handle.value).value)
                if not base.value <= data.value < base.value + arena.buffer.size:
                    return "an executor that was laid into an arena ran outside of it"
        results.append(sides)
    if any(own != laid for own, laid in results):
        return "an executor that was laid into an arena gave other results"
    return ""


def refuse_unless_proved() -> None:
    """Raises NotReadyError saying why, where an arena cannot be used."""
    reason = proved()
    if reason:
        raise NotReadyError(f"working_memory='arena' cannot be used in this process: {reason}; use 'shared'")
