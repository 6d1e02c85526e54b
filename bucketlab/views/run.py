"""What a script did, on one page: each module's binds, its time by bucket, its slices and its memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from bucketlab.views.html import _render, aliases_html, ledger_html, page_html, slices_html
from bucketlab.views.tables import number
from bucketlab.views.timeline import timeline_html, timeline_text
from bucketlab.views.training import curves_html, short, summary_html, summary_text

if TYPE_CHECKING:
    from bucketlab.record.watch import ModuleRun
    from bucketlab.runner import ScriptRun
    from bucketlab.slicing import SliceReport

__all__ = ["run_html", "run_text"]

_BUCKETS = 12


def names_of(modules: Sequence[ModuleRun]) -> list[str]:
    """What the modules are called on the page: by their class, numbered where there are several of it.

    >>> names_of([])
    []
    """
    kinds = [module.kind for module in modules]
    names = []
    for i, kind in enumerate(kinds):
        names.append(kind if kinds.count(kind) == 1 else f"{kind} {kinds[: i + 1].count(kind)}")
    return names


def run_html(run: ScriptRun) -> str:
    """The whole run as one file that opens offline."""
    sections = []
    if run.failure is not None:
        sections.append(("How it ended", _render("failure", text=run.failure.rstrip())))
    if not run.modules:
        sections.append(("Modules", "<p>The script bound no module of mxnet.mod.</p>"))
    for name, module in zip(names_of(run.modules), run.modules):
        where = f" over {', '.join(module.contexts)}" if module.contexts else ""
        title = f"{name}{where}" + (" (let go of before the end)" if module.gone else "")
        sections.append((title, _module_html(module)))
    command = " ".join([run.script, *run.arguments])
    return page_html(sections, f"bucketlab run {command}", _lead(run))


def _lead(run: ScriptRun) -> str:
    steps = sum(module.summary.total.steps for module in run.modules)
    how = "interrupted" if run.interrupted else "ended by an error" if run.failure else "ran to its end"
    return (
        f"{how}, exit status {run.status}; {short(run.seconds)} s, {number(len(run.modules), 'module')}, "
        f"{number(steps, 'training step')}"
    )


def _module_html(module: ModuleRun) -> str:
    parts = [timeline_html(module.timeline)]
    if module.summary.total.steps:
        parts += [summary_html(module.summary), curves_html(module.metrics)]
    parts.append(_slices(module.slices))
    parts += [ledger_html(module.ledger), aliases_html(module.aliases)]
    return "".join(parts)


def _slices(reports: Sequence[SliceReport]) -> str:
    left = len(reports) - _BUCKETS
    more = f"<p>and {number(left, 'more bucket')}</p>" if left > 0 else ""
    return "".join(slices_html(report) for report in reports[:_BUCKETS]) + more


def run_text(run: ScriptRun) -> str:
    """The same for a terminal, without slices and memory."""
    lines = [f"{' '.join([run.script, *run.arguments])}: {_lead(run)}", f"report: {run.report}"]
    for name, module in zip(names_of(run.modules), run.modules):
        lines += ["", name, timeline_text(module.timeline)]
        if module.summary.total.steps:
            lines.append(summary_text(module.summary))
    return "\n".join(lines)
