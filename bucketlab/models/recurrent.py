"""Recurrent language models whose bucket key is the sequence length."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from bucketlab._engine import mx
from bucketlab.models._common import (
    Symbol,
    SymbolAndNames,
    check_layout,
    length_of,
    next_token_loss,
    positive,
    share,
)

CELLS = ("lstm", "gru")


@dataclass(frozen=True)
class RecurrentLM:
    """A ``sym_gen``: called with a length, it gives ``(symbol, data names, label names)``.

    Data are token ids, (rows, length) in layout ``"NT"`` or (length, rows) in ``"TN"``; labels have the same
    shape. The output is (positions, vocab), in the order of the flattened labels. Parameters have the same
    names and shapes in every bucket, and do not depend on what was built before.

    ``fused=True`` runs each stack as one RNN operator: far fewer graph nodes, one flat parameter.

    >>> RecurrentLM("lstm", vocab=100)(20)[1:]
    (('data',), ('softmax_label',))
    """

    cell: str
    vocab: int
    hidden: int = 64
    embed: int = 64
    layers: int = 1
    fused: bool = False
    dropout: float = 0.0
    ignore_label: int = 0
    layout: str = "NT"
    data_name: str = "data"
    label_name: str = "softmax_label"

    def __post_init__(self) -> None:
        if self.cell not in CELLS:
            raise ValueError(f"cell is {self.cell!r}; choose one of {', '.join(map(repr, CELLS))}")
        for name in ("vocab", "hidden", "embed", "layers"):
            positive(name, getattr(self, name))
        share("dropout", self.dropout)
        check_layout(self.layout)

    def __call__(self, bucket_key: Any) -> SymbolAndNames:
        length = length_of(f"{self.cell}_lm", bucket_key)
        # A manager of our own: names must not move with what the caller built before, nor take his prefix.
        with mx.name.NameManager():
            data = mx.sym.Variable(self.data_name)
            embedded = mx.sym.Embedding(data, input_dim=self.vocab, output_dim=self.embed, name="embed")
            states = self._fused(embedded, length) if self.fused else self._unrolled(embedded, length)
            loss = next_token_loss(states, self.vocab, self.label_name, self.ignore_label)
        return loss, (self.data_name,), (self.label_name,)

    def _unrolled(self, embedded: Symbol, length: int) -> Symbol:
        time = self.layout.find("T")
        steps = mx.sym.SliceChannel(embedded, num_outputs=length, axis=time, squeeze_axis=True, name="steps")
        inputs = [steps[t] for t in range(length)]
        kind = {"lstm": mx.rnn.LSTMCell, "gru": mx.rnn.GRUCell}[self.cell]
        for layer in range(self.layers):
            cell = kind(self.hidden, prefix=f"{self.cell}_l{layer}_")
            inputs, _ = cell.unroll(length, inputs, merge_outputs=False)
            if self.dropout:
                inputs = [
                    mx.sym.Dropout(x, p=self.dropout, name=f"dropout_l{layer}_t{t}")
                    for t, x in enumerate(inputs)
                ]
        # Joined so that one reshape puts the positions in the order of the flattened labels.
        joined = mx.sym.Concat(*inputs, dim=time, name="outputs")
        return mx.sym.reshape(joined, shape=(-1, self.hidden), name="states")

    def _fused(self, embedded: Symbol, length: int) -> Symbol:
        if self.layout == "NT":
            embedded = mx.sym.swapaxes(embedded, dim1=0, dim2=1, name="time_first")
        cell = mx.rnn.FusedRNNCell(
            self.hidden, num_layers=self.layers, mode=self.cell, dropout=self.dropout, prefix=f"{self.cell}_"
        )
        outputs, _ = cell.unroll(length, embedded, layout="TNC", merge_outputs=True)
        if self.layout == "NT":
            outputs = mx.sym.swapaxes(outputs, dim1=0, dim2=1, name="rows_first")
        return mx.sym.reshape(outputs, shape=(-1, self.hidden), name="states")


def lstm_lm(vocab: int, **sizes: Any) -> RecurrentLM:
    """An LSTM language model; ``sizes`` are fields of :class:`RecurrentLM`, such as hidden and layers."""
    return RecurrentLM("lstm", vocab, **sizes)


def gru_lm(vocab: int, **sizes: Any) -> RecurrentLM:
    """A GRU language model; ``sizes`` as for :func:`lstm_lm`."""
    return RecurrentLM("gru", vocab, **sizes)
