"""Where arrays lie in memory, read without writing, waiting or allocating.

mxnet's own call for an array's address allocates lazy arrays, reorders oneDNN arrays in place and races with
the engine. The engine's structures are read here instead, as bytes of this process, through calls that return
an error where a plain read would crash. mxnet 1.9.1 is the last of its kind, so their layout never changes; a
self-check on a few small arrays proves it all the same (:func:`layout`), and where it fails the readers say
that they cannot see.
"""

from __future__ import annotations

import ctypes
import math
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from bucketlab._engine import mx

__all__ = ["Layout", "Place", "Places", "Span", "join", "layout", "places", "pool_places"]

_NDARRAY_BYTES = 224
_NDARRAY = np.dtype(
    {
        "names": ["chunk", "ndim", "dims", "more_dims", "offset", "dtype", "storage"],
        "formats": ["<u8", "<i4", ("<i8", 4), "<u8", "<u8", "<i4", "<i4"],
        "offsets": [0, 16, 24, 56, 64, 72, 80],
        "itemsize": 88,
    }
)
_CHUNK = np.dtype(
    {
        "names": ["data", "size", "device", "device_id", "parts", "parts_end", "lent"],
        "formats": ["<u8", "<u8", "<i4", "<i4", "<u8", "<u8", "u1"],
        "offsets": [0, 8, 16, 20, 32, 40, 80],
        "itemsize": 88,
    }
)
_HANDLE_BYTES = 32
_VECTORS_AT = 128
_DEVICES = {1: "cpu", 2: "gpu", 3: "cpu_pinned", 5: "cpu_shared"}
_STORAGE = ("default", "row_sparse", "csr")
_EXTRA_PARTS = (0, 1, 2)
_INLINE_DIMS, _MOST_DIMS = 4, 64


class Span(NamedTuple):
    """Consecutive bytes that an array shows, inside one block that was (or will be) allocated as a whole.

    ``block`` names the block within this process: its address, or that of its owner while it is not
    allocated. ``offset`` and ``nbytes`` are in bytes; ``lent`` means that the memory belongs to numpy or
    another library.
    """

    block: int
    offset: int
    nbytes: int
    block_bytes: int
    allocated: bool
    lent: bool


class Place(NamedTuple):
    """Shape, type and whereabouts of one array at one moment. ``owner`` is equal for arrays of one storage
    object.

    ``spans`` holds the data, then a sparse array's other parts; it is empty where ``seen`` is False.
    ``nbytes`` counts what is (or will be) stored: of a sparse array what its parts take.
    """

    context: str
    shape: tuple[int, ...]
    dtype: str
    storage: str
    nbytes: int
    owner: int
    seen: bool
    spans: tuple[Span, ...]


@dataclass(frozen=True, eq=False)
class Places:
    """The places of many arrays, by column: a snapshot of thousands is one pass over numpy arrays.

    The span columns run over the arrays' spans in order; ``of`` gives the array that each belongs to.
    """

    context: list[str]
    shape: list[tuple[int, ...]]
    dtype: list[str]
    storage: list[str]
    nbytes: np.ndarray
    owner: np.ndarray
    seen: np.ndarray
    of: np.ndarray
    block: np.ndarray
    offset: np.ndarray
    span_bytes: np.ndarray
    block_bytes: np.ndarray
    allocated: np.ndarray
    lent: np.ndarray

    def __len__(self) -> int:
        return len(self.context)

    def __getitem__(self, index: int) -> Place:
        spans = tuple(
            Span(*(column[row].item() for column in self.span_columns()))
            for row in np.flatnonzero(self.of == index)
        )
        return Place(
            self.context[index], self.shape[index], self.dtype[index], self.storage[index],
            int(self.nbytes[index]), int(self.owner[index]), bool(self.seen[index]), spans,
        )  # fmt: skip

    def span_columns(self) -> tuple[np.ndarray, ...]:
        return self.block, self.offset, self.span_bytes, self.block_bytes, self.allocated, self.lent


def join(tables: Sequence[Places]) -> Places:
    """Several tables as one, their arrays in order."""
    starts = np.cumsum([0, *map(len, tables)])
    columns: dict[str, Any] = {}
    for name in Places.__dataclass_fields__:
        parts = [getattr(table, name) for table in tables]
        if name == "of":
            columns[name] = np.concatenate([part + start for part, start in zip(parts, starts)])
        elif isinstance(parts[0], list):
            columns[name] = [value for part in parts for value in part]
        else:
            columns[name] = np.concatenate(parts)
    return Places(**columns)


