"""Choosing buckets: the best bounds, the rows of each batch, and both together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from bucketlab.data.arguments import check_contexts, context_names, contexts_text
from bucketlab.data.batching import Budget, evened
from bucketlab.data.choosing import Wish, choose_bounds, choose_chain
from bucketlab.data.keys import Key, assign, check_keys, key_text
from bucketlab.data.lengths import Cost, Counted, cost_name, count
from bucketlab.data.plan import BucketPlan, PlannedBucket
from bucketlab.errors import DataError
from bucketlab.slicing import divisor, row_counts

BARS = 60  # of the histogram that a plan keeps
WASTE = 0.1


def plan_buckets(
    lengths: Any,
    k: int | None = None,
    budget: Budget | int | None = None,
    contexts: int | Sequence[Any] | None = None,
    workloads: Sequence[float] | None = None,
    cost: Cost = None,
    *,
    waste: float | None = None,
    step_cost: float = 0,
    even: bool = True,
    joint: bool | None = None,
    bounds: Sequence[Any] | None = None,
) -> BucketPlan:
    """The best buckets for sequences of these lengths: those that compute the fewest tokens in an epoch.

    ``lengths`` are (n,) whole numbers, or (n, 2) for pairs, whose buckets form a chain. There are at most
    ``k`` buckets; with ``waste`` the fewest whose padding is no more than that share of what is computed;
    with neither, ``waste=0.1``. ``budget`` is what one batch may take: padded tokens, or
    ``Budget.rows(n)``, ``Budget.bytes(n, bytes_of)``; 32 rows if not given. Batches divide exactly over the
    contexts by their workloads and, unless ``even=False``, have no more rows than their number of steps
    needs.

    ``cost`` is what a row of a bound costs: ``"linear"``, ``"quadratic"``, or a function of bounds (see
    ``bucketlab.data.lengths.row_cost``); ``step_cost`` is added for each batch. ``joint`` chooses bounds
    and batch sizes together instead of one after the other: by default for up to 2,000 different lengths,
    but not for pairs nor for a budget of bytes, where it asks ``bytes_of`` about every length.

    With ``bounds`` only the batches are chosen, so that any rule's buckets can be looked at as a plan.

    >>> plan_buckets([3, 3, 4, 9, 9, 10], k=2).keys
    (4, 10)
    """
    counted = count(lengths)
    shares = check_contexts(contexts, workloads, None)
    if k is not None and (isinstance(k, bool) or int(k) != k or k < 1):
        raise DataError(f"k is {k!r}; give a whole number of buckets of at least 1")
    if waste is not None and not 0 <= waste < 1:
        raise DataError(f"waste is {waste!r}; give a share from 0 up to, not including, 1")
    if not 0 <= step_cost < float("inf"):
        raise DataError(f"step_cost is {step_cost!r}; give a number of at least 0")
    limit = waste if waste is not None or k is not None else WASTE
    allowed = Budget.of(budget)
    step = divisor(shares)
    where = contexts_text(shares)
    longest = (
        tuple(counted.values.max(axis=0).tolist()) if counted.dimensions == 2 else int(counted.values[-1])
    )
    allowed.require(longest, step, where)
    wish = Wish(k, limit, allowed, step, cost, step_cost, even, joint)
    if bounds is not None:
        asked = [name for name, value in (("k", k), ("waste", waste), ("joint", joint)) if value is not None]
        keys, method = _given(bounds, counted, asked), "bounds as given" + wish.evened
    else:
        keys, method = (choose_bounds if counted.dimensions == 1 else choose_chain)(counted, wish)
    buckets = _fill(keys, counted, allowed, step, even, shares, where)
    default, order = _binding(buckets)
    return BucketPlan(
        buckets,
        context_names(len(shares) if contexts is None else contexts),
        shares,
        allowed,
        method,
        cost_name(cost),
        default,
        order,
        _histogram(counted),
    )


def _given(bounds: Sequence[Any], counted: Counted, asked: Sequence[str]) -> list[Key]:
    """Bounds that somebody else has chosen, once they are found to hold everything."""
    if asked:
        raise DataError(f"bounds are given, which leaves {' and '.join(asked)} nothing to choose; give only one")
    keys = list(check_keys(bounds, counted.dimensions))
    out = assign(keys, counted.values) < 0
    if out.any():
        longest = counted.values[out][counted.sizes[out].argmax()].tolist()
        raise DataError(
            f"bounds hold up to {key_text(keys[-1])}, which leaves out {int(counted.counts[out].sum()):,} of "
            f"{counted.sequences:,} sequences, the longest {key_text(_as_key(longest))}; add a bound"
        )
    return keys


def _as_key(plain: Any) -> Key:
    return tuple(plain) if isinstance(plain, list) else plain


def _fill(
    keys: Sequence[Key],
    counted: Counted,
    budget: Budget,
    step: int,
    even: bool,
    shares: tuple[float, ...],
    where: str,
) -> tuple[PlannedBucket, ...]:
    at = assign(keys, counted.values)
    buckets = []
    for position, key in enumerate(keys):
        mine = at == position
        sequences = int(counted.counts[mine].sum())
        if not sequences:
            continue
        most = budget.require(key, step, where)
        rows = evened(sequences, most, step) if even else most
        tokens = int((counted.sizes[mine] * counted.counts[mine]).sum())
        taken = int(budget.bytes_of(key, rows)) if budget.bytes_of is not None else None
        buckets.append(PlannedBucket(key, sequences, tokens, rows, tuple(row_counts(rows, shares)), taken))
    return tuple(buckets)


def _binding(buckets: Sequence[PlannedBucket]) -> tuple[Key, tuple[Key, ...]]:
    """The default key and the order to bind in.

    The default is the bucket that takes the most bytes, where these are known, and otherwise the one with
    the longest sequences: its arrays then hold every other bucket's. The rest follow by falling bytes, or
    by falling rows: of all orders, largest batch first was measured to grow the shared memory of unrolled
    graphs least.
    """
    known = all(b.bytes is not None for b in buckets)
    default = max(buckets, key=lambda b: (b.bytes or 0 if known else 0, b.size, b.key))
    rest = sorted(
        (b for b in buckets if b is not default),
        key=lambda b: (-(b.bytes or 0) if known else 0, -b.rows, -b.size),
    )
    return default.key, (default.key, *(b.key for b in rest))


def _histogram(counted: Counted) -> tuple[tuple[int, int, int], ...]:
    longest = int(counted.sizes.max())
    width = -(-longest // BARS)
    bars = np.bincount((counted.sizes - 1) // width, weights=counted.counts, minlength=-(-longest // width))
    return tuple((i * width + 1, (i + 1) * width, int(n)) for i, n in enumerate(bars))
