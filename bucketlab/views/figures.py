"""The reports as still pictures, for where no style sheet reaches; matplotlib's object API only."""

from __future__ import annotations

from io import BytesIO
from typing import TYPE_CHECKING

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from bucketlab.views.html import PALETTE
from bucketlab.views.tables import alias_table, byte_size, number, padding_of, totals_by_role

if TYPE_CHECKING:
    from bucketlab.memory.aliasing import AliasReport
    from bucketlab.memory.ledger import Ledger
    from bucketlab.slicing import SliceReport

__all__ = ["StillFigure", "aliases_figure", "ledger_figure", "slices_figure"]

_INK, _SOFT = "#1d2126", "#5b6470"
_BLUE, _GREY = PALETTE[0][0], "#8b939c"


class StillFigure(Figure):
    """A figure that shows itself in a notebook, with or without ``%matplotlib inline``, on a white ground."""

    def __init__(self, width: float, height: float):
        super().__init__(figsize=(width, height), layout="constrained", facecolor="white")
        FigureCanvasAgg(self)

    def _repr_png_(self) -> bytes:
        out = BytesIO()
        self.savefig(out, format="png", dpi=110)
        return out.getvalue()


def slices_figure(report: SliceReport) -> StillFigure:
    """One bar, cut by context; padding is hatched."""
    figure = StillFigure(7.5, 1.5)
    axes = figure.add_subplot()
    for i, part in enumerate(report.contexts):
        back, ink = PALETTE[i % len(PALETTE)]
        padding = padding_of(part)
        axes.barh(0, part.valid_rows, left=part.start, color=back, edgecolor=back)
        if padding:
            axes.barh(
                0, padding, left=part.start + part.valid_rows, color="white", edgecolor=back, hatch="////"
            )
        if part.rows:
            place = (part.start + max(part.valid_rows, 0.5) / 2, 0)
            label = f"{part.context}\n{part.rows} rows"
            axes.annotate(
                label, place, ha="center", va="center", color=ink if part.valid_rows else _INK, fontsize=9
            )
    of = "" if report.bucket is None else f"bucket {report.bucket}: "
    axes.set_title(
        f"{of}{report.rows} rows, {report.pad} padding (hatched), split {report.rule}", fontsize=10
    )
    axes.set_xlim(0, max(report.rows, 1))
    axes.set_yticks([])
    axes.set_xlabel("row of the batch", fontsize=9)
    axes.spines[["top", "right", "left"]].set_visible(False)
    return figure


def aliases_figure(report: AliasReport, limit: int = 24, columns: int = 12) -> StillFigure:
    """Arrays by bucket, each cell labelled with its memory group; framed where several arrays share it."""
    shown = alias_table(report, limit)
    buckets = shown.buckets[:columns]
    figure = StillFigure(3.2 + 0.7 * max(len(buckets), 2), 1.1 + 0.24 * max(len(shown.rows), 1))
    axes = figure.add_subplot()
    for y, row in enumerate(shown.rows):
        for x, group in enumerate(row.groups[:columns]):
            if group:
                shared = group in shown.shared
                axes.add_patch(
                    Rectangle(
                        (x + 0.06, y + 0.1),
                        0.88,
                        0.8,
                        facecolor="#dcebf5" if shared else "white",
                        edgecolor=_BLUE if shared else "#d5d9de",
                        linestyle="-" if shared else ":",
                    )
                )
                axes.text(
                    x + 0.5,
                    y + 0.52,
                    group,
                    ha="center",
                    va="center",
                    fontsize=8,
                    color=_INK if shared else _SOFT,
                )
    axes.set_xlim(0, max(len(buckets), 1))
    axes.set_ylim(max(len(shown.rows), 1), 0)
    axes.set_xticks([x + 0.5 for x in range(len(buckets))], buckets, fontsize=9)
    labels = [f"{row.name} · {row.role.replace('_', ' ')} · {row.context}" for row in shown.rows]
    axes.set_yticks([y + 0.5 for y in range(len(shown.rows))], labels, fontsize=8)
    axes.xaxis.tick_top()
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    figure.suptitle(
        f"{number(sum(len(g.members) for g in report.groups), 'array')} in "
        f"{number(len(report.groups), 'piece')} of memory; "
        f"sharing saves {byte_size(report.saved)}",
        fontsize=10,
    )
    return figure


def ledger_figure(ledger: Ledger) -> StillFigure:
    """Bars by context and role: distinct bytes filled, what is declared beyond them hatched."""
    rows = [(context, row) for context, of in totals_by_role(ledger) for row in of]
    figure = StillFigure(7.5, 1.5 + 0.24 * max(len(rows), 1))
    axes = figure.add_subplot()
    for y, (_, row) in enumerate(rows):
        beyond = max(row.declared - row.distinct, 0)
        axes.barh(y, row.distinct, height=0.7, color=_BLUE)
        axes.barh(y, beyond, left=row.distinct, height=0.7, color="white", edgecolor=_GREY, hatch="////")
        axes.annotate(
            f" {byte_size(row.distinct)}" + (f" of {byte_size(row.declared)}" if row.declared else ""),
            (row.distinct + beyond, y),
            va="center",
            fontsize=8,
            color=_SOFT,
        )
    labels = [f"{row.role.replace('_', ' ')} · {context}" for context, row in rows]
    axes.set_yticks(range(len(rows)), labels, fontsize=8)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.set_xlim(0, 1.25 * max((max(row.declared, row.distinct) for _, row in rows), default=1) or 1)
    axes.xaxis.set_major_formatter(lambda size, _: byte_size(round(size)))
    axes.tick_params(axis="x", labelsize=8)
    axes.tick_params(axis="y", length=0)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(
        handles=[
            Patch(facecolor=_BLUE, label="distinct: every byte once"),
            Patch(facecolor="white", edgecolor=_GREY, hatch="////", label="declared beyond it"),
        ],
        loc="upper center",
        bbox_to_anchor=(0.5, -0.4 / figure.get_figheight()),
        ncols=2,
        fontsize=8,
        frameon=False,
    )
    axes.set_title(
        f"{byte_size(ledger.distinct)} in memory, {byte_size(ledger.declared)} declared; "
        f"sharing saves {byte_size(ledger.saved)}",
        fontsize=10,
    )
    return figure
