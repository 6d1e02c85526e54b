"""What the process as a whole takes: exact heap bytes from the C library, resident bytes from the kernel."""

from __future__ import annotations

import ctypes
import os

__all__ = ["heap_bytes", "resident_bytes"]


class _Mallinfo2(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            "arena",
            "ordblks",
            "smblks",
            "hblks",
            "hblkhd",
            "usmblks",
            "fsmblks",
            "uordblks",
            "fordblks",
            "keepcost",
        )
    ]


def heap_bytes() -> int | None:
    """Bytes in use by malloc in the whole process, None where the C library is older than glibc 2.33.

    Holds the engine's arrays on CPU contexts and besides them graph structures, operator buffers, Python's
    objects and whatever else the process allocated.
    """
    call = getattr(ctypes.CDLL(None), "mallinfo2", None)
    if call is None:
        return None
    call.restype = _Mallinfo2
    info = call()
    return int(info.uordblks + info.hblkhd)


def resident_bytes() -> int | None:
    """Bytes of physical memory that the process occupies now, None where the kernel does not tell."""
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return None
