"""Corpora, the bucket planner and the iterators that feed bucketed training."""

from __future__ import annotations

from bucketlab.data.corpora import corpora, corpus
from bucketlab.data.corpus import Corpus, ParallelCorpus
from bucketlab.data.images import images
from bucketlab.data.vocabulary import Vocabulary

__all__ = ["Corpus", "ParallelCorpus", "Vocabulary", "corpora", "corpus", "images"]
