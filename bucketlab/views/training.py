"""How a run went: totals as text and HTML, the figures that change every step, the curve as SVG."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from jinja2 import Environment

from bucketlab.views.html import _render

if TYPE_CHECKING:
    from bucketlab.record.events import MetricEvent, StepEvent
    from bucketlab.record.summary import BucketTotals, RunSummary

__all__ = ["curve_html", "curves_html", "summary_html", "summary_text", "tick_html"]


def short(value: float | None, unit: str = "") -> str:
    """A figure in at most four digits: ``0.123``, ``45.6``, ``1,234``, ``12.3k``; ``-`` for None.

    >>> short(12345.0)
    '12.3k'
    """
    if value is None:
        return "-"
    if not math.isfinite(value):
        return f"{value}{unit}"
    size = abs(value)
    if size >= 9_999_500:
        text = f"{value / 1e6:.1f}M"
    elif size >= 9_999.5:
        text = f"{value / 1e3:.1f}k"
    elif size >= 999.5:
        text = f"{value:,.0f}"
    elif size == int(size):
        text = f"{value:.0f}"
    else:
        text = f"{value:.3g}"
    return text + unit


def percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f} %"


def milliseconds(seconds: float | None) -> str:
    return "-" if seconds is None else f"{short(1000 * seconds)} ms"


def bucket_name(bucket: Any) -> str:
    return "-" if bucket is None else str(bucket)


# Totals

_COLUMNS = ("bucket", "steps", "ms a step", "time", "padding", "rows/s", "tokens/s")


def _cells(totals: BucketTotals, label: str, share: float | None) -> tuple[str, ...]:
    return (
        label,
        f"{totals.steps:,}",
        milliseconds(totals.step_seconds).replace(" ms", ""),
        percent(share),
        percent(totals.padding_share),
        short(totals.rows_per_second),
        short(totals.tokens_per_second),
    )


def _rows(summary: RunSummary) -> list[tuple[tuple[str, ...], float]]:
    whole = summary.total.seconds
    try:
        buckets = sorted(summary.buckets, key=lambda totals: totals.bucket)  # type: ignore[arg-type, return-value]
    except TypeError:
        # Keys that cannot be compared stay in the order in which they came.
        buckets = list(summary.buckets)
    shares = [bucket.seconds / whole if whole else 0.0 for bucket in buckets]
    return [(_cells(bucket, bucket_name(bucket.bucket), share), share) for bucket, share in zip(buckets, shares)]


def summary_text(summary: RunSummary) -> str:
    """A run's totals as a table for a terminal: one line a bucket, then all of them."""
    if not summary.total.steps:
        return "no step yet"
    lines = [_COLUMNS, *(cells for cells, _ in _rows(summary)), _cells(summary.total, "all", 1.0)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(_COLUMNS))]
    table = ["  ".join(cell.rjust(width) for cell, width in zip(line, widths)) for line in lines]
    table.insert(1, "  ".join("-" * width for width in widths))
    table.insert(len(table) - 1, table[1])
    head = f"{summary.total.steps:,} steps, {summary.epochs} epochs ended"
    if summary.metrics:
        head += ", " + ", ".join(f"{name} {short(value)}" for name, value in summary.metrics)
    return "\n".join([head, *table])


def summary_html(summary: RunSummary) -> str:
    """The same as an HTML table, with a bar for each bucket's share of the time."""
    if not summary.total.steps:
        return "<p>No step yet.</p>"
    rows = [(cells, f"{100 * share:.1f}") for cells, share in _rows(summary)]
    return _render("training", columns=_COLUMNS, rows=rows, total=_cells(summary.total, "all", 1.0))


# The line of figures


