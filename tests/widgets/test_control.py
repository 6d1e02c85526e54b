"""The four buttons' logic, without a module: one thread plays the training."""

from __future__ import annotations

import threading

import pytest

from bucketlab.errors import StopTraining
from bucketlab.widgets.control import ACTIVE, RunControl

SECONDS = 20


class Run:
    """Steps until told to stop, or until it has done ``last``; counts its steps."""

    def __init__(self, last: int = 10_000, paused: bool = False):
        self.states: list[str] = []
        self.control = RunControl(lambda: self.states.append(self.control.state))
        self.done, self.last = 0, last
        self.control.begin(paused)
        self.thread = threading.Thread(target=self._work, daemon=True)
        self.thread.start()

    def _work(self) -> None:
        try:
            if self.control.pending:
                self.control.gate()
            while self.done < self.last:
                self.done += 1
                if self.control.pending:
                    self.control.gate()
        except StopTraining:
            pass
        self.control.end()

    def settles(self, state: str) -> bool:
        return self.control.wait_while((ACTIVE | {"finished", "stopped"}) - {state}, SECONDS)


def test_pause_holds_step_adds_exactly_one_and_run_goes_on_to_the_end():
    run = Run(paused=True)
    assert run.settles("paused") and run.done == 0
    for steps in (1, 2, 3):
        assert run.control.step()
        assert run.control.wait_while(frozenset(["stepping"]), SECONDS)
        assert (run.control.state, run.done) == ("paused", steps)
    assert run.control.step(4)
    assert run.control.wait_while(frozenset(["stepping"]), SECONDS)
    assert run.done == 7
    assert run.control.run()
    assert run.control.wait_while(ACTIVE, SECONDS)
    assert (run.control.state, run.done) == ("finished", 10_000)


def test_steps_asked_for_before_the_first_was_done_add_up():
    run = Run(paused=True)
    assert run.settles("paused")
    assert all(run.control.step() for _ in range(5))
    assert run.control.wait_while(frozenset(["stepping"]), SECONDS)
    assert (run.control.state, run.done) == ("paused", 5)
    run.control.stop()


def test_stop_ends_a_paused_run_and_a_running_one():
    for paused in (True, False):
        run = Run(last=10**9, paused=paused)
        assert not paused or run.settles("paused")
        assert run.control.stop()
        assert run.control.wait_while(ACTIVE, SECONDS)
        assert run.control.state == "stopped"


def test_an_interrupt_ends_a_run_that_holds():
    run = Run(paused=True)
    assert run.settles("paused")
    run.control.interrupt()
    assert run.control.wait_while(ACTIVE, SECONDS)
    assert run.control.state == "stopped"


def test_what_cannot_apply_changes_nothing_and_says_so():
    idle = RunControl()
    assert [ask() for ask in (idle.run, idle.pause, idle.step, idle.stop)] == [False] * 4
    assert idle.state == "idle"
    run = Run(paused=True)
    assert run.settles("paused")
    assert not run.control.pause()
    assert run.control.stop()
    assert not run.control.run() and not run.control.step() and not run.control.stop()
    assert run.control.wait_while(ACTIVE, SECONDS)


def test_a_stop_that_comes_after_the_last_step_leaves_a_finished_run():
    control = RunControl()
    control.begin()
    control.stop()
    control.end()
    assert control.state == "finished"


def test_a_second_run_is_refused_while_the_first_goes_on():
    run = Run(paused=True)
    with pytest.raises(RuntimeError, match="training already"):
        run.control.begin()
    run.control.stop()
    assert run.control.wait_while(ACTIVE, SECONDS)
    run.control.begin()
    assert run.control.state == "running"


@pytest.mark.parametrize("count", [0, -1, 1.5, True])
def test_a_count_of_steps_that_is_none_is_refused(count):
    with pytest.raises(ValueError, match="count"):
        RunControl().step(count)


def test_the_time_held_is_told():
    run = Run(paused=True)
    assert run.settles("paused")
    assert "paused" in run.states
    run.control.run()
    assert run.control.wait_while(ACTIVE, SECONDS)
    assert RunControl().gate() == 0.0
