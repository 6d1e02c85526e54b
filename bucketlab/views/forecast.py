"""A forecast, and a forecast beside a run, as text, HTML and a still picture."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, Any

from bucketlab.data.keys import key_text
from bucketlab.views.tables import MODULE, byte_size, number, share
from bucketlab.views.text import table

if TYPE_CHECKING:
    from bucketlab.memory.amounts import Amount
    from bucketlab.memory.forecast import BucketForecast, Comparison, ContextForecast, Forecast
    from bucketlab.views.figures import StillFigure

__all__ = [
    "comparison_html", "comparison_text", "forecast_figure", "forecast_html", "forecast_text", "span",
]  # fmt: skip

_INPUTS = ("data", "label", "state", "other")
_OF_BUCKETS = ("parameter", "gradient", "auxiliary", *_INPUTS, "input_gradient", "pool", "operators")
_BUCKET_LIMIT = 24


def span(amount: Amount, unit: bool = False) -> str:
    """Bytes as people read them: ``1,024``, ``0 to 1,024``, ``at least 0``."""
    text = f"{amount.low:,}"
    if amount.high is None:
        text = f"at least {text}"
    elif amount.high != amount.low:
        text = f"{text} to {amount.high:,}"
    return f"{text} bytes" if unit else text


def _name(key: Hashable) -> str:
    return MODULE if key is None else key_text(key)


def _order(keys: Sequence[Hashable], limit: int = 12) -> str:
    shown = ", ".join(map(_name, keys[:limit]))
    return shown if len(keys) <= limit else f"{shown} and {number(len(keys) - limit, 'more')[:-1]}"


def headline(expected: Forecast) -> list[str]:
    """What a person asks first, in a sentence each."""
    ways = {"arena": "in an arena: ", "mxnet": "shared as mx.mod does it: "}
    about = ways.get(expected.working_memory, "") + ("" if expected.exact else "at least ")
    size = f"{expected.total:,} bytes ({byte_size(expected.total)})"
    lines = [f"{about}{size} of arrays and working memory, each byte once"]
    if len(expected.buckets) > 1:
        hungriest = expected.hungriest
        lines[0] += f"; {share(expected.total, hungriest.alone)} of the hungriest bucket alone"
        lines.append(
            f"in the order {_order(expected.order)}: {expected.total:,} bytes; in the best of {expected.orders_tried} "
            f"orders tried, {_order(expected.best_order)}: {expected.best_total:,} bytes"
        )
        lines.append(f"default bucket: {_name(expected.default_bucket_key)}; hungriest: {_name(hungriest.bucket)}")
    most = "no upper bound is known" if expected.at_most is None else f"at most {expected.at_most:,}"
    lines.append(f"with what operators take besides: at least {expected.at_least:,}, {most}")
    return lines


def _columns(expected: Forecast) -> list[str]:
    """Roles that some bucket has."""
    found = {amount.role for bucket in expected.buckets for one in bucket.contexts for amount in one.amounts}
    return [role for role in _OF_BUCKETS if role in found]


def _bucket_rows(expected: Forecast, roles: Sequence[str]) -> list[list[str]]:
    rows = []
    for bucket in expected.buckets[:_BUCKET_LIMIT]:
        for i, one in enumerate(bucket.contexts):
            first = i == 0
            rows.append(
                [
                    _name(bucket.bucket) if first else "",
                    one.context,
                    "-" if one.rows is None else f"{one.rows:,}",
                    *(_cell(one, role) for role in roles),
                    f"{bucket.alone:,}" if first else "",
                    f"{bucket.new:+,}" if first else "",
                ]
            )
    return rows


def _cell(one: ContextForecast, role: str) -> str:
    found = [amount for amount in one.amounts if amount.role == role]
    return span(found[0]) if found else "-"


def _head(roles: Sequence[str]) -> list[str]:
    return ["bucket", "context", "rows", *(role.replace("_", " ") for role in roles), "run alone", "new when it comes"]


def _role_rows(amounts: Sequence[Amount]) -> list[list[str]]:
    contexts = dict.fromkeys(amount.context for amount in amounts)
    return [
        [amount.context, amount.role, span(amount)]
        for context in contexts
        for amount in amounts
        if amount.context == context and amount.high != 0
    ]


def _reasons(amounts: Sequence[Amount]) -> list[str]:
    return [f"{one.role} on {one.context}: {span(one, unit=True)}: {one.why}" for one in amounts if one.why]


def _left(buckets: Sequence[BucketForecast]) -> str:
    left = len(buckets) - _BUCKET_LIMIT
    return f"and {number(left, 'more bucket')}" if left > 0 else ""


def forecast_text(expected: Forecast) -> str:
    """Totals, each bucket by context and role, the whole run by context and role, and what is uncertain."""
    roles = _columns(expected)
    head = _head(roles)
    lines = [*headline(expected), "", table(head, _bucket_rows(expected, roles), range(2, len(head)))]
    if _left(expected.buckets):
        lines.append(_left(expected.buckets))
    rows = [*_role_rows(expected.amounts), ["all", "", f"{expected.total:,}"]]
    lines += ["", table(["context", "role", "the whole run"], rows, (2,))]
    lines += _reasons((*expected.amounts, *expected.besides))
    exact = [amount for amount in expected.besides if not amount.why]
    lines += [f"{amount.role} on {amount.context}: {span(amount, unit=True)}" for amount in exact]
    return "\n".join([*lines, *(f"note: {note}" for note in expected.notes)])


def forecast_html(expected: Forecast) -> str:
    """The same as tables; what is uncertain stands below them, each with its reason."""
    from bucketlab.views.html import _part, _render

    roles = _columns(expected)
    head = _head(roles)
    first, *more = headline(expected)
    beside = [[amount.context, amount.role, span(amount), amount.why] for amount in expected.besides]
    parts = [
        _part("Forecast", first, head, _bucket_rows(expected, roles), range(2, len(head)), _left(expected.buckets)),
        _part("The whole run", f"{expected.total:,} bytes", ("context", "role", "bytes"),
              _role_rows(expected.amounts), (2,)),
    ]  # fmt: skip
    if beside:
        titles = ("context", "role", "bytes", "why")
        parts.append(_part("Besides", "held by the engine, in no array", titles, beside, (2,)))
    return _render("table", parts=parts, notes=[*more, *_reasons(expected.amounts), *expected.notes])


def forecast_figure(expected: Forecast) -> StillFigure:
    """Bars: each bucket as it would run alone, then all of them with sharing; what is certain of operators besides."""
    from bucketlab.views.figures import StillFigure
    from bucketlab.views.html import PALETTE

    groups = {
        "parameters, states": ("parameter", "gradient", "auxiliary", "optimizer", "kvstore", "host", "rest of blocks"),
        "inputs": (*_INPUTS, "input_gradient"),
        "working memory": ("pool",),
        "operators": ("operators", "head gradients"),
    }
    buckets = expected.buckets[:_BUCKET_LIMIT]
    figure = StillFigure(7.5, 1.9 + 0.26 * (len(buckets) + 1))
    axes = figure.add_subplot()
    bars: list[tuple[str, list[int]]] = []
    for bucket in buckets:
        inner = [
            sum(amount.low for one in bucket.contexts for amount in one.amounts if amount.role in roles)
            for roles in groups.values()
        ]
        # What belongs to no single bucket is the rest of what its run takes.
        inner[0] = bucket.alone - inner[1] - inner[2]
        bars.append((_name(bucket.bucket), inner))
    every = (*expected.amounts, *expected.besides)
    whole = [sum(amount.low for amount in every if amount.role in roles) for roles in groups.values()]
    bars.append(("all, shared", whole))
    for place, (_, sizes) in enumerate(bars):
        left = 0
        for (label, _), size, (colour, _) in zip(groups.items(), sizes, PALETTE):
            axes.barh(place, size, left=left, height=0.7, color=colour, label=label if not place else None)
            left += size
        axes.annotate(f" {byte_size(left)}", (left, place), va="center", fontsize=8)
    axes.set_yticks(range(len(bars)), [name for name, _ in bars], fontsize=8)
    axes.set_ylim(len(bars) - 0.4, -0.6)
    axes.set_xlim(0, 1.2 * max(1, *(sum(sizes) for _, sizes in bars)))
    axes.xaxis.set_major_formatter(lambda size, _: byte_size(round(size)))
    axes.tick_params(axis="x", labelsize=8)
    axes.tick_params(axis="y", length=0)
    axes.spines[["top", "right"]].set_visible(False)
    below = -0.4 / figure.get_figheight()
    axes.legend(fontsize=8, frameon=False, loc="upper center", bbox_to_anchor=(0.5, below), ncols=len(groups))
    best = f"; {byte_size(expected.best_total)} in the best order" if len(expected.buckets) > 1 else ""
    axes.set_title(f"Forecast: {byte_size(expected.total)}{best}", fontsize=10)
    return figure


_COMPARED = ("context", "role", "forecast", "run", "difference")


def _compared(comparison: Comparison) -> list[list[str]]:
    return [
        [context, role, span(amount), f"{size:,}", f"{size - amount.low:+,}" if amount.exact else ""]
        for context, role, amount, size in comparison.rows
    ]


def _verdict(comparison: Comparison) -> str:
    run: Any = sum(size for *_, size in comparison.rows)
    return f"the run holds {run:,} bytes; the forecast is off by {100 * comparison.off:.2f} %"


def comparison_text(comparison: Comparison) -> str:
    return "\n".join([_verdict(comparison), table(_COMPARED, _compared(comparison), (2, 3, 4))])


def comparison_html(comparison: Comparison) -> str:
    from bucketlab.views.html import _part, _render

    part = _part("Forecast and run", _verdict(comparison), _COMPARED, _compared(comparison), (2, 3, 4))
    return _render("table", parts=[part], notes=[])
