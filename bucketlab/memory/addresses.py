"""Where arrays lie in memory, read without writing, waiting or allocating.

mxnet's own call for an array's address allocates lazy arrays, reorders oneDNN arrays in place and races with
the engine. The engine's structures are read here instead, as bytes of this process, through calls that return
an error where a plain read would crash. mxnet 1.9.1 is the last of its kind, so their layout never changes; a
self-check on a few small arrays proves it all the same (see ``proof.py``), and where it fails the readers say
that they cannot see.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from bucketlab._engine import mx
from bucketlab.memory.reading import Reader

__all__ = ["Layout", "Place", "Places", "Span", "Watch", "aside_bytes", "join", "places", "pool_lengths", "pool_places"]

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
    handle: np.ndarray
    head: np.ndarray

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
    # Buckets share most of their storage: each is read once.
    storage, back = np.unique(nds["chunk"], return_inverse=True)
    raw, seen = reader.gather(storage, _CHUNK.itemsize)
    raw, seen = raw[back], seen[back]
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
        handle=np.zeros(len(nds), np.uint64),
        head=raw[:, : Watch.HEAD_BYTES],
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


def places(arrays: Sequence[Any], proved: Layout) -> Places:
    """Where each NDArray lies now, in one pass: no wait, no write, no allocation.

    ``proved`` is what :func:`bucketlab.memory.proof.layout` found. Where reading fails an array is not
    ``seen``: its shape and type are known, its bytes are those of the dense shape, its whereabouts are not.

    >>> a = mx.nd.zeros((10, 4))
    >>> places([a, a[2:5]], layout()).offset
    array([ 0, 32])
    """
    reader = Reader()
    nds = np.zeros(len(arrays), _NDARRAY)
    handles = np.fromiter((array.handle.value for array in arrays), np.uint64, len(arrays))
    if proved.dense and arrays:
        raw, read = reader.gather(handles, _NDARRAY.itemsize)
        nds = raw.view(_NDARRAY).reshape(-1)
        nds["chunk"][~read] = 0
    found = _by_engine(nds, reader, proved.sparse)
    _by_name(found, arrays, np.flatnonzero(~found.seen).tolist())
    return replace(found, handle=handles)


class Watch:
    """Tells cheaply whether arrays still lie where they lay: two short reads, and no hold on the arrays.

    Storage that was freed reads as something else or not at all, and so as changed. Storage that another
    array got at the same place with the same size is not told apart.
    """

    HEAD_BYTES = 48

    def __init__(self, table: Places):
        held = (table.handle != 0) & table.seen
        self._handles = table.handle[held]
        self._owners = table.owner[held]
        owners, first = np.unique(table.owner[table.seen], return_index=True)
        self._storage = owners.astype(np.uint64)
        self._heads = table.head[table.seen][first]

    def changed(self) -> bool:
        reader = Reader()
        owners, read = reader.gather(self._handles, 8)
        if not read.all() or not np.array_equal(owners.view("<i8").ravel(), self._owners):
            return True
        heads, read = reader.gather(self._storage, self.HEAD_BYTES)
        return not read.all() or not np.array_equal(heads, self._heads)


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


def pool_places(executors: Sequence[Any], proved: Layout) -> tuple[Places, list[int | None]]:
    """The blocks of the executors' working pools, those that executors have in common for each of them again.

    Returns the blocks of all executors one after another, and how many each has; None where they cannot be
    read: its own outputs, first and last argument must be found at their places first. An executor's blocks
    are those that its plan uses; a block in no plan comes with the first executor that keeps it alive. A
    block has no memory before an executor that uses it first runs.
    """
    reader = Reader()
    read: list[tuple[np.ndarray, dict[int, int], set[int]] | None] = []
    for executor in executors:
        handle = getattr(getattr(executor, "handle", None), "value", None)
        vectors = _vectors(handle, reader) if proved.dense and handle else None
        planned = set(vectors[0]["chunk"].tolist()) if vectors else set()
        if vectors is None or not _belong(executor, planned, vectors[2], reader):
            read.append(None)
            continue
        # A block may be listed more than once; it is one whole, whatever part of it the plan's first user
        # asked for.
        blocks: dict[int, int] = {}
        for row, chunk in enumerate(vectors[1]["chunk"].tolist()):
            blocks.setdefault(chunk, row)
        read.append((vectors[1], blocks, planned))
    # An executor that gave its pool to others lists the blocks that they added, too: these are theirs.
    told = {chunk for entry in read if entry for chunk in entry[1] if chunk in entry[2]}
    counts: list[int | None] = []
    pools = [np.empty(0, _NDARRAY)]
    for entry in read:
        if entry is None:
            counts.append(None)
            continue
        pool, blocks, planned = entry
        rows = [row for chunk, row in blocks.items() if chunk in planned or chunk not in told]
        told.update(blocks)
        pools.append(pool[rows])
        counts.append(len(rows))
    found = _by_engine(np.concatenate(pools), reader, False)
    if not found.seen.all():
        return _by_engine(np.empty(0, _NDARRAY), reader, False), [None] * len(counts)
    whole = replace(
        found, nbytes=found.block_bytes, span_bytes=found.block_bytes, offset=np.zeros_like(found.offset)
    )
    return whole, counts


def pool_lengths(executors: Sequence[Any], proved: Layout) -> list[int]:
    """How many entries each executor's pool lists: it grows when others add blocks to it, and in no other way.

    -1 where it cannot be read.
    """
    if not proved.dense or not executors:
        return [-1] * len(executors)
    handles = np.fromiter((executor.handle.value for executor in executors), np.uint64, len(executors))
    heads, read = Reader().gather(handles + np.uint64(_VECTORS_AT + 24), 16)
    begin, end = heads.view("<i8").reshape(-1, 2).T
    return np.where(read, (end - begin) // _NDARRAY_BYTES, -1).tolist()  # type: ignore[no-any-return]


def _belong(executor: Any, planned: set[int], outputs: np.ndarray, reader: Reader) -> bool:
    """Whether what reads as an executor's plan and outputs holds the arrays that Python knows it by."""
    arguments = executor.arg_arrays
    known = [*executor.outputs, *arguments[:1], *arguments[-1:]]
    handles = np.array([array.handle.value for array in known], np.uint64)
    raw, read = reader.gather(handles, 8)
    owners = raw.view("<u8").ravel().tolist()
    count = len(executor.outputs)
    return (
        bool(read.all())
        and outputs["chunk"].tolist() == owners[:count]
        and planned.issuperset(owners[count:])
    )


def aside_bytes(executor: Any, proved: Layout) -> int | None:
    """Bytes of what an executor made at its bind beside its pool and the arrays that it was given.

    That is room for the gradients of outputs that are no losses. None where it cannot be read.
    """
    reader = Reader()
    vectors = _vectors(executor.handle.value, reader) if proved.dense else None
    if vectors is None or not _belong(executor, set(vectors[0]["chunk"].tolist()), vectors[2], reader):
        return None
    entries, pool, _ = vectors
    given = [
        array
        for table in (executor.arg_dict, executor.grad_dict, executor.aux_dict)
        for array in table.values()
        if array is not None
    ]
    raw, read = reader.gather(np.array([array.handle.value for array in given], np.uint64), 8)
    known = {0, *pool["chunk"].tolist(), *raw.view("<u8").ravel().tolist()}
    own = [row for row, chunk in enumerate(entries["chunk"].tolist()) if chunk not in known]
    found = _by_engine(entries[own], reader, proved.sparse)
    if not read.all() or not found.seen.all():
        return None
    return sum(dict(zip(found.block.tolist(), found.block_bytes.tolist())).values())
