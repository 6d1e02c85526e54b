"""Every byte accounted for: by context and role, by bucket, and beside the engine's own counters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from bucketlab.memory import counters
from bucketlab.memory.intervals import Segments
from bucketlab.memory.process import heap_bytes, resident_bytes
from bucketlab.memory.protocol import ROLES
from bucketlab.memory.snapshot import Snapshot, snapshot

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from bucketlab.memory.diff import LedgerDiff

__all__ = ["BucketBytes", "EngineBytes", "Ledger", "ProcessBytes", "RoleBytes", "ledger_of", "memory"]

REST = "rest of blocks"
_OF_ALL_BUCKETS = ("optimizer", "kvstore", "host")


@dataclass(frozen=True)
class RoleBytes:
    """Bytes of one role on one context. ``declared`` sums the arrays; ``distinct`` counts each byte once.

    Of a working pool ``declared`` leaves out what the outputs of its own bucket show, which would count
    twice. A byte that arrays of several roles show belongs to the first of them in the order of ``ROLES``.
    ``distinct`` is ``allocated`` plus ``reserved``, which is promised and has no memory yet; ``lent`` is the
    part of ``allocated`` that belongs to numpy or another library. The role "rest of blocks" has the bytes
    that no array shows, of blocks that some array keeps alive.
    """

    context: str
    role: str
    arrays: int
    declared: int
    distinct: int
    allocated: int
    reserved: int
    lent: int


@dataclass(frozen=True)
class BucketBytes:
    """Bytes of one bucket's arrays and pools, each byte once: ``distinct`` is ``own`` plus ``shared``.

    ``new`` bytes were in no bucket bound before it. ``shared_with`` gives for each other bucket the bytes in
    common.
    """

    bucket: Hashable
    declared: int
    distinct: int
    own: int
    shared: int
    new: int
    shared_with: tuple[tuple[Hashable, int], ...]


@dataclass(frozen=True)
class EngineBytes:
    """One of the engine's own counters, beside what this ledger's arrays and pools hold of it.

    ``remaining`` is the engine's temporary space and arrays that were not given to this ledger. A negative
    one means that counting began after some of these arrays were allocated.
    """

    counter: str
    contexts: tuple[str, ...]
    counted: int
    held: int

    @property
    def remaining(self) -> int:
        return self.counted - self.held


@dataclass(frozen=True)
class ProcessBytes:
    """The whole process: ``heap`` in use by malloc, ``resident`` in physical memory; None where not known.

    ``arrays`` are the bytes of this ledger that lie in the heap, or the engine's own count where that is
    running.
    """

    heap: int | None
    resident: int | None
    arrays: int

    @property
    def beyond(self) -> int | None:
        """Heap in use by anything else: graph structures, operator buffers, Python and its libraries."""
        return None if self.heap is None else self.heap - self.arrays


@dataclass(frozen=True)
class Ledger:
    """Bytes at one moment. ``engine`` is empty unless its counters run, see ``counters.start``."""

    roles: tuple[RoleBytes, ...]
    buckets: tuple[BucketBytes, ...]
    engine: tuple[EngineBytes, ...]
    process: ProcessBytes | None
    notes: tuple[str, ...]
    snapshot: Snapshot = field(repr=False, compare=False)

    @property
    def contexts(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(row.context for row in self.roles))

    @property
    def declared(self) -> int:
        """The sum over all arrays and pools, shared bytes as often as they are shared."""
        return sum(row.declared for row in self.roles)

    @property
    def distinct(self) -> int:
        """Every byte once, allocated or promised, with the rest of the blocks."""
        return sum(row.distinct for row in self.roles)

    @property
    def allocated(self) -> int:
        return sum(row.allocated for row in self.roles)

    @property
    def reserved(self) -> int:
        return sum(row.reserved for row in self.roles)

    @property
    def saved(self) -> int:
        """What sharing saved: declared bytes that are not there a second time."""
        return self.declared - sum(row.distinct for row in self.roles if row.role != REST)

    def of(self, context: str | None = None, role: str | None = None) -> int:
        """Distinct bytes of a context, a role, or a role on a context."""
        return sum(
            row.distinct for row in self.roles if context in (None, row.context) and role in (None, row.role)
        )

    def diff(self, after: Ledger) -> LedgerDiff:
        """What changed from this ledger to a later one."""
        from bucketlab.memory.diff import diff_ledgers

        return diff_ledgers(self, after)

    def plot(self) -> Figure:
        """Bars by context and role, declared against distinct, as a matplotlib figure."""
        from bucketlab.views.figures import ledger_figure

        return ledger_figure(self)

    def to_dict(self) -> dict[str, Any]:
        return {
            "declared": self.declared,
            "distinct": self.distinct,
            "allocated": self.allocated,
            "reserved": self.reserved,
            "saved": self.saved,
            "roles": [asdict(row) for row in self.roles],
            "buckets": [
                {
                    **asdict(row),
                    "shared_with": [{"bucket": key, "bytes": size} for key, size in row.shared_with],
                }
                for row in self.buckets
            ],
            "engine": [{**asdict(row), "remaining": row.remaining} for row in self.engine],
            "process": None
            if self.process is None
            else {**asdict(self.process), "beyond": self.process.beyond},
            "notes": list(self.notes),
        }

    def __repr__(self) -> str:
        from bucketlab.views.text import ledger_text

        return ledger_text(self)

    def _repr_html_(self) -> str:
        from bucketlab.views.html import ledger_html

        return ledger_html(self)


def memory(*sources: Any, process: bool = False, **named: Any) -> Ledger:
    """Where the bytes of modules, executor groups, executors and arrays are; nothing is allocated, written or
    awaited.

    Without sources it is of every array and executor that is alive in Python: what still holds memory after a module
    was dropped. ``process=True`` adds the heap and the resident size of the process, which differ from run to run. The
    engine's own counters stand beside the sums when ``bucketlab.memory.counters.start()`` was called before
    the arrays were made.

    >>> a = mx.nd.zeros((10, 4))
    >>> book = memory([a, a.reshape((4, 10))])
    >>> book.declared, book.distinct, book.saved
    (320, 160, 160)
    """
    shot = snapshot(*sources, **named)
    return ledger_of(shot, counters.read(), (heap_bytes(), resident_bytes()) if process else None)


def ledger_of(
    shot: Snapshot,
    counted: Mapping[str, int] | None = None,
    process: tuple[int | None, int | None] | None = None,
) -> Ledger:
    """The ledger of a snapshot, beside the engine's counts and the process's heap and resident bytes."""
    book = _Book(shot)
    roles = book.roles()
    engine = _engine(roles, counted or {})
    outside = None
    if process is not None:
        arrays = (
            sum(row.counted for row in engine) if engine else sum(row.allocated - row.lent for row in roles)
        )
        outside = ProcessBytes(*process, arrays)
    return Ledger(roles, book.buckets(), engine, outside, shot.notes + book.notes(), shot)


class _Book:
    """A snapshot's bytes cut into segments, each of which has the same owners throughout."""

    def __init__(self, shot: Snapshot):
        self.records = shot.records
        self.spans = spans = shot.spans
        # Blocks are cut in as well, so that bytes of a block that no array shows are found.
        self.segments = Segments(
            np.concatenate([spans.domain, spans.domain]),
            np.concatenate([spans.start, spans.block]),
            np.concatenate([spans.stop, spans.block + spans.block_bytes]),
        )
        self.contexts = list(dict.fromkeys(record.context for record in shot.records))
        seen = set(spans.record.tolist())
        self.unseen = [record for i, record in enumerate(shot.records) if i not in seen]

    def _by_record(self, labels: list[int], count: int) -> np.ndarray:
        """Which labels cover each segment, given one label for each record (negative: left out)."""
        spans = np.array(labels, np.int64)[self.spans.record]
        return self.segments.cover(np.concatenate([spans, np.full(len(spans), -1)]), count)

    def _by_block(self, labels: np.ndarray, count: int) -> np.ndarray:
        return self.segments.cover(np.concatenate([np.full(len(labels), -1), labels]), count)

    def roles(self) -> tuple[RoleBytes, ...]:
        if not self.records:
            return ()
        kinds = [*ROLES, REST]
        role_of = {role: i for i, role in enumerate(ROLES)}
        context_of = {context: i for i, context in enumerate(self.contexts)}
        context = np.array([context_of[record.context] for record in self.records], np.int64)
        shown = self._by_record(
            [role_of.get(record.role, role_of["other"]) for record in self.records], len(ROLES)
        )
        role = np.where(shown.any(axis=1), shown.argmax(axis=1), len(ROLES))
        spans = self.spans
        holder = self._by_block(context[spans.record], len(self.contexts))
        # Between the blocks of a device lies memory that is none of theirs.
        within, where = holder.any(axis=1), holder.argmax(axis=1)
        allocated = self._by_block(np.where(spans.allocated, 0, -1), 1)[:, 0]
        owned = self._by_block(np.where(spans.lent, -1, 0), 1)[:, 0]

        def sums(chosen: np.ndarray) -> list[int]:
            weights = np.where(chosen, self.segments.length, 0)
            cells = np.bincount(where * len(kinds) + role, weights, len(self.contexts) * len(kinds))
            return [int(cell) for cell in cells]

        columns = (
            sums(within),
            sums(allocated & within),
            sums(~allocated & within),
            sums(allocated & ~owned & within),
        )
        arrays = Counter((record.context, record.role) for record in self.records)
        declared: Counter[tuple[str, str]] = Counter()
        for record in self.records:
            declared[record.context, record.role] += record.bytes
        for name in self.contexts:
            declared[name, "pool"] -= self._outputs_in_pools(name)
        apart: Counter[tuple[str, str]] = Counter()
        for record in {record.group: record for record in reversed(self.unseen)}.values():
            apart[record.context, record.role] += record.bytes
        rows = []
        for i, name in enumerate(self.contexts):
            for j, kind in enumerate(kinds):
                distinct, has, reserved, lent = (column[i * len(kinds) + j] for column in columns)
                extra = apart[name, kind]
                if arrays[name, kind] or distinct:
                    rows.append(
                        RoleBytes(
                            name,
                            kind,
                            arrays[name, kind],
                            declared[name, kind],
                            distinct + extra,
                            has + extra,
                            reserved,
                            lent,
                        )
                    )
        return tuple(rows)

    def _outputs_in_pools(self, context: str) -> int:
        """Pool bytes that the same bucket's outputs show: alone it would not have them twice."""
        here = [record.context == context for record in self.records]
        keys = {key: i for i, key in enumerate(dict.fromkeys(record.bucket for record in self.records))}
        pools = [keys[r.bucket] if h and r.role == "pool" else -1 for r, h in zip(self.records, here)]
        if max(pools, default=-1) < 0:
            return 0
        others = [keys[r.bucket] if h and r.role != "pool" else -1 for r, h in zip(self.records, here)]
        both = self._by_record(pools, len(keys)) & self._by_record(others, len(keys))
        return int(self.segments.length @ both.sum(axis=1))

    def buckets(self) -> tuple[BucketBytes, ...]:
        """In the order in which they were bound. What belongs to all buckets alike is left out."""
        mine = [record.bucket is not None and record.role not in _OF_ALL_BUCKETS for record in self.records]
        keys = list(
            dict.fromkeys(record.bucket for record, of_bucket in zip(self.records, mine) if of_bucket)
        )
        place = {key: i for i, key in enumerate(keys)}
        shown = self._by_record(
            [place[record.bucket] if of_bucket else -1 for record, of_bucket in zip(self.records, mine)],
            len(keys),
        )
        length = self.segments.length
        common = shown.T.astype(np.int64) * length @ shown
        first = np.where(shown.any(axis=1), shown.argmax(axis=1), -1) if keys else np.full(len(length), -1)
        alone = shown.sum(axis=1) == 1
        declared: Counter[Hashable] = Counter()
        for record, of_bucket in zip(self.records, mine):
            if of_bucket:
                declared[record.bucket] += record.bytes
        rows = []
        for i, key in enumerate(keys):
            own = int(length[alone & shown[:, i]].sum())
            distinct = int(common[i, i])
            others = tuple((keys[j], int(common[i, j])) for j in range(len(keys)) if j != i and common[i, j])
            new = int(length[first == i].sum())
            rows.append(BucketBytes(key, declared[key], distinct, own, distinct - own, new, others))
        return tuple(rows)

    def notes(self) -> tuple[str, ...]:
        if not self.unseen:
            return ()
        most = sum({record.group: record.bytes for record in self.unseen}.values())
        alike: dict[tuple[str, str, str], int] = {}
        for record in self.unseen:
            if record.role != "output":
                who = (record.context, record.role, record.name)
                alike[who] = max(alike.get(who, 0), record.bytes)
        return (
            f"of the distinct bytes, {most:,} are an upper bound: as much as if nothing unseen were shared; "
            f"{sum(alike.values()):,} if all of one context, role and name are the same memory",
        )


def _engine(roles: tuple[RoleBytes, ...], counted: Mapping[str, int]) -> tuple[EngineBytes, ...]:
    held: Counter[str] = Counter()
    contexts: dict[str, list[str]] = {}
    for row in roles:
        name = counters.counter_of(row.context, counted)
        if name is not None:
            held[name] += row.allocated - row.lent
            if row.context not in contexts.setdefault(name, []):
                contexts[name].append(row.context)
    return tuple(
        EngineBytes(name, tuple(contexts.get(name, ())), size, held[name])
        for name, size in counted.items()
        if size or name in contexts
    )
