"""Slices, sharing and bytes as text, HTML and figures: exact on small cases, bounded on large ones."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest

from bucketlab.memory.aliasing import AliasReport, aliases_of
from bucketlab.memory.ledger import BucketBytes, EngineBytes, Ledger, ProcessBytes, RoleBytes
from bucketlab.memory.snapshot import ArrayRecord, Snapshot
from bucketlab.slicing import ContextSlice, SliceReport
from bucketlab.views import figures, html, text
from bucketlab.views.tables import byte_size, share

SLICES = SliceReport(
    bucket=10,
    rows=10,
    pad=2,
    rule="balanced",
    workload=(1.0, 2.0),
    contexts=(
        ContextSlice("cpu(0)", 0, 3, 3, (("data", (3, 10)), ("softmax_label", (3,)))),
        ContextSlice("cpu(1)", 3, 10, 5, (("data", (7, 10)), ("softmax_label", (7,)))),
    ),
)


def record(bucket, role, name, shape, group, offset=0, allocated=True, index=0, storage="default", address=0):
    size = 4
    for length in shape:
        size *= length
    return ArrayRecord(
        bucket,
        index,
        f"cpu({index})",
        role,
        name,
        shape,
        "float32",
        storage,
        size,
        group,
        offset,
        allocated,
        address,
    )


def shot_of(records, sizes, notes=()):
    return Snapshot(tuple(records), tuple(notes), None, tuple(sizes), None)


SHOT = shot_of(
    [
        record("a", "parameter", "w", (2, 5), "m0"),
        record("a", "gradient", "w", (2, 5), "m1", storage="row_sparse"),
        record("a", "pool", "block0", (20,), "p0"),
        record("b", "parameter", "w", (2, 5), "m0"),
        record("b", "gradient", "w", (2, 5), "m2", storage="row_sparse"),
        record("b", "pool", "block0", (20,), "p0"),
        record(None, "host", "w", (2, 5), "m3", allocated=False, index=0)._replace(context_index=-1),
    ],
    [40, 40, 80, 40, 40],
)
REPORT = aliases_of(SHOT)

LEDGER = Ledger(
    roles=(
        RoleBytes("cpu(0)", "parameter", 2, 80, 40, 40, 0, 0),
        RoleBytes("cpu(0)", "pool", 2, 2000, 1000, 600, 400, 0),
        RoleBytes("cpu(1)", "input_gradient", 1, 24, 24, 24, 0, 24),
    ),
    buckets=(
        BucketBytes("a", 1040, 1040, 0, 1040, 1040, (("b", 1040),)),
        BucketBytes("b", 1064, 1064, 24, 1040, 24, (("a", 1040),)),
    ),
    engine=(EngineBytes("cpu(0)", ("cpu(0)",), 700, 640),),
    process=ProcessBytes(5000, None, 700),
    notes=("something was not seen",),
    snapshot=SHOT,
)


def test_slices_as_text():
    assert text.slices_text(SLICES) == (
        "bucket 10: 10 rows over 2 contexts, 2 of them padding; split 'balanced'\n"
        "context  slice  rows  padding  workload  data  softmax_label\n"
        "cpu(0)   0:3       3        0    33.3 %  3x10  3\n"
        "cpu(1)   3:10      7        2    66.7 %  7x10  7"
    )
    assert repr(SLICES) == text.slices_text(SLICES)
    assert SLICES._repr_html_() == html.slices_html(SLICES)


def test_sharing_as_text():
    assert text.aliases_text(REPORT) == (
        "2 arrays share 1 memory group; sharing saves 40 bytes\n"
        "context  role       name  bytes  a    b    module\n"
        "cpu(0)   parameter  w        40  m0*  m0*\n"
        "cpu(0)   gradient   w        40  m1   m2\n"
        "cpu(0)   host       w        40            m3\n"
        "* memory that several arrays share\n"
        "working pool on cpu(0): 1 block, 80 bytes, saves 80\n"
        "of one name, yet not one memory:\n"
        "  gradient w on cpu(0): row_sparse: every bind makes its own gradient"
    )


def test_a_snapshot_as_text():
    assert text.snapshot_text(SHOT, limit=4) == (
        "5 arrays in 4 memory groups, 160 bytes, each counted once\n"
        "bucket  context  role       name  shape  type                bytes  memory\n"
        "a       cpu(0)   parameter  w     2x5    float32                40  m0\n"
        "a       cpu(0)   gradient   w     2x5    float32 row_sparse     40  m1\n"
        "b       cpu(0)   parameter  w     2x5    float32                40  m0\n"
        "b       cpu(0)   gradient   w     2x5    float32 row_sparse     40  m2\n"
        "and 1 smaller array, 40 bytes\n"
        "working pools: 1 block, 80 bytes"
    )


def test_a_ledger_as_text():
    assert text.ledger_text(LEDGER) == (
        "1,064 bytes (1.06 kB), each counted once; 2,104 declared; sharing saves 1,040 (49.4 %)\n"
        "context  role            arrays  declared  distinct  not yet allocated\n"
        "cpu(0)   parameter            2        80        40                  0\n"
        "cpu(0)   pool                 2     2,000     1,000                400\n"
        "cpu(1)   input_gradient       1        24        24                  0\n"
        "all                           5     2,104     1,064                400\n"
        "\n"
        "bucket  distinct  own  shared  new when bound\n"
        "a          1,040    0   1,040           1,040\n"
        "b          1,064   24   1,040              24\n"
        "\n"
        "engine's counter  counted  held by the above  remaining\n"
        "cpu(0)                700                640         60\n"
        "of these 24 bytes belong to numpy or another library, not to the engine\n"
        "\n"
        "process heap in use (malloc): 5,000 bytes\n"
        "of it beyond arrays and pools: graphs, operator buffers, Python, libraries: 4,300 bytes\n"
        "process resident in physical memory: not known here\n"
        "note: something was not seen"
    )


class Reader(HTMLParser):
    """Checks that tags close in order, and keeps what a reader without styles sees."""

    VOID = ("meta", "br", "img")

    def __init__(self, page: str):
        super().__init__()
        self.open: list[str] = []
        self.tables: list[list[list[str]]] = []
        self.headers: list[dict[str, str | None]] = []
        self.tabs: list[str] = []
        self.texts: list[str] = []
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        found = dict(attrs)
        if tag not in self.VOID:
            self.open.append(tag)
        if tag == "table":
            self.tables.append([])
        if tag == "tr":
            self.tables[-1].append([])
        if tag in ("td", "th"):
            self.tables[-1][-1].append("")
        if tag == "th":
            self.headers.append(found)
        if "tabindex" in found:
            self.tabs.append(found["class"])

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if "style" in self.open:
            return
        self.texts.append(data)
        if self.open and any(tag in self.open for tag in ("td", "th")):
            self.tables[-1][-1][-1] += data


def test_slices_as_html_read_without_styles():
    page = Reader(html.slices_html(SLICES))
    assert page.tables == [
        [
            ["context", "slice", "rows", "padding", "workload", "data", "softmax_label"],
            ["cpu(0)", "0:3", "3", html.NOTHING, "33.3 %", "3x10", "3"],
            ["cpu(1)", "3:10", "7", "2", "66.7 %", "7x10", "7"],
        ]
    ]
    assert {"cpu(1): 7 rows", "2 padding"} <= set(page.texts)


def test_a_context_without_rows_rests():
    report = SliceReport(
        None,
        1,
        0,
        "balanced",
        (1.0, 1.0),
        (
            ContextSlice("cpu(0)", 0, 1, 1, (("data", (1, 3)),)),
            ContextSlice("cpu(1)", 1, 1, 0, ()),
        ),
    )
    page = Reader(html.slices_html(report))
    assert page.tables[0][2] == ["cpu(1)", "1:1", "rests", html.NOTHING, "50 %", html.NOTHING]
    assert "cpu(1): 0 rows" not in page.texts
    assert text.slices_text(report).splitlines()[-1] == "cpu(1)   1:1       0        0      50 %  -"


def test_sharing_as_html():
    made = html.aliases_html(REPORT)
    page = Reader(made)
    assert page.tables == [
        [
            ["array", "bytes", "a", "b"],
            ["cpu(0) · parameter"],
            ["w", "40", "m0", "m0"],
            ["cpu(0) · gradient"],
            ["w", "40", "m1", "m2"],
            ["cpu(0) · host · of all buckets"],
            ["w", "40", "m3"],
        ]
    ]
    # One tab stop a row lights both cells; what is alone cannot be lit.
    assert page.tabs == ["m0"]
    assert re.findall(r'<b[^>]* class="(\w+)">', made) == ["m0", "m0"]
    assert ".bl-al:has(.m0:is(:hover,:focus)) .m0" in made and ".m1:is" not in made


def test_a_ledger_as_html_has_the_figures_of_the_text():
    page = Reader(html.ledger_html(LEDGER))
    first, buckets, engine, process = page.tables
    assert ["pool", "2", "2,000", "1,000", "400", ""] in first
    assert ["input gradient", "1", "24", "24", html.NOTHING, ""] in first
    assert first[-1] == ["all", "5", "2,104", "1,064", "400", ""]
    assert buckets[1:] == [
        ["a", "1,040", "1,040", "0", "1,040", "b (1.04 kB)", ""],
        ["b", "1,064", "1,040", "24", "24", "a (1.04 kB)", ""],
    ]
    assert process[1][1] == "5,000 bytes" and process[3][1] == "not known here"
    assert engine[1] == ["cpu(0)", "700", "640", "60"]
    assert {"1.06 kB", "2.10 kB", "1.04 kB", "5,000 bytes", "not known here"} <= set(page.texts)


@pytest.mark.parametrize(
    "made",
    [html.slices_html(SLICES), html.aliases_html(REPORT), html.ledger_html(LEDGER), html.snapshot_html(SHOT)],
)
def test_every_table_is_captioned_and_every_header_has_its_scope(made):
    page = Reader(made)
    assert made.count("<table") == made.count("<caption>") > 0
    assert all(header.get("scope") or header == {"class": "n"} or header == {} for header in page.headers)
    assert "<script" not in made and "http" not in made


def test_names_are_escaped():
    wicked = "<img src=x onerror=alert(1)>"
    shot = shot_of(
        [record(wicked, "data", wicked, (1,), "m0"), record("b", "data", wicked, (1,), "m0")], [4], [wicked]
    )
    slices = SliceReport(
        wicked, 1, 0, "balanced", (1.0,), (ContextSlice(wicked, 0, 1, 1, ((wicked, (1,)),)),)
    )
    for made in (
        html.snapshot_html(shot),
        html.aliases_html(aliases_of(shot)),
        html.slices_html(slices),
        html.page_html([(wicked, "<p>kept</p>")], title=wicked),
    ):
        assert wicked not in made and "&lt;img" in made
    assert "<p>kept</p>" in made


def large(buckets: int, names: int) -> AliasReport:
    records = [
        record(bucket, "parameter", f"w{i:03}", (i + 1,), f"m{i}")
        for bucket in range(buckets)
        for i in range(names)
    ]
    return aliases_of(shot_of(records, [4 * (i + 1) for i in range(names)]))


def test_a_large_module_shows_its_largest_arrays_and_counts_the_rest():
    report = large(50, 200)
    page = Reader(html.aliases_html(report))
    rows = page.tables[0]
    assert len(rows) == 1 + 1 + 60 + 1
    assert rows[2][0] == "w140" and rows[-2][0] == "w199"
    assert rows[-1][:2] == ["140 smaller arrays", f"{4 * 140 * 141 // 2:,}"]
    assert len(rows[0]) == 2 + 24 and "more buckets: 24, 25" in "".join(page.texts)
    assert len(html.aliases_html(report)) < 100_000
    lines = text.aliases_text(report).splitlines()
    assert "and 176 smaller arrays, 62,304 bytes" in lines
    assert any(line.startswith("and 40 more buckets: 10, 11") for line in lines)


def test_fifty_buckets_in_a_ledger_end_in_a_row_for_the_rest():
    buckets = tuple(BucketBytes(i, 100, 100, 2, 98, 2 if i else 100, ()) for i in range(50))
    ledger = Ledger(LEDGER.roles, buckets, (), None, (), SHOT)
    rows = Reader(html.ledger_html(ledger)).tables[1]
    assert len(rows) == 1 + 16 + 1
    assert rows[-1] == ["34 more", "", "", "68", "68", "", ""]
    assert "and 38 more buckets, 76 bytes new when bound" in text.ledger_text(ledger).splitlines()


def test_a_page_opens_without_the_network():
    page = html.page_html([("Slices", html.slices_html(SLICES))], title="A run", lead="two contexts")
    found = Reader(page)
    assert page.startswith("<!DOCTYPE html>") and "<h2>Slices</h2>" in page and "two contexts" in found.texts
    assert "http" not in page and "<script" not in page


def test_empty_reports_say_so():
    nothing = shot_of([], [])
    assert text.snapshot_text(nothing).startswith("0 arrays in 0 memory groups, 0 bytes")
    assert text.aliases_text(aliases_of(nothing)).startswith("0 arrays share 0 memory groups")
    Reader(html.aliases_html(aliases_of(nothing)))
    Reader(html.ledger_html(Ledger((), (), (), None, (), nothing)))
    figures.ledger_figure(Ledger((), (), (), None, (), nothing))._repr_png_()


def test_figures_show_the_same():
    bar = figures.slices_figure(SLICES).axes[0]
    assert [(p.get_x(), p.get_width()) for p in bar.patches] == [(0, 3), (3, 5), (8, 2)]
    assert [t.get_text() for t in bar.texts] == ["cpu(0)\n3 rows", "cpu(1)\n7 rows"]
    cells = figures.aliases_figure(REPORT).axes[0]
    assert [t.get_text() for t in cells.texts] == ["m0", "m0", "m1", "m2", "m3"]
    assert [t.get_text() for t in cells.get_xticklabels()] == ["a", "b", "module"]
    bars = LEDGER.plot().axes[0]
    assert [p.get_width() for p in bars.patches] == [40, 40, 1000, 1000, 24, 0]
    assert LEDGER.plot()._repr_png_().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    "count, shown",
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.00 kB"),
        (9_996, "10.0 kB"),
        (99_960, "100 kB"),
        (999_499, "999 kB"),
        (999_500, "1.00 MB"),
        (-1500, "-1.50 kB"),
        (5_191_456, "5.19 MB"),
        (7 * 10**12, "7000 GB"),
    ],
)
def test_bytes_read_well(count, shown):
    assert byte_size(count) == shown


def test_shares():
    assert [share(1, 3), share(1, 1), share(0, 5), share(1, 0)] == ["33.3 %", "100 %", "0 %", "0 %"]
