"""Reports as HTML: one string each, with no script and no request, for notebooks, widgets and files alike.

Every figure is in a real table; bars and colours only repeat it, so that a notebook whose styles are stripped
reads on.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import groupby
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from bucketlab.views.tables import (
    MODULE,
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
    totals_by_role,
)
from bucketlab.views.text import process_lines

if TYPE_CHECKING:
    from bucketlab.memory.aliasing import AliasReport
    from bucketlab.memory.diff import LedgerDiff, SnapshotDiff
    from bucketlab.memory.ledger import Ledger
    from bucketlab.memory.snapshot import ArrayRecord, Snapshot
    from bucketlab.slicing import SliceReport

__all__ = [
    "PALETTE",
    "aliases_html",
    "diff_html",
    "ledger_diff_html",
    "ledger_html",
    "page_html",
    "slices_html",
    "snapshot_html",
]

#: Okabe and Ito's colours, which people with any colour vision tell apart, each with an ink that reads on it.
PALETTE = (
    ("#0072b2", "#fff"),
    ("#e69f00", "#1d2126"),
    ("#009e73", "#1d2126"),
    ("#cc79a7", "#1d2126"),
    ("#56b4e9", "#1d2126"),
    ("#d55e00", "#1d2126"),
    ("#f0e442", "#1d2126"),
    ("#8b939c", "#1d2126"),
)


#: Stands in a cell that has nothing to say.
NOTHING = "\N{EN DASH}"


@lru_cache(maxsize=1)
def _templates() -> Environment:
    return Environment(
        loader=PackageLoader("bucketlab", "views/templates"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )


def _render(name: str, **values: Any) -> str:
    return _templates().get_template(f"{name}.html.jinja").render(values)


def slices_html(report: SliceReport) -> str:
    """The batch as a bar cut by context, padding hatched, above a table of rows, workload and shapes."""
    names = columns_of(report)
    total = sum(report.workload)
    parts = []
    for i, (part, work) in enumerate(zip(report.contexts, report.workload)):
        shapes = dict(part.shapes)
        parts.append(
            {
                "context": part.context,
                "colour": i % len(PALETTE),
                "slice": f"{part.start}:{part.stop}",
                "rows": part.rows,
                "count": number(part.rows, "row"),
                "valid": part.valid_rows,
                "padding": padding_of(part),
                "work": share(work, total),
                "shapes": [shape_text(shapes[name]) if name in shapes else NOTHING for name in names],
            }
        )
    label = "; ".join(
        f"{part.context}: {number(part.rows, 'row')}"
        + (f", {padding_of(part)} padding" if padding_of(part) else "")
        for part in report.contexts
    )
    return _render(
        "slices",
        parts=parts,
        names=names,
        label=label,
        palette=PALETTE,
        bucket=report.bucket,
        rows=number(report.rows, "row"),
        contexts=number(len(parts), "context"),
        pad=report.pad,
        rule=report.rule,
    )


def aliases_html(report: AliasReport, limit: int = 60, columns: int = 24) -> str:
    """Arrays by bucket, each cell labelled with its memory group; pointing or tabbing to one lights its
    group.

    Shows the ``limit`` largest arrays and the first ``columns`` buckets; the rest is counted in a last row.
    """
    shown = alias_table(report, limit)
    buckets = shown.buckets
    # What is of no bucket has its label across the table, unless that column is needed anyway.
    common = (
        len(buckets) > 1
        and buckets[-1] == MODULE
        and all(any(r.groups[:-1]) != bool(r.groups[-1]) for r in shown.rows)
    )
    if common:
        buckets = buckets[:-1]
    parts = []
    lit: dict[str, None] = {}
    for (context, role), rows in groupby(shown.rows, key=lambda row: (row.context, row.role)):
        lines = []
        for row in rows:
            cells = []
            before: set[str] = set()
            wide = common and bool(row.groups[-1])
            for group in row.groups[-1:] if wide else row.groups[: min(columns, len(buckets))]:
                shared = group in shown.shared
                # One tab stop for each memory of a row: tabbing through every bucket would lead nowhere new.
                cells.append({"group": group, "shared": shared, "first": group not in before})
                before.add(group)
                if shared:
                    lit[group] = None
            lines.append({"name": row.name, "bytes": f"{row.bytes:,}", "cells": cells, "wide": wide})
        parts.append(
            {"context": context, "role": role.replace("_", " "), "rows": lines, "common": lines[0]["wide"]}
        )
    return _render(
        "aliases",
        parts=parts,
        lit=list(lit),
        buckets=buckets[:columns],
        more_buckets=buckets[columns:],
        more=number(len(buckets[columns:]), "more bucket"),
        members=number(sum(len(group.members) for group in report.groups), "array"),
        groups=number(len(report.groups), "piece"),
        saved=byte_size(report.saved),
        rest={
            "count": number(shown.rest[0], "smaller array") if shown.rest[0] else "",
            "bytes": f"{shown.rest[1]:,}",
        },
        pools=[
            {
                "context": p.context,
                "blocks": number(p.blocks, "block"),
                "bytes": byte_size(p.bytes),
                "saved": byte_size(p.saved),
            }
            for p in report.pools
        ],
        apart=[
            {
                "role": role.replace("_", " "),
                "name": name,
                "reason": reason,
                "contexts": ", ".join(part.context for part in of),
            }
            for role, name, reason, of in folded_apart(report)
        ],
        notes=report.notes,
    )


def _width(part: float, whole: float) -> str:
    """A bar's length in percent, in as few digits as the eye can use."""
    return f"{100 * part / whole:.1f}" if whole else "0"


