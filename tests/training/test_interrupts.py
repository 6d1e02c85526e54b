"""Ctrl-C at any moment of a step: the step is done whole or not at all, and the interrupt arrives."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from bucketlab.training.plain import uninterrupted

HERE = Path(__file__).parent


@pytest.mark.slow
def test_no_step_is_left_half_done():
    """Fused and plain, one context and two, a kvstore that calls back; in a process of its own."""
    command = [sys.executable, str(HERE / "interrupted_run.py"), "60"]
    environment = {**os.environ, "PYTHONPATH": str(HERE.parent), "PYTHONWARNINGS": "ignore"}
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stderr
    for found in json.loads(ran.stdout.splitlines()[-1]):
        assert found["whole"] + found["none"] == 60
        assert {name for name, count in found.items() if count} <= {"whole", "none"}


@pytest.fixture
def alarms():
    calls = []
    before = signal.signal(signal.SIGALRM, lambda number, frame: calls.append(number))
    yield calls
    signal.signal(signal.SIGALRM, before)


def test_handlers_wait_and_are_then_called_and_put_back(alarms):
    handler = signal.getsignal(signal.SIGALRM)
    with uninterrupted():
        signal.raise_signal(signal.SIGALRM)
        assert alarms == []
    assert alarms == [signal.SIGALRM]
    assert signal.getsignal(signal.SIGALRM) is handler


def test_an_interrupt_is_not_lost_when_the_step_fails(alarms):
    with pytest.raises(KeyboardInterrupt) as caught, uninterrupted():
        signal.raise_signal(signal.SIGALRM)
        signal.raise_signal(signal.SIGINT)
        raise ValueError("the step's own")
    assert isinstance(caught.value.__context__, ValueError)
    assert alarms == [signal.SIGALRM]


def test_in_another_thread_there_is_nothing_to_hold_back():
    entered = []

    def work():
        with uninterrupted():
            entered.append(True)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert entered == [True]
