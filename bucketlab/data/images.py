"""Pictures of different sizes, from the installed scikit-image; read as files, without importing it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bucketlab.data.corpora import IMAGES
from bucketlab.data.corpus import Origin
from bucketlab.errors import DataError

# Only what every supported version carries in its wheel and is free for any use.
_FILES = (
    ("astronaut", "astronaut.png", "public domain (NASA)"),
    ("brick", "brick.png", "CC0"),
    ("camera", "camera.png", "CC0"),
    ("cell", "cell.png", "CC0"),
    ("chelsea", "chelsea.png", "CC0"),
    ("clock", "clock_motion.png", "public domain"),
    ("coffee", "coffee.png", "CC0"),
    ("grass", "grass.png", "CC0"),
    ("gravel", "gravel.png", "CC0"),
    ("horse", "horse.png", "CC0"),
    ("hubble", "hubble_deep_field.jpg", "public domain (NASA)"),
    ("microaneurysms", "microaneurysms.png", "CC0"),
    ("retina", "retina.jpg", "CC0"),
    ("rocket", "rocket.jpg", "public domain (SpaceX)"),
    ("text", "text.png", "public domain"),
)


@dataclass(frozen=True, eq=False, repr=False)
class Images:
    """Pictures by name: uint8 arrays (height, width, 3), read-only, with the licence of each."""

    names: tuple[str, ...]
    arrays: tuple[np.ndarray, ...]
    licences: tuple[str, ...]
    origin: Origin

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        return tuple(a.shape for a in self.arrays)

    def __len__(self) -> int:
        return len(self.names)

    def __iter__(self) -> Iterator[np.ndarray]:
        return iter(self.arrays)

    def __getitem__(self, name: str) -> np.ndarray:
        if name not in self.names:
            raise DataError(f"there is no picture {name!r}; known are {', '.join(map(repr, self.names))}")
        return self.arrays[self.names.index(name)]

    def _rows(self) -> list[tuple[str, str, str]]:
        sizes = [f"{height} x {width}" for height, width, _ in self.shapes]
        return list(zip(self.names, sizes, self.licences))

    def __repr__(self) -> str:
        from bucketlab.views.text import table

        return table(["picture", "height x width", "licence"], self._rows())

    def _repr_html_(self) -> str:
        from bucketlab.views.plans import table_html

        return table_html("Pictures", ["picture", "height x width", "licence"], self._rows())

    def to_dict(self) -> dict[str, Any]:
        return {
            "origin": self.origin.to_dict(),
            "images": {
                n: {"shape": list(a.shape), "licence": lic}
                for n, a, lic in zip(self.names, self.arrays, self.licences)
            },
        }


def images(names: Sequence[str] | None = None, *, longest: int | None = None) -> Images:
    """Pictures that scikit-image carries: all of them, or those named.

    With ``longest``, no side has more pixels; shrinking keeps the proportions.
    Needs ``pip install 'bucketlab[corpora]'``.
    """
    from PIL import Image  # comes with matplotlib; imported here because only pictures need it

    known = {entry[0]: entry for entry in _FILES}
    for name in names or ():
        if name not in known:
            raise DataError(f"there is no picture {name!r}; known are {', '.join(map(repr, known))}")
    if names is not None and not names:
        raise DataError("names is empty; name at least one picture, or leave it out for all")
    if longest is not None and longest < 1:
        raise DataError(f"longest is {longest}; give at least 1 pixel")
    folder = IMAGES.require() / "data"
    chosen = [known[name] for name in (known if names is None else names)]
    arrays = []
    for _, file, _ in chosen:
        with Image.open(folder / file) as picture:
            colours = picture.convert("RGB")
            if longest is not None:
                colours.thumbnail((longest, longest))
            array = np.asarray(colours)
        array.flags.writeable = False
        arrays.append(array)
    found, _, licences = zip(*chosen)
    return Images(found, tuple(arrays), licences, IMAGES.origin())