def ledger_html(ledger: Ledger, limit: int = 16) -> str:
    """Bytes by context and role with bars, declared against distinct, then by bucket and by the engine."""
    most = max((max(row.declared, row.distinct) for row in ledger.roles), default=0)
    parts = [
        {
            "context": context,
            "distinct": f"{sum(row.distinct for row in rows):,}",
            "rows": [
                {
                    "role": row.role.replace("_", " "),
                    "arrays": f"{row.arrays:,}",
                    "declared": f"{row.declared:,}",
                    "distinct": f"{row.distinct:,}",
                    "reserved": f"{row.reserved:,}" if row.reserved else NOTHING,
                    "outer": _width(max(row.declared, row.distinct), most),
                    "inner": _width(row.distinct, max(row.declared, row.distinct)),
                }
                for row in rows
            ],
        }
        for context, rows in totals_by_role(ledger)
    ]
    largest = max((row.distinct for row in ledger.buckets), default=0)
    buckets = []
    for bucket in ledger.buckets[:limit]:
        partner = max(bucket.shared_with, key=lambda pair: pair[1], default=None)
        buckets.append(
            {
                "bucket": bucket_label(bucket.bucket),
                "distinct": f"{bucket.distinct:,}",
                "shared": f"{bucket.shared:,}",
                "own": f"{bucket.own:,}",
                "new": f"{bucket.new:,}",
                "partner": NOTHING
                if partner is None
                else f"{bucket_label(partner[0])} ({byte_size(partner[1])})",
                "outer": _width(bucket.distinct, largest),
                "inner": _width(bucket.shared, bucket.distinct),
                "has_own": bucket.own > 0,
                "own_width": _width(bucket.own, bucket.distinct),
            }
        )
    left = ledger.buckets[limit:]
    lent = sum(row.lent for row in ledger.roles)
    return _render(
        "ledger",
        total={
            "distinct": byte_size(ledger.distinct),
            "declared": byte_size(ledger.declared),
            "saved": byte_size(ledger.saved),
            "share": share(ledger.saved, ledger.declared),
            "arrays": f"{sum(row.arrays for row in ledger.roles):,}",
            "declared_exact": f"{ledger.declared:,}",
            "distinct_exact": f"{ledger.distinct:,}",
        },
        parts=parts,
        reserved=f"{ledger.reserved:,}" if ledger.reserved else "",
        buckets=buckets,
        rest={
            "count": len(left),
            "own": f"{sum(bucket.own for bucket in left):,}",
            "new": f"{sum(bucket.new for bucket in left):,}",
        }
        if left
        else None,
        engine=[
            {
                "counter": row.counter,
                "counted": f"{row.counted:,}",
                "held": f"{row.held:,}",
                "remaining": f"{row.remaining:,}",
            }
            for row in ledger.engine
        ],
        lent=byte_size(lent) if lent else "",
        process=process_lines(ledger),
        notes=ledger.notes,
    )


