"""Small networks and batches for tests that compare several contexts with one."""

from __future__ import annotations

from typing import Any

import numpy as np

from bucketlab import mx

CONTEXTS = [mx.cpu(0), mx.cpu(1), mx.cpu(2), mx.cpu(3)]


def classifier(classes: int = 3, batch_norm: bool = False, normalization: str = "null") -> Any:
    """data (rows, 4) -> softmax over classes."""
    found = mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=5, name="fc1")
    if batch_norm:
        found = mx.sym.BatchNorm(found, name="bn", fix_gamma=False, momentum=0.7)
    found = mx.sym.Activation(found, act_type="tanh")
    found = mx.sym.FullyConnected(found, num_hidden=classes, name="fc2")
    return mx.sym.SoftmaxOutput(found, name="softmax", normalization=normalization)


def images(classes: int = 3, batch_norm: bool = False) -> Any:
    """data (rows, 1, any height, any width) -> softmax over classes."""
    found = mx.sym.Convolution(mx.sym.Variable("data"), kernel=(3, 3), pad=(1, 1), num_filter=4, name="conv")
    if batch_norm:
        found = mx.sym.BatchNorm(found, name="bn", fix_gamma=False, momentum=0.7)
    found = mx.sym.Activation(found, act_type="relu")
    found = mx.sym.Pooling(found, global_pool=True, kernel=(1, 1), pool_type="avg")
    found = mx.sym.FullyConnected(mx.sym.Flatten(found), num_hidden=classes, name="fc")
    return mx.sym.SoftmaxOutput(found, name="softmax")


def tagger(layout: str, classes: int = 3, width: int = 4) -> Any:
    """data of rows times steps in ``layout`` (NT or TN) -> a softmax for every step, as language models have it."""
    embedded = mx.sym.Embedding(mx.sym.Variable("data"), input_dim=7, output_dim=width, name="embed")
    flat = mx.sym.Reshape(embedded, shape=(-1, width))
    label = mx.sym.Reshape(mx.sym.Variable("softmax_label", __layout__=layout), shape=(-1,))
    return mx.sym.SoftmaxOutput(mx.sym.FullyConnected(flat, num_hidden=classes, name="fc"), label, name="softmax")


def lstm(layers: int, steps: int, vocab: int, hidden: int, embed: int, sparse: bool = False) -> Any:
    """An unrolled language model; ``sparse``: the embedding has a row_sparse weight and gradient."""
    cells = mx.rnn.SequentialRNNCell()
    for i in range(layers):
        cells.add(mx.rnn.LSTMCell(hidden, prefix=f"layer{i}_"))
    weight = mx.sym.Variable("embed_weight", stype="row_sparse") if sparse else None
    embedded = mx.sym.Embedding(
        mx.sym.Variable("data"), weight=weight, input_dim=vocab, output_dim=embed, name="embed", sparse_grad=sparse
    )
    outputs, _ = cells.unroll(steps, inputs=embedded, merge_outputs=True)
    logits = mx.sym.FullyConnected(mx.sym.Reshape(outputs, shape=(-1, hidden)), num_hidden=vocab, name="pred")
    label = mx.sym.Reshape(mx.sym.Variable("softmax_label"), shape=(-1,))
    return mx.sym.SoftmaxOutput(logits, label, name="softmax")


def parameters_of(symbol: Any) -> list[str]:
    return [name for name in symbol.list_arguments() if name not in ("data", "softmax_label")]


def values_for(symbol: Any, seed: int = 0, **shapes: tuple[int, ...]) -> dict[str, Any]:
    """A value for every parameter of a symbol whose inputs have these shapes."""
    rng = np.random.RandomState(seed)
    found, _, _ = symbol.infer_shape(**shapes)
    wanted = dict(zip(symbol.list_arguments(), found))
    return {name: mx.nd.array(rng.uniform(-1, 1, wanted[name])) for name in parameters_of(symbol)}


def batch(rows: int, seed: int = 0, classes: int = 3, pad: int = 0) -> Any:
    rng = np.random.RandomState(seed)
    data, label = mx.nd.array(rng.uniform(-1, 1, (rows, 4))), mx.nd.array(rng.randint(0, classes, rows))
    return mx.io.DataBatch([data], [label], pad=pad)


def cut_batch(sizes: Any, seed: int = 0, classes: int = 3, labels: bool = True, named: bool = True) -> Any:
    """A batch of images in the per-context form; ``sizes`` are (rows, height, width) of each context."""
    rng = np.random.RandomState(seed)
    data = [[mx.nd.array(rng.uniform(-1, 1, (rows, 1, height, width)))] for rows, height, width in sizes]
    label = [[mx.nd.array(rng.randint(0, classes, rows))] for rows, _, _ in sizes] if labels else None
    made = mx.io.DataBatch(data, label)
    if named:
        made.provide_data, made.provide_label = cut_shapes(sizes)
        made.provide_label = made.provide_label if labels else None
    return made


def cut_shapes(sizes: Any) -> tuple[Any, Any]:
    data = [[("data", (rows, 1, height, width))] for rows, height, width in sizes]
    return data, [[("softmax_label", (rows,))] for rows, _, _ in sizes]


class Batches(mx.io.DataIter):
    """An iterator over batches that are made already."""

    def __init__(self, batches: list[Any], provide_data: Any = None, provide_label: Any = None):
        super().__init__()
        self._batches, self._at = batches, 0
        self.provide_data = provide_data or batches[0].provide_data
        self.provide_label = provide_label if provide_data else batches[0].provide_label

    def reset(self) -> None:
        self._at = 0

    def next(self) -> Any:
        if self._at >= len(self._batches):
            raise StopIteration
        self._at += 1
        return self._batches[self._at - 1]
