"""What a benchmark found, as a text table for people and as plain data for programs."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bucketlab.views.text import table

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Report:
    """``rows`` have the same keys, which are the columns; ``formats`` says how to write some of them."""

    name: str
    title: str
    rows: Sequence[Row]
    formats: Mapping[str, str]
    note: str = ""

    def text(self) -> str:
        head = list(self.rows[0])
        cells = [[_cell(row[key], self.formats.get(key, "")) for key in head] for row in self.rows]
        right = [at for at, key in enumerate(head) if not isinstance(self.rows[0][key], str)]
        parts = [self.title, "=" * len(self.title), table(head, cells, right)]
        return "\n".join([*parts, *([self.note] if self.note else [])])

    def to_dict(self) -> dict[str, Any]:
        return {"name": self.name, "title": self.title, "note": self.note, "rows": [dict(row) for row in self.rows]}


def _cell(value: Any, form: str) -> str:
    return "-" if value is None else format(value, form)


def machine() -> dict[str, Any]:
    """What it was measured on."""
    model = platform.processor() or platform.machine()
    try:
        with open("/proc/cpuinfo") as file:
            model = next((line.split(":", 1)[1].strip() for line in file if line.startswith("model name")), model)
    except OSError:
        pass
    return {
        "processor": model,
        "cores": len(os.sched_getaffinity(0)),
        "load": round(os.getloadavg()[0], 1),
        "python": platform.python_version(),
        "threads": os.environ.get("OMP_NUM_THREADS", "default"),
    }
