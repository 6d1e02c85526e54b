"""Ranges of flat buffers: where the parameters of a bucket lie, in every context."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bucketlab._calls import OperatorCall
from bucketlab.training.exchange import Scratch, summing
from bucketlab.training.flat import FlatParameters, Segment, padded


@dataclass(frozen=True, eq=False)
class Slot:
    """One parameter's place in the first context's segment; ``stop`` is where the next may start."""

    name: str
    start: int
    stop: int


@dataclass(frozen=True, eq=False)
class Hull:
    """The shortest range of one segment that holds certain parameters, in every context.

    What lies between them may be parameters of other buckets: to add up their gradients as well, or to copy
    their weights, which are equal in all contexts, costs less than more engine calls.
    """

    segment: Segment
    slots: tuple[Slot, ...]
    weights: tuple[Any, ...]
    grads: tuple[Any, ...]

    @property
    def start(self) -> int:
        """First element, in the first context."""
        return self.slots[0].start

    @property
    def stop(self) -> int:
        """Element after the last, in the first context."""
        return self.slots[-1].stop

    def sum_calls(
        self, active: Sequence[int], order: str, scratch: Scratch
    ) -> tuple[list[OperatorCall], Any]:
        """Calls that add up the gradients of the active contexts, and the array that holds the sum."""
        terms = [self.grads[context] for context in active]
        if len(terms) == 1:
            return [], terms[0]
        total = self.within(scratch.like(self.segment.grad))
        calls = summing(terms, order, total, lambda: self.within(scratch.like(self.segment.grad, 1)))
        return calls, total

    def copy_calls(self) -> list[OperatorCall]:
        """Calls that bring the first context's weights to the others."""
        return [OperatorCall("_copyto", [self.weights[0]], [other]) for other in self.weights[1:]]

    def within(self, buffer: Any) -> Any:
        """This range of a buffer that is as long as the segment."""
        return part(buffer, self.start, self.stop)


def part(buffer: Any, start: int, stop: int) -> Any:
    """Elements of a flat buffer as the same memory; the buffer itself if that is all of it."""
    return buffer if (start, stop) == (0, buffer.size) else buffer[start:stop]


def flat_names(stores: Sequence[FlatParameters], names: Sequence[str]) -> set[str]:
    """Those of the names that have weight and gradient in a flat buffer, in every context."""
    found = set(names)
    for store in stores:
        found &= {name for segment in store.segments if segment.grad is not None for name in segment.spans}
    return found


def hulls(stores: Sequence[FlatParameters], names: Sequence[str]) -> list[Hull]:
    """The ranges that hold these parameters; all names must be ``flat_names``."""
    homes = [
        {name: segment for segment in store.segments if segment.grad is not None for name in segment.spans}
        for store in stores
    ]
    groups: dict[tuple[tuple[int, int], ...], list[Slot]] = {}
    for name in names:
        home = homes[0][name]
        start, end = home.spans[name]
        slot = Slot(name, start, min(start + padded(end - start, home.dtype), home.weight.size))
        # Contexts may have met the parameters in another order; only equally laid out ones share a range.
        shape = tuple((id(home_k[name]), home_k[name].spans[name][0] - start) for home_k in homes)
        groups.setdefault(shape, []).append(slot)
    result = []
    for shape, slots in groups.items():
        slots.sort(key=lambda slot: slot.start)
        segments = [home[slots[0].name] for home in homes]
        shifts = [shift for _, shift in shape]
        first, last = slots[0].start, slots[-1].stop
        weights = (part(s.weight, first + shift, last + shift) for s, shift in zip(segments, shifts))
        grads = (part(s.grad, first + shift, last + shift) for s, shift in zip(segments, shifts))
        result.append(Hull(segments[0], tuple(slots), tuple(weights), tuple(grads)))
    return result
