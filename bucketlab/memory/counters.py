"""What the engine has allocated on each context, to the byte, by its own counters.

mxnet counts allocations only while its memory profiler runs, so this is opt-in: :func:`start`, before the
first array. The counters are read in place, without the profiler's own report, which rounds. Limits of the
engine, kept here:

- Memory allocated before the start is not in the count, and its release is (down to zero): start first.
- mxnet's profiler is one for the process: starting takes its configuration over.
- With n processors there are counters for cpu(0) to cpu(n+1); the last two count pinned and shared memory as
  well. An allocation on a later context fails while counting, so :func:`start` refuses the contexts that it
  is told.
- Every allocation leaves an event in the profiler. It is told to write them away each second, into a folder
  that does not exist, which drops them.
"""

from __future__ import annotations

import ctypes
import os
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bucketlab._engine import mx
from bucketlab.memory.reading import Reader

__all__ = ["counter_of", "read", "running", "start", "stop"]

_SEARCHED_BYTES = 4096
_NAME_AT, _VALUE_AT, _COUNTER_BYTES = 8, 144, 152
_running = False


def start(contexts: Sequence[Any] = ()) -> None:
    """Begin to count; takes over the configuration of ``mx.profiler``. Counting already: nothing happens.

    ``contexts`` are those that will be used: ValueError names those that mxnet has no counter for.
    RuntimeError where the counters cannot be read on this build; counting is then off again.
    """
    global _running
    if not _running:
        nowhere = os.path.join(tempfile.gettempdir(), "bucketlab-no-such-folder", "profile.json")
        mx.profiler.set_config(
            profile_memory=True,
            profile_symbolic=False,
            profile_imperative=False,
            profile_api=False,
            aggregate_stats=False,
            continuous_dump=True,
            dump_period=1,
            filename=nowhere,
        )
        mx.profiler.set_state("run")
        if not _count_known_array():
            mx.profiler.set_state("stop")
            raise RuntimeError("mxnet's memory counters cannot be read in this process; go without them")
    counts = _counts() or {}
    beyond = [str(context) for context in contexts if counter_of(str(context), counts) is None]
    if beyond:
        if not _running:
            mx.profiler.set_state("stop")
        raise ValueError(
            f"contexts {', '.join(beyond)}: on this machine mxnet counts memory for "
            f"cpu(0) to cpu({len(counts) - 1}) only, and allocating beyond them fails while it counts; "
            f"use fewer contexts or go without the counters"
        )
    _running = True


def stop() -> None:
    """Stop counting; the counts are worth nothing from then on."""
    global _running
    if _running:
        mx.profiler.set_state("stop")
        _running = False


def running() -> bool:
    """Whether :func:`start` was called and :func:`stop` was not."""
    return _running


def read() -> dict[str, int] | None:
    """Bytes now allocated by context since the start, None when not counting. Does not wait for the engine.

    Work that is still queued may allocate or release more: ``mx.nd.waitall()`` first for a figure at rest.
    """
    return _counts() if _running else None


def counter_of(context: str, counts: Mapping[str, int]) -> str | None:
    """The counter that allocations on a context go to, None where there is none: pinned memory of every
    device and shared memory have one counter each, and the contexts after the last processor fall on these
    two.

    >>> counter_of("cpu(1)", {"cpu(0)": 0, "cpu_pinned(0)": 0, "cpu_shared(0)": 0})
    'cpu_pinned(0)'
    """
    if context in counts:
        return context
    kind, _, number = context.rstrip(")").partition("(")
    if kind in ("cpu_pinned", "cpu_shared"):
        return f"{kind}(0)" if f"{kind}(0)" in counts else None
    beyond = int(number) - sum(name.startswith("cpu(") for name in counts) if kind == "cpu" else -1
    return {0: "cpu_pinned(0)", 1: "cpu_shared(0)"}.get(beyond)


def _count_known_array() -> bool:
    for _ in range(3):  # another thread may allocate at the same time
        probe = mx.nd.empty((1,), ctx=mx.cpu(0))
        before = _counts()
        known = mx.nd.empty((1031,), ctx=mx.cpu(0))
        after = _counts()
        size = int(np.prod(known.shape)) * 4
        del probe
        if before is not None and after is not None and after["cpu(0)"] - before["cpu(0)"] == size:
            return True
    return False


def _counts() -> dict[str, int] | None:
    """Find the engine's table of counters from its storage object, and read each counter's value."""
    library = mx.base._LIB
    storage_of = getattr(library, "_ZN5mxnet7Storage3GetEv", None)
    if storage_of is None:
        return None
    storage_of.restype = ctypes.c_void_p
    try:
        table = ctypes.c_char.in_dll(library, "_ZTVN5mxnet8profiler14ProfileCounterE")
    except ValueError:
        return None
    kind = ctypes.addressof(table) + 16
    reader = Reader()
    found, read_ = reader.gather(np.array([storage_of()], np.uint64), _SEARCHED_BYTES)
    if not read_[0]:
        return None
    words = found[0].view("<u8")
    begins, ends, rooms = words[:-2], words[1:-1], words[2:]
    sizes = ends - begins
    likely = (begins > 0) & (begins < ends) & (ends <= rooms) & (sizes % 16 == 0) & (sizes <= 16 * 512)
    for at in np.flatnonzero(likely).tolist():
        pointers, ok = reader.gather(np.arange(begins[at], ends[at], 16, dtype=np.uint64), 8)
        if not ok.all():
            continue
        counters, ok = reader.gather(pointers.view("<u8").ravel(), _COUNTER_BYTES)
        if ok.all() and (counters[:, :8].copy().view("<u8") == kind).all():
            values = counters[:, _VALUE_AT:].copy().view("<u8").ravel().tolist()
            return _named(counters[:, _NAME_AT:_VALUE_AT], values)
    return None


def _named(names: np.ndarray, values: list[int]) -> dict[str, int]:
    """By context; the engine writes them ``Memory: cpu/0`` and ``Memory: cpu pinned/``."""
    counts = {}
    for raw, value in zip(names, values):
        kind, _, number = (
            raw.tobytes().split(b"\0")[0].decode(errors="replace").partition(": ")[2].partition("/")
        )
        counts[f"{kind.strip().replace(' ', '_')}({number or 0})"] = value
    return counts
