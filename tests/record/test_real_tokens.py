"""Padding in the numbers: what is recorded of a run is what its plan said, bucket by bucket."""

from __future__ import annotations

import re

import pytest

import bucketlab as bl
from bucketlab import mx
from bucketlab.record import Recorder
from small_runs import VOCAB, words_symbol

LENGTHS = [1, 2, 2, 3, 3, 3, 3, 5, 6, 6, 7, 9, 9]
SENTENCES = [[1 + (i + j) % (VOCAB - 1) for j in range(n)] for i, n in enumerate(LENGTHS)]
TOKENS = sum(LENGTHS)


def recorded(recorder):
    """(steps, rows, filler rows, real tokens, places) by bucket."""
    return {b.bucket: (b.steps, b.rows, b.pad, b.tokens, b.slots) for b in recorder.summary().buckets}


def planned(plan, epochs=1):
    each = {b.key: (b.steps, b.steps * b.rows, b.filler // b.size, b.tokens, b.computed) for b in plan}
    return {key: tuple(epochs * count for count in counts) for key, counts in each.items()}


def module_of(kind, plan, symbol=words_symbol):
    contexts = [mx.cpu(i) for i in range(len(plan.contexts))]
    module = bl.BucketingModule if kind == "ours" else mx.mod.BucketingModule
    return module(symbol, default_bucket_key=plan.default_bucket_key, context=contexts)


@pytest.mark.parametrize("kind", ["ours", "mx.mod"])
@pytest.mark.parametrize(("k", "contexts"), [(1, 1), (3, 2), (9, 1)])
def test_a_run_records_what_the_plan_promised(kind, k, contexts):
    plan = bl.data.plan_buckets(LENGTHS, k, budget=36, contexts=contexts)
    module = module_of(kind, plan)
    recorder = Recorder(module)
    module.fit(bl.data.BucketIter(SENTENCES, plan), num_epoch=2)
    assert recorded(recorder) == planned(plan, epochs=2)
    assert [(epoch.rows, epoch.tokens) for epoch in recorder.epochs] == [(len(SENTENCES), TOKENS)] * 2
    summary = recorder.summary()
    assert summary.total.padding_share == pytest.approx(plan.waste)
    assert {b.bucket: b.padding_share for b in summary.buckets} == pytest.approx({b.key: b.waste for b in plan})
    assert summary.total.tokens_per_second == 2 * TOKENS / summary.total.seconds
    assert summary.total.rows_per_second == 2 * len(SENTENCES) / summary.total.seconds


def test_time_first_batches_count_the_same():
    plan = bl.data.plan_buckets(LENGTHS, 3, budget=36, contexts=2)
    module = module_of("ours", plan, bl.models.gru_lm(VOCAB, hidden=3, embed=2, layout="TN"))
    recorder = Recorder(module)
    module.fit(bl.data.BucketIter(SENTENCES, plan, layout="TN"), num_epoch=1, eval_metric="ce")
    assert recorded(recorder) == planned(plan)


def test_both_sides_of_pairs_count():
    pairs = [(s, t) for s, t in zip(SENTENCES, SENTENCES[1:])]
    plan = bl.data.plan_buckets([(len(s), len(t)) for s, t in pairs], 2, budget=60)
    module = module_of("ours", plan, bl.models.gru_translator(VOCAB + 1, VOCAB + 1, hidden=3, embed=2))
    recorder = Recorder(module)
    module.fit(bl.data.BucketIter(pairs, plan, begin=VOCAB), num_epoch=1, eval_metric="ce")
    assert recorded(recorder) == planned(plan)
    assert recorder.summary().total.tokens == sum(len(s) + len(t) for s, t in pairs)


def test_the_dashboard_shows_the_padding_of_each_bucket_and_real_tokens_a_second():
    plan = bl.data.plan_buckets(LENGTHS, 3, budget=36)
    module = module_of("ours", plan)
    lab = bl.Lab(module)
    lab.fit(bl.data.BucketIter(SENTENCES, plan), num_epoch=2)
    total = lab.result(120).total
    panels = " ".join(part.widget.value for part in (lab._training, lab._tick))
    lab.close()
    text = " ".join(re.sub(r"<style>.*?</style>|<[^>]*>", " ", panels, flags=re.S).split())
    for bucket in plan:
        assert re.search(rf"\b{bucket.key} {2 * bucket.steps} [\d.,]+ [\d.]+ % {100 * bucket.waste:.1f} %", text)
    assert re.search(r"tokens/s [\d.,k]+ padding [\d.]+ %", text)
    assert (total.tokens, total.slots) == (2 * plan.tokens, 2 * plan.computed)
