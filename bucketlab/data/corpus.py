"""A corpus: sentences as ids, the texts they come from, and where and under what terms it was got."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from bucketlab.data.vocabulary import Vocabulary, pack, words
from bucketlab.errors import DataError


@dataclass(frozen=True)
class Origin:
    """Where a corpus comes from: the installed package and its version, its size on disk, and the licence."""

    package: str
    version: str
    size: int
    licence: str
    source: str

    def to_dict(self) -> dict[str, Any]:
        return dict(vars(self))


@dataclass(frozen=True, eq=False, repr=False)
class Corpus:
    """Sentences of one language, numbered.

    ``flat`` holds the int32 ids of all sentences one after the other, sentence ``i`` at
    ``flat[offsets[i]:offsets[i + 1]]``; both are read-only. ``texts[i]`` is what it was read from.

    >>> corpus = Corpus.from_texts(["Open a file", "Save"])
    >>> corpus.lengths.tolist(), corpus.tokens(1)
    ([3, 1], ['save'])
    """

    name: str
    texts: tuple[str, ...]
    flat: np.ndarray
    offsets: np.ndarray
    vocab: Vocabulary
    origin: Origin | None = None
    language: str = ""
    lengths: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        if len(self.texts) == 0:
            raise DataError(f"corpus {self.name!r} is empty: it holds no sentence; give at least one")
        lengths = np.diff(self.offsets)
        if len(lengths) != len(self.texts) or lengths.min() < 1:
            raise DataError(
                f"corpus {self.name!r}: {len(self.texts)} texts need as many sentences of at least one id"
            )
        lengths.flags.writeable = False
        object.__setattr__(self, "lengths", lengths)

    @classmethod
    def from_texts(
        cls,
        texts: Iterable[str],
        *,
        name: str = "texts",
        vocab: Vocabulary | None = None,
        lower: bool = True,
        min_count: int = 1,
        max_vocab: int | None = None,
        end: bool = False,
        origin: Origin | None = None,
        language: str = "",
    ) -> Corpus:
        """Texts, one sentence each, cut into words and numbered by ``vocab`` or by one built from them.

        ``end=True`` puts the end token behind each sentence, as targets of a translation need it.
        """
        kept = tuple(texts)
        sentences = [words(text.lower() if lower else text) for text in kept]
        for i, sentence in enumerate(sentences):
            if not sentence:
                raise DataError(f"corpus {name!r}: text {i} holds no word: {kept[i]!r}; leave it out")
        if vocab is None:
            vocab = Vocabulary.build(sentences, min_count=min_count, max_size=max_vocab)
        tail = [vocab.end] if end else []
        flat, offsets = pack([vocab.encode(sentence) + tail for sentence in sentences])
        return cls(name, kept, flat, offsets, vocab, origin, language)

    @property
    def sentences(self) -> list[list[int]]:
        """Every sentence as a list of ids: a copy, yours to change."""
        ids, cuts = self.flat.tolist(), self.offsets.tolist()
        return [ids[a:b] for a, b in zip(cuts, cuts[1:])]

    def ids(self, row: int) -> np.ndarray:
        """The ids of one sentence, read-only."""
        row = self._row(row)
        return self.flat[self.offsets[row] : self.offsets[row + 1]]

    def tokens(self, row: int) -> list[str]:
        """One sentence in words, as the model sees it."""
        return self.vocab.decode(self.ids(row))

    def text(self, row: int) -> str:
        """One sentence as it was written."""
        return self.texts[self._row(row)]

    def take(self, rows: Sequence[int]) -> Corpus:
        """These sentences, in this order, with the same vocabulary."""
        chosen = [self._row(row) for row in rows]
        flat, offsets = pack([self.ids(row).tolist() for row in chosen])
        texts = tuple(self.texts[row] for row in chosen)
        return Corpus(self.name, texts, flat, offsets, self.vocab, self.origin, self.language)

    def split(self, share: float = 0.9, *, seed: int = 0) -> tuple[Corpus, Corpus]:
        """Two corpora with no sentence in common, the first with ``share`` of them, drawn by ``seed``."""
        first, second = split_rows(len(self), share, seed)
        return self.take(first), self.take(second)

    def __len__(self) -> int:
        return len(self.texts)

    def _row(self, row: int) -> int:
        if not -len(self) <= row < len(self):
            raise IndexError(f"corpus {self.name!r} has {len(self)} sentences; there is no sentence {row}")
        return int(row) % len(self)

    def _facts(self) -> list[tuple[str, str]]:
        median, high, longest = np.percentile(self.lengths, (50, 95, 100), method="lower")
        facts = [
            ("sentences", f"{len(self):,}"),
            ("tokens", f"{len(self.flat):,}"),
            ("vocabulary", f"{len(self.vocab):,}"),
            ("lengths", f"{median} median, {high} at 95 %, {longest} longest"),
        ]
        if self.language:
            facts.append(("language", self.language))
        if self.origin:
            facts.append(("package", f"{self.origin.package} {self.origin.version}"))
            facts.append(("licence", self.origin.licence))
        return facts

    def __repr__(self) -> str:
        from bucketlab.views.text import table

        return table(["corpus", self.name], self._facts())

    def _repr_html_(self) -> str:
        from bucketlab.views.plans import table_html

        return table_html(f"Corpus {self.name}", ["corpus", self.name], self._facts())

    def to_dict(self) -> dict[str, Any]:
        """What describes the corpus; the sentences themselves stay where they are."""
        return {
            "name": self.name,
            "language": self.language,
            "sentences": len(self),
            "tokens": len(self.flat),
            "vocabulary": len(self.vocab),
            "longest": int(self.lengths.max()),
            "origin": self.origin.to_dict() if self.origin else None,
        }


@dataclass(frozen=True, eq=False, repr=False)
class ParallelCorpus:
    """The same sentences in two languages: sentence ``i`` of ``source`` means sentence ``i`` of ``target``.

    Targets end with the end token of their vocabulary. ``lengths`` is (pairs, 2): source and target length.
    """

    source: Corpus
    target: Corpus

    def __post_init__(self) -> None:
        if len(self.source) != len(self.target):
            raise DataError(
                f"{len(self.source)} source sentences against {len(self.target)} target sentences; give pairs"
            )

    @property
    def name(self) -> str:
        return self.source.name

    @property
    def lengths(self) -> np.ndarray:
        return np.stack([self.source.lengths, self.target.lengths], axis=1)

    def text(self, row: int) -> tuple[str, str]:
        return self.source.text(row), self.target.text(row)

    def take(self, rows: Sequence[int]) -> ParallelCorpus:
        return ParallelCorpus(self.source.take(rows), self.target.take(rows))

    def split(self, share: float = 0.9, *, seed: int = 0) -> tuple[ParallelCorpus, ParallelCorpus]:
        first, second = split_rows(len(self), share, seed)
        return self.take(first), self.take(second)

    def __len__(self) -> int:
        return len(self.source)

    def __repr__(self) -> str:
        return f"{self.source!r}\n\n{self.target!r}"

    def _repr_html_(self) -> str:
        return self.source._repr_html_() + self.target._repr_html_()

    def to_dict(self) -> dict[str, Any]:
        return {"source": self.source.to_dict(), "target": self.target.to_dict()}


def split_rows(rows: int, share: float, seed: int) -> tuple[list[int], list[int]]:
    first = round(rows * share)
    if not 0 < first < rows:
        raise DataError(f"share is {share!r}: it leaves one side of {rows} sentences empty")
    order = np.random.default_rng(seed).permutation(rows)
    return sorted(order[:first].tolist()), sorted(order[first:].tolist())
