"""A run in one offline file: slices, memory groups, the ledger, the training curve, the time by bucket."""

from __future__ import annotations

from os import PathLike
from pathlib import Path
from typing import Any

from bucketlab.memory import memory
from bucketlab.memory.aliasing import aliases_of
from bucketlab.record.current import bucket_slices, module_contexts
from bucketlab.record.recorder import Recorder
from bucketlab.views.html import aliases_html, ledger_html, page_html, slices_html
from bucketlab.views.training import curves_html, short, summary_html

__all__ = ["report_html", "save_report"]

_BUCKETS = 12


def save_report(
    path: str | PathLike[str], module: Any, recorder: Recorder | None = None, *, title: str | None = None
) -> Path:
    """Write :func:`report_html` to ``path`` (UTF-8) and return it. The file asks for nothing from anywhere.

    >>> bl.save_report("report.html", mod, lab.recorder)
    PosixPath('report.html')
    """
    text = report_html(module, recorder, title=title)
    written = Path(path)
    written.write_text(text, encoding="utf-8")
    return written


def report_html(module: Any, recorder: Recorder | None = None, *, title: str | None = None) -> str:
    """A module's pictures as one page: how its batches are cut, what is one memory, where the bytes are.

    With ``recorder`` also how the training went. Call it between steps, not while another thread trains the
    module.
    """
    sections = []
    if recorder is not None and recorder.step_count:
        sections.append(("Training", curves_html(recorder.metrics) + summary_html(recorder.summary())))
    sections.append(("Slices: how a batch is cut over the contexts", _slices(module)))
    if getattr(module, "binded", True):
        book = memory(module)
        sections.append(("Memory: where every byte is", ledger_html(book)))
        shared = aliases_of(book.snapshot)
        sections.append(("Aliasing: which arrays are the same memory", aliases_html(shared)))
    name = type(module).__name__
    return page_html(sections, title or f"bucketlab: {name}", _lead(module, recorder))


def _lead(module: Any, recorder: Recorder | None) -> str:
    contexts = module_contexts(module)
    parts = [f"{type(module).__name__} over {', '.join(contexts)}" if contexts else type(module).__name__]
    if recorder is not None and recorder.step_count:
        summary = recorder.summary()
        counts = (
            ("steps", summary.total.steps),
            ("buckets", len(summary.buckets)),
            ("whole epochs", summary.epochs),
        )
        parts.append(", ".join(f"{count:,} {what}" for what, count in counts))
        parts += [f"{name} {short(value)}" for name, value in summary.metrics]
    return "; ".join(parts)


def _slices(module: Any) -> str:
    reports = bucket_slices(module)
    if not reports:
        return "<p>Nothing is bound yet.</p>"
    left = len(reports) - _BUCKETS
    more = f"<p>and {left} more buckets</p>" if left > 0 else ""
    return "".join(slices_html(report) for report in reports[:_BUCKETS]) + more
