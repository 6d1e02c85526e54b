"""The plan explorer: sliders moved as a hand moves them, against plans made without it."""

from __future__ import annotations

import re

import ipywidgets
import pytest

import bucketlab as bl
from bucketlab.data import BucketIter, Budget, plan_buckets
from bucketlab.errors import BudgetError, DataError

LENGTHS = [1] * 64 + [5] * 10 + [9] * 20 + [19, 20, 20]


def all_widgets(widget):
    yield widget
    for child in getattr(widget, "children", ()):
        yield from all_widgets(child)


def sliders(explorer):
    """Those on the page, by what they are called."""
    kinds = (ipywidgets.IntSlider, ipywidgets.SelectionSlider)
    return {w.description: w for w in all_widgets(explorer.widget) if isinstance(w, kinds)}


def page(explorer):
    """What a person reads, tags and styles aside."""
    html = " ".join(w.value for w in all_widgets(explorer.widget) if isinstance(w, ipywidgets.HTML))
    html = re.sub(r"<style>.*?</style>|<[^>]*>", " ", html, flags=re.S)
    return " ".join(html.split())


@pytest.fixture
def explorer():
    return bl.PlanExplorer(LENGTHS, k=3, budget=80, contexts=2)


def test_it_begins_with_the_plan_that_was_asked_for(explorer):
    plan = plan_buckets(LENGTHS, 3, 80, contexts=2)
    assert explorer.plan == plan
    assert repr(explorer) == repr(plan)
    assert {name: slider.value for name, slider in sliders(explorer).items()} == {
        "buckets, at most": 3,
        "a batch, at most": 80,
        "contexts": 2,
        "work of context 0": 1,
        "work of context 1": 1,
    }
    text = page(explorer)
    assert text.startswith("Bucket plan 97 sequences, 353 tokens")
    assert f"steps an epoch {plan.steps} waste " in text
    assert "tokens computed 432" in text and plan.computed == 432
    assert "largest batch, tokens 80" in text


def test_the_picture_and_the_totals_move_with_every_slider(explorer):
    moves = [
        ("buckets, at most", 4, {"k": 4, "budget": 80, "workloads": [1, 1]}),
        ("a batch, at most", 192, {"k": 4, "budget": 192, "workloads": [1, 1]}),
        ("work of context 1", 3, {"k": 4, "budget": 192, "workloads": [1, 3]}),
        ("contexts", 3, {"k": 4, "budget": 192, "workloads": [1, 3, 1]}),
        ("contexts", 1, {"k": 4, "budget": 192, "workloads": [1]}),
    ]
    seen = {page(explorer)}
    for name, value, arguments in moves:
        sliders(explorer)[name].value = value
        plan = plan_buckets(LENGTHS, **arguments, contexts=len(arguments["workloads"]))
        assert explorer.plan == plan
        text = page(explorer)
        assert f"buckets {len(plan)} steps an epoch {plan.steps} " in text
        assert f"{plan.computed:,} tokens computed" in text
        assert explorer._repr_mimebundle_()["text/html"] == plan._repr_html_()
        seen.add(text)
    assert len(seen) == 1 + len(moves)


def test_one_context_has_no_workload_to_choose(explorer):
    sliders(explorer)["contexts"].value = 1
    assert list(sliders(explorer)) == ["buckets, at most", "a batch, at most", "contexts"]


def test_what_cannot_be_is_said_and_the_last_plan_stays(explorer):
    before = explorer.plan
    sliders(explorer)["a batch, at most"].value = 24
    refused = (
        "There is no such plan: bucket 20: the smallest batch for 2 context(s) (workload 1:1) is 2 row(s), "
        "2 x 20 = 40 tokens; the budget is 24. Below is the last one that there is."
    )
    assert explorer.plan == before
    assert refused in page(explorer)
    assert repr(explorer).splitlines()[0] == refused and repr(before) in repr(explorer)
    sliders(explorer)["contexts"].value = 1
    assert explorer.refusal == "" and explorer.plan == plan_buckets(LENGTHS, 3, 24, contexts=1)
    assert "no such plan" not in page(explorer)


