"""Comparing contenders fairly on a machine that is never quiet: short turns in alternating order, medians of ratios."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from bucketlab import mx


@dataclass(frozen=True)
class Timings:
    """Seconds by contender, one for each round; figures of one round were taken right after one another."""

    seconds: Mapping[str, list[float]]

    def median(self, name: str) -> float:
        return statistics.median(self.seconds[name])

    def ratio(self, name: str, to: str) -> float:
        """How many times as long as ``to`` it took: the median over the rounds: a busy moment weighs nothing."""
        return statistics.median(a / b for a, b in zip(self.seconds[name], self.seconds[to]))


def interleaved(
    turns: Mapping[str, Callable[[int], object]],
    rounds: int,
    clock: Callable[[], float] = time.perf_counter,
    after: Callable[[str, int], object] = lambda name, number: None,
) -> Timings:
    """Give every contender one turn in each round, in turn first and last, with the engine idle before and after.

    A turn is called with the number of its round; ``after`` it, out of time, with that and its name. What the garbage
    collector does is left out of all of them alike.
    """
    seconds: dict[str, list[float]] = {name: [] for name in turns}
    order = list(turns.items())
    with _without_collections():
        for number in range(rounds):
            for name, turn in order if number % 2 else reversed(order):
                mx.nd.waitall()
                begin = clock()
                turn(number)
                mx.nd.waitall()
                seconds[name].append(clock() - begin)
                after(name, number)
    return Timings(seconds)


@contextmanager
def _without_collections() -> Iterator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
