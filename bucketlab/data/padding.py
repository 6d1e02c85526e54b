"""Sequences into rectangles: padded data, and labels shifted against them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bucketlab.data.keys import Key
from bucketlab.data.sequences import Sequences


@dataclass(frozen=True, eq=False)
class Padder:
    """Arrays (rows, length): without ``begin`` the labels move left, with it the data move right."""

    source: Sequences
    pad_id: int
    ignore_label: int
    begin: int | None
    end: int | None

    def arrays(self, rows: np.ndarray, key: Key, filler: int) -> tuple[list[np.ndarray], np.ndarray]:
        """Data of each side, and labels of the last one; no label of the last ``filler`` rows counts."""
        parts = key if isinstance(key, tuple) else (key,)
        data = [side.gather(rows, part, self.pad_id) for side, part in zip(self.source.sides, parts)]
        written, length = self.source.sides[-1], parts[-1]
        if self.begin is not None:
            label = written.gather(rows, length, self.ignore_label)
            shifted = np.roll(data[-1], 1, axis=1)
            shifted[:, 0] = self.begin
            data[-1] = np.where(np.arange(length) < written.lengths[rows, None], shifted, self.pad_id)
        else:
            label = written.gather(rows, length, self.ignore_label, skip=1)
            if self.end is not None:
                label[np.arange(len(rows)), written.lengths[rows] - 1] = self.end
        if self.ignore_label < 0:  # an id that means "nothing here" must not reach an embedding
            data = [np.where(a == self.ignore_label, self.pad_id, a) for a in data]
        label[len(rows) - filler :] = self.ignore_label
        return data, label
