"""Small tables as text and as HTML, for what this package prints."""

from __future__ import annotations

from collections.abc import Sequence

from jinja2 import Environment

_ENVIRONMENT = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
_TABLE = _ENVIRONMENT.from_string(
    """\
<table>
<caption>{{ caption }}</caption>
<thead><tr>
{% for name in head %}
<th scope="col">{{ name }}</th>
{% endfor %}
</tr></thead>
<tbody>
{% for row in rows %}
<tr><th scope="row">{{ row[0] }}</th>{% for cell in row[1:] %}<td style="text-align:right">{{ cell }}</td>\
{% endfor %}</tr>
{% endfor %}
</tbody>
</table>
"""
)


def text_table(head: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1) -> str:
    """Columns padded to their widest cell; the first ``left`` of them flush left, the others flush right."""
    every = [list(head), *(list(row) for row in rows)]
    widths = [max(len(row[i]) for row in every) for i in range(len(head))]
    lines = []
    for row in every:
        cells = [c.ljust(w) if i < left else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths))]
        lines.append("  ".join(cells).rstrip())
    lines.insert(1, "  ".join("-" * w for w in widths))
    return "\n".join(lines)


def html_table(caption: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table with a caption and scoped headers, every cell escaped; reads well without any style."""
    return _TABLE.render(caption=caption, head=head, rows=rows)


def byte_text(count: float) -> str:
    """Bytes as people read them, in powers of 1000: ``812 B``, ``1.5 kB``, ``2.40 MB``."""
    if count < 1000:
        return f"{count:.0f} B"
    for unit, size in (("kB", 1e3), ("MB", 1e6), ("GB", 1e9)):
        if count < size * 1000 or unit == "GB":
            return f"{count / size:.{1 if unit == 'kB' else 2}f} {unit}"
    raise AssertionError("unreachable")


def key_text(key: object) -> str:
    """A bucket key as it is written in tables: ``40``, or ``12x15`` for a pair."""
    return "x".join(map(str, key)) if isinstance(key, tuple) else str(key)
