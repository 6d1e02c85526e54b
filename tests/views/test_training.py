"""Totals, the line of figures and the curve, as text and markup that are the same every time."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest

from bucketlab.record.events import MetricEvent, StepEvent
from bucketlab.record.summary import BucketTotals, RunSummary
from bucketlab.views.training import curve_html, curves_html, short, summary_html, summary_text, tick_html

SUMMARY = RunSummary(
    epochs=1,
    total=BucketTotals(None, 30, 960, 48, 9000, 12000, 2.0, 28, 1.4),
    buckets=(
        BucketTotals(10, 20, 640, 16, 3000, 4000, 0.5, 19, 0.38),
        BucketTotals("<b>", 10, 320, 32, 6000, 8000, 1.5, 9, 1.02),
    ),
    metrics=(("perplexity", 123.456),),
)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"),
        (0.0, "0"),
        (0.12345, "0.123"),
        (45.67, "45.7"),
        (999.6, "1,000"),
        (1234.0, "1,234"),
        (12345.0, "12.3k"),
        (9_999_499.0, "9999.5k"),
        (12_345_678.0, "12.3M"),
        (float("nan"), "nan"),
        (-3.0, "-3"),
    ],
)
def test_short_figures(value, text):
    assert short(value) == text


def test_the_table_in_text():
    assert (
        summary_text(SUMMARY)
        == """\
30 steps, 1 epochs ended, perplexity 123
bucket  steps  ms a step     time  padding  rows/s  tokens/s
------  -----  ---------  -------  -------  ------  --------
    10     20         20   25.0 %   25.0 %   1,248     6,000
   <b>     10        113   75.0 %   25.0 %     192     4,000
------  -----  ---------  -------  -------  ------  --------
   all     30         50  100.0 %   25.0 %     456     4,500"""
    )


def test_the_table_in_html_says_the_same_and_escapes():
    html = summary_html(SUMMARY)
    assert '<th scope="row">&lt;b&gt;</th>' in html
    cells = [re.sub("<[^>]+>", " ", row).split() for row in re.findall(r"<tr.*?</tr>", html)]
    assert cells[1][:3] == ["10", "20", "20"]
    assert cells[-1][:3] == ["all", "30", "50"]
    assert '<th scope="row">' in html and "<caption>" in html


def test_nothing_yet():
    empty = RunSummary(0, BucketTotals(None), (), ())
    assert summary_text(empty) == "no step yet"
    assert summary_html(empty) == "<p>No step yet.</p>"
    assert curve_html([]) == "" and curves_html([]) == ""


def test_the_line_of_figures_stays_small():
    step = StepEvent(123_456_789, 1234, 99_999, ("a rather long name", 1000, 2000), 4096, 2, 10, 20, 0.1, False)
    total = BucketTotals(None, 64, 262_144, 0, 123_456_789, 223_456_789, 0.0123, 64, 0.0123)
    html = tick_html(
        step, [("a metric with a very long name", 123456.789), ("other", 1.0)], RunSummary(1, total, (), ())
    )
    assert len(html.encode()) <= 300
    text = re.sub("<[^>]+>", "", html)
    assert "step 123456789" in text and "epoch 1234" in text and "padding 44.8 %" in text


class Tags(HTMLParser):
    def __init__(self):
        super().__init__()
        self.tags: list[tuple[str, dict]] = []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))


def tags_of(markup: str, tag: str) -> list[dict]:
    parser = Tags()
    parser.feed(markup)
    return [attrs for name, attrs in parser.tags if name == tag]


def readings(epochs: int, steps: int) -> list[MetricEvent]:
    return [
        MetricEvent(1 + e * steps + s, e, (("loss", 100.0 - e * steps - s), ("acc", 0.5)))
        for e in range(epochs)
        for s in range(steps)
    ]


def test_the_curve_has_a_line_per_epoch_and_ends_where_the_readings_end():
    drawn = curve_html(readings(3, 10))
    lines = [line["points"].split() for line in tags_of(drawn, "polyline")]
    assert [len(line) for line in lines] == [10, 10, 10]
    (dot,) = tags_of(drawn, "circle")
    assert f"{dot['cx']},{dot['cy']}" == lines[-1][-1]
    heights = [float(point.split(",")[1]) for line in lines for point in line]
    assert heights == sorted(heights), "a falling loss is drawn falling"
    assert "loss by step: first 100, last 71" in drawn
    assert len([line for line in tags_of(drawn, "line") if line["class"] == "e"]) == 2


def test_a_long_curve_is_thinned_and_keeps_its_ends():
    long = readings(2, 5000)
    drawn = curve_html(long, points=100)
    lines = [line["points"].split() for line in tags_of(drawn, "polyline")]
    assert sum(len(line) for line in lines) <= 104
    short_ends = [line["points"].split() for line in tags_of(curve_html(long, points=10_000), "polyline")]
    assert [line[0] for line in lines] == [line[0] for line in short_ends]
    assert [line[-1] for line in lines] == [line[-1] for line in short_ends]


def test_curves_of_one_point_of_a_constant_and_of_infinities():
    assert "circle" in curve_html(readings(1, 1))
    assert "circle" in curve_html(readings(1, 5), "acc")
    assert curve_html([MetricEvent(1, 0, (("loss", float("nan")),))]) == ""
    some = [MetricEvent(1, 0, (("loss", float("inf")),)), MetricEvent(2, 0, (("loss", 2.0),))]
    assert [line["points"].count(",") for line in tags_of(curve_html(some), "polyline")] == [1]


def test_every_metric_has_its_curve():
    html = curves_html(readings(1, 3))
    assert re.findall("<figcaption><b>(.*?)</b>", html) == ["loss", "acc"]