@dataclass(frozen=True)
class Layout:
    """What the self-check proved about this process: which structures can be read, and why not the others."""

    dense: bool
    sparse: bool
    reason: str = ""


class _Iovec(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]


class Reader:
    """Copies bytes of this process; an address that is not mapped is reported, and never a crash."""

    _AT_ONCE = 1024

    def __init__(self) -> None:
        try:
            self._readv: Any = ctypes.CDLL(None, use_errno=True).process_vm_readv
        except AttributeError:
            self._readv = None
        else:
            self._readv.restype = ctypes.c_ssize_t
            self._readv.argtypes = [
                ctypes.c_int,
                ctypes.c_void_p,
                ctypes.c_ulong,
                ctypes.c_void_p,
                ctypes.c_ulong,
                ctypes.c_ulong,
            ]

    def gather(self, addresses: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray]:
        """``size`` bytes at each address, as rows; and for each whether it could be read."""
        count = len(addresses)
        out = np.zeros((count, size), np.uint8)
        read = np.zeros(count, bool)
        if self._readv is None or not self._by_readv(addresses, size, out, read):
            self._by_file(addresses, size, out, read)
        return out, read

    def _by_readv(self, addresses: np.ndarray, size: int, out: np.ndarray, read: np.ndarray) -> bool:
        remote = np.empty((len(addresses), 2), np.uint64)
        remote[:, 0] = addresses
        remote[:, 1] = size
        begin = 0
        while begin < len(addresses):
            end = min(begin + self._AT_ONCE, len(addresses))
            local = _Iovec(out.ctypes.data + begin * size, (end - begin) * size)
            got = self._readv(
                os.getpid(), ctypes.addressof(local), 1, remote.ctypes.data + begin * 16, end - begin, 0
            )
            if got < 0 and ctypes.get_errno() != 14:  # not EFAULT: the call itself is forbidden here
                return False
            whole = max(got, 0) // size
            read[begin : begin + whole] = True
            out[begin + whole : end] = 0
            # The read stops at the first address that is not mapped: step over it.
            begin += whole if begin + whole == end else whole + 1
        return True

    def _by_file(self, addresses: np.ndarray, size: int, out: np.ndarray, read: np.ndarray) -> None:
        try:
            file = os.open("/proc/self/mem", os.O_RDONLY)
        except OSError:
            return
        try:
            for row, address in enumerate(addresses.tolist()):
                try:
                    found = os.pread(file, size, address)
                except (OSError, OverflowError):
                    continue
                if len(found) == size:
                    out[row] = np.frombuffer(found, np.uint8)
                    read[row] = True
        finally:
            os.close(file)


def _shapes(nds: np.ndarray, reader: Reader) -> tuple[list[tuple[int, ...]], np.ndarray]:
    """Every array's shape, and its number of elements."""
    inline = np.arange(_INLINE_DIMS) < nds["ndim"][:, None]
    dims = np.where(inline, nds["dims"], 1)
    elements = dims.prod(axis=1)
    # Few shapes are different: each is made once, and found again by its bytes.
    keys = np.column_stack([np.clip(nds["ndim"], 0, _INLINE_DIMS), dims])
    known: dict[bytes, tuple[int, ...]] = {}
    shapes = []
    for row, key in enumerate(keys.view(f"V{8 * keys.shape[1]}").ravel().tolist()):
        shape = known.get(key)
        if shape is None:
            shape = known[key] = tuple(dims[row, : keys[row, 0]].tolist())
        shapes.append(shape)
    for row in np.flatnonzero(nds["ndim"] > _INLINE_DIMS).tolist():
        ndim = int(nds["ndim"][row])
        found, _ = reader.gather(nds["more_dims"][row : row + 1], 8 * min(ndim, _MOST_DIMS))
        shapes[row] = tuple(found[0].view("<i8").tolist())
        elements[row] = math.prod(shapes[row])
    return shapes, elements


def _pick(names: Sequence[str], which: np.ndarray) -> list[str]:
    return np.array(names, object)[which].tolist()


def _parts(chunk: Any, storage: int, reader: Reader) -> list[tuple[int, int]] | None:
    """Address and size of a sparse array's further parts; None while the engine is changing them."""
    begin, end = int(chunk["parts"]), int(chunk["parts_end"])
    count = _EXTRA_PARTS[storage]
    if begin == end:
        return [(0, 0)] * count
    if end - begin != _HANDLE_BYTES * count:
        return None
    found, read = reader.gather(np.array([begin], np.uint64), end - begin)
    if not read[0]:
        return None
    words = found[0].view("<u8").reshape(count, -1)
    return [(int(word[0]), int(word[1])) for word in words]


