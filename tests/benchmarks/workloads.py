"""What is trained: small nets, where the Python around the engine shows, and LSTMs, where it hardly does."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import bucketlab as bl
from bucketlab import mx

DATA, LABEL = ("data",), ("softmax_label",)


@dataclass(frozen=True)
class Workload:
    """Batches of the same rows for all contenders, and the symbol for each bucket that they have."""

    name: str
    sym_gen: Callable[[Any], tuple[Any, Any, Any]]
    batches: Sequence[Any]
    metric: Callable[[], Any]
    rows: int

    @property
    def keys(self) -> list[Hashable]:
        """Buckets, the largest first: it is the default one."""
        return sorted({batch.bucket_key for batch in self.batches}, reverse=True)

    def shapes(self, key: Hashable) -> tuple[Any, Any]:
        """Descriptions of data and label of a bucket."""
        batch = next(batch for batch in self.batches if batch.bucket_key == key)
        return batch.provide_data, batch.provide_label


def _classified(rows: int, columns: int, count: int) -> list[Any]:
    rng = np.random.RandomState(0)
    return [
        mx.io.DataBatch(
            [mx.nd.array(rng.uniform(-1, 1, (rows, columns)))],
            [mx.nd.array(rng.randint(0, 10, rows))],
            pad=0,
            bucket_key=0,
            provide_data=[mx.io.DataDesc("data", (rows, columns))],
            provide_label=[mx.io.DataDesc("softmax_label", (rows,))],
        )
        for _ in range(count)
    ]


def perceptron(name: str, hidden: Sequence[int], count: int = 24) -> Workload:
    """A classifier of 16 rows, with a weight and a bias for each layer."""
    symbol = bl.models.mlp(classes=10, hidden=hidden)
    return Workload(name, lambda key: (symbol, DATA, LABEL), _classified(16, 20, count), mx.metric.Accuracy, rows=16)


def sentences(lengths: Sequence[int], rows: int, vocab: int, count: int) -> list[Any]:
    """Batches of real sentences, every bucket as often as the others, in a fixed random order."""
    text = bl.data.corpus("jupyterlab-fr", max_vocab=vocab)
    fitting = text.take(np.flatnonzero(text.lengths <= max(lengths)).tolist())
    by_bucket: dict[Any, list[Any]] = {length: [] for length in lengths}
    with warnings.catch_warnings():
        # Full batches only, and it says what it leaves out.
        warnings.simplefilter("ignore", UserWarning)
        batches = bl.data.BucketIter(fitting, sorted(lengths), batch_size=rows, dtype="float32", last="drop")
    for batch in batches:
        by_bucket[batch.bucket_key].append(batch)
    turns = [by_bucket[lengths[i % len(lengths)]] for i in range(count)]
    drawn = [mine[i // len(lengths) % len(mine)] for i, mine in enumerate(turns)]
    return [drawn[i] for i in np.random.RandomState(1).permutation(count).tolist()]


def language_model(
    name: str,
    lengths: Sequence[int] = (10, 20, 30, 40),
    *,
    count: int = 24,
    vocab: int = 1000,
    hidden: int = 64,
    embed: int = 64,
    layers: int = 2,
    fused: bool = False,
) -> Workload:
    """An LSTM language model with 32 sentences in a batch."""
    sym_gen = bl.models.lstm_lm(vocab, hidden=hidden, embed=embed, layers=layers, fused=fused)
    batches = sentences(lengths, 32, vocab, count)
    return Workload(name, sym_gen, batches, lambda: mx.metric.Perplexity(ignore_label=0), rows=32)


WORKLOADS: dict[str, Callable[[], Workload]] = {
    "mlp": lambda: perceptron("mlp", (32, 32)),
    "narrow60": lambda: perceptron("narrow60", (16,) * 60),
    "lstm": lambda: language_model("lstm"),
    "lstm fused": lambda: language_model("lstm fused", fused=True),
    "3 layers": lambda: language_model("3 layers", (80,), count=4, hidden=100, embed=200, layers=3),
    "5 layers": lambda: language_model("5 layers", (80,), count=4, hidden=100, embed=200, layers=5),
}
"""A small perceptron; 122 small parameters; a bucketed LSTM, unrolled and as one operator; larger LSTMs."""

SMALL = ("mlp", "narrow60")
