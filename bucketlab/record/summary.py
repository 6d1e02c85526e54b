"""Totals of a run, over all and per bucket, as plain frozen data."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

from bucketlab.record.events import StepEvent

__all__ = ["BucketTotals", "RunSummary"]


@dataclass(frozen=True)
class BucketTotals:
    """What one bucket's steps add up to.

    ``seconds`` holds all its steps; ``steady_seconds`` only the ``steady_steps`` in which nothing was
    bound, so that :attr:`step_seconds` is what a step costs once its executors exist.
    """

    bucket: Hashable
    steps: int = 0
    rows: int = 0
    pad: int = 0
    tokens: int | None = None
    slots: int | None = None
    seconds: float = 0.0
    steady_steps: int = 0
    steady_seconds: float = 0.0

    @property
    def valid_rows(self) -> int:
        return self.rows - self.pad

    @property
    def padding_share(self) -> float | None:
        """Filler as a share of token places where the batches count them, else of rows; None before any."""
        if self.slots:
            return 1 - (self.tokens or 0) / self.slots
        return self.pad / self.rows if self.rows else None

    @property
    def step_seconds(self) -> float | None:
        return self.steady_seconds / self.steady_steps if self.steady_steps else None

    @property
    def rows_per_second(self) -> float | None:
        """Real rows a second, steps that bound something included."""
        return self.valid_rows / self.seconds if self.seconds > 0 else None

    @property
    def tokens_per_second(self) -> float | None:
        """Real tokens a second; None where the batches do not count tokens."""
        return self.tokens / self.seconds if self.tokens is not None and self.seconds > 0 else None

    def to_dict(self) -> dict[str, Any]:
        return {
            "bucket": self.bucket,
            "steps": self.steps,
            "rows": self.rows,
            "pad": self.pad,
            "tokens": self.tokens,
            "slots": self.slots,
            "seconds": self.seconds,
            "padding_share": self.padding_share,
            "step_seconds": self.step_seconds,
        }


@dataclass(frozen=True)
class RunSummary:
    """A run so far: ``total`` over all steps (its ``bucket`` is None), then each bucket by first use."""

    epochs: int
    total: BucketTotals
    buckets: tuple[BucketTotals, ...]
    metrics: tuple[tuple[str, float], ...]

    def to_dict(self) -> dict[str, Any]:
        return {
            "epochs": self.epochs,
            "total": self.total.to_dict(),
            "buckets": [bucket.to_dict() for bucket in self.buckets],
            "metrics": dict(self.metrics),
        }

    def __repr__(self) -> str:
        from bucketlab.views.training import summary_text

        return summary_text(self)

    def _repr_html_(self) -> str:
        from bucketlab.views.training import summary_html

        return summary_html(self)


class Accumulator:
    """Adds up steps in constant time and hands out :class:`BucketTotals`."""

    __slots__ = (
        "bucket",
        "pad",
        "rows",
        "seconds",
        "slots",
        "steady_seconds",
        "steady_steps",
        "steps",
        "tokens",
    )

    def __init__(self, bucket: Hashable = None):
        self.bucket = bucket
        self.steps = self.rows = self.pad = self.steady_steps = 0
        self.tokens: int | None = None
        self.slots: int | None = None
        self.seconds = self.steady_seconds = 0.0

    def add(self, step: StepEvent) -> None:
        self.steps += 1
        self.rows += step.rows
        self.pad += step.pad
        self.seconds += step.seconds
        if step.tokens is not None and step.slots is not None:
            self.tokens = (self.tokens or 0) + step.tokens
            self.slots = (self.slots or 0) + step.slots
        if not step.bound:
            self.steady_steps += 1
            self.steady_seconds += step.seconds

    def totals(self) -> BucketTotals:
        return BucketTotals(
            self.bucket,
            self.steps,
            self.rows,
            self.pad,
            self.tokens,
            self.slots,
            self.seconds,
            self.steady_steps,
            self.steady_seconds,
        )
