"""A bucket plan, and rules beside the optimum, as text, HTML and a still picture."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from markupsafe import Markup

from bucketlab.data.keys import key_text
from bucketlab.views.tables import byte_size, share
from bucketlab.views.text import table

if TYPE_CHECKING:
    from bucketlab.data.compare import Comparison
    from bucketlab.data.plan import BucketPlan
    from bucketlab.views.figures import StillFigure

__all__ = [
    "comparison_html",
    "comparison_text",
    "plan_figure",
    "plan_html",
    "plan_text",
    "table_html",
    "totals_html",
]

_WIDTH, _HEIGHT = 720, 110  # of the histogram, in SVG units


def table_html(
    title: str, head: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[int] = ()
) -> str:
    """A plain table; ``right`` numbers the columns of figures."""
    from bucketlab.views.html import _render

    part = {"title": title, "aside": "", "head": head, "rows": rows, "right": right, "rest": ""}
    return _render("table", parts=[part], notes=[])


def plan_rows(plan: BucketPlan) -> tuple[list[str], list[list[str]]]:
    """Head and rows of a plan's table, with its totals last."""
    with_bytes = any(b.bytes is not None for b in plan.buckets)
    head = ["bucket", "sequences", "rows", "per context", "steps", "padding", "filler", "waste"]
    rows = [
        [
            key_text(b.key),
            f"{b.sequences:,}",
            f"{b.rows:,}",
            "+".join(map(str, b.rows_per_context)),
            f"{b.steps:,}",
            f"{b.padding:,}",
            f"{b.filler:,}",
            share(b.computed - b.tokens, b.computed),
        ]
        for b in plan.buckets
    ]
    waste = share(plan.computed - plan.tokens, plan.computed)
    total = [
        "all",
        f"{plan.sequences:,}",
        "",
        "",
        f"{plan.steps:,}",
        f"{plan.padding:,}",
        f"{plan.filler:,}",
        waste,
    ]
    if with_bytes:
        head.append("bytes")
        for row, bucket in zip(rows, plan.buckets):
            row.append("" if bucket.bytes is None else byte_size(bucket.bytes))
        total.append("")
    return head, [*rows, total]


def plan_lines(plan: BucketPlan) -> list[str]:
    """What the table does not say."""
    buckets = f"{len(plan)} bucket{'s' * (len(plan) != 1)}"
    order = ", ".join(map(key_text, plan.bind_order))
    contexts = f"{len(plan.contexts)} context{'s' * (len(plan.contexts) != 1)}"
    return [
        f"{buckets} for {plan.tokens:,} tokens over {contexts}, at most {plan.budget} a batch; "
        f"{plan.computed:,} tokens computed",
        f"{plan.method}; cost {plan.cost}",
        f"default bucket {key_text(plan.default_bucket_key)}; bind {order}",
    ]


def plan_text(plan: BucketPlan) -> str:
    head, rows = plan_rows(plan)
    first, *rest = plan_lines(plan)
    return "\n".join([first, table(head, rows, range(1, len(head))), *rest])


def plan_totals(plan: BucketPlan) -> list[tuple[str, str]]:
    """The figures of a plan that people choose by, each with its name."""
    largest = max(plan.buckets, key=lambda b: b.rows * b.size)
    figures = [
        ("buckets", f"{len(plan)}"),
        ("steps an epoch", f"{plan.steps:,}"),
        ("waste", share(plan.computed - plan.tokens, plan.computed)),
        ("tokens computed", f"{plan.computed:,}"),
        ("largest batch, tokens", f"{largest.rows * largest.size:,}"),
    ]
    if all(b.bytes is not None for b in plan.buckets):
        figures.append(("largest batch, bytes", byte_size(max(b.bytes or 0 for b in plan.buckets))))
    return figures


def totals_html(plan: BucketPlan) -> str:
    """:func:`plan_totals` as one line of large figures, as the dashboard has one."""
    each = Markup(" ").join(Markup("<span>{} <b>{}</b></span>").format(*figure) for figure in plan_totals(plan))
    return Markup('<p class="bl-tick">{}</p>').format(each)


def plan_html(plan: BucketPlan) -> str:
    """The lengths with the bounds among them, then the buckets as a table; every figure is in the table."""
    from bucketlab.views.html import PALETTE, _render

    head, rows = plan_rows(plan)
    most = max(b.computed for b in plan.buckets)
    bars = [
        {"real": 150 * b.tokens / most, "padding": 150 * b.padding / most, "filler": 150 * b.filler / most}
        for b in plan.buckets
    ]
    longest = plan.histogram[-1][1]
    tallest = max(count for _, _, count in plan.histogram) ** 0.5
    columns = [
        {
            "x": _WIDTH * (low - 1) / longest,
            "width": _WIDTH * (high - low + 1) / longest,
            "height": _HEIGHT * count**0.5 / tallest,
            "title": f"{low} to {high}: {count:,}" if low != high else f"{low}: {count:,}",
        }
        for low, high, count in plan.histogram
        if count
    ]
    return _render(
        "plan",
        head=head,
        rows=rows[:-1],
        total=rows[-1],
        bars=bars,
        lines=plan_lines(plan),
        columns=columns,
        bounds=_bound_marks(plan, longest),
        width=_WIDTH,
        height=_HEIGHT,
        colour=PALETTE[0][0],
        line=PALETTE[5][0],
        label=f"How often each length up to {longest} comes, with {len(plan)} bounds",
    )


