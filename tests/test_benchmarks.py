"""The benchmarks run, agree on the weights, and say what they found; how long it took is nobody's business here."""

from __future__ import annotations

import json

import pytest

from benchmarks.__main__ import main
from benchmarks.memory import Case, cases

SECTIONS = {
    "step": ["step", "--small", "--contexts", "1", "2", "--kvstores", "none", "local", "--rounds", "2"],
    "bind": ["bind", "--lengths", "3", "5", "--contexts", "1", "--rounds", "2"],
    "switch": ["switch", "--buckets", "1", "3", "--rounds", "2"],
    "score": ["score", "--small", "--rounds", "2"],
    "memory": ["memory", "--buckets", "2", "--contexts", "2", "--models", "mlp"],
}


LONG = ("step", "memory")


@pytest.fixture(params=[pytest.param(name, marks=pytest.mark.slow if name in LONG else ()) for name in SECTIONS])
def found(request, capsys):
    """What a small run of a section gives as JSON, by the name of the report."""
    assert main([*SECTIONS[request.param], "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["machine"]["cores"] >= 1
    return {report["name"]: report["rows"] for report in told["reports"]}


def test_every_section_gives_positive_figures_and_equal_weights(found):
    for rows in found.values():
        assert rows
        for row in rows:
            assert len({tuple(row) for row in rows}) == 1
            assert row.get("difference", 0) == 0
            assert row.get("equal", "yes") == "yes"
            ratios = [value for key, value in row.items() if "/" in key]
            assert all(ratio > 0 for ratio in ratios)


def test_the_tables_name_workload_contexts_and_kvstore(capsys):
    assert main(["step", "--workloads", "mlp", "--contexts", "1", "--kvstores", "none", "--rounds", "1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "A step against the floor"
    assert lines[2].split()[:4] == ["workload", "contexts", "kvstore", "metric"]
    assert [line.split()[:4] for line in lines[3:5]] == [["mlp", "1", "none", "no"], ["mlp", "1", "none", "yes"]]
    assert lines[-1].startswith("Measured on processor ")


def test_the_memory_cases_hold_every_order_and_default():
    found = cases([1, 10], [1], ["lstm", "mlp", "fused"])
    of_lstm = [case for case in found if case.model == "lstm" and case.buckets == 10]
    assert {case.default for case in of_lstm} == {"largest", "middle", "smallest"}
    assert {case.order for case in of_lstm} == {"rising", "falling", "random"}
    assert [case.varying for case in of_lstm].count(True) == 1
    assert [case for case in found if case.buckets == 1] == [Case(buckets=1)]


def test_rows_that_vary_hold_the_same_tokens_in_whole_shares():
    case = Case(buckets=5, contexts=2, varying=True)
    assert case.lengths == [10, 20, 30, 40, 50]
    assert [case.rows(length) for length in case.lengths] == [80, 40, 26, 20, 16]


@pytest.mark.notebook
def test_the_dashboard_is_measured_in_a_kernel(capsys):
    assert main(["dashboard", "--rates", "20", "--rounds", "40", "--seconds", "0.3", "--json"]) == 0
    (report,) = json.loads(capsys.readouterr().out)["reports"]
    (row,) = report["rows"]
    assert row["Hz"] == 20
    assert row["paints a second"] > 0
    assert row["us watched"] > 0