def page_html(sections: Iterable[tuple[str, str]], title: str = "bucketlab", lead: str = "") -> str:
    """One file that opens offline: sections of a heading and HTML made by these functions, in order.

    Titles are escaped; the sections' HTML is taken as it is.
    """
    return _render(
        "page", title=title, lead=lead, sections=[(heading, Markup(body)) for heading, body in sections]
    )


def _part(
    title: str, aside: str, head: Sequence[str], rows: Sequence[Any], right: Sequence[int], rest: str = ""
) -> Any:
    return {"title": title, "aside": aside, "head": head, "rows": rows, "right": right, "rest": rest}


_RECORD_HEAD = ("array", "bucket", "context", "role", "shape", "type", "bytes", "memory")


def _record_part(title: str, aside: str, records: Sequence[ArrayRecord], limit: int) -> Any:
    kept = sorted(sorted(range(len(records)), key=lambda i: -records[i].bytes)[:limit])
    rows = []
    for i in kept:
        bucket, context, role, name, *others = record_cells(records[i])
        rows.append([name, bucket, context, role.replace("_", " "), *others])
    left = len(records) - len(kept)
    size = sum(record.bytes for record in records) - sum(records[i].bytes for i in kept)
    rest = f"{number(left, 'smaller array')}, {size:,} bytes" if left else ""
    return _part(title, aside, _RECORD_HEAD, rows, (6,), rest)


def snapshot_html(shot: Snapshot, limit: int = 40) -> str:
    """Arrays with their memory groups, the largest ``limit`` of them."""
    arrays = [record for record in shot.records if record.role != "pool"]
    groups = len({record.group for record in arrays})
    size = sum(group.bytes for group in shot.groups if group.name.startswith("m"))
    blocks = [group for group in shot.groups if group.name.startswith("p")]
    aside = f"{size:,} bytes, each counted once"
    if blocks:
        aside += (
            f"; working pools: {number(len(blocks), 'block')}, {sum(group.bytes for group in blocks):,} bytes"
        )
    part = _record_part(
        f"{number(len(arrays), 'array')} in {number(groups, 'memory group')}", aside, arrays, limit
    )
    return _render("table", parts=[part], notes=shot.notes)


def _diff_parts(diff: SnapshotDiff, limit: int) -> list[Any]:
    parts = []
    for title, records in (
        ("appeared", diff.appeared),
        ("gone", diff.gone),
        ("moved", [change.after for change in diff.moved]),
        ("resized", [change.after for change in diff.resized]),
        ("changed group", [change.after for change in diff.regrouped]),
    ):
        named = [record for record in records if record.role != "pool"]
        if named:
            parts.append(_record_part(f"{number(len(named), 'array')} {title}", "", named, limit))
    return parts


def diff_html(diff: SnapshotDiff, limit: int = 20) -> str:
    """Arrays by what happened to them between two moments."""
    return _render(
        "table", parts=_diff_parts(diff, limit), notes=[_growth(diff.bytes_before, diff.bytes_after)]
    )


def _growth(before: int, after: int) -> str:
    return f"{before:,} bytes before, {after:,} after ({after - before:+,})"


def ledger_diff_html(diff: LedgerDiff, limit: int = 20) -> str:
    """Bytes by context and role that changed, then the arrays behind them."""
    rows = [[" · ".join(c.label), f"{c.before:,}", f"{c.after:,}", f"{c.added:+,}"] for c in diff.roles]
    rows += [
        [f"engine's counter {c.label[0]}", f"{c.before:,}", f"{c.after:,}", f"{c.added:+,}"]
        for c in diff.engine
    ]
    head = ("what", "before", "after", "added")
    parts = [_part("Bytes that changed", _growth(diff.before, diff.after), head, rows, (1, 2, 3))]
    return _render("table", parts=parts + _diff_parts(diff.arrays, limit), notes=[])
