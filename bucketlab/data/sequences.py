"""What an iterator reads: sequences, or pairs of them, as flat arrays. Lists given are only read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bucketlab.data.corpus import Corpus, ParallelCorpus
from bucketlab.errors import DataError


@dataclass(frozen=True, eq=False)
class Side:
    """Ids of many sequences in one array; sequence ``i`` is ``flat[offsets[i]:offsets[i + 1]]``."""

    flat: np.ndarray
    offsets: np.ndarray
    lengths: np.ndarray

    def gather(self, rows: np.ndarray, length: int, pad: int, skip: int = 0) -> np.ndarray:
        """(rows, length) ids from the ``skip``-th of each sequence on, ``pad`` behind its end."""
        places = np.arange(skip, skip + length)
        inside = places < self.lengths[rows, None]
        at = np.minimum(self.offsets[rows, None] + places, len(self.flat) - 1)
        return np.where(inside, self.flat[at], pad)

    def row_of(self, place: int) -> int:
        """The sequence that holds ``flat[place]``."""
        return int(np.searchsorted(self.offsets, place, side="right")) - 1


@dataclass(frozen=True, eq=False)
class Sequences:
    """One side (language modelling) or two (translation), and the ids that begin and end a sentence."""

    sides: tuple[Side, ...]
    begin: int | None = None
    end: int | None = None

    @property
    def lengths(self) -> np.ndarray:
        """(n,) for one side, (n, 2) for pairs."""
        if len(self.sides) == 1:
            return self.sides[0].lengths
        return np.stack([side.lengths for side in self.sides], axis=1)

    @property
    def largest_id(self) -> int:
        return max(int(side.flat.max()) for side in self.sides)

    def __len__(self) -> int:
        return len(self.sides[0].lengths)


def read(given: Any, *, allow_empty: bool = False) -> Sequences:
    """A corpus, a list of id sequences, or a list of (source, target) pairs of them.

    Refuses, by row: what is empty, not one-dimensional, or not whole numbers.
    """
    if isinstance(given, Sequences):
        return given
    if isinstance(given, Corpus):
        return Sequences((_corpus_side(given),), end=given.vocab.end)
    if isinstance(given, ParallelCorpus):
        sides = _corpus_side(given.source), _corpus_side(given.target)
        return Sequences(sides, begin=given.target.vocab.begin)
    try:
        rows = list(given)
    except TypeError:
        raise DataError(
            f"sequences is {type(given).__name__}; give a corpus or a list of lists of token ids"
        ) from None
    if not rows:
        raise DataError("sequences is empty; give at least one sequence of token ids")
    if not _is_pair(rows[0]):
        return Sequences((_side("sequences", rows, allow_empty),))
    for i, row in enumerate(rows):
        if not _is_pair(row):
            raise DataError(
                f"sequences[{i}] is {_short(row)}; the first is a (source, target) pair, so all must be"
            )
    names = ("source of sequences", "target of sequences")
    return Sequences(
        tuple(_side(name, [row[j] for row in rows], allow_empty) for j, name in enumerate(names))
    )


def _corpus_side(corpus: Corpus) -> Side:
    return Side(corpus.flat, corpus.offsets, corpus.lengths)


def _is_pair(row: Any) -> bool:
    return isinstance(row, (tuple, list)) and len(row) == 2 and all(np.ndim(part) == 1 for part in row)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _side(name: str, rows: Sequence[Any], allow_empty: bool) -> Side:
    arrays = [_ids(f"{name}[{i}]", row, allow_empty) for i, row in enumerate(rows)]
    offsets = np.zeros(len(arrays) + 1, dtype=np.int64)
    np.cumsum([len(a) for a in arrays], out=offsets[1:])
    flat = np.concatenate(arrays) if offsets[-1] else np.zeros(1, dtype=np.int64)
    if flat.min() < np.iinfo(np.int32).min or flat.max() > np.iinfo(np.int32).max:
        raise DataError(f"{name} hold the id {flat.max()}; ids must fit into 32 bits")
    return Side(flat.astype(np.int32), offsets, np.diff(offsets))


def _ids(name: str, row: Any, allow_empty: bool) -> np.ndarray:
    try:
        array = np.asarray(row)
    except ValueError:
        array = np.asarray(None)
    if array.ndim != 1:
        raise DataError(f"{name} is {_short(row)}; give a list of token ids")
    if array.size == 0:
        if allow_empty:
            return np.zeros(0, dtype=np.int64)
        raise DataError(f"{name} is empty; leave empty sequences out")
    if array.dtype.kind not in "iu":
        whole = array.astype(np.int64) if array.dtype.kind == "f" else None
        if whole is None or not np.array_equal(whole, array):
            raise DataError(f"{name} is {_short(row)}; token ids must be whole numbers")
        array = whole
    return array
