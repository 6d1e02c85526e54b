"""How memory grew, event by event, as text, HTML and a still picture."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from bucketlab.data.keys import key_text
from bucketlab.views.tables import MODULE, byte_size, number
from bucketlab.views.text import table

if TYPE_CHECKING:
    from bucketlab.record.timeline import Growth, Timeline
    from bucketlab.views.figures import StillFigure

__all__ = ["timeline_figure", "timeline_html", "timeline_text"]

_HEAD = ("step", "event", "bucket", "added", "after", "by context and role", "arrays")
_RIGHT = (0, 3, 4)


def _bucket(event: Growth) -> str:
    return MODULE if event.bucket is None else key_text(event.bucket)


def _step(event: Growth) -> str:
    return "-" if event.step is None else f"{event.step:,}"


def _changes(event: Growth, limit: int = 4) -> str:
    largest = sorted(event.changes, key=lambda change: -abs(change.added))
    shown = [f"{change.added:+,} {change.label[1]} {change.label[0]}" for change in largest[:limit]]
    return ", ".join(shown) + (f" and {len(largest) - limit} more" if len(largest) > limit else "")


def _rows(events: Sequence[Growth]) -> list[list[str]]:
    return [
        [
            _step(event),
            event.kind,
            _bucket(event),
            f"{event.added:+,}",
            f"{event.after:,}",
            _changes(event) or "-",
            ", ".join(event.arrays) or "-",
        ]
        for event in events
    ]


def headline(line: Timeline) -> list[str]:
    """Where it began and ended, and the event that added most."""
    after = f"{line.end:,} ({byte_size(line.end)}) after {number(len(line.events), 'event')}"
    grown = f"{line.start:,} bytes at first, {after}"
    lines = [f"{grown}; {line.switches:,} {'switch' if line.switches == 1 else 'switches'} between buckets"]
    most = line.largest
    if most is not None:
        when = "" if most.step is None else f"in step {most.step:,}, " if most.step else "before the first step, "
        what = f"{most.kind} of {'the module' if most.bucket is None else f'bucket {_bucket(most)}'}"
        lines.append(f"most was added {when}by the {what}: {most.added:+,} bytes, {_changes(most)}")
    return lines


def timeline_text(line: Timeline) -> str:
    """One line for each event, with what it added by context and role and the arrays behind it."""
    lines = [*headline(line)]
    if line.events:
        lines.append(table(_HEAD, _rows(line.events), _RIGHT))
    return "\n".join([*lines, *(f"note: {note}" for note in line.notes)])


def timeline_html(line: Timeline) -> str:
    from bucketlab.views.html import _part, _render

    first, *more = headline(line)
    part = _part("How memory grew", first, _HEAD, _rows(line.events), _RIGHT)
    return _render("table", parts=[part], notes=[*more, *line.notes])


def timeline_figure(line: Timeline) -> StillFigure:
    """Bytes after each event as steps, with the largest ones named."""
    from matplotlib.ticker import MaxNLocator

    from bucketlab.views.figures import StillFigure
    from bucketlab.views.html import PALETTE

    figure = StillFigure(7.5, 3.2)
    axes = figure.add_subplot()
    places = list(range(len(line.events) + 1))
    axes.step(places, [line.start, *(event.after for event in line.events)], where="post", color=PALETTE[0][0])
    named = sorted(range(len(line.events)), key=lambda i: -line.events[i].added)[:6]
    for i in named:
        event = line.events[i]
        if event.added > 0:
            axes.annotate(
                f"{event.kind} {_bucket(event)}: {byte_size(event.added)}", (i + 1, event.after), fontsize=8,
                xytext=(4, 4), textcoords="offset points",
            )  # fmt: skip
    axes.set_ylim(0, 1.15 * max([1, line.start, *(event.after for event in line.events)]))
    axes.yaxis.set_major_formatter(lambda size, _: byte_size(round(size)))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("event", fontsize=9)
    axes.tick_params(labelsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_title(f"{byte_size(line.end)} after {number(len(line.events), 'event')}", fontsize=10)
    return figure
