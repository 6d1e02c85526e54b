"""Which sequences make which batch: a pure function of the seed and the epoch, for any worker of many."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bucketlab.data.batching import steps_for

LAST = ("fill", "drop", "short")


@dataclass(frozen=True, eq=False)
class Step:
    """One batch: the position of its bucket, the sequence of each row, how many last rows are filler."""

    bucket: int
    rows: np.ndarray
    pad: int


@dataclass(frozen=True, eq=False)
class Schedule:
    """``members[b]`` are the sequences of bucket ``b``, ``batch_sizes[b]`` the rows of its batches.

    All workers take the same buckets in the same order with the same number of rows, and every sequence is
    real in one row of one worker, unless ``last="drop"``. Rows left over at the end of a bucket: ``"fill"``
    repeats others of the bucket up to a full batch, ``"short"`` makes a smaller batch of at least ``least``
    rows, ``"drop"`` leaves them.
    """

    members: tuple[np.ndarray, ...]
    batch_sizes: tuple[int, ...]
    seed: int
    shuffle: bool
    last: str
    least: int
    rank: int
    size: int

    def steps(self, bucket: int) -> int:
        """Batches of this bucket in an epoch, for each worker."""
        together = self.batch_sizes[bucket] * self.size
        count = len(self.members[bucket])
        return count // together if self.last == "drop" else steps_for(count, together)

    def left(self, bucket: int) -> int:
        """Sequences of the bucket that do not fill a batch of every worker."""
        return len(self.members[bucket]) % (self.batch_sizes[bucket] * self.size)

    def last_rows(self, bucket: int) -> int:
        """Rows of the bucket's last batch, filler included."""
        most = self.batch_sizes[bucket]
        if self.last != "short" or not self.left(bucket):
            return most
        return min(max(steps_for(self.left(bucket), self.size), self.least), most)

    def epoch(self, epoch: int) -> list[Step]:
        random = np.random.default_rng((self.seed, epoch))
        steps = [step for bucket in range(len(self.members)) for step in self._bucket(bucket, random)]
        if not self.shuffle:
            return steps
        return [steps[i] for i in random.permutation(len(steps))]

    def _bucket(self, bucket: int, random: np.random.Generator) -> list[Step]:
        rows, size = self.batch_sizes[bucket], self.size
        members = self.members[bucket]
        if self.shuffle:
            members = random.permutation(members)
        whole = len(members) // (rows * size)
        full = members[: whole * rows * size].reshape(whole, size, rows)[:, self.rank]
        steps = [Step(bucket, chosen, 0) for chosen in full]
        rest = members[whole * rows * size :]
        if len(rest) and self.last != "drop":
            # Drawn for all workers at once, so that each of them goes on with the same random state.
            filler = random.integers(0, len(members), (size, self.last_rows(bucket)))
            mine = np.array_split(rest, size)[self.rank]
            pad = self.last_rows(bucket) - len(mine)
            steps.append(Step(bucket, np.concatenate([mine, members[filler[self.rank, :pad]]]), pad))
        return steps
