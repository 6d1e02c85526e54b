"""Corpora, the bucket planner and the iterators that feed bucketed training."""

from __future__ import annotations

from bucketlab.data.batch import BucketBatch
from bucketlab.data.batching import Budget
from bucketlab.data.compare import Comparison, compare
from bucketlab.data.corpora import corpora, corpus
from bucketlab.data.corpus import Corpus, ParallelCorpus
from bucketlab.data.images import images
from bucketlab.data.iterator import BucketIter
from bucketlab.data.plan import BucketPlan, PlannedBucket
from bucketlab.data.planner import plan_buckets
from bucketlab.data.sentence_iter import BucketSentenceIter
from bucketlab.data.vocabulary import Vocabulary

__all__ = [
    "BucketBatch",
    "BucketIter",
    "BucketPlan",
    "BucketSentenceIter",
    "Budget",
    "Comparison",
    "Corpus",
    "ParallelCorpus",
    "PlannedBucket",
    "Vocabulary",
    "compare",
    "corpora",
    "corpus",
    "images",
    "plan_buckets",
]