def tick_html(step: StepEvent, values: Sequence[tuple[str, float]], recent: RunSummary) -> str:
    """The figures that change every step, in 300 bytes or less; rates count real rows and tokens only."""
    figures = [("step", f"{step.step}"), ("epoch", f"{step.epoch}")]
    figures += [(name[:16], short(value)) for name, value in values[:1]]
    figures.append(("rows/s", short(recent.total.rows_per_second)))
    if recent.total.tokens is not None:
        figures.append(("tokens/s", short(recent.total.tokens_per_second)))
    figures.append(("padding", percent(recent.total.padding_share)))
    if step.bucket is not None:
        figures.append(("bucket", bucket_name(step.bucket)[:16]))
    return _TICK.render(figures=figures)


_TICK = Environment(autoescape=True).from_string(
    '<p class="bl-tick">{% for name, value in figures %}<span>{{ name }} <b>{{ value }}</b></span> {% endfor %}</p>'
)

# The curve

_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 520, 190, 52, 12, 10, 36


def curve_html(readings: Sequence[MetricEvent], name: str | None = None, *, points: int = 240) -> str:
    """One metric over the steps, drawn as an inline SVG; an empty string before any reading.

    A line per epoch, since a metric starts afresh in each; at most about ``points`` points in all. ``name``
    is the metric's name, by default the first.
    """
    name = name if name is not None else next((n for r in readings for n, _ in r.values), None)
    found = [(r.epoch, r.step, value) for r in readings for n, value in r.values if n == name and math.isfinite(value)]
    if not found:
        return ""
    from matplotlib.ticker import MaxNLocator

    first_step, last_step = found[0][1], found[-1][1]
    low, high = min(value for *_, value in found), max(value for *_, value in found)
    y_values = MaxNLocator(4).tick_values(low, high) if high > low else [low - 0.5, low, low + 0.5]
    bottom_value, top_value = float(y_values[0]), float(y_values[-1])
    span = max(last_step - first_step, 1)

    def x_of(step: float) -> float:
        return round(_LEFT + (_WIDTH - _LEFT - _RIGHT) * (step - first_step) / span, 1)

    def y_of(value: float) -> float:
        return round(_TOP + (_HEIGHT - _TOP - _BOTTOM) * (top_value - value) / (top_value - bottom_value), 1)

    epochs: dict[int, list[tuple[float, float]]] = {}
    for epoch, step, value in found:
        epochs.setdefault(epoch, []).append((x_of(step), y_of(value)))
    stride = math.ceil(len(found) / points)
    lines = [" ".join(f"{x},{y}" for x, y in _thinned(line, stride)) for line in epochs.values()]
    x_ticks = (
        [
            (x_of(tick), f"{tick:,.0f}")
            for tick in MaxNLocator(6, integer=True).tick_values(first_step, last_step)
            if first_step <= tick <= last_step
        ]
        if last_step > first_step
        else [(x_of(first_step), str(first_step))]
    )
    return _render(
        "curve",
        metric=name,
        last=short(found[-1][2]),
        step=f"{last_step:,}",
        width=_WIDTH,
        height=_HEIGHT,
        left=_LEFT,
        right=_WIDTH - _RIGHT,
        top=_TOP,
        bottom=_HEIGHT - _BOTTOM,
        label=f"{name} by step: first {short(found[0][2])}, last {short(found[-1][2])}",
        y_ticks=[(y_of(float(tick)), short(float(tick))) for tick in y_values],
        x_ticks=x_ticks,
        epochs=[line[0][0] for line in list(epochs.values())[1:]],
        lines=lines,
        dot=(x_of(last_step), y_of(found[-1][2])),
    )


def _thinned(line: list[tuple[float, float]], stride: int) -> list[tuple[float, float]]:
    kept = line[::stride]
    return kept if kept[-1] == line[-1] else [*kept, line[-1]]


def curves_html(readings: Sequence[MetricEvent]) -> str:
    """Every metric's curve, one under the other."""
    names = dict.fromkeys(name for reading in readings for name, _ in reading.values)
    return "".join(curve_html(readings, name) for name in names)
