"""One place reads a module's arrays into plain frozen data: what there is, and what is one memory."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from bucketlab.memory.addresses import Layout, Places, Watch, join, places, pool_places
from bucketlab.memory.intervals import group_intervals
from bucketlab.memory.proof import layout
from bucketlab.memory.protocol import HeldArray, HeldPool, collect

if TYPE_CHECKING:
    from bucketlab.memory.diff import SnapshotDiff

__all__ = ["ArrayRecord", "MemoryGroup", "Snapshot", "Spans", "snapshot", "take"]


class ArrayRecord(NamedTuple):
    """One array at one moment. ``bytes`` is what it stores: of a sparse array what its parts take.

    ``group`` is equal for arrays that have bytes in common, directly or through others; ``offset`` counts the
    bytes from the group's first to the array's first. Blocks of working pools (role "pool") have groups of
    their own, p0, p1 and so on, though the outputs lie in them. ``allocated`` is False while the engine has
    only promised the memory. ``context_index`` is the place among the source's contexts (-1: none).
    ``address`` serves to tell two moments apart and is no part of the printed form.
    """

    bucket: Hashable
    context_index: int
    context: str
    role: str
    name: str
    shape: tuple[int, ...]
    dtype: str
    storage: str
    bytes: int
    group: str
    offset: int
    allocated: bool
    address: int

    @property
    def key(self) -> tuple[Hashable, int, str, str, str]:
        """Who the array is, whatever memory it has."""
        return self.bucket, self.context_index, self.context, self.role, self.name

    def to_dict(self) -> dict[str, Any]:
        plain = self._asdict()
        del plain["address"]
        plain["shape"] = list(self.shape)
        return plain


_READINGS = 3
"""How often memory is read at most, while the engine gives it to what it had promised it to."""

# Thousands are made for one snapshot, by a C loop.
_new_record = partial(tuple.__new__, ArrayRecord)


class MemoryGroup(NamedTuple):
    """Arrays that have bytes in common: ``bytes`` counts each byte once, ``declared`` sums the arrays."""

    name: str
    context: str
    bytes: int
    declared: int
    arrays: int


@dataclass(frozen=True, eq=False)
class Spans:
    """The bytes behind a snapshot's records, by column: from where to where in which block.

    ``domain`` is equal for spans whose addresses can be compared: those that are allocated on one device, or
    those of one block that is not allocated yet.
    """

    record: np.ndarray
    domain: np.ndarray
    start: np.ndarray
    stop: np.ndarray
    block: np.ndarray
    block_bytes: np.ndarray
    allocated: np.ndarray
    lent: np.ndarray


@dataclass(frozen=True)
class Snapshot:
    """Arrays at one moment, in order of first appearance; ``notes`` say what could not be seen."""

    records: tuple[ArrayRecord, ...]
    notes: tuple[str, ...]
    spans: Spans = field(repr=False, compare=False)
    _group_bytes: tuple[int, ...] = field(repr=False)
    _watch: Watch = field(repr=False, compare=False)

    @cached_property
    def groups(self) -> tuple[MemoryGroup, ...]:
        """The memory groups in order of first appearance, those of pools among them."""
        members: dict[str, list[ArrayRecord]] = {}
        for record in self.records:
            members.setdefault(record.group, []).append(record)
        return tuple(
            MemoryGroup(name, of[0].context, size, sum(record.bytes for record in of), len(of))
            for (name, of), size in zip(members.items(), self._group_bytes)
        )

    def is_current(self) -> bool:
        """Whether all these arrays are still there and lie where they lay: cheap enough for every step.

        Arrays that came since are not looked for: they come with a bind, a switch or a reshape.
        """
        return not self._watch.changed()

    def diff(self, other: Snapshot) -> SnapshotDiff:
        """What changed from this snapshot to a later one."""
        from bucketlab.memory.diff import diff_snapshots

        return diff_snapshots(self, other)

    def to_dict(self) -> dict[str, Any]:
        return {
            "records": [record.to_dict() for record in self.records],
            "groups": [group._asdict() for group in self.groups],
            "notes": list(self.notes),
        }

    def __repr__(self) -> str:
        from bucketlab.views.text import snapshot_text

        return snapshot_text(self)

    def _repr_html_(self) -> str:
        from bucketlab.views.html import snapshot_html

        return snapshot_html(self)


def snapshot(*sources: Any, **named: Any) -> Snapshot:
    """Read every array that the sources hold: modules, executor groups, executors, updaters, arrays.

    Changes nothing, waits for nothing, allocates nothing on the engine. Keywords name the sources.

    >>> a = mx.nd.zeros((10, 4))
    >>> [(record.group, record.offset) for record in snapshot([a, a[2:5]]).records]
    [('m0', 0), ('m0', 32)]
    """
    arrays, pools = collect(*sources, **named)
    return take(arrays, pools)


def take(
    arrays: Sequence[HeldArray], pools: Sequence[HeldPool] = (), proved: Layout | None = None
) -> Snapshot:
    """A snapshot of arrays and pools that were collected before; ``proved`` is what :func:`layout` found."""
    proved = layout() if proved is None else proved
    notes = []
    executors = [pool.executor for pool in pools]
    for _ in range(_READINGS):
        working, counts = pool_places(executors, proved)
        table = join([places([entry.array for entry in arrays], proved), working])
        # An array that gets its memory between the two readings would count besides the block that holds it.
        if table.allocated.all() or not Watch(table).changed():
            break
    blocks = [
        (pool.bucket, pool.context_index, "pool", f"block{i}")
        for pool, count in zip(pools, counts)
        for i in range(count or 0)
    ]
    unseen = len(table) - int(table.seen.sum())
    if unseen:
        why = proved.reason or "their structures did not read as arrays at that moment"
        notes.append(
            f"{unseen} of {len(table)} arrays: memory not seen, each object counts as its own ({why})"
        )
    blind = counts.count(None)
    if blind:
        notes.append(
            f"{blind} of {len(pools)} working pools: not seen ({proved.reason or 'executor not recognised'})"
        )
    columns = list(zip(*arrays)) or [()] * 6
    more = list(zip(*blocks)) or [()] * 4
    who = [[*columns[at], *extra] for at, extra in zip((0, 1, 3, 4), more)]
    return _assemble(who, table, tuple(notes))


def _assemble(who: Sequence[list[Any]], table: Places, notes: tuple[str, ...]) -> Snapshot:
    count = len(table)
    spans = _spans(table)
    pool = np.array([role == "pool" for role in who[2]], bool)
    label, first, distinct = _groups(table, spans, pool)
    of_pool = pool[first]
    order = np.where(of_pool, np.cumsum(of_pool), np.cumsum(~of_pool)) - 1
    names = np.array([f"{'p' if p else 'm'}{i}" for p, i in zip(of_pool.tolist(), order.tolist())], object)
    start = np.zeros(count, np.int64)
    heads = np.flatnonzero(np.diff(spans.record, prepend=-1))
    start[spans.record[heads]] = spans.start[heads]
    lowest = np.full(len(first), np.iinfo(np.int64).max)
    np.minimum.at(lowest, label, start)
    waiting = np.bincount(spans.record, ~spans.allocated & (spans.stop > spans.start), count) > 0
    records = map(
        _new_record,
        zip(
            who[0],
            who[1],
            table.context,
            who[2],
            who[3],
            table.shape,
            table.dtype,
            table.storage,
            table.nbytes.tolist(),
            names[label].tolist(),
            (start - lowest[label]).tolist(),
            (~waiting).tolist(),
            start.tolist(),
        ),
    )
    return Snapshot(tuple(records), notes, spans, tuple(distinct.tolist()), Watch(table))


def _spans(table: Places) -> Spans:
    devices = {context: i for i, context in enumerate(dict.fromkeys(table.context))}
    device = np.array([devices[context] for context in table.context], np.int64)[table.of]
    start = table.block + table.offset
    return Spans(
        record=table.of,
        # Block addresses are far above the few device numbers, so the two kinds of domain never meet.
        domain=np.where(table.allocated, device, table.block),
        start=start,
        stop=start + table.span_bytes,
        block=table.block,
        block_bytes=table.block_bytes,
        allocated=table.allocated,
        lent=table.lent,
    )


def _groups(table: Places, spans: Spans, pool: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Each record's group by first appearance; then for each group its first record and its bytes.

    Blocks of pools are grouped among themselves: they would tie together outputs that have no byte in common.
    """
    count = len(table)
    full = np.flatnonzero(spans.stop > spans.start)
    # A record without bytes, or with memory that is not seen, is known by its owner alone: one pretended
    # byte.
    bare = np.ones(count, bool)
    bare[spans.record[full]] = False
    bare_rows = np.flatnonzero(bare)
    record = np.concatenate([spans.record[full], bare_rows])
    begin = np.concatenate([spans.start[full], np.zeros(len(bare_rows), np.int64)])
    end = np.concatenate([spans.stop[full], np.ones(len(bare_rows), np.int64)])
    domain = np.concatenate([spans.domain[full], table.owner[bare_rows]])
    number = group_intervals(2 * domain + pool[record], begin, end)
    # Intervals that overlap in a chain cover all bytes from the first to the last.
    low = np.full(len(number), np.iinfo(np.int64).max)
    high = np.zeros(len(number), np.int64)
    np.minimum.at(low, number, begin)
    np.maximum.at(
        high, number, np.concatenate([spans.stop[full], np.where(table.seen, 0, table.nbytes)[bare_rows]])
    )
    pieces = number.max() + 1 if len(number) else 0
    piece_bytes = high[:pieces] - low[:pieces]

    root = np.arange(pieces)
    first_piece = np.zeros(count, np.int64)
    first_piece[record[::-1]] = number[::-1]
    for row in np.flatnonzero(number != first_piece[record]).tolist():
        # A sparse array holds its parts together.
        keep, drop = root[first_piece[record[row]]], root[number[row]]
        root[root == drop] = keep
    _, first, label = np.unique(root[first_piece], return_index=True, return_inverse=True)
    rank = np.argsort(np.argsort(first, kind="stable"), kind="stable")
    label = rank[label]
    of_piece = np.zeros(pieces, np.int64)
    of_piece[number] = label[record]
    distinct = np.bincount(of_piece, piece_bytes, len(first)).astype(np.int64)
    return label, np.sort(first), distinct
