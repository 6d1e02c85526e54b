"""The scale of gradients: one over the rows that ran, for as long as the caller leaves it to us."""

from __future__ import annotations

from typing import Any


class GradientScale:
    """Keeps ``optimizer.rescale_grad`` at 1 / rows of the batch that ran.

    It gives way for good when somebody else sets ``rescale_grad``. ``workers`` of a synchronous distributed kvstore
    multiply the rows.
    """

    def __init__(self, optimizer: Any, rows: int, workers: int = 1):
        self._optimizer = optimizer
        self._workers = workers
        self._rows = rows
        self._value = optimizer.rescale_grad

    def follow(self, rows: int) -> None:
        """Set the scale for a batch of ``rows`` rows."""
        if rows == self._rows:
            return
        if self._optimizer.rescale_grad == self._value:
            self._optimizer.rescale_grad = self._value = 1.0 / (rows * self._workers)
            self._rows = rows
