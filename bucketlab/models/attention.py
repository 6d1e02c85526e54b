"""A causal self-attention language model: the one whose cost grows with the square of the length."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from bucketlab._engine import mx
from bucketlab.models._common import Symbol, SymbolAndNames, length_of, next_token_loss, positive

_FAR = -1e9  # finite: -inf times a zero mask would be NaN


@dataclass(frozen=True)
class AttentionLM:
    """A ``sym_gen`` of pre-normalised attention blocks; the bucket key is the length, at most ``max_length``.

    Data and labels are (rows, length); the one output is (positions, vocab). A position sees itself and what
    came before it, so padding on the right changes no real position.
    """

    vocab: int
    embed: int = 64
    heads: int = 4
    layers: int = 1
    feed_forward: int = 128
    max_length: int = 512
    ignore_label: int = 0
    data_name: str = "data"
    label_name: str = "softmax_label"

    def __post_init__(self) -> None:
        for name in ("vocab", "embed", "heads", "layers", "feed_forward", "max_length"):
            positive(name, getattr(self, name))
        if self.embed % self.heads:
            raise ValueError(
                f"embed is {self.embed}, which {self.heads} heads do not divide; give a multiple of heads"
            )

    def __call__(self, bucket_key: Any) -> SymbolAndNames:
        length = length_of("attention_lm", bucket_key, self.max_length)
        with mx.name.NameManager():
            data = mx.sym.Variable(self.data_name)
            tokens = mx.sym.Embedding(data, input_dim=self.vocab, output_dim=self.embed, name="embed")
            table = mx.sym.Variable("position_weight", shape=(1, self.max_length, self.embed))
            places = mx.sym.slice_axis(table, axis=1, begin=0, end=length, name="places")
            states = mx.sym.broadcast_add(tokens, places, name="placed")
            mask = self._mask(length)
            for layer in range(self.layers):
                states = self._block(states, mask, f"block{layer}_")
            states = mx.sym.LayerNorm(states, name="final_norm")
            flat = mx.sym.reshape(states, shape=(-1, self.embed), name="states")
            loss = next_token_loss(flat, self.vocab, self.label_name, self.ignore_label)
        return loss, (self.data_name,), (self.label_name,)

    @staticmethod
    def _mask(length: int) -> Symbol:
        steps = mx.sym.arange(start=0, stop=length, name="mask_steps")
        seen_from = mx.sym.reshape(steps, shape=(1, length, 1), name="mask_from")
        looked_at = mx.sym.reshape(steps, shape=(1, 1, length), name="mask_at")
        return mx.sym.broadcast_greater(looked_at, seen_from, name="mask_later") * _FAR

    def _block(self, states: Symbol, mask: Symbol, prefix: str) -> Symbol:
        sym = mx.sym
        normal = sym.LayerNorm(states, name=prefix + "norm1")
        query, key, value = (self._heads(normal, prefix + part) for part in ("query", "key", "value"))
        scale = (self.embed // self.heads) ** -0.5
        scores = sym.batch_dot(query, key, transpose_b=True, name=prefix + "scores") * scale
        scores = sym.broadcast_add(scores, mask, name=prefix + "masked")
        weights = sym.softmax(scores, axis=-1, name=prefix + "weights")
        mixed = sym.batch_dot(weights, value, name=prefix + "mixed")
        mixed = sym.reshape(mixed, shape=(-4, -1, self.heads, -2), name=prefix + "unstack")
        mixed = sym.transpose(mixed, axes=(0, 2, 1, 3), name=prefix + "together")
        mixed = sym.reshape(mixed, shape=(0, 0, -3), name=prefix + "joined")
        mixed = sym.FullyConnected(mixed, num_hidden=self.embed, flatten=False, name=prefix + "output")
        states = states + mixed
        normal = sym.LayerNorm(states, name=prefix + "norm2")
        wide = sym.FullyConnected(normal, num_hidden=self.feed_forward, flatten=False, name=prefix + "wide")
        wide = sym.Activation(wide, act_type="relu", name=prefix + "relu")
        return states + sym.FullyConnected(wide, num_hidden=self.embed, flatten=False, name=prefix + "narrow")

    def _heads(self, states: Symbol, name: str) -> Symbol:
        """(rows, time, embed) to (rows x heads, time, embed / heads)."""
        sym = mx.sym
        part = sym.FullyConnected(states, num_hidden=self.embed, flatten=False, name=name)
        part = sym.reshape(part, shape=(0, 0, -4, self.heads, -1), name=name + "_split")
        part = sym.transpose(part, axes=(0, 2, 1, 3), name=name + "_apart")
        return sym.reshape(part, shape=(-3, -2), name=name + "_stack")


def attention_lm(vocab: int, **sizes: Any) -> AttentionLM:
    """A causal self-attention language model; ``sizes`` are the fields of :class:`AttentionLM`."""
    return AttentionLM(vocab, **sizes)
