"""Words and their numbers. Nothing is added by looking up: an unknown word is always the same id."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from bucketlab.errors import DataError

SPECIAL = ("<pad>", "<unk>", "<begin>", "<end>")
_WORDS = re.compile(r"\w+(?:['\u2019]\w+)*|[^\w\s]")


def words(text: str) -> list[str]:
    """Words, with their inner apostrophes, and single punctuation marks.

    >>> words("Don't stop, l'éditeur!")
    ["Don't", 'stop', ',', "l'éditeur", '!']
    """
    return _WORDS.findall(text)


@dataclass(frozen=True, repr=False)
class Vocabulary:
    """Tokens in order of id. The first four are special: padding 0, unknown 1, begin 2, end 3.

    >>> vocab = Vocabulary.build([["a", "b"], ["a"]])
    >>> vocab.encode(["a", "zebra"])
    [4, 1]
    """

    tokens: tuple[str, ...]
    _ids: dict[str, int] = field(init=False, compare=False)

    pad = 0
    unknown = 1
    begin = 2
    end = 3

    def __post_init__(self) -> None:
        tokens = tuple(self.tokens)
        if tokens[: len(SPECIAL)] != SPECIAL:
            raise DataError(f"tokens start with {tokens[:4]!r}; a vocabulary starts with {SPECIAL!r}")
        ids = {token: i for i, token in enumerate(tokens)}
        if len(ids) != len(tokens):
            twice = next(token for token, n in Counter(tokens).items() if n > 1)
            raise DataError(f"tokens hold {twice!r} more than once; give each token one id")
        object.__setattr__(self, "tokens", tokens)
        object.__setattr__(self, "_ids", ids)

    @classmethod
    def build(
        cls, sentences: Iterable[Sequence[str]], *, min_count: int = 1, max_size: int | None = None
    ) -> Vocabulary:
        """The tokens of ``sentences``, the most frequent first, equal ones in the order of their characters.

        Tokens seen fewer than ``min_count`` times, or past ``max_size`` ids in all, become unknown.
        """
        if max_size is not None and max_size < len(SPECIAL):
            raise DataError(f"max_size is {max_size}; the special tokens need {len(SPECIAL)} ids")
        counts = Counter(token for sentence in sentences for token in sentence)
        kept = sorted(
            (t for t, n in counts.items() if n >= min_count and t not in SPECIAL),
            key=lambda t: (-counts[t], t),
        )
        return cls(SPECIAL + tuple(kept[: None if max_size is None else max_size - len(SPECIAL)]))

    def encode(self, tokens: Iterable[str]) -> list[int]:
        """The id of each token; 1 (``unknown``) for one that is not here."""
        return [self._ids.get(token, self.unknown) for token in tokens]

    def decode(self, ids: Iterable[int]) -> list[str]:
        """The token of each id; :class:`DataError` for an id that is not here."""
        given = [int(i) for i in ids]
        for i in given:
            if not 0 <= i < len(self.tokens):
                raise DataError(
                    f"id {i} is not in this vocabulary of {len(self)} tokens (0 to {len(self) - 1})"
                )
        return [self.tokens[i] for i in given]

    def __len__(self) -> int:
        return len(self.tokens)

    def __iter__(self) -> Iterator[str]:
        return iter(self.tokens)

    def __contains__(self, token: object) -> bool:
        return token in self._ids

    def __getitem__(self, token: str) -> int:
        return self._ids.get(token, self.unknown)

    def __repr__(self) -> str:
        shown = ", ".join(self.tokens[len(SPECIAL) : len(SPECIAL) + 5])
        return f"Vocabulary({len(self)} tokens: {shown}{', ...' if len(self) > len(SPECIAL) + 5 else ''})"

    def to_dict(self) -> dict[str, Any]:
        return {"tokens": list(self.tokens)}

    @classmethod
    def from_dict(cls, given: dict[str, Any]) -> Vocabulary:
        return cls(tuple(given["tokens"]))


def pack(sentences: Sequence[Sequence[int]]) -> tuple[np.ndarray, np.ndarray]:
    """Id lists as one flat int32 array and the offsets where each begins; both read-only."""
    offsets = np.zeros(len(sentences) + 1, dtype=np.int64)
    np.cumsum([len(s) for s in sentences], out=offsets[1:])
    flat = np.fromiter((i for s in sentences for i in s), dtype=np.int32, count=int(offsets[-1]))
    for array in (flat, offsets):
        array.flags.writeable = False
    return flat, offsets
