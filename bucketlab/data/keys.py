"""Bucket keys: one bound, or a pair of bounds; which of them a sequence goes to."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from typing import Any, Union

import numpy as np

from bucketlab.errors import DataError

Key = Union[int, tuple[int, ...]]


def check_keys(given: Iterable[Any], dimensions: int, name: str = "bounds") -> tuple[Key, ...]:
    """Bounds as a tuple of rising ints, or of different pairs; the caller's list is left alone."""
    try:
        items = list(given)
    except TypeError:
        raise DataError(f"{name} is {given!r}; give a BucketPlan or a list of bounds") from None
    if not items:
        raise DataError(f"{name} is empty; give at least one bound")
    keys = tuple(_key(item, i, dimensions, name) for i, item in enumerate(items))
    if dimensions == 1 and any(a >= b for a, b in zip(keys, keys[1:])):  # type: ignore[operator]
        raise DataError(f"{name} are {list(keys)}; they must rise: {sorted(set(keys))}")  # type: ignore[type-var]
    if len(set(keys)) != len(keys):
        raise DataError(f"{name} are {list(keys)}; give each pair once")
    return keys


def _key(item: Any, position: int, dimensions: int, name: str) -> Key:
    wanted = "a whole number of at least 1" if dimensions == 1 else "a pair of whole numbers of at least 1"
    parts = item if isinstance(item, (tuple, list)) else (item,)
    try:
        sizes = tuple(operator.index(part) for part in parts)
    except TypeError:
        sizes = ()
    if isinstance(item, bool) or len(sizes) != dimensions or min(sizes) < 1:
        raise DataError(f"{name}[{position}] is {item!r}; give {wanted}")
    return sizes[0] if dimensions == 1 else sizes


def key_size(key: Key) -> int:
    """Tokens that a row of this bucket takes, padding included."""
    return sum(key) if isinstance(key, tuple) else key


def key_text(key: object) -> str:
    """A key as people write it: ``40``, or ``12x15`` for a pair."""
    return "x".join(map(str, key)) if isinstance(key, tuple) else str(key)


def fits(key: Key, lengths: np.ndarray) -> np.ndarray:
    """Which of ``lengths``, (n,) or (n, 2), go into the bucket."""
    return (lengths <= np.asarray(key)).all(axis=1) if lengths.ndim == 2 else lengths <= key


def assign(keys: Sequence[Key], lengths: np.ndarray) -> np.ndarray:
    """For each sequence the position in ``keys`` of the tightest bucket that holds it; -1 where none does."""
    if lengths.ndim == 1:
        bounds = np.asarray(keys)
        order = np.argsort(bounds, kind="stable")
        at = np.searchsorted(bounds[order], lengths)
        return np.where(at < len(keys), order[np.minimum(at, len(keys) - 1)], -1)
    found = np.full(len(lengths), -1)
    for position in sorted(range(len(keys)), key=lambda i: (key_size(keys[i]), keys[i]), reverse=True):
        found[fits(keys[position], lengths)] = position
    return found
