"""Reports as text tables, for terminals and for notebooks without widgets. They say the same as the HTML."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from bucketlab.views.tables import (
    alias_table,
    bucket_label,
    byte_size,
    columns_of,
    folded_apart,
    number,
    padding_of,
    record_cells,
    shape_text,
    share,
)

if TYPE_CHECKING:
    from bucketlab.memory.aliasing import AliasReport
    from bucketlab.memory.diff import LedgerDiff, SnapshotDiff
    from bucketlab.memory.ledger import Ledger
    from bucketlab.memory.snapshot import ArrayRecord, Snapshot
    from bucketlab.slicing import SliceReport

__all__ = ["aliases_text", "diff_text", "ledger_diff_text", "ledger_text", "slices_text", "snapshot_text"]


def table(head: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[int] = ()) -> str:
    """Aligned columns under a head; ``right`` numbers the columns of figures."""
    lines = [list(head), *map(list, rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
    placed = [
        [
            cell.rjust(width) if i in right else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(line, widths))
        ]
        for line in lines
    ]
    return "\n".join("  ".join(line).rstrip() for line in placed)


def slices_text(report: SliceReport) -> str:
    """How a batch is cut: one line a context with its rows, padding, share of the work and shapes."""
    names = columns_of(report)
    total = sum(report.workload)
    rows = []
    for part, work in zip(report.contexts, report.workload):
        shapes = dict(part.shapes)
        rows.append(
            [
                part.context,
                f"{part.start}:{part.stop}",
                str(part.rows),
                str(padding_of(part)),
                share(work, total),
                *(shape_text(shapes[name]) if name in shapes else "-" for name in names),
            ]
        )
    of = "" if report.bucket is None else f"bucket {report.bucket}: "
    pad = f", {report.pad} of them padding" if report.pad else ", no padding"
    cut = f"{number(report.rows, 'row')} over {number(len(report.contexts), 'context')}"
    head = f"{of}{cut}{pad}; split {report.rule!r}"
    return head + "\n" + table(["context", "slice", "rows", "padding", "workload", *names], rows, (2, 3, 4))


def snapshot_text(shot: Snapshot, limit: int = 24) -> str:
    """Arrays with their memory groups, the largest ``limit`` of them."""
    distinct = sum(group.bytes for group in shot.groups if group.name.startswith("m"))
    arrays = [record for record in shot.records if record.role != "pool"]
    kept = sorted(sorted(range(len(arrays)), key=lambda i: -arrays[i].bytes)[:limit])
    rows = [record_cells(arrays[i]) for i in kept]
    groups = len({record.group for record in arrays})
    lines = [
        f"{number(len(arrays), 'array')} in {number(groups, 'memory group')}, "
        f"{distinct:,} bytes, each counted once",
        table(["bucket", "context", "role", "name", "shape", "type", "bytes", "memory"], rows, (6,)),
    ]
    if len(arrays) > len(kept):
        rest = sum(arrays[i].bytes for i in range(len(arrays)) if i not in set(kept))
        lines.append(f"and {number(len(arrays) - len(kept), 'smaller array')}, {rest:,} bytes")
    blocks = [group for group in shot.groups if group.name.startswith("p")]
    if blocks:
        lines.append(
            f"working pools: {number(len(blocks), 'block')}, {sum(group.bytes for group in blocks):,} bytes"
        )
    return "\n".join([*lines, *_notes(shot.notes)])


def _notes(notes: Sequence[str]) -> list[str]:
    return [f"note: {note}" for note in notes]


def aliases_text(report: AliasReport, limit: int = 24, columns: int = 10) -> str:
    """Arrays by bucket with the memory group of each; groups that several arrays share carry a star."""
    shown = alias_table(report, limit)
    arrays = sum(len(group.members) for group in report.groups)
    head = (
        f"{number(arrays, 'array')} share {number(len(report.groups), 'memory group')}; "
        f"sharing saves {report.saved:,} bytes"
    )
    buckets = list(shown.buckets[:columns])
    rows = []
    for row in shown.rows:
        cells = [group + ("*" if group in shown.shared else "") for group in row.groups]
        rows.append([row.context, row.role, row.name, f"{row.bytes:,}", *cells[:columns]])
    lines = [head, table(["context", "role", "name", "bytes", *buckets], rows, (3,))]
    if len(shown.buckets) > columns:
        lines.append(
            f"and {number(len(shown.buckets) - columns, 'more bucket')}: {', '.join(shown.buckets[columns:])}"
        )
    if shown.rest[0]:
        lines.append(f"and {number(shown.rest[0], 'smaller array')}, {shown.rest[1]:,} bytes")
    if report.groups:
        lines.append("* memory that several arrays share")
    lines += [
        f"working pool on {pool.context}: {number(pool.blocks, 'block')}, "
        f"{pool.bytes:,} bytes, saves {pool.saved:,}"
        for pool in report.pools
    ]
    if report.apart:
        lines.append("of one name, yet not one memory:")
        lines += [
            f"  {role} {name} on {', '.join(part.context for part in parts)}: {reason}"
            for role, name, reason, parts in folded_apart(report)
        ]
    return "\n".join([*lines, *_notes(report.notes)])


def ledger_text(ledger: Ledger, limit: int = 12) -> str:
    """Bytes by context and role, by bucket, and beside what the engine and the process count."""
    rows = [
        [
            row.context,
            row.role,
            f"{row.arrays:,}",
            f"{row.declared:,}",
            f"{row.distinct:,}",
            f"{row.reserved:,}",
        ]
        for row in ledger.roles
    ]
    rows.append(
        [
            "all",
            "",
            f"{sum(row.arrays for row in ledger.roles):,}",
            f"{ledger.declared:,}",
            f"{ledger.distinct:,}",
            f"{ledger.reserved:,}",
        ]
    )
    lines = [
        f"{ledger.distinct:,} bytes ({byte_size(ledger.distinct)}), each counted once; "
        f"{ledger.declared:,} declared; "
        f"sharing saves {ledger.saved:,} ({share(ledger.saved, ledger.declared)})",
        table(["context", "role", "arrays", "declared", "distinct", "not yet allocated"], rows, (2, 3, 4, 5)),
    ]
    if ledger.buckets:
        cells = [
            [
                bucket_label(row.bucket),
                *(f"{size:,}" for size in (row.distinct, row.own, row.shared, row.new)),
            ]
            for row in ledger.buckets[:limit]
        ]
        lines += ["", table(["bucket", "distinct", "own", "shared", "new when bound"], cells, (1, 2, 3, 4))]
        if len(ledger.buckets) > limit:
            left = ledger.buckets[limit:]
            lines.append(
                f"and {number(len(left), 'more bucket')}, "
                f"{sum(row.new for row in left):,} bytes new when bound"
            )
    if ledger.engine:
        cells = [
            [row.counter, f"{row.counted:,}", f"{row.held:,}", f"{row.remaining:,}"] for row in ledger.engine
        ]
        lines += [
            "",
            table(["engine's counter", "counted", "held by the above", "remaining"], cells, (1, 2, 3)),
        ]
    lent = sum(row.lent for row in ledger.roles)
    if lent:
        lines.append(f"of these {lent:,} bytes belong to numpy or another library, not to the engine")
    if ledger.process is not None:
        lines += ["", *(f"{label}: {value}" for label, value in process_lines(ledger))]
    return "\n".join([*lines, *_notes(ledger.notes)])


def process_lines(ledger: Ledger) -> list[tuple[str, str]]:
    """What the process as a whole takes, each figure named for what it is."""
    process = ledger.process
    if process is None:
        return []

    def figure(size: int | None) -> str:
        return "not known here" if size is None else f"{size:,} bytes"

    return [
        ("process heap in use (malloc)", figure(process.heap)),
        (
            "of it beyond arrays and pools: graphs, operator buffers, Python, libraries",
            figure(process.beyond),
        ),
        ("process resident in physical memory", figure(process.resident)),
    ]


def _changed(records: Sequence[ArrayRecord], limit: int) -> list[str]:
    named = [f"  {' '.join(record_cells(record)[:5])}, {record.bytes:,} bytes" for record in records[:limit]]
    return named + ([f"  and {len(records) - limit} more"] if len(records) > limit else [])


def diff_text(diff: SnapshotDiff, limit: int = 12) -> str:
    """Arrays by what happened to them between two moments."""
    added = diff.bytes_after - diff.bytes_before
    lines = [f"{diff.bytes_before:,} bytes before, {diff.bytes_after:,} after ({added:+,})"]
    for title, records in (("appeared", diff.appeared), ("gone", diff.gone)):
        if records:
            lines += [f"{title}: {len(records)}", *_changed([r for r in records if r.role != "pool"], limit)]
    for title, changes in (
        ("moved", diff.moved),
        ("resized", diff.resized),
        ("changed group", diff.regrouped),
    ):
        if changes:
            lines += [f"{title}: {len(changes)}", *_changed([change.after for change in changes], limit)]
    return "\n".join(lines if diff else [*lines, "no array changed"])


def ledger_diff_text(diff: LedgerDiff) -> str:
    """Bytes by context and role that changed, then the arrays behind them."""
    lines = [f"{diff.before:,} bytes before, {diff.after:,} after ({diff.added:+,})"]
    rows = [[*c.label, f"{c.before:,}", f"{c.after:,}", f"{c.added:+,}"] for c in diff.roles]
    if rows:
        lines.append(table(["context", "role", "before", "after", "added"], rows, (2, 3, 4)))
    lines += [
        f"engine's counter {c.label[0]}: {c.before:,} before, {c.after:,} after ({c.added:+,})"
        for c in diff.engine
    ]
    arrays = diff_text(diff.arrays).split("\n", 1)
    return "\n".join([*lines, *arrays[1:]])
