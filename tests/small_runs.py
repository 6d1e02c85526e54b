"""A bucketed run small enough to test with: batches whose every figure is known, and modules of mx.mod."""

from __future__ import annotations

from bucketlab import mx

ROWS, VOCAB = 4, 11


def batch(bucket: int, pad: int = 0, rows: int = ROWS, tokens: int | None = None) -> mx.io.DataBatch:
    """Rows of ``bucket`` words each, the last ``pad`` of them filler."""
    words = mx.nd.array([[(row + column) % VOCAB for column in range(bucket)] for row in range(rows)])
    made = mx.io.DataBatch(
        [words],
        [words],
        pad=pad,
        bucket_key=bucket,
        provide_data=[mx.io.DataDesc("data", (rows, bucket), layout="NT")],
        provide_label=[mx.io.DataDesc("softmax_label", (rows, bucket), layout="NT")],
    )
    if tokens is not None:
        made.valid_tokens = tokens
        made.valid_rows = rows - pad
    return made


class Batches(mx.io.DataIter):
    """Hands out the batches it was given, in order; counts its resets."""

    def __init__(self, batches: list[mx.io.DataBatch]):
        super().__init__(ROWS)
        self.batches, self.at, self.resets = batches, 0, 0
        widest = max(batches, key=lambda b: b.bucket_key)
        self.default_bucket_key = widest.bucket_key
        self.provide_data, self.provide_label = widest.provide_data, widest.provide_label

    def reset(self) -> None:
        self.at, self.resets = 0, self.resets + 1

    def next(self) -> mx.io.DataBatch:
        if self.at == len(self.batches):
            raise StopIteration
        self.at += 1
        return self.batches[self.at - 1]


def three_buckets() -> Batches:
    """Five batches: buckets 3, 5, 3, 8, 5; the third has one filler row, the fourth two."""
    return Batches(
        [
            batch(3, tokens=10),
            batch(5, tokens=17),
            batch(3, pad=1, tokens=8),
            batch(8, pad=2, tokens=14),
            batch(5, tokens=20),
        ]
    )


def words_symbol(bucket: int):
    words, label = mx.sym.Variable("data"), mx.sym.Variable("softmax_label")
    embedded = mx.sym.Embedding(words, input_dim=VOCAB, output_dim=6, name="embed")
    scores = mx.sym.FullyConnected(mx.sym.Reshape(embedded, shape=(-1, 6)), num_hidden=VOCAB, name="scores")
    return (
        mx.sym.SoftmaxOutput(scores, mx.sym.Reshape(label, shape=(-1,)), name="softmax"),
        ("data",),
        ("softmax_label",),
    )


def old_bucketing_module(contexts: int = 2) -> mx.mod.BucketingModule:
    return mx.mod.BucketingModule(words_symbol, default_bucket_key=8, context=[mx.cpu(i) for i in range(contexts)])


def old_module(bucket: int = 5, contexts: int = 1) -> mx.mod.Module:
    return mx.mod.Module(words_symbol(bucket)[0], context=[mx.cpu(i) for i in range(contexts)])
