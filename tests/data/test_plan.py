"""A plan as people meet it: printed, rendered, drawn, saved; and the rules of other systems beside it."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bucketlab.data import BucketPlan, Budget, compare, corpus, plan_buckets
from bucketlab.data.lengths import count
from bucketlab.data.rules import RULES
from bucketlab.errors import DataError

PLAN = plan_buckets([1] * 64 + [5] * 10 + [9] * 20 + [19, 20, 20], 4, contexts=["cpu(0)", "cpu(1)"])


def test_it_prints_as_a_table():
    assert repr(PLAN).splitlines() == [
        "4 buckets for 353 tokens over 2 contexts, at most 32 rows a batch; 374 tokens computed",
        "bucket  sequences  rows  per context  steps  padding  filler   waste",
        "1              64    32        16+16      2        0       0     0 %",
        "5              10    10          5+5      1        0       0     0 %",
        "9              20    20        10+10      1        0       0     0 %",
        "20              3     4          2+2      1        1      20  26.2 %",
        "all            97                         5        1      20   5.6 %",
        "joint optimum of bounds and batches; cost linear",
        "default bucket 20; bind 20, 1, 9, 5",
    ]


class Cells(HTMLParser):
    def __init__(self):
        super().__init__()
        self.rows, self.open = [], []

    def handle_starttag(self, tag, attributes):
        if tag == "tr":
            self.rows.append([])
        if tag not in ("br", "path", "rect", "circle"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        if tag in ("path", "rect", "circle"):
            return
        assert self.open.pop() == tag

    def handle_data(self, text):
        if self.open and self.open[-1] in ("td", "th") and text.strip():
            self.rows[-1].append(text.strip())


def test_it_renders_as_an_accessible_table_with_a_picture():
    html = PLAN._repr_html_()
    cells = Cells()
    cells.feed(html)
    assert cells.open == []
    assert cells.rows[0][:3] == ["bucket", "sequences", "rows"]
    assert [row[0] for row in cells.rows[1:]] == ["1", "5", "9", "20", "all"]
    assert cells.rows[4][1:] == ["3", "4", "2+2", "1", "1", "20", "26.2 %"]
    assert html.count('scope="row"') == 5
    assert '<svg role="img" aria-label="How often each length up to 20 comes, with 4 bounds"' in html
    assert html.count("stroke-dasharray") == 4
    assert html == BucketPlan.from_dict(PLAN.to_dict())._repr_html_()
    assert "<caption>" in html
    assert "http" not in re.sub(r"<style>.*?</style>", "", html, flags=re.S)


def test_it_draws_bounds_and_buckets():
    figure = PLAN.plot()
    above, below = figure.axes
    assert sorted(round(line.get_xdata()[0] - 0.5) for line in above.lines) == [1, 5, 9, 20]
    assert sum(bar.get_height() for bar in above.patches) == 97
    assert sum(bar.get_width() for bar in below.patches) == PLAN.computed
    assert [t.get_text() for t in below.get_yticklabels()] == ["1", "5", "9", "20"]
    assert figure._repr_png_()[:4] == b"\x89PNG"


def test_it_goes_to_json_and_back():
    assert BucketPlan.from_json(PLAN.to_json()) == PLAN
    assert json.loads(PLAN.to_json())["buckets"][0]["rows_per_context"] == [16, 16]
    budget = Budget.bytes(10**6, lambda key, rows: rows * sum(key))
    pairs = plan_buckets([(1, 2), (3, 3), (9, 8)], 2, budget)
    back = BucketPlan.from_json(pairs.to_json())
    assert back == pairs
    assert back.keys == ((3, 3), (9, 8))
    assert "bytes" in repr(back)
    assert repr(back) == repr(pairs)


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"format": "other"}', '{"format": "bucketlab.plan/1"}', "3"]
)
def test_something_else_is_no_plan(text):
    with pytest.raises(DataError, match=r"this is not a (whole )?plan"):
        BucketPlan.from_json(text)


def test_it_says_which_buckets_there_are():
    assert PLAN[9].sequences == 20
    assert (PLAN.steps, PLAN.waste, len(PLAN)) == (5, 1 - 353 / 374, 4)
    assert [b.key for b in PLAN] == [1, 5, 9, 20]
    with pytest.raises(DataError, match="no bucket 7 in the plan; it has 1, 5, 9, 20"):
        PLAN[7]


def test_the_histogram_counts_every_sequence():
    for lengths in ([1], [7, 7], list(range(1, 400)), corpus().lengths):
        bars = plan_buckets(lengths, 2).histogram
        assert sum(n for _, _, n in bars) == len(lengths)
        assert len(bars) <= 60
        assert bars[0][0] == 1
        assert bars[-1][0] <= max(lengths) <= bars[-1][1]


def test_the_rules_of_others_waste_what_was_measured():
    table = compare(corpus(), 8)
    waste = {r.rule: round(100 * r.padding / (r.padding + r.tokens), 1) for r in table.results}
    assert waste == {
        "MXNet": 0.2,
        "sockeye": 63.4,
        "gluonnlp constant": 66.6,
        "gluonnlp linear": 32.7,
        "gluonnlp exponential": 54.5,
        "fairseq": 63.5,
        "lhotse": 23.1,
        "tensor2tensor": 36.4,
        "powers of two": 44.5,
        "optimum": 21.6,
    }
    mxnet = table["MXNet"]
    assert (len(mxnet.bounds), mxnet.too_long, mxnet.left_over) == (14, 266, 252)
    assert round(100 * mxnet.too_long_tokens / table.tokens, 1) == 39.1
    assert mxnet.steps == (3238 - 266 - 252) // 32
    # What the optimum pads more than the best bounds, it saves in filler.
    best = table["optimum"].best_padding
    assert round(100 * best / (best + table.tokens), 1) == 21.0


@given(st.lists(st.integers(1, 300), min_size=1, max_size=80), st.integers(1, 12), st.integers(300, 2000))
def test_no_rule_pads_less_than_the_best_bounds(lengths, k, tokens):
    # Padding alone is certain: a rule whose bounds are too wide may get smaller batches, which need less filler.
    table = compare(lengths, k, tokens)
    for result in table.results[1:]:
        assert list(result.bounds) == sorted(set(result.bounds))
        assert result.bounds[-1] == max(lengths)
        assert result.best_padding <= result.padding
        assert result.tokens == sum(lengths)


def test_rules_by_hand():
    bounds = {rule.name: rule.choose for rule in RULES}

    def of(name, lengths, k):
        counted = count(lengths)
        return bounds[name](counted.values, counted.counts, k)

    assert of("sockeye", [3, 23], 4) == [6, 12, 18, 23]
    assert of("gluonnlp constant", [1, 10], 4) == [4, 6, 8, 10]  # (1 + 10 - 1) // 4 wide
    assert of("gluonnlp linear", [2, 14], 3) == [4, 8, 14]  # 1 + 1.5 i wide: 4.5, 8.5 and 14, halves to even
    assert of("gluonnlp exponential", [1, 100], 2) == [48, 100]
    assert of("fairseq", [1, 1, 1, 2, 9, 9, 9, 9], 2) == [2, 9]
    assert of("lhotse", [1] * 6 + [3, 3], 2) == [1, 3]
    assert of("tensor2tensor", [1, 12], 99) == [8, 9, 10, 11, 12]
    assert of("powers of two", [1, 50], 1) == [8, 16, 32, 50]


def test_a_comparison_prints_and_converts():
    table = compare([1] * 40 + [2] * 40 + [9] * 3, 2)
    lines = repr(table).splitlines()
    assert lines[0] == "83 sequences, 147 tokens, k = 2, at most 32 rows a batch"
    assert lines[1].split()[:4] == ["rule", "buckets", "padding", "with"]
    assert " ".join(lines[2].split()) == "MXNet 2 0 % 0 % 21.4 % 2 3 18.4 % 16"
    assert len(lines) == 2 + len(RULES) + 2
    assert table.to_dict()["results"][0]["too_long"] == 3
    assert table._repr_html_().count('scope="row"') == len(RULES) + 2
    assert compare([5, 6], 2)["MXNet"].bounds == ()
    assert compare([5, 6], 2)["MXNet"].too_long == 2
    with pytest.raises(DataError, match="no rule 'ours'; compared are 'MXNet'"):
        table["ours"]
    with pytest.raises(DataError, match="takes single lengths"):
        compare([(1, 2)])
    with pytest.raises(DataError, match="k is 0"):
        compare(np.array([1]), 0)
