"""What gradients are divided by: the rows that ran or the tokens, for as long as the caller leaves it to us."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from bucketlab.errors import DataError

GRAD_SCALES = ("rows", "tokens")
"""What a module's gradients may be divided by."""


class GradientScale:
    """Keeps ``optimizer.rescale_grad`` at 1 / count of the rows (or tokens) that an update learns from.

    It gives way for good when somebody else sets ``rescale_grad``. ``workers`` of a synchronous distributed kvstore
    multiply the count.
    """

    def __init__(self, optimizer: Any, count: int, workers: int = 1):
        self._optimizer = optimizer
        self._workers = workers
        self._count = count
        self._value = optimizer.rescale_grad

    def follow(self, count: int) -> None:
        """Set the scale for gradients that are sums over so many."""
        if count == self._count:
            return
        if self._optimizer.rescale_grad == self._value:
            self._optimizer.rescale_grad = self._value = 1.0 / (count * self._workers)
            self._count = count


class TokenCount:
    """The tokens that the gradients at hand are sums over. Buckets that share gradients share it too."""

    def __init__(self) -> None:
        self._tokens = 0
        self._spent = False

    def ran(self, tokens: int, adds: bool) -> None:
        """A backward pass over so many; ``adds`` where its gradients are added to those since the last update."""
        self._tokens = tokens + (self._tokens if adds and not self._spent else 0)
        self._spent = False

    def spend(self) -> int:
        """What an update divides by. Without a token there is no gradient, and 1 divides it as well as any."""
        self._spent = True
        return max(self._tokens, 1)


def tokens_of(batch: Any) -> int:
    """The labels of a batch that count, or its real tokens where it tells only these.

    A list of batches, one for each context, is taken together. Raises DataError for a batch that tells neither.
    """
    if isinstance(batch, list):
        return sum(map(tokens_of, batch))
    for name in ("valid_labels", "valid_tokens"):
        told = getattr(batch, name, None)
        if told is not None:
            return int(told)
    bucket = getattr(batch, "bucket_key", None)
    raise DataError(
        f"grad_scale is 'tokens', and the batch{'' if bucket is None else f' of bucket {bucket!r}'} does not tell "
        f"how many of its labels count; set batch.valid_labels, as BucketIter does, or give grad_scale='rows'"
    )


def check_grad_scale(given: str) -> str:
    """Raises ValueError for what gradients cannot be divided by."""
    if given not in GRAD_SCALES:
        raise ValueError(f"grad_scale is {given!r}; choose one of {', '.join(map(repr, GRAD_SCALES))}")
    return given


def check_tokens_can_be_followed(
    optimizer: Any, settings: Collection[str], exchange: Any, averages: Collection[Any], requests: Collection[str]
) -> None:
    """Refuse an optimizer, kvstore, loss or grad_req under which dividing by tokens would not give their mean.

    ``settings`` are the names in optimizer_params, ``averages`` the losses that average by themselves, ``requests``
    the grad_req of all parameters. Raises ValueError.
    """
    asked = "grad_scale is 'tokens', which sets rescale_grad to 1 / tokens for every update"
    given = None if isinstance(optimizer, str) else getattr(optimizer, "rescale_grad", 1.0)
    if given not in (None, 1.0) or (given is None and "rescale_grad" in settings):
        where = "optimizer_params has" if given is None else f"the optimizer has {given:g} as"
        raise ValueError(f"{asked}; {where} rescale_grad: leave it out, or give grad_scale='rows'")
    if exchange.remote or getattr(exchange.kvstore, "num_workers", 1) > 1:
        raise ValueError(
            f"{asked}, and kvstore {exchange.kvstore.type!r} adds up gradients of workers whose tokens are not known "
            f"here; give grad_scale='rows'"
        )
    if averages:
        raise ValueError(
            f"{asked}, and {', '.join(map(str, averages))} divides by itself: use normalization='null' there, or give "
            f"grad_scale='rows'"
        )
    if {"add", "write"} <= set(requests):
        raise ValueError(
            f"{asked}, and grad_req adds up some gradients over batches and not others; use one of the two for all"
        )
