"""The largest whole number at which a growing cost stays within a limit, in few evaluations."""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["largest_within"]

_MOST = 1 << 40


def largest_within(cost: Callable[[int], int], limit: int, start: int = 1) -> int:
    """The largest ``n`` of at least 1 with ``cost(n) <= limit``; 0 where even 1 costs more.

    ``cost`` must not fall as n grows; it is guessed to be a straight line, so that one that is nearly straight is
    found in about six evaluations. Raises ValueError for one that does not grow.

    >>> largest_within(lambda n: 10 + 3 * n, 100)
    30
    """
    low, low_cost, high, high_cost = 0, 0, 0, 0
    guess = max(1, start)
    for turn in range(200):
        found = cost(guess)
        if found <= limit:
            low, low_cost = guess, found
        else:
            high, high_cost = guess, found
        if high and high - low <= 1:
            return low
        if not high:
            if guess > _MOST:
                raise ValueError("the cost does not grow")
            guess = 2 * guess
        elif not low:
            guess = guess // 2
        else:
            # Every third guess halves what is left, whatever the shape of the cost.
            line = low + (limit - low_cost) * (high - low) // max(1, high_cost - low_cost)
            guess = min(max((low + high) // 2 if turn % 3 == 2 else line, low + 1), high - 1)
    raise AssertionError("the interval halves at every third turn")
