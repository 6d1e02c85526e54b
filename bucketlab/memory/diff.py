"""What changed between two moments: arrays that came, went, moved or changed company, and bytes."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bucketlab.memory.snapshot import ArrayRecord, Snapshot

if TYPE_CHECKING:
    from bucketlab.memory.ledger import Ledger

__all__ = ["ByteChange", "Change", "LedgerDiff", "SnapshotDiff", "diff_ledgers", "diff_snapshots"]

Key = tuple[Hashable, int, str, str, str, int]


@dataclass(frozen=True)
class Change:
    """One array at both moments."""

    before: ArrayRecord
    after: ArrayRecord


@dataclass(frozen=True)
class SnapshotDiff:
    """Arrays by what happened to them; an array may be in several of the last three.

    ``moved``: other memory (memory that was freed and taken again at the same address cannot be told from
    memory that stayed). ``resized``: other shape, type or bytes. ``regrouped``: of the arrays that are there
    at both moments, it shares memory with others than before.
    """

    appeared: tuple[ArrayRecord, ...]
    gone: tuple[ArrayRecord, ...]
    moved: tuple[Change, ...]
    resized: tuple[Change, ...]
    regrouped: tuple[Change, ...]
    bytes_before: int
    bytes_after: int

    def __bool__(self) -> bool:
        return bool(self.appeared or self.gone or self.moved or self.resized or self.regrouped)

    def to_dict(self) -> dict[str, Any]:
        def pairs(changes: tuple[Change, ...]) -> list[dict[str, Any]]:
            return [{"before": c.before.to_dict(), "after": c.after.to_dict()} for c in changes]

        return {
            "appeared": [record.to_dict() for record in self.appeared],
            "gone": [record.to_dict() for record in self.gone],
            "moved": pairs(self.moved),
            "resized": pairs(self.resized),
            "regrouped": pairs(self.regrouped),
            "bytes_before": self.bytes_before,
            "bytes_after": self.bytes_after,
        }

    def __repr__(self) -> str:
        from bucketlab.views.text import diff_text

        return diff_text(self)

    def _repr_html_(self) -> str:
        from bucketlab.views.html import diff_html

        return diff_html(self)


def _keyed(snapshot: Snapshot) -> dict[Key, ArrayRecord]:
    """Records by who they are; the count keeps arrays of one name apart."""
    seen: Counter[Any] = Counter()
    keyed = {}
    for record in snapshot.records:
        keyed[(*record.key, seen[record.key])] = record
        seen[record.key] += 1
    return keyed


def _company(keyed: dict[Key, ArrayRecord]) -> dict[Key, frozenset[Key]]:
    """For each array the arrays that have bytes in common with it, blocks of pools left out."""
    members: dict[str, set[Key]] = defaultdict(set)
    for key, record in keyed.items():
        if record.role != "pool":
            members[record.group].add(key)
    return {key: frozenset(members[record.group]) for key, record in keyed.items()}


def diff_snapshots(before: Snapshot, after: Snapshot) -> SnapshotDiff:
    """What changed from one snapshot to a later one of the same sources; see :class:`SnapshotDiff`."""
    old, new = _keyed(before), _keyed(after)
    both = [(key, old[key], new[key]) for key in new if key in old]
    old_company, new_company = (
        _company({key: a for key, a, _ in both}),
        _company({key: b for key, _, b in both}),
    )
    return SnapshotDiff(
        appeared=tuple(record for key, record in new.items() if key not in old),
        gone=tuple(record for key, record in old.items() if key not in new),
        moved=tuple(
            Change(a, b)
            for _, a, b in both
            if (a.address, a.allocated) != (b.address, b.allocated) and a.role != "pool"
        ),
        resized=tuple(
            Change(a, b)
            for _, a, b in both
            if (a.shape, a.dtype, a.storage, a.bytes) != (b.shape, b.dtype, b.storage, b.bytes)
        ),
        regrouped=tuple(Change(a, b) for key, a, b in both if old_company[key] != new_company[key]),
        bytes_before=sum(group.bytes for group in before.groups),
        bytes_after=sum(group.bytes for group in after.groups),
    )


@dataclass(frozen=True)
class ByteChange:
    """Bytes at both moments, of what ``label`` names."""

    label: tuple[str, ...]
    before: int
    after: int

    @property
    def added(self) -> int:
        return self.after - self.before


@dataclass(frozen=True)
class LedgerDiff:
    """Distinct bytes by context and role that changed, the engine's counters, and the arrays behind."""

    roles: tuple[ByteChange, ...]
    engine: tuple[ByteChange, ...]
    before: int
    after: int
    arrays: SnapshotDiff

    @property
    def added(self) -> int:
        return self.after - self.before

    def to_dict(self) -> dict[str, Any]:
        def rows(changes: tuple[ByteChange, ...]) -> list[dict[str, Any]]:
            return [{"label": list(c.label), "before": c.before, "after": c.after} for c in changes]

        return {
            "before": self.before,
            "after": self.after,
            "roles": rows(self.roles),
            "engine": rows(self.engine),
            "arrays": self.arrays.to_dict(),
        }

    def __repr__(self) -> str:
        from bucketlab.views.text import ledger_diff_text

        return ledger_diff_text(self)

    def _repr_html_(self) -> str:
        from bucketlab.views.html import ledger_diff_html

        return ledger_diff_html(self)


def diff_ledgers(before: Ledger, after: Ledger) -> LedgerDiff:
    """What changed from one ledger to a later one; see :class:`LedgerDiff`."""
    return LedgerDiff(
        roles=_changes(
            {(row.context, row.role): row.distinct for row in before.roles},
            {(row.context, row.role): row.distinct for row in after.roles},
        ),
        engine=_changes(
            {(row.counter,): row.counted for row in before.engine},
            {(row.counter,): row.counted for row in after.engine},
        ),
        before=before.distinct,
        after=after.distinct,
        arrays=diff_snapshots(before.snapshot, after.snapshot),
    )


def _changes(before: dict[Any, int], after: dict[Any, int]) -> tuple[ByteChange, ...]:
    labels = dict.fromkeys([*before, *after])
    found = (ByteChange(label, before.get(label, 0), after.get(label, 0)) for label in labels)
    return tuple(change for change in found if change.added)
