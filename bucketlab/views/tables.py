"""Rows and cells behind the text and HTML views: what a table shows, and what it folds into its last row."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bucketlab.memory.aliasing import AliasReport, Apart
    from bucketlab.memory.ledger import Ledger, RoleBytes
    from bucketlab.memory.snapshot import ArrayRecord
    from bucketlab.slicing import ContextSlice, SliceReport

__all__ = [
    "MODULE",
    "AliasRow",
    "AliasTable",
    "alias_table",
    "bucket_label",
    "byte_size",
    "columns_of",
    "folded_apart",
    "number",
    "padding_of",
    "record_cells",
    "shape_text",
    "share",
    "totals_by_role",
]


#: Heads the column of what belongs to no bucket.
MODULE = "module"


def bucket_label(bucket: Hashable) -> str:
    """A bucket's key as people see it; what belongs to no bucket is of the module."""
    return MODULE if bucket is None else str(bucket)


def byte_size(count: int) -> str:
    """Bytes in a unit that reads well, to three digits, decimal units.

    >>> byte_size(1234), byte_size(999), byte_size(5_191_456)
    ('1.23 kB', '999 B', '5.19 MB')
    """
    size = float(abs(count))
    for unit in ("B", "kB", "MB", "GB"):
        if size < 999.5 or unit == "GB":
            text = (
                f"{size:.0f}"
                if unit == "B" or size >= 99.95
                else f"{size:.1f}"
                if size >= 9.995
                else f"{size:.2f}"
            )
            return f"{'-' if count < 0 else ''}{text} {unit}"
        size /= 1000
    raise AssertionError


def number(count: int, noun: str) -> str:
    """A count with its noun: ``1 array``, ``1,234 arrays``."""
    return f"{count:,} {noun}" + ("" if count == 1 else "s")


def share(part: float, whole: float) -> str:
    """A part in percent of the whole, ``0 %`` of nothing.

    >>> share(1, 3)
    '33.3 %'
    """
    return f"{100 * part / whole:.1f} %".replace(".0 %", " %") if whole else "0 %"


@dataclass(frozen=True)
class AliasRow:
    """One array over the buckets: its memory group in each (empty where the bucket has no such array)."""

    context: str
    role: str
    name: str
    bytes: int
    groups: tuple[str, ...]


@dataclass(frozen=True)
class AliasTable:
    """Arrays by bucket; ``shared`` groups have several arrays, ``rest`` counts rows and bytes left out."""

    buckets: tuple[str, ...]
    rows: tuple[AliasRow, ...]
    shared: frozenset[str]
    rest: tuple[int, int]


def alias_table(report: AliasReport, limit: int) -> AliasTable:
    """The report's arrays by context, role and name: the ``limit`` largest, in their own order."""
    records = [record for record in report.records if record.role != "pool"]
    keys = sorted(dict.fromkeys(record.bucket for record in records), key=lambda key: key is None)
    place = {key: i for i, key in enumerate(keys)}
    rows: dict[tuple[str, int, str, str, int], list[ArrayRecord | None]] = {}
    told: defaultdict[tuple[object, ...], int] = defaultdict(int)
    for record in records:
        again = told[record.key]
        told[record.key] += 1
        row = (record.context, record.context_index, record.role, record.name, again)
        rows.setdefault(row, [None] * len(keys))[place[record.bucket]] = record
    made = [
        AliasRow(
            context,
            role,
            name,
            max(record.bytes for record in cells if record is not None),
            tuple("" if record is None else record.group for record in cells),
        )
        for (context, _, role, name, _), cells in rows.items()
    ]
    kept = sorted(sorted(range(len(made)), key=lambda i: -made[i].bytes)[:limit])
    out = set(range(len(made))) - set(kept)
    return AliasTable(
        tuple(map(bucket_label, keys)),
        tuple(made[i] for i in kept),
        frozenset(group.name for group in report.groups),
        (len(out), sum(made[i].bytes for i in out)),
    )


def folded_apart(report: AliasReport) -> list[tuple[str, str, str, Sequence[Apart]]]:
    """What is not shared though of one name, with the contexts of each role, name and reason together."""
    found: defaultdict[tuple[str, str, str], list[Apart]] = defaultdict(list)
    for apart in report.apart:
        found[apart.role, apart.name, apart.reason].append(apart)
    return [(*key, parts) for key, parts in found.items()]


def totals_by_role(ledger: Ledger) -> list[tuple[str, list[RoleBytes]]]:
    """The ledger's rows under each context."""
    return [(context, [row for row in ledger.roles if row.context == context]) for context in ledger.contexts]


def columns_of(report: SliceReport) -> list[str]:
    """The arrays that the slices name, in order, over all contexts."""
    return list(dict.fromkeys(name for part in report.contexts for name, _ in part.shapes))


def padding_of(part: ContextSlice) -> int:
    return part.rows - part.valid_rows


def shape_text(shape: Sequence[int]) -> str:
    """A shape as people write it: ``4x10``; a scalar is ``()``."""
    return "x".join(map(str, shape)) if shape else "()"


def record_cells(record: ArrayRecord) -> list[str]:
    """Bucket, context, role, name, shape, type, bytes and memory of one array, as a table shows them."""
    memory = record.group + (f"+{record.offset}" if record.offset else "")
    return [
        bucket_label(record.bucket),
        record.context,
        record.role,
        record.name,
        shape_text(record.shape),
        record.dtype + ("" if record.storage == "default" else f" {record.storage}"),
        f"{record.bytes:,}",
        memory + ("" if record.allocated else " (not allocated yet)"),
    ]
