"""Painting is rare, newest wins, and the last change is always painted."""

from __future__ import annotations

import threading
import time

import pytest

from bucketlab.widgets.painter import Painter


def test_the_last_of_many_changes_is_painted_and_few_paints_are_made():
    shown, value = [], [0]
    painter = Painter(lambda: shown.append(value[0]), max_hz=20)
    began = time.monotonic()
    while time.monotonic() - began < 0.5:
        value[0] += 1
        painter.touch()
    took = time.monotonic() - began
    assert painter.flush()
    assert shown[-1] == value[0]
    assert len(shown) <= 20 * took + 2
    assert shown == sorted(shown)
    painter.close()


def test_painting_keeps_to_a_share_of_the_time_and_a_flush_does_not_wait_for_it():
    spent = []

    def paint():
        began = time.thread_time()
        while time.thread_time() - began < 0.01:
            pass
        spent.append(time.thread_time() - began)

    painter = Painter(paint, max_hz=1000)
    began = time.monotonic()
    while len(spent) < 4:
        painter.touch()
        time.sleep(0.001)
    took = time.monotonic() - began
    # The gap after the last paint is still to come.
    assert sum(spent[:-1]) <= 0.04 * took
    painter.touch()
    assert painter.flush()
    assert len(spent) == 5
    painter.close()


def test_a_change_during_a_paint_is_painted_after_it():
    shown, value, entered, go_on = [], ["first"], threading.Event(), threading.Event()

    def paint():
        shown.append(value[0])
        entered.set()
        go_on.wait(10)

    painter = Painter(paint, max_hz=1000)
    painter.touch()
    assert entered.wait(10)
    value[0] = "second"
    painter.touch()
    go_on.set()
    assert painter.flush()
    assert shown == ["first", "second"]
    painter.close()


def test_a_closed_painter_paints_no_more():
    shown = []
    painter = Painter(lambda: shown.append(1), max_hz=1000)
    painter.close()
    painter.touch()
    assert painter.flush() and shown == []


@pytest.mark.parametrize("rate", [0, -1, True, float("nan")])
def test_a_rate_that_is_not_positive_is_refused(rate):
    with pytest.raises(ValueError, match="max_hz"):
        Painter(lambda: None, rate)
