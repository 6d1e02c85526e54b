"""Proof, once per process, that the engine's structures lie where they are read."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from bucketlab._engine import mx
from bucketlab.memory.addresses import Layout, Place, Span, places
from bucketlab.memory.reading import Reader

__all__ = ["layout"]


@lru_cache(maxsize=1)
def layout() -> Layout:
    """Prove once per process that the structures lie where this module reads them; reads only arrays of its
    own.

    >>> layout()
    Layout(dense=True, sparse=True, reason='')
    """
    try:
        reason = _prove_dense()
        if reason:
            return Layout(False, False, reason)
        reason = _prove_sparse()
        return Layout(True, not reason, reason)
    except Exception as error:  # any surprise means that nothing is proved
        return Layout(
            False, False, f"the self-check of mxnet's array layout raised {type(error).__name__}: {error}"
        )


def _prove_dense() -> str:
    every = Layout(True, True)
    memory = np.arange(40, dtype=np.float32).reshape(10, 4)
    lent = mx.nd.from_numpy(memory, zero_copy=True)
    lazy = mx.nd.NDArray(mx.nd.ndarray._new_alloc_handle((3, 5), mx.cpu(1), True, np.float64))
    deep = mx.nd.NDArray(mx.nd.ndarray._new_alloc_handle((1, 2, 1, 2, 1, 2), mx.cpu(), True, np.int8))
    views = [lent, lent[2:5], lent.reshape((4, 10)), lent[7]]
    found = places([*views, lazy, deep], every)
    owner = found[0].owner
    for row, (shape, offset, nbytes) in enumerate(
        [((10, 4), 0, 160), ((3, 4), 32, 48), ((4, 10), 0, 160), ((4,), 112, 16)]
    ):
        span = Span(memory.ctypes.data, offset, nbytes, 160, True, True)
        if found[row] != Place("cpu(0)", shape, "float32", "default", nbytes, owner, True, (span,)):
            return f"a view of known memory reads as {found[row]}"
    for row, context, shape, dtype, nbytes in (
        (4, "cpu(1)", (3, 5), "float64", 120),
        (5, "cpu(0)", (1, 2, 1, 2, 1, 2), "int8", 8),
    ):
        owner = found[row].owner
        span = Span(owner, 0, nbytes, nbytes, False, False)
        if found[row] != Place(context, shape, dtype, "default", nbytes, owner, True, (span,)):
            return f"an array without memory reads as {found[row]}"
    return "" if len(set(found.owner.tolist())) == 3 else "different arrays read as one"


def _prove_sparse() -> str:
    every = Layout(True, True)
    rows = np.array([[1, 2], [3, 4], [5, 6]], np.float32)
    row_sparse = mx.nd.sparse.row_sparse_array((rows, [0, 2, 5]), shape=(8, 2))
    csr = mx.nd.sparse.csr_matrix((np.array([7, 8, 9], np.float32), [0, 2, 1], [0, 2, 2, 3]), shape=(3, 4))
    empty = mx.nd.sparse.zeros("row_sparse", (8, 2))
    for array in (row_sparse, csr, empty):
        array.wait_to_read()
    reader = Reader()
    expected: dict[str, tuple[tuple[int, ...], list[np.ndarray]]] = {
        "row_sparse": ((8, 2), [rows, np.array([0, 2, 5], np.int64)]),
        "csr": (
            (3, 4),
            [
                np.array([7, 8, 9], np.float32),
                np.array([0, 2, 2, 3], np.int64),
                np.array([0, 2, 1], np.int64),
            ],
        ),
    }
    found = places([row_sparse, csr, empty], every)
    for place in (found[0], found[1]):
        shape, parts = expected.get(place.storage, ((), []))
        if not place.seen or place.shape != shape or len(place.spans) != len(parts):
            return f"a sparse array reads as {place}"
        for span, part in zip(place.spans, parts):
            held, read = reader.gather(np.array([span.block], np.uint64), part.nbytes)
            if not read[0] or span.nbytes < part.nbytes or held[0].tobytes() != part.tobytes():
                return f"a part of a {place.storage} array is not where it reads"
    if not found[2].seen or found[2].nbytes:
        return f"an empty row_sparse array reads as {found[2]}"
    return ""
