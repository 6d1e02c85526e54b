"""The ledger against the engine's own counters, to the byte."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from bucketlab.memory import counters


@pytest.fixture(scope="module")
def run():
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("counted_run.py"))],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_a_context_without_a_counter_is_refused(run):
    assert run["refused"].startswith(
        "contexts cpu(63): on this machine mxnet counts memory for cpu(0) to cpu("
    )
    assert run["running after refusal"] is False


def test_400_random_arrays_are_counted_to_the_byte(run):
    for moment in ("all", "half"):
        for context in ("cpu(0)", "cpu(1)"):
            counted, held = run[moment]["engine"][context]
            assert counted - run["before"][context] == held > 0
    assert run["half"]["distinct"] < run["all"]["distinct"] < run["all"]["declared"]


def test_what_is_promised_only_is_not_in_the_count(run):
    both = run["all"]
    assert both["reserved"] > 0
    assert both["distinct"] - both["reserved"] == sum(held for _, held in both["engine"].values())


def test_their_release_is_seen(run):
    assert run["none"] == run["before"]


@pytest.mark.parametrize("whose", ["module", "ours"])
def test_a_module_on_two_contexts_is_counted_to_the_byte(run, whose):
    counted, held = run[whose]["engine"]["cpu(1)"]
    assert counted - run["before"]["cpu(1)"] == held > 0


def test_a_bind_adds_what_the_ledger_says(run):
    for context in ("cpu(0)", "cpu(1)"):
        before, after = run["module"]["engine"][context], run["bound"]["engine"][context]
        assert after[0] - before[0] == after[1] - before[1] > 0


def test_looking_allocates_nothing(run):
    assert run["after looking"] == run["bound again"]


def test_stopped_counters_tell_nothing(run):
    assert run["stopped"] is None
    assert counters.read() is None and not counters.running()


@pytest.mark.parametrize(
    "context, counter",
    [
        ("cpu(0)", "cpu(0)"),
        ("cpu(2)", "cpu_pinned(0)"),
        ("cpu(3)", "cpu_shared(0)"),
        ("cpu(4)", None),
        ("cpu_pinned(1)", "cpu_pinned(0)"),
        ("cpu_shared(0)", "cpu_shared(0)"),
        ("gpu(0)", None),
    ],
)
def test_contexts_beyond_the_processors_fall_on_the_last_counters(context, counter):
    counts = dict.fromkeys(("cpu(0)", "cpu(1)", "cpu_pinned(0)", "cpu_shared(0)"), 0)
    assert counters.counter_of(context, counts) == counter


def test_a_bind_that_is_refused_leaves_nothing_and_no_array_outlives_its_module(run):
    assert (run["refused binds"], run["added by refusals"]) == (3, False)
    assert run["dropped after refusals"] == run["dropped"]
