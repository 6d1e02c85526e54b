"""What every bucketed language model shares: checks of sizes and keys, and the loss."""

from __future__ import annotations

import operator
from typing import Any

from bucketlab._engine import mx
from bucketlab.errors import BucketError

Symbol = Any
SymbolAndNames = tuple[Symbol, tuple[str, ...], tuple[str, ...]]


def positive(name: str, value: Any) -> int:
    """``value`` as an int of at least 1; ValueError names the argument otherwise."""
    try:
        number = operator.index(value)
    except TypeError:
        number = 0
    if isinstance(value, bool) or number < 1:
        raise ValueError(f"{name} is {value!r}; give a whole number of at least 1")
    return number


def share(name: str, value: float) -> float:
    """``value`` as a probability below 1; ValueError names the argument otherwise."""
    if not 0 <= value < 1:
        raise ValueError(f"{name} is {value!r}; give a number from 0 up to, not including, 1")
    return float(value)


def check_layout(layout: str) -> str:
    if layout not in ("NT", "TN"):
        raise ValueError(f"layout is {layout!r}; give 'NT' (rows, time) or 'TN' (time, rows)")
    return layout


def length_of(model: str, key: Any, limit: int | None = None) -> int:
    """A bucket key as a sequence length, or :class:`BucketError`."""
    try:
        length = operator.index(key)
    except TypeError:
        length = 0
    if isinstance(key, bool) or length < 1:
        raise BucketError(
            f"{model}: bucket key {key!r} is not a sequence length; give a whole number of at least 1"
        )
    if limit is not None and length > limit:
        raise BucketError(
            f"{model}: bucket {length} is longer than max_length={limit}; raise max_length or cut the bucket"
        )
    return length


def next_token_loss(states: Symbol, vocab: int, label_name: str, ignore_label: int) -> Symbol:
    """Softmax over the vocabulary for each row of ``states`` (positions, features).

    Gradients are summed over positions and none comes from ``ignore_label``; the update divides by what ran.
    """
    label = mx.sym.reshape(mx.sym.Variable(label_name), shape=(-1,), name="label_flat")
    scores = mx.sym.FullyConnected(states, num_hidden=vocab, name="pred")
    return mx.sym.SoftmaxOutput(
        scores, label, use_ignore=True, ignore_label=ignore_label, normalization="null", name="softmax"
    )
