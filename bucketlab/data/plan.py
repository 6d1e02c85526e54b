"""A plan: which buckets there are, how many rows their batches have, and what that costs in padding."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from bucketlab.data.batching import Budget, steps_for
from bucketlab.data.keys import Key, key_size, key_text
from bucketlab.errors import DataError

_FORMAT = "bucketlab.plan/1"


@dataclass(frozen=True)
class PlannedBucket:
    """One bucket: the sequences it takes and the batches they are put into. Counts are of one epoch."""

    key: Key
    sequences: int
    tokens: int
    rows: int
    rows_per_context: tuple[int, ...]
    bytes: int | None = None

    @property
    def size(self) -> int:
        """Padded tokens of a row."""
        return key_size(self.key)

    @property
    def steps(self) -> int:
        return steps_for(self.sequences, self.rows)

    @property
    def computed(self) -> int:
        """Tokens that run through the network: real ones, padding and filler."""
        return self.steps * self.rows * self.size

    @property
    def padding(self) -> int:
        """Tokens that fill real rows up to the bound."""
        return self.sequences * self.size - self.tokens

    @property
    def filler(self) -> int:
        """Tokens in rows that only fill the last batch."""
        return self.computed - self.sequences * self.size

    @property
    def waste(self) -> float:
        """The share of :attr:`computed` that is not real."""
        return 1 - self.tokens / self.computed if self.computed else 0.0


@dataclass(frozen=True, repr=False)
class BucketPlan:
    """Buckets in the order of their bounds, for contexts that share each batch by ``workloads``.

    Feeds ``BucketIter``; ``default_bucket_key`` and ``bind_order`` are for ``BucketingModule``.
    ``histogram`` holds (lowest, highest, how many) of the lengths it was made for; for pairs, of both
    lengths together. ``longest`` is exact, and so is every count.
    """

    buckets: tuple[PlannedBucket, ...]
    contexts: tuple[str, ...]
    workloads: tuple[float, ...]
    budget: Budget
    method: str
    cost: str
    default_bucket_key: Key
    bind_order: tuple[Key, ...]
    histogram: tuple[tuple[int, int, int], ...]

    @property
    def keys(self) -> tuple[Key, ...]:
        return tuple(bucket.key for bucket in self.buckets)

    @property
    def batch_sizes(self) -> tuple[int, ...]:
        """Rows of a batch of each bucket, in the order of :attr:`keys`."""
        return tuple(bucket.rows for bucket in self.buckets)

    @property
    def sequences(self) -> int:
        return sum(bucket.sequences for bucket in self.buckets)

    @property
    def steps(self) -> int:
        return sum(bucket.steps for bucket in self.buckets)

    @property
    def tokens(self) -> int:
        return sum(bucket.tokens for bucket in self.buckets)

    @property
    def computed(self) -> int:
        return sum(bucket.computed for bucket in self.buckets)

    @property
    def padding(self) -> int:
        return sum(bucket.padding for bucket in self.buckets)

    @property
    def filler(self) -> int:
        return sum(bucket.filler for bucket in self.buckets)

    @property
    def waste(self) -> float:
        """The share of the computed tokens that is padding or filler."""
        return 1 - self.tokens / self.computed

    @property
    def padding_share(self) -> float:
        """Padding in real rows only, as a share of the tokens of real rows."""
        return self.padding / (self.padding + self.tokens)

    def __len__(self) -> int:
        return len(self.buckets)

    def __iter__(self) -> Iterator[PlannedBucket]:
        return iter(self.buckets)

    def __getitem__(self, key: Key) -> PlannedBucket:
        for bucket in self.buckets:
            if bucket.key == key:
                return bucket
        raise DataError(
            f"there is no bucket {key!r} in the plan; it has {', '.join(map(key_text, self.keys))}"
        )

    def __repr__(self) -> str:
        from bucketlab.views.plans import plan_text

        return plan_text(self)

    def _repr_html_(self) -> str:
        from bucketlab.views.plans import plan_html

        return plan_html(self)

    def plot(self) -> Any:
        """A matplotlib figure: the lengths and the bounds above, what each bucket computes below."""
        from bucketlab.views.plans import plan_figure

        return plan_figure(self)

    def to_dict(self) -> dict[str, Any]:
        """All of it as plain lists and numbers, which :meth:`from_dict` reads back."""
        return {
            "format": _FORMAT,
            "buckets": [
                {
                    "key": _plain(b.key),
                    "sequences": b.sequences,
                    "tokens": b.tokens,
                    "rows": b.rows,
                    "rows_per_context": list(b.rows_per_context),
                    "bytes": b.bytes,
                }
                for b in self.buckets
            ],
            "contexts": list(self.contexts),
            "workloads": list(self.workloads),
            "budget": self.budget.to_dict(),
            "method": self.method,
            "cost": self.cost,
            "default_bucket_key": _plain(self.default_bucket_key),
            "bind_order": [_plain(key) for key in self.bind_order],
            "histogram": [list(bar) for bar in self.histogram],
        }

    @classmethod
    def from_dict(cls, given: dict[str, Any]) -> BucketPlan:
        """A plan from :meth:`to_dict`; :class:`DataError` if it is something else."""
        if not isinstance(given, dict) or given.get("format") != _FORMAT:
            found = given.get("format") if isinstance(given, dict) else type(given).__name__
            raise DataError(f"this is not a plan: its format is {found!r}, not {_FORMAT!r}")
        try:
            buckets = tuple(
                PlannedBucket(
                    _key(b["key"]),
                    b["sequences"],
                    b["tokens"],
                    b["rows"],
                    tuple(b["rows_per_context"]),
                    b["bytes"],
                )
                for b in given["buckets"]
            )
            return cls(
                buckets,
                tuple(given["contexts"]),
                tuple(given["workloads"]),
                Budget(**given["budget"]),
                given["method"],
                given["cost"],
                _key(given["default_bucket_key"]),
                tuple(_key(key) for key in given["bind_order"]),
                tuple((low, high, n) for low, high, n in given["histogram"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(f"this is not a whole plan: {error!r}") from error

    def to_json(self) -> str:
        return json.dumps(self.to_dict(), indent=1)

    @classmethod
    def from_json(cls, text: str) -> BucketPlan:
        try:
            given = json.loads(text)
        except ValueError as error:
            raise DataError(f"this is not a plan: {error}") from error
        return cls.from_dict(given)


def _plain(key: Key) -> Any:
    return list(key) if isinstance(key, tuple) else key


def _key(plain: Any) -> Key:
    return tuple(plain) if isinstance(plain, list) else int(plain)