def _by_engine(nds: np.ndarray, reader: Reader, sparse: bool) -> Places:
    """One row for each of ``nds``; not ``seen`` where the structures do not read as an array."""
    names, widths = _types()
    raw, seen = reader.gather(nds["chunk"], _CHUNK.itemsize)
    chunks = raw.view(_CHUNK).reshape(-1)
    seen &= nds["chunk"] != 0
    code = nds["dtype"]
    seen &= (code >= 0) & (code < len(names)) & (nds["ndim"] <= _MOST_DIMS)
    code = np.where(seen, code, 0)
    seen &= widths[code] > 0
    kind = nds["storage"]
    seen &= (kind >= 0) & (kind < (len(_STORAGE) if sparse else 1))
    kind = np.where(seen, kind, 0)
    device = chunks["device"].astype(np.int64) << 32 | chunks["device_id"]
    found, which = np.unique(device, return_inverse=True)
    contexts = [f"{_DEVICES.get(at >> 32, 'device')}({at & 0xFFFFFFFF})" for at in found.tolist()]
    shapes, elements = _shapes(nds, reader)

    owner = nds["chunk"].astype(np.int64)
    nbytes = np.where(kind == 0, elements * widths[code], chunks["size"].astype(np.int64))
    at = chunks["data"].astype(np.int64)
    extra: list[tuple[int, int, int, int]] = []
    for row in np.flatnonzero(kind).tolist():
        parts = _parts(chunks[row], int(kind[row]), reader)
        if parts is None:
            seen[row] = False
            continue
        # An owner's address plus a small number stands for a part that has no memory: no other block has it.
        extra += [
            (row, where or int(owner[row]) + i, size, where != 0) for i, (where, size) in enumerate(parts, 1)
        ]
    rows = np.flatnonzero(seen)
    more = np.array(extra, np.int64).reshape(-1, 4)
    more = more[seen[more[:, 0]]]
    of = np.concatenate([rows, more[:, 0]])
    order = np.argsort(of, kind="stable")
    nothing = np.zeros(len(more), np.int64)

    def spans(first: np.ndarray, then: np.ndarray) -> np.ndarray:
        return np.concatenate([first[rows], then])[order]

    return Places(
        context=_pick(contexts, which),
        shape=shapes,
        dtype=_pick(names, code),
        storage=_pick(_STORAGE, kind),
        nbytes=nbytes + np.bincount(more[:, 0], more[:, 2], len(nds)).astype(np.int64),
        owner=owner,
        seen=seen,
        of=of[order],
        block=spans(np.where(at == 0, owner, at), more[:, 1]),
        offset=spans(nds["offset"].astype(np.int64), nothing),
        span_bytes=spans(nbytes, more[:, 2]),
        block_bytes=spans(chunks["size"].astype(np.int64), more[:, 2]),
        allocated=spans(at, more[:, 3]) != 0,
        lent=spans(chunks["lent"], nothing) != 0,
    )


@lru_cache(maxsize=1)
def _types() -> tuple[list[str], np.ndarray]:
    """Names and bytes an element by mxnet's type code; 0 bytes where there is no such code."""
    kinds = {
        code: np.dtype(kind)
        for code, kind in mx.ndarray.ndarray._DTYPE_MX_TO_NP.items()
        if code >= 0 and kind
    }
    names, widths = [""] * (max(kinds) + 1), np.zeros(max(kinds) + 1, np.int64)
    for code, kind in kinds.items():
        names[code], widths[code] = kind.name, kind.itemsize
    return names, widths


def _by_name(places: Places, arrays: Sequence[Any], rows: Iterable[int]) -> None:
    """Fill in what mxnet's public calls tell of an array without touching its memory: all but where it is."""
    for row in rows:
        array = arrays[row]
        dtype = np.dtype(array.dtype)
        places.context[row] = str(array.context)
        places.shape[row] = tuple(array.shape)
        places.dtype[row] = dtype.name
        places.storage[row] = array.stype
        places.nbytes[row] = math.prod(array.shape) * dtype.itemsize
        places.owner[row] = array.handle.value


