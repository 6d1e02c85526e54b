"""Keeping the engine's log off the terminal for a moment, where all that it says is of no use to anybody.

mxnet logs to the C++ library's ``std::cerr``, and has no level for it. Marking that stream as failed, by the library's
own functions, makes it drop what is written. Python's ``sys.stderr`` has nothing to do with it, nor have errors, which
are raised.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, NamedTuple

_GOOD, _BAD = 0, 1


class _Log(NamedTuple):
    """``set(ios, state)`` and ``state(ios)`` of the stream whose state is at the address ``ios``."""

    ios: ctypes.c_void_p
    set: Any
    state: Any


@lru_cache(maxsize=1)
def _log() -> _Log | None:
    """The log, or None where this C++ library is not the one that is known here."""
    try:
        library = ctypes.CDLL("libstdc++.so.6")
        stream = ctypes.addressof(ctypes.c_char.in_dll(library, "_ZSt4cerr"))
        set_state = library._ZNSt9basic_iosIcSt11char_traitsIcEE5clearESt12_Ios_Iostate
        state = library._ZNKSt9basic_iosIcSt11char_traitsIcEE7rdstateEv
    except (OSError, ValueError, AttributeError):
        return None
    # Where a stream has its state is written three words before its table of functions.
    table = ctypes.c_void_p.from_address(stream).value or 0
    ios = ctypes.c_void_p(stream + ctypes.c_ssize_t.from_address(table - 24).value)
    if state(ios) != _GOOD:
        return None
    set_state(ios, _BAD)
    works = state(ios) == _BAD
    set_state(ios, _GOOD)
    return _Log(ios, set_state, state) if works and state(ios) == _GOOD else None


def can_be_quiet() -> bool:
    """Whether :func:`quiet` works in this process."""
    return _log() is not None


@contextmanager
def quiet() -> Iterator[None]:
    """Drop what the engine logs inside, on any thread."""
    log = _log()
    if log is None:
        yield
        return
    log.set(log.ios, _BAD)
    try:
        yield
    finally:
        log.set(log.ios, _GOOD)
