"""Symbols that the tutorials, the tests and the benchmarks train."""

from __future__ import annotations

from bucketlab.models.attention import AttentionLM, attention_lm
from bucketlab.models.classifiers import mlp, small_convnet
from bucketlab.models.recurrent import RecurrentLM, gru_lm, lstm_lm
from bucketlab.models.translation import Translator, gru_translator

__all__ = [
    "AttentionLM",
    "RecurrentLM",
    "Translator",
    "attention_lm",
    "gru_lm",
    "gru_translator",
    "lstm_lm",
    "mlp",
    "small_convnet",
]