def test_it_can_be_moved_without_a_hand(explorer):
    plan = explorer.set(k=40, budget=250, workloads=[1, 2, 9])
    assert plan == explorer.plan == plan_buckets(LENGTHS, 40, 250, contexts=3, workloads=[1, 2, 9])
    assert [slider.value for slider in sliders(explorer).values()] == [40, 250, 3, 1, 2, 9]
    assert sliders(explorer)["work of context 2"].max == 9


def test_a_refused_call_moves_nothing(explorer):
    def places():
        return {name: (slider.value, getattr(slider, "max", None)) for name, slider in sliders(explorer).items()}

    before = places(), explorer.plan, page(explorer)
    for arguments, error, message in (
        ({"budget": 10}, BudgetError, "bucket 20: the smallest batch"),
        ({"k": 0}, DataError, "k is 0"),
        ({"workloads": [1.5, 1]}, DataError, r"workloads are \[1.5, 1.0\]; the sliders take whole numbers"),
        ({"contexts": 0}, DataError, "contexts is 0"),
    ):
        with pytest.raises(error, match=message):
            explorer.set(**arguments)
        assert (places(), explorer.plan, page(explorer)) == before


def test_other_systems_rules_are_asked_only_while_somebody_looks(explorer, monkeypatch):
    asked = []

    def counting(*arguments):
        asked.append(arguments[1])
        return bl.data.compare(*arguments)

    monkeypatch.setattr("bucketlab.widgets.planner.compare", counting)
    explorer.set(k=2)
    assert asked == []
    accordion = next(w for w in all_widgets(explorer.widget) if isinstance(w, ipywidgets.Accordion))
    accordion.selected_index = 0
    assert "97 sequences, 353 tokens, k = 2, at most 80 tokens a batch rule buckets padding" in page(explorer)
    sliders(explorer)["buckets, at most"].value = 4
    assert asked == [2, 4] and "k = 4, at most 80 tokens" in page(explorer)
    accordion.selected_index = None
    explorer.set(k=1)
    assert asked == [2, 4]


def test_contexts_keep_their_names_and_rows_or_bytes_may_be_what_is_limited():
    contexts = [bl.mx.cpu(0), bl.mx.cpu(1)]
    explorer = bl.PlanExplorer(LENGTHS, 2, Budget.rows(8), contexts)
    assert "work of cpu(1)" in sliders(explorer)
    assert explorer.set(contexts=3).contexts == ("cpu(0)", "cpu(1)", "context 2")
    labels = [label for label, _ in sliders(explorer)["a batch, at most"].options]
    assert labels == ["1 row", "2 rows", "3 rows", "4 rows", "6 rows", "8 rows", "12 rows", "16 rows", "24 rows",
                      "32 rows", "48 rows", "64 rows", "96 rows"]  # fmt: skip
    by_bytes = bl.PlanExplorer(LENGTHS, 2, Budget.bytes(4000, lambda key, rows: 8 * key * rows))
    amounts = [amount for _, amount in sliders(by_bytes)["a batch, at most"].options]
    assert amounts == [200, 300, 500, 700, 1000, 2000, 3000, 4000, 5000, 7000, 10000]
    assert "largest batch, bytes" in page(by_bytes)


def test_pairs_are_planned_when_the_slider_rests_and_feed_an_iterator():
    pairs = [([1, 2], [3]), ([4, 5, 6], [7, 8]), ([1], [2, 3, 4])]
    explorer = bl.PlanExplorer([(len(s), len(t)) for s, t in pairs], k=2, budget=40)
    assert not any(slider.continuous_update for slider in sliders(explorer).values())
    assert not any(isinstance(w, ipywidgets.Accordion) for w in all_widgets(explorer.widget))
    batches = BucketIter(pairs, explorer.plan, begin=9)
    assert sum(batch.valid_rows for batch in batches) == 3


def test_it_shows_itself_as_a_widget_with_text_and_a_table_for_those_that_have_none(explorer):
    bundle = explorer._repr_mimebundle_()
    assert bundle["application/vnd.jupyter.widget-view+json"]["model_id"] == explorer.widget.model_id
    assert bundle["text/plain"] == repr(explorer.plan)
    assert bundle["text/html"] == explorer.plan._repr_html_()
