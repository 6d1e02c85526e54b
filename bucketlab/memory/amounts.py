"""Bytes of one role on one context: a figure, or an interval that says why."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

__all__ = ["Amount", "added", "at_least", "at_most"]


@dataclass(frozen=True)
class Amount:
    """From ``low`` to ``high`` bytes (None: no bound is known); equal where the figure is exact, else ``why`` not."""

    context: str
    role: str
    low: int
    high: int | None
    why: str = ""

    @classmethod
    def exactly(cls, context: str, role: str, size: int) -> Amount:
        return cls(context, role, size, size)

    @property
    def exact(self) -> bool:
        return self.low == self.high

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def at_least(amounts: Iterable[Amount]) -> int:
    return sum(amount.low for amount in amounts)


def at_most(amounts: Iterable[Amount]) -> int | None:
    """The sum of the upper ends; None as soon as one is not known."""
    total = 0
    for amount in amounts:
        if amount.high is None:
            return None
        total += amount.high
    return total


def added(amounts: Iterable[Amount]) -> tuple[Amount, ...]:
    """The same with amounts of one context and role as one, in order of first appearance; nothing is left out."""
    groups: dict[tuple[str, str], list[Amount]] = {}
    for amount in amounts:
        groups.setdefault((amount.context, amount.role), []).append(amount)
    return tuple(
        Amount(*key, at_least(of), at_most(of), "; ".join(dict.fromkeys(one.why for one in of if one.why)))
        for key, of in groups.items()
    )
