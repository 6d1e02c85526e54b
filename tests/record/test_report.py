"""The offline report: one file, nothing fetched, every section there."""

from __future__ import annotations

import re

import pytest

import bucketlab as bl
from bucketlab import mx
from bucketlab.record import Recorder
from bucketlab.record.report import report_html, save_report
from small_runs import old_bucketing_module, three_buckets, words_symbol


def new_bucketing_module():
    return bl.BucketingModule(words_symbol, default_bucket_key=8, context=[mx.cpu(0), mx.cpu(1)])


@pytest.mark.parametrize("make", [new_bucketing_module, old_bucketing_module])
def test_the_file_has_every_picture_and_asks_for_nothing(make, tmp_path):
    module = make()
    recorder = Recorder(module)
    module.fit(three_buckets(), num_epoch=2)
    path = save_report(tmp_path / "report.html", module, recorder)
    text = path.read_text(encoding="utf-8")
    headings = re.findall("<h2>(.*?)</h2>", text)
    assert [heading.split(":")[0] for heading in headings] == ["Training", "Slices", "Memory", "Aliasing"]
    assert "10 steps, 3 buckets, 2 whole epochs" in text
    assert "<svg" in text and "<polyline" in text
    assert [f"Bucket {key}" in text for key in (3, 5, 8)] == [True] * 3
    assert not re.search(r"""(src|href)\s*=|url\(|@import|https?:""", text)


def test_a_module_that_is_not_bound_says_so():
    text = report_html(new_bucketing_module())
    assert "Nothing is bound yet." in text and "<h2>Memory" not in text


def test_without_a_recorder_there_is_no_training_section():
    module = new_bucketing_module()
    module.fit(three_buckets(), num_epoch=1)
    text = report_html(module, title="<mine>")
    assert "<h2>Training" not in text and "<h2>Memory" in text
    assert "&lt;mine&gt;" in text and "<mine>" not in text
