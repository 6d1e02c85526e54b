"""Rows of a batch: what a budget allows, cut to what the contexts divide, and evened over the steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from bucketlab.data.keys import Key, key_size, key_text
from bucketlab.errors import BudgetError, DataError
from bucketlab.views.tables import byte_size

BytesOf = Callable[[Key, int], int]
Kind = Literal["rows", "tokens", "bytes"]


@dataclass(frozen=True)
class Budget:
    """What one batch may take: so many rows, padded tokens, or bytes.

    ``bytes_of(key, rows)`` gives the bytes of a batch; it must not fall as rows grow.

    >>> Budget.tokens(4096).rows_for(100)
    40
    """

    kind: Kind
    amount: int
    bytes_of: BytesOf | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        if self.kind not in ("rows", "tokens", "bytes"):
            raise DataError(f"budget kind is {self.kind!r}; choose 'rows', 'tokens' or 'bytes'")
        if isinstance(self.amount, bool) or int(self.amount) != self.amount or self.amount < 1:
            raise DataError(f"budget is {self.amount!r} {self.kind}; give a whole number of at least 1")
        object.__setattr__(self, "amount", int(self.amount))

    @classmethod
    def rows(cls, amount: int) -> Budget:
        return cls("rows", amount)

    @classmethod
    def tokens(cls, amount: int) -> Budget:
        return cls("tokens", amount)

    @classmethod
    def bytes(cls, amount: int, bytes_of: BytesOf) -> Budget:
        return cls("bytes", amount, bytes_of)

    @classmethod
    def of(cls, given: Budget | int | None) -> Budget:
        """A budget as people give it: None is 32 rows, a bare number is padded tokens."""
        if given is None:
            return cls.rows(32)
        return given if isinstance(given, Budget) else cls.tokens(given)

    def rows_for(self, key: Key, step: int = 1) -> int:
        """The most rows a batch of this bucket may have, a multiple of ``step``; 0 if ``step`` do not fit."""
        if self.kind == "rows":
            return self.amount // step * step
        if self.kind == "tokens":
            return self.amount // key_size(key) // step * step
        if self.bytes_of is None:
            raise DataError("a budget of bytes needs bytes_of(key, rows) to tell what a batch takes")
        low, high = 0, 1  # low fits, high does not, in units of step: double until that is so, then halve
        while self.bytes_of(key, high * step) <= self.amount:
            low, high = high, high * 2
            if high * step > 1 << 40:
                raise DataError(
                    f"bytes_of({key!r}, rows) does not grow with rows; it must, for a budget to bind"
                )
        while high - low > 1:
            middle = (low + high) // 2
            if self.bytes_of(key, middle * step) <= self.amount:
                low = middle
            else:
                high = middle
        return low * step

    def require(self, key: Key, step: int, contexts: str) -> int:
        """:meth:`rows_for`, or :class:`BudgetError` saying what the smallest batch would take."""
        rows = self.rows_for(key, step)
        if rows >= 1:
            return rows
        if self.kind == "rows":
            raise BudgetError(
                f"{contexts} divide batches of {step} rows at least; the budget is {self.amount}"
            )
        size = key_size(key)
        if self.kind == "tokens":
            need, have = f"{step} x {size} = {step * size:,} tokens", f"{self.amount:,}"
        else:
            assert self.bytes_of is not None
            need, have = byte_size(self.bytes_of(key, step)), byte_size(self.amount)
        raise BudgetError(
            f"bucket {key_text(key)}: the smallest batch for {contexts} is {step} row(s), {need}; "
            f"the budget is {have}"
        )

    def __str__(self) -> str:
        return f"{byte_size(self.amount)}" if self.kind == "bytes" else f"{self.amount:,} {self.kind}"

    def to_dict(self) -> dict[str, Any]:
        return {"kind": self.kind, "amount": self.amount}


def steps_for(sequences: int, rows: int) -> int:
    return -(-sequences // rows)


def evened(sequences: int, most: int, step: int = 1) -> int:
    """Rows of a batch that need as few steps as batches of ``most`` do, with the least to fill up.

    >>> evened(33, 32), evened(33, 32, step=4)
    (17, 20)
    """
    if sequences < 1:
        return most
    each = steps_for(sequences, steps_for(sequences, most))
    return steps_for(each, step) * step
