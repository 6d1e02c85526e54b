"""Every size of batch that an iterator or a plan announces is checked before anything is bound."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from bucketlab import BucketingModule, Module, MutableModule, mx
from bucketlab.data import BucketIter, plan_buckets
from bucketlab.errors import SliceError
from nets import CONTEXTS, classifier, tagger

THREE = CONTEXTS[:3]
SENTENCES = [[1, 2, 3]] * 9 + [[4, 5]] * 7


def module(split, contexts=THREE):
    return BucketingModule(
        lambda key: (tagger("NT"), ["data"], ["softmax_label"]), default_bucket_key=3, context=contexts, split=split
    )


def test_fit_refuses_a_bucket_that_the_rule_cannot_cut_before_it_binds():
    made = module("exact")
    with pytest.raises(SliceError, match=r"bucket 2: batch of 4 rows over 3 contexts.*multiple of 3 rows"):
        made.fit(BucketIter(SENTENCES, [2, 3], batch_size=[4, 3]), num_epoch=1)
    assert not made.binded and not made._buckets
    made.check_batches(BucketIter(SENTENCES, [2, 3], batch_size=[6, 3]))


def test_a_short_last_batch_is_announced_too():
    data = BucketIter(SENTENCES, [2, 3], batch_size=[6, 6], last="short")
    assert data.batch_rows == {2: (6, 1), 3: (6, 3)}
    with pytest.raises(SliceError, match=r"bucket 2: batch of 1 rows over 3 contexts"):
        module("exact").check_batches(data)
    with pytest.raises(SliceError, match=r"bucket 2: .*by MXNet's rule"):
        module("mxnet").fit(data, num_epoch=1)
    module("balanced").check_batches(data)


def test_validation_data_and_plans_are_checked():
    fine, bad = (BucketIter(SENTENCES, [3], batch_size=n) for n in (6, 5))
    made = module("exact")
    with pytest.raises(SliceError, match="bucket 3: batch of 5 rows"):
        made.fit(fine, eval_data=bad, num_epoch=1)
    plan = plan_buckets([3] * 9 + [2] * 7, k=2, contexts=2)
    refused = [key for key, rows in zip(plan.keys, plan.batch_sizes) if rows % 3]
    with pytest.raises(SliceError, match=f"bucket {refused[0]}: batch of"):
        made.check_batches(plan)


def test_every_kind_of_module_asks_and_iterators_that_say_nothing_pass():
    announces = SimpleNamespace(batch_sizes={"wide": 4})
    for made in (
        Module(classifier(), context=THREE, split="exact"),
        MutableModule(classifier(), ["data"], ["softmax_label"], context=THREE, split="exact"),
    ):
        with pytest.raises(SliceError, match="bucket 'wide': batch of 4 rows over 3 contexts"):
            made.check_batches(announces)
        made.check_batches(mx.io.NDArrayIter(mx.nd.ones((4, 4)), batch_size=4), None)