def places(arrays: Sequence[Any], proved: Layout | None = None) -> Places:
    """Where each NDArray lies now, in one pass: no wait, no write, no allocation.

    ``proved`` says what may be read, :func:`layout` by default. Where reading fails an array is not ``seen``:
    its shape and type are known, its bytes are those of the dense shape, its whereabouts are not.

    >>> a = mx.nd.zeros((10, 4))
    >>> places([a, a[2:5]]).offset
    array([ 0, 32])
    """
    proved = layout() if proved is None else proved
    reader = Reader()
    nds = np.zeros(len(arrays), _NDARRAY)
    if proved.dense and arrays:
        handles = np.fromiter((array.handle.value for array in arrays), np.uint64, len(arrays))
        raw, read = reader.gather(handles, _NDARRAY.itemsize)
        nds = raw.view(_NDARRAY).reshape(-1)
        nds["chunk"][~read] = 0
    found = _by_engine(nds, reader, proved.sparse)
    _by_name(found, arrays, np.flatnonzero(~found.seen).tolist())
    return found


def _vectors(address: int, reader: Reader) -> list[np.ndarray] | None:
    """The NDArrays in an executor's three C++ vectors: all entries, the pool, the outputs."""
    head, read = reader.gather(np.array([address + _VECTORS_AT], np.uint64), 3 * 24)
    if not read[0]:
        return None
    vectors = []
    for begin, end, room in head[0].view("<u8").reshape(3, 3).tolist():
        size = end - begin
        if not 0 <= begin <= end <= room or size % _NDARRAY_BYTES or size > _NDARRAY_BYTES << 20:
            return None
        raw, read = reader.gather(np.array([begin] if size else [], np.uint64), size)
        if not read.all():
            return None
        rows = raw.reshape(-1, _NDARRAY_BYTES)[:, : _NDARRAY.itemsize]
        vectors.append(np.ascontiguousarray(rows).view(_NDARRAY).reshape(-1))
    return vectors


def pool_places(executors: Sequence[Any], proved: Layout | None = None) -> tuple[Places, list[int | None]]:
    """The blocks of the executors' working pools, those that executors have in common for each of them again.

    Returns the blocks of all executors one after another, and how many each has; None where they cannot be
    read: its own outputs, first and last argument must be found at their places first. An executor's blocks
    are those that its plan uses; a block in no plan comes with the first executor that keeps it alive. A
    block has no memory before an executor that uses it first runs.
    """
    proved = layout() if proved is None else proved
    reader = Reader()
    read: list[tuple[np.ndarray, np.ndarray] | None] = []
    for executor in executors:
        handle = getattr(getattr(executor, "handle", None), "value", None)
        vectors = _vectors(handle, reader) if proved.dense and handle else None
        if vectors is None or not _belong(executor, vectors[0], vectors[2], reader):
            read.append(None)
            continue
        # A block may be listed more than once; it is one whole, whatever part of it the plan's first user
        # asked for.
        _, first = np.unique(vectors[1]["chunk"], return_index=True)
        pool = vectors[1][np.sort(first)]
        # An executor that gave its pool to others lists the blocks that they added, too.
        read.append((pool, np.isin(pool["chunk"], vectors[0]["chunk"])))
    told = {int(chunk) for entry in read if entry for chunk in entry[0]["chunk"][entry[1]]}
    counts: list[int | None] = []
    pools = [np.empty(0, _NDARRAY)]
    for entry in read:
        if entry is None:
            counts.append(None)
            continue
        pool, used = entry
        left = np.array([int(chunk) not in told for chunk in pool["chunk"]], bool)
        told.update(pool["chunk"][left].tolist())
        pools.append(pool[used | left])
        counts.append(len(pools[-1]))
    found = _by_engine(np.concatenate(pools), reader, False)
    if not found.seen.all():
        return _by_engine(np.empty(0, _NDARRAY), reader, False), [None] * len(counts)
    whole = replace(
        found, nbytes=found.block_bytes, span_bytes=found.block_bytes, offset=np.zeros_like(found.offset)
    )
    return whole, counts


def _belong(executor: Any, entries: np.ndarray, outputs: np.ndarray, reader: Reader) -> bool:
    """Whether what reads as an executor's entries and outputs holds the arrays that Python knows it by."""
    arguments = executor.arg_arrays
    known = [*executor.outputs, *arguments[:1], *arguments[-1:]]
    handles = np.array([array.handle.value for array in known], np.uint64)
    owners, read = reader.gather(handles, 8)
    owners = owners.view("<u8").ravel()
    count = len(executor.outputs)
    return bool(
        read.all()
        and np.array_equal(outputs["chunk"], owners[:count])
        and np.isin(owners[count:], entries["chunk"]).all()
    )


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
