"""The iterator that feeds bucketed training: seeded, resumable, and honest about what it pads or drops."""

from __future__ import annotations

import warnings
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from bucketlab._engine import mx
from bucketlab.data.arguments import (
    check_contexts,
    check_exact,
    check_ids,
    choice,
    contexts_text,
    data_names,
    length_text,
)
from bucketlab.data.batch import BucketBatch, on_host
from bucketlab.data.batching import Budget, evened
from bucketlab.data.keys import Key, assign, check_keys, key_size, key_text
from bucketlab.data.padding import Padder
from bucketlab.data.plan import BucketPlan
from bucketlab.data.schedule import LAST, Schedule, Step
from bucketlab.data.sequences import read
from bucketlab.errors import DataError
from bucketlab.slicing import divisor, row_counts
from bucketlab.views.plans import table_html
from bucketlab.views.tables import share
from bucketlab.views.text import table


class BucketIter(mx.io.DataIter):
    """Batches of padded sequences, each of one bucket.

    ``sequences`` is a corpus, a list of id lists, or a list of (source, target) pairs of them; ``plan`` a
    :class:`~bucketlab.data.BucketPlan`, or rising bounds (for pairs: pairs of bounds). Rows of a batch come
    from the plan, from ``batch_size`` (one number, or one for each bound), or from ``tokens``, a budget of
    padded tokens.

    Labels are the tokens moved one to the left: position ``t`` is asked for token ``t + 1``, the last one
    for ``end`` if there is such an id. With ``begin`` the data move to the right instead, behind that id,
    and the labels are the tokens themselves; pairs are always so. Padding and filler have the label
    ``ignore_label``.

    The order is a function of ``seed`` and the epoch, which :meth:`reset` counts up. ``last`` says what
    becomes of rows left over in a bucket: ``"fill"`` repeats others to a full batch, ``"short"`` gives a
    smaller batch, ``"drop"`` leaves them out. What is longer than every bucket is left out too (or refused,
    with ``too_long="error"``); ``dropped`` counts both, and a warning says so. ``rank`` of ``size`` workers
    sees its share: all workers have the same buckets in the same order.

    >>> it = BucketIter([[1, 2, 3], [4, 5]], [3], batch_size=2, shuffle=False)
    >>> batch = next(it)
    >>> batch.data[0].asnumpy().tolist(), batch.label[0].asnumpy().tolist()
    ([[1, 2, 3], [4, 5, 0]], [[2.0, 3.0, 0.0], [5.0, 0.0, 0.0]])
    """

    # A plain iterator refuses ids that mean "ignore": their labels would silently never count.
    _ids_may_be_ignored = False

    def __init__(
        self,
        sequences: Any,
        plan: BucketPlan | Sequence[Any],
        batch_size: int | Sequence[int] | None = None,
        *,
        tokens: int | None = None,
        seed: int = 0,
        shuffle: bool = True,
        layout: str = "NT",
        last: str = "fill",
        too_long: str = "drop",
        contexts: int | Sequence[Any] | None = None,
        workloads: Sequence[float] | None = None,
        split: str = "balanced",
        data_name: str | Sequence[str] | None = None,
        label_name: str = "softmax_label",
        ignore_label: int = 0,
        pad_id: int = 0,
        begin: int | None = None,
        end: int | None = None,
        dtype: str = "int32",
        label_dtype: str = "float32",
        rank: int = 0,
        size: int = 1,
    ) -> None:
        super().__init__()
        choice("layout", layout, ("NT", "TN"))
        choice("last", last, LAST)
        choice("too_long", too_long, ("drop", "error"))
        if not 0 <= rank < size:
            raise DataError(f"rank is {rank} of size {size}; give a rank from 0 to size - 1")
        if seed < 0:
            raise DataError(f"seed is {seed}; give a whole number of at least 0")
        source = read(sequences, allow_empty=self._ids_may_be_ignored)
        lengths = source.lengths
        self.layout, self.last, self.seed, self.shuffle = layout, last, int(seed), bool(shuffle)
        self.label_name, self.ignore_label, self.pad_id = label_name, int(ignore_label), int(pad_id)
        self.dtype, self.label_dtype = np.dtype(dtype).name, np.dtype(label_dtype).name
        self.rank, self.size = int(rank), int(size)
        self.begin = source.begin if begin is None else int(begin)
        self.end = source.end if end is None else int(end)
        self.data_names = data_names(data_name, len(source.sides))
        check_ids(source, self.ignore_label, self.begin, self._ids_may_be_ignored)
        if self.end is not None and self.end == self.ignore_label:
            raise DataError(f"end is {self.end}, which is ignore_label: it would never count")
        for name, kind in (("dtype", self.dtype), ("label_dtype", self.label_dtype)):
            check_exact(name, kind, source.largest_id)
        self._source, self._lengths = source, lengths
        self._padder = Padder(source, self.pad_id, self.ignore_label, self.begin, self.end)

        planned = plan if isinstance(plan, BucketPlan) else None
        bounds: Any = planned.keys if planned else plan
        self.workloads = check_contexts(contexts, workloads, planned.workloads if planned else None)
        self.bucket_keys = check_keys(bounds, lengths.ndim)
        self._assigned = assign(self.bucket_keys, lengths)
        smallest = lengths.min(axis=-1) if lengths.ndim == 2 else lengths
        self._assigned[smallest < 1] = -1
        lost = np.flatnonzero(self._assigned < 0)
        if len(lost) == len(source):
            raise DataError(
                f"bounds {list(self.bucket_keys)} hold none of the {len(source)} sequences; "
                f"the shortest is {length_text(lengths)} tokens"
            )
        if len(lost) and too_long == "error":
            raise DataError(
                f"sequence {lost[0]} has length {length_text(lengths[lost[:1]])}, longer than every bucket "
                f"{list(self.bucket_keys)}, as do {len(lost) - 1} others; add a bound, or too_long='drop'"
            )
        members = tuple(np.flatnonzero(self._assigned == b) for b in range(len(self.bucket_keys)))
        sizes = self._batch_sizes(planned, batch_size, tokens, [len(m) for m in members])
        self.batch_sizes: dict[Key, int] = dict(zip(self.bucket_keys, sizes))
        self._schedule = Schedule(
            members, sizes, self.seed, self.shuffle, last, len(self.workloads), self.rank, self.size
        )
        self._rows_per_context = self._cut(split)
        key = planned.default_bucket_key if planned else max(self.bucket_keys, key=lambda k: (key_size(k), k))
        self.default_bucket_key: Key = key
        by_size = sorted(self.bucket_keys, key=lambda k: (k != key, -self.batch_sizes[k], -key_size(k)))
        self._bind_order = list(planned.bind_order) if planned else by_size
        self.batch_size = self.batch_sizes[key]
        self.provide_data, self.provide_label = self.provide(key)
        if len(self) == 0:
            raise DataError(
                f"no bucket fills a batch of {list(sizes)} rows for {self.size} worker(s), and last='drop' "
                "leaves the rest out; use smaller batches or last='fill'"
            )
        self._say_dropped()
        self.epoch = 0
        self._position = 0
        self._order: list[Step] | None = None
        self._current: BucketBatch | None = None

    # -- what it yields -------------------------------------------------------------------------------------

    def next(self) -> BucketBatch:
        """The next batch; StopIteration at the end of the epoch, until :meth:`reset`."""
        if not self.iter_next():
            raise StopIteration
        assert self._current is not None
        return self._current

    def iter_next(self) -> bool:
        if self._order is None:
            self._order = self._schedule.epoch(self.epoch)
        if self._position >= len(self._order):
            return False
        self._current = self._batch(self._order[self._position])
        self._position += 1
        return True

    def reset(self) -> None:
        """Go to the start of the next epoch; of this one, if nothing was taken from it yet."""
        if self._position:
            self.epoch += 1
        self._position, self._order, self._current = 0, None, None

    def getdata(self) -> list[Any]:
        return self._now().data

    def getlabel(self) -> list[Any]:
        return self._now().label

    def getindex(self) -> np.ndarray:
        return self._now().index

    def getpad(self) -> int:
        return self._now().pad

    def _now(self) -> BucketBatch:
        if self._current is None:
            raise DataError("there is no current batch; call iter_next() first")
        return self._current

    def __len__(self) -> int:
        """Batches in an epoch, for this worker."""
        return sum(self._schedule.steps(b) for b in range(len(self.bucket_keys)))

    def provide(self, key: Key, rows: int | None = None) -> tuple[list[Any], list[Any]]:
        """Descriptions of data and labels of a bucket, with ``rows`` rows or those of its full batches."""
        if key not in self.batch_sizes:
            raise DataError(f"there is no bucket {key!r}; known are {list(self.bucket_keys)}")
        count = self.batch_sizes[key] if rows is None else rows
        parts = key if isinstance(key, tuple) else (key,)
        shapes = [(count, part) if self.layout == "NT" else (part, count) for part in parts]
        data = [
            mx.io.DataDesc(name, shape, np.dtype(self.dtype).type, self.layout)
            for name, shape in zip(self.data_names, shapes)
        ]
        label = mx.io.DataDesc(self.label_name, shapes[-1], np.dtype(self.label_dtype).type, self.layout)
        return data, [label]

    def shapes(self) -> dict[Key, tuple[list[Any], list[Any]]]:
        """:meth:`provide` of every bucket that has sequences, in the order to bind them in."""
        full = [key for key, members in zip(self.bucket_keys, self._schedule.members) if len(members)]
        return {key: self.provide(key) for key in sorted(full, key=self._bind_order.index)}

    @property
    def batch_rows(self) -> dict[Key, tuple[int, ...]]:
        """The rows of the batches that come, by bucket: of its full ones, and of a short last one."""
        schedule, come = self._schedule, {}
        for b, key in enumerate(self.bucket_keys):
            if schedule.steps(b):
                come[key] = tuple(dict.fromkeys((schedule.batch_sizes[b], schedule.last_rows(b))))
        return come

    def _batch(self, step: Step) -> BucketBatch:
        key = self.bucket_keys[step.bucket]
        rows, real = step.rows, step.rows[: len(step.rows) - step.pad]
        arrays, label = self._padder.arrays(rows, key, step.pad)
        provide_data, provide_label = self.provide(key, len(rows))
        if self.layout == "TN":
            arrays, label = [a.T for a in arrays], label.T
        return BucketBatch(
            [on_host(a, self.dtype) for a in arrays],
            [on_host(label, self.label_dtype)],
            bucket_key=key,
            pad=step.pad,
            index=rows.copy(),
            provide_data=provide_data,
            provide_label=provide_label,
            valid_tokens=int(self._lengths[real].sum()),
            valid_labels=int((label != self.ignore_label).sum()),
            rows_per_context=self._rows_per_context[len(rows)],
        )

    # -- what it was made from -------------------------------------------------------------------------------

    @property
    def dropped(self) -> int:
        """Sequences that no batch of an epoch holds, over all workers."""
        return sum(self.dropped_why.values())

    @property
    def dropped_why(self) -> dict[str, int]:
        """:attr:`dropped` by reason."""
        short = self._lengths.reshape(len(self._source), -1).min(axis=1) < 1
        left = sum(self._schedule.left(b) for b in range(len(self.bucket_keys))) if self.last == "drop" else 0
        return {
            "longer than every bucket": int(((self._assigned < 0) & ~short).sum()),
            "left over in the last batches": left,
            "empty": int(short.sum()),
        }

    def sequence(self, row: int) -> np.ndarray | tuple[np.ndarray, ...]:
        """The ids of sequence ``row``, as ``batch.index`` names it; for pairs, of both sides."""
        parts = tuple(
            side.flat[side.offsets[row] : side.offsets[row + 1]].copy() for side in self._source.sides
        )
        return parts if len(parts) > 1 else parts[0]

    def state_dict(self) -> dict[str, Any]:
        """Where it stands in the epoch, between two batches, in plain numbers that go into JSON."""
        return {"epoch": self.epoch, "position": self._position, "made_of": self._made_of()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where :meth:`state_dict` was taken, on the same sequences and arguments; else refused."""
        try:
            epoch, position, made_of = int(state["epoch"]), int(state["position"]), dict(state["made_of"])
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(f"state is not one of BucketIter.state_dict(): {error!r}") from error
        mine = self._made_of()
        for name in mine:
            if made_of.get(name) != mine[name]:
                raise DataError(
                    f"state was saved with {name} {made_of.get(name)!r}, this iterator has {mine[name]!r}; "
                    "make the iterator with the same sequences and arguments"
                )
        if epoch < 0 or not 0 <= position <= len(self):
            raise DataError(f"state has epoch {epoch}, batch {position}; an epoch has {len(self)} batches")
        self.epoch, self._position, self._order, self._current = epoch, position, None, None

    def _made_of(self) -> dict[str, Any]:
        sides = self._source.sides
        checksum = 0
        for side in sides:
            checksum = zlib.crc32(side.flat.tobytes(), zlib.crc32(side.lengths.tobytes(), checksum))
        return {
            "sequences": len(self._source),
            "checksum": checksum,
            "bounds": [list(k) if isinstance(k, tuple) else k for k in self.bucket_keys],
            "batch_sizes": list(self._schedule.batch_sizes),
            "seed": self.seed,
            "shuffle": self.shuffle,
            "last": self.last,
            "rank": self.rank,
            "size": self.size,
        }

    def _table(self) -> tuple[list[str], list[list[str]]]:
        head = ["bucket", "sequences", "rows", "steps", "padding"]
        body = []
        for b, key in enumerate(self.bucket_keys):
            members = self._schedule.members[b]
            computed = len(members) * key_size(key)
            padding = share(computed - int(self._lengths[members].sum()), computed)
            rows, steps = self._schedule.batch_sizes[b], self._schedule.steps(b)
            body.append([key_text(key), f"{len(members):,}", str(rows), str(steps), padding])
        return head, body

    def _line(self) -> str:
        return f"{len(self)} batches an epoch, {self.dropped} of {len(self._source)} sequences dropped"

    def __repr__(self) -> str:
        return f"{self._line()}\n{table(*self._table(), right=range(1, 5))}"

    def _repr_html_(self) -> str:
        return table_html(self._line(), *self._table(), right=range(1, 5))

    # -- checks ----------------------------------------------------------------------------------------------

    def _batch_sizes(
        self, plan: Any, batch_size: int | Sequence[int] | None, tokens: int | None, counts: list[int]
    ) -> tuple[int, ...]:
        keys = self.bucket_keys
        if plan is not None and (batch_size is not None or tokens is not None):
            raise DataError("the plan has batch sizes; leave batch_size and tokens out, or give plan.keys")
        if plan is not None:
            batch_size = plan.batch_sizes
        if (batch_size is None) == (tokens is None):
            raise DataError("give batch_size or tokens with plain bounds, and one of them only")
        if tokens is not None:
            step, budget = divisor(self.workloads), Budget.tokens(tokens)
            most = [budget.require(key, step, contexts_text(self.workloads)) for key in keys]
            return tuple(evened(n, m, step) for n, m in zip(counts, most))
        assert batch_size is not None
        sizes = [batch_size] * len(keys) if isinstance(batch_size, (int, np.integer)) else list(batch_size)
        if len(sizes) != len(keys):
            raise DataError(
                f"batch_size has {len(sizes)} entries for {len(keys)} bounds; give one number or one each"
            )
        for rows in sizes:
            if (
                isinstance(rows, bool)
                or not isinstance(rows, (int, np.integer))
                or rows < len(self.workloads)
            ):
                raise DataError(
                    f"batch_size is {batch_size!r}; {contexts_text(self.workloads)} need a whole number of "
                    f"rows, at least {len(self.workloads)}"
                )
        return tuple(int(rows) for rows in sizes)

    def _cut(self, split: str) -> dict[int, tuple[int, ...]]:
        """Rows of each context for every size of batch that can come; raises now, not in mid-epoch."""
        come = {rows for several in self.batch_rows.values() for rows in several}
        return {rows: tuple(row_counts(rows, self.workloads, split)) for rows in come}

    def _say_dropped(self) -> None:
        why = {reason: n for reason, n in self.dropped_why.items() if n}
        if why:
            parts = ", ".join(f"{n} {reason}" for reason, n in why.items())
            warnings.warn(
                f"{type(self).__name__} leaves {self.dropped} of {len(self._source)} sequences out: {parts}",
                stacklevel=3,
            )
