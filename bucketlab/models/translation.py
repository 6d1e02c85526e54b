"""A sequence-to-sequence model whose bucket key is a pair: source length and target length."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from bucketlab._engine import mx
from bucketlab.errors import BucketError
from bucketlab.models._common import Symbol, SymbolAndNames, length_of, next_token_loss, positive


@dataclass(frozen=True)
class Translator:
    """A ``sym_gen`` for keys ``(source length, target length)``.

    Data are ``source`` (rows, S) and ``target`` (rows, T), the target shifted right behind a begin token;
    labels are the targets themselves. A GRU reads the source, a second one writes the target, and each of its
    steps looks back over the source by dot-product attention, to which padding (``pad``) is invisible.
    """

    source_vocab: int
    target_vocab: int
    hidden: int = 64
    embed: int = 64
    pad: int = 0
    ignore_label: int = 0
    source_name: str = "source"
    target_name: str = "target"
    label_name: str = "softmax_label"

    def __post_init__(self) -> None:
        for name in ("source_vocab", "target_vocab", "hidden", "embed"):
            positive(name, getattr(self, name))

    def __call__(self, bucket_key: Any) -> SymbolAndNames:
        if not isinstance(bucket_key, tuple) or len(bucket_key) != 2:
            raise BucketError(
                f"gru_translator: bucket key {bucket_key!r} is not a pair (source length, target length)"
            )
        source_length, target_length = (length_of("gru_translator", part) for part in bucket_key)
        sym = mx.sym
        with mx.name.NameManager():
            source = sym.Variable(self.source_name)
            read = self._stack(source, self.source_vocab, source_length, "source_")
            write = self._stack(sym.Variable(self.target_name), self.target_vocab, target_length, "target_")
            scores = sym.batch_dot(write, read, transpose_b=True, name="look_scores") * self.hidden**-0.5
            padding = sym.expand_dims(source == self.pad, axis=1, name="look_padding")
            # Ids may be whole numbers; the scores are not, and MXNet adds only like to like.
            padding = sym.cast(padding, dtype="float32", name="look_cast") * -1e9
            scores = sym.broadcast_add(scores, padding, name="look_masked")
            weights = sym.softmax(scores, axis=-1, name="look_weights")
            context = sym.batch_dot(weights, read, name="look")
            both = sym.reshape(
                sym.Concat(write, context, dim=2, name="both"), shape=(-1, 2 * self.hidden), name="states"
            )
            mixed = sym.Activation(
                sym.FullyConnected(both, num_hidden=self.hidden, name="mix"), act_type="tanh", name="mix_tanh"
            )
            loss = next_token_loss(mixed, self.target_vocab, self.label_name, self.ignore_label)
        return loss, (self.source_name, self.target_name), (self.label_name,)

    def _stack(self, ids: Symbol, vocab: int, length: int, prefix: str) -> Symbol:
        """Ids (rows, time) to GRU states (rows, time, hidden)."""
        embedded = mx.sym.Embedding(ids, input_dim=vocab, output_dim=self.embed, name=prefix + "embed")
        embedded = mx.sym.swapaxes(embedded, dim1=0, dim2=1, name=prefix + "time_first")
        cell = mx.rnn.FusedRNNCell(self.hidden, mode="gru", prefix=prefix + "gru_")
        states, _ = cell.unroll(length, embedded, layout="TNC", merge_outputs=True)
        return mx.sym.swapaxes(states, dim1=0, dim2=1, name=prefix + "rows_first")


def gru_translator(source_vocab: int, target_vocab: int, **sizes: Any) -> Translator:
    """A GRU translator with attention; ``sizes`` are the fields of :class:`Translator`."""
    return Translator(source_vocab, target_vocab, **sizes)