def _bound_marks(plan: BucketPlan, longest: int) -> list[dict[str, Any]]:
    """Where the bounds stand, with a label on those that have room for one: the longest always has."""
    marks: list[dict[str, Any]] = []
    taken_from: float = _WIDTH + 60
    for size in sorted((b.size for b in plan.buckets), reverse=True):
        place = _WIDTH * size / longest
        has_room = taken_from - place >= 7 * len(str(size)) + 4
        marks.append({"x": place, "label": str(size) if has_room else ""})
        taken_from = place if has_room else taken_from
    return marks[::-1]


def plan_figure(plan: BucketPlan) -> StillFigure:
    """The lengths and the bounds above; below, what each bucket computes, padding and filler hatched."""
    from bucketlab.views.figures import StillFigure
    from bucketlab.views.html import PALETTE

    blue, line = PALETTE[0][0], PALETTE[5][0]
    figure = StillFigure(7.5, 3.2 + 0.26 * len(plan))
    above, below = figure.subplots(2, 1, height_ratios=[2, 0.6 + 0.26 * len(plan)])
    low, high, counts = (np.array(column) for column in zip(*plan.histogram))
    above.bar(low - 0.5, counts, width=high - low + 1, align="edge", color=blue)
    above.set_yscale("function", functions=(np.sqrt, np.square))
    for size in (b.size for b in plan.buckets):
        above.axvline(size + 0.5, color=line, linestyle="--", linewidth=1)
    above.set_ylim(0, counts.max() * 1.05)
    above.set_xlim(0.5, high[-1] + 1)
    of = "length" if not isinstance(plan.keys[0], tuple) else "source and target length together"
    above.set_xlabel(f"{of}; bounds dashed", fontsize=9)
    above.set_ylabel("sequences (√)", fontsize=9)
    waste = share(plan.computed - plan.tokens, plan.computed)
    above.set_title(f"{len(plan)} buckets, {plan.steps:,} steps, waste {waste}", fontsize=10)

    places = np.arange(len(plan))
    left = np.zeros(len(plan))
    for name, style in (
        ("tokens", {"color": blue, "label": "real"}),
        ("padding", {"color": "white", "edgecolor": blue, "hatch": "////", "label": "padding"}),
        ("filler", {"color": "white", "edgecolor": blue, "hatch": "....", "label": "filler"}),
    ):
        widths = np.array([getattr(b, name) for b in plan.buckets], dtype=float)
        below.barh(places, widths, left=left, **style)
        left += widths
    for place, end, bucket in zip(places, left, plan.buckets):
        split = "+".join(map(str, bucket.rows_per_context))
        taken = "" if bucket.bytes is None else f", {byte_size(bucket.bytes)}"
        text = f" {bucket.steps:,} x {split} rows{taken}"
        below.annotate(text, (end, place), va="center", fontsize=8)
    below.set_xlim(0, left.max() * 1.35)
    below.set_yticks(places, [key_text(b.key) for b in plan.buckets], fontsize=8)
    below.invert_yaxis()
    below.set_xlabel("tokens computed in an epoch", fontsize=9)
    below.legend(loc="lower right", fontsize=8, frameon=False)
    for axes in (above, below):
        axes.spines[["top", "right"]].set_visible(False)
    return figure


_RULE_HEAD = (
    "rule",
    "buckets",
    "padding",
    "with filler",
    "best padding",
    "steps",
    "too long",
    "their tokens",
    "left over",
)


def _rule_rows(comparison: Comparison) -> list[list[str]]:
    return [
        [
            r.rule,
            str(len(r.bounds)),
            share(r.padding, r.padding + r.tokens),
            share(r.padding + r.filler, r.padding + r.filler + r.tokens),
            share(r.best_padding, r.best_padding + comparison.tokens),
            f"{r.steps:,}",
            f"{r.too_long:,}",
            share(r.too_long_tokens, comparison.tokens),
            f"{r.left_over:,}",
        ]
        for r in comparison.results
    ]


def _comparison_line(comparison: Comparison) -> str:
    return (
        f"{comparison.sequences:,} sequences, {comparison.tokens:,} tokens, k = {comparison.k}, "
        f"at most {comparison.budget} a batch"
    )


def comparison_text(comparison: Comparison) -> str:
    rows = _rule_rows(comparison)
    return "\n".join([_comparison_line(comparison), table(_RULE_HEAD, rows, range(1, len(_RULE_HEAD)))])


def comparison_html(comparison: Comparison) -> str:
    rows = _rule_rows(comparison)
    return table_html(_comparison_line(comparison), _RULE_HEAD, rows, range(1, len(_RULE_HEAD)))
