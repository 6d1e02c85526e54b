"""BucketIter: every token once, labels right, order reproducible, and nothing lost without a word."""

from __future__ import annotations

import inspect
import json
import warnings
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bucketlab import mx
from bucketlab.data import BucketIter, BucketSentenceIter, corpus
from bucketlab.errors import BudgetError, DataError, SliceError
from bucketlab.models import gru_translator, lstm_lm
from bucketlab.slicing import row_counts

SENTENCES = [[1, 2, 3], [4, 5], [6], [7, 8, 9, 1, 2], [3, 4], [5, 6, 7], [8]]


def numbers(batch):
    return batch.data[0].asnumpy(), batch.label[0].asnumpy()


def quietly(*arguments, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return BucketIter(*arguments, **options)


@st.composite
def cases(draw):
    lengths = draw(st.lists(st.integers(1, 12), min_size=1, max_size=40))
    ids = iter(range(1, 10**6))
    sequences = [[next(ids) for _ in range(n)] for n in lengths]
    bounds = draw(st.sets(st.integers(1, 14), min_size=1, max_size=5))
    bounds.add(draw(st.sampled_from(lengths)))
    workloads = draw(st.sampled_from([[1], [1, 1], [1, 2, 3]]))
    return sequences, sorted(bounds), draw(st.integers(len(workloads), 7)), workloads


@given(
    case=cases(),
    last=st.sampled_from(["fill", "short", "drop"]),
    size=st.integers(1, 3),
    shuffle=st.booleans(),
    seed=st.integers(0, 5),
    layout=st.sampled_from(["NT", "TN"]),
)
@settings(deadline=None, max_examples=60)
def test_every_token_is_real_exactly_once(case, last, size, shuffle, seed, layout):
    sequences, bounds, rows, workloads = case
    options = {
        "last": last,
        "size": size,
        "shuffle": shuffle,
        "seed": seed,
        "layout": layout,
        "workloads": workloads,
    }
    try:
        workers = [quietly(sequences, bounds, rows, rank=rank, **options) for rank in range(size)]
    except DataError as error:
        assert last == "drop" and "last='drop'" in str(error)
        return
    seen = Counter()
    for batches in zip(*workers):
        assert len({b.bucket_key for b in batches}) == 1
        assert len({b.data[0].shape for b in batches}) == 1
        for batch in batches:
            data, label = numbers(batch)
            if layout == "TN":
                data, label = data.T, label.T
            key = batch.bucket_key
            assert data.shape == label.shape == (batch.valid_rows + batch.pad, key)
            assert tuple(batch.provide_data[0].shape) == batch.data[0].shape
            for r, row in enumerate(batch.index):
                sentence = sequences[row]
                assert data[r].tolist() == sentence + [0] * (key - len(sentence))
                wanted = sentence[1:] if r < batch.valid_rows else []
                assert label[r].tolist() == wanted + [0] * (key - len(wanted))
            real = batch.index[: batch.valid_rows].tolist()
            seen.update(real)
            assert batch.valid_tokens == sum(len(sequences[row]) for row in real)
            assert batch.valid_labels == sum(len(sequences[row]) - 1 for row in real)
            assert list(batch.rows_per_context) == row_counts(len(batch.index), workloads)
            assert sum(batch.valid_rows_per_context) == batch.valid_rows
    assert set(seen.values()) <= {1}
    fitting = sum(len(s) <= bounds[-1] for s in sequences)
    assert len(seen) == len(sequences) - workers[0].dropped
    assert workers[0].dropped_why["longer than every bucket"] == len(sequences) - fitting
    if last != "drop":
        assert len(seen) == fitting
    assert all(len(worker) == len(workers[0]) for worker in workers)


def test_every_token_of_the_corpus_comes_once_an_epoch():
    text = corpus()
    it = BucketIter(text, [2, 4, 8, 16, 32, 64, 123], 32, contexts=2, seed=5)
    for _ in range(2):
        got = {}
        for batch in it:
            data, label = numbers(batch)
            for r in range(batch.valid_rows):
                assert batch.index[r] not in got
                got[batch.index[r]] = data[r][data[r] > 0].tolist()
                assert label[r][label[r] > 0].tolist() == [*got[batch.index[r]][1:], text.vocab.end]
        assert [got[row] for row in range(len(text))] == text.sentences
        it.reset()
    assert it.epoch == 2
    assert it.dropped == 0


def test_rows_are_filled_from_their_bucket_and_known_per_context():
    it = BucketIter(SENTENCES, [2, 5], 6, workloads=[1, 2], shuffle=False)
    first, second = it
    assert (first.bucket_key, first.pad, first.valid_rows) == (2, 2, 4)
    assert first.index[:4].tolist() == [1, 2, 4, 6]
    assert set(first.index[4:]) <= {1, 2, 4, 6}
    assert (first.rows_per_context, first.valid_rows_per_context) == ((2, 4), (2, 2))
    assert (second.bucket_key, second.pad, second.valid_rows_per_context) == (5, 3, (2, 1))
    assert numbers(second)[1][3:].tolist() == [[0] * 5] * 3
    assert str(first) == "BucketBatch(bucket 2, 6 rows, 4 real with 6 tokens)"


def test_last_short_gives_fewer_rows_but_one_for_each_context():
    rows = [len(b.index) for b in BucketIter([[1]] * 7, [1], 3, last="short", shuffle=False)]
    assert rows == [3, 3, 1]
    three = list(BucketIter([[1]] * 7, [1], 3, last="short", shuffle=False, contexts=3))
    assert [len(b.index) for b in three] == [3, 3, 3]
    assert [b.pad for b in three] == [0, 0, 2]
    assert three[2].valid_rows_per_context == (1, 0, 0)


def test_last_drop_counts_and_says_so():
    with pytest.warns(
        UserWarning, match="leaves 2 of 7 sequences out: 1 longer than every bucket, 1 left over"
    ):
        it = BucketIter(SENTENCES, [3], 5, last="drop")
    assert sum(b.valid_rows for b in it) == 5
    assert (it.dropped, it.dropped_why["left over in the last batches"]) == (2, 1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert BucketIter(SENTENCES, [5], 5).dropped == 0


def test_order_is_a_function_of_seed_and_epoch():
    def order(it):
        return [(b.bucket_key, *b.index) for b in it]

    one, same, other = (BucketIter(corpus(), [8, 123], 16, seed=s) for s in (3, 3, 4))
    first = order(one)
    np.random.seed(0)
    mx.random.seed(0)
    assert order(same) == first != order(other)
    assert order(one) == []  # an epoch ends until reset
    one.reset()
    second = order(one)
    assert second != first
    assert sorted(k for k, *_ in second) == sorted(k for k, *_ in first)
    same.reset()
    same.reset()  # nothing was taken: no epoch is skipped
    assert order(same) == second
    plain = BucketIter(SENTENCES, [5], 3, shuffle=False)
    assert order(plain) == [(5, 0, 1, 2), (5, 3, 4, 5), (5, 6, *plain._schedule.epoch(0)[2].rows[1:])]


def test_state_goes_on_in_mid_epoch():
    def rest(it):
        return [(b.bucket_key, b.data[0].asnumpy().tolist()) for b in it]

    it = BucketIter(corpus(), [8, 123], 64, seed=3)
    list(it)
    it.reset()
    for _ in range(20):
        next(it)
    state = json.loads(json.dumps(it.state_dict()))
    wanted = rest(it)
    fresh = BucketIter(corpus(), [8, 123], 64, seed=3)
    fresh.load_state_dict(state)
    assert fresh.epoch == 1
    assert rest(fresh) == wanted
    assert len(wanted) == len(it) - 20
    it.reset(), fresh.reset()
    assert rest(it) == rest(fresh)


def test_a_state_of_something_else_is_refused_and_changes_nothing():
    it = BucketIter(SENTENCES, [5], 2)
    next(it)
    before = it.state_dict()
    for other, name in (
        (BucketIter(SENTENCES, [5], 2, seed=1), "seed 1"),
        (BucketIter(SENTENCES, [6], 2), r"bounds \[6\]"),
        (BucketIter(SENTENCES, [5], 3), r"batch_sizes \[3\]"),
        (BucketIter(SENTENCES[:-1], [5], 2), "sequences 6"),
        (BucketIter([*SENTENCES[:-1], [9]], [5], 2), "checksum"),
    ):
        with pytest.raises(DataError, match=f"state was saved with {name}"):
            it.load_state_dict(other.state_dict())
    with pytest.raises(DataError, match="not one of BucketIter"):
        it.load_state_dict({"epoch": 1})
    with pytest.raises(DataError, match="an epoch has 4 batches"):
        it.load_state_dict({**before, "position": 5})
    assert it.state_dict() == before


def test_begin_moves_the_data_instead_of_the_labels():
    batch = next(BucketIter([[5, 6, 7], [8]], [4], 2, shuffle=False, begin=2))
    data, label = numbers(batch)
    assert data.tolist() == [[2, 5, 6, 0], [2, 0, 0, 0]]
    assert label.tolist() == [[5, 6, 7, 0], [8, 0, 0, 0]]
    assert batch.valid_labels == batch.valid_tokens == 4


def test_types_and_names():
    it = BucketIter(SENTENCES, [2, 5], 4, layout="TN", data_name="words", label_name="next", ignore_label=-1)
    assert it.default_bucket_key == 5
    assert it.provide_data == [("words", (5, 4))]
    assert it.provide_data[0].dtype is np.int32
    assert it.provide_label == [("next", (5, 4))]
    assert it.provide_label[0].dtype is np.float32
    assert it.provide_label[0].layout == "TN"
    assert it.provide(2, rows=3)[0] == [("words", (2, 3))]
    batch = next(it)
    assert batch.data[0].dtype is np.int32
    assert batch.label[0].dtype is np.float32
    assert set(np.unique(batch.label[0].asnumpy())) & {-1.0}
    assert batch.data[0].asnumpy().min() == 0


def test_rows_are_traced_to_the_text():
    text = corpus()
    batch = next(BucketIter(text, [123], 8, seed=1))
    for r, row in enumerate(batch.index):
        ids = batch.data[0].asnumpy()[r]
        assert text.vocab.decode(ids[ids > 0]) == text.tokens(row)
        assert BucketIter(text, [123], 8).sequence(row).tolist() == text.sentences[row]


def test_a_token_budget_gives_each_bucket_its_rows_evened():
    it = BucketIter([[1]] * 33 + [[1] * 10] * 5, [1, 10], tokens=32, contexts=2)
    assert it.batch_sizes == {1: 18, 10: 2}
    assert [it.provide(k)[0][0].shape for k in (1, 10)] == [(18, 1), (2, 10)]
    with pytest.raises(
        BudgetError, match=r"bucket 20: .*2 context\(s\).* 2 x 20 = 40 tokens; the budget is 32"
    ):
        BucketIter([[1] * 20], [20], tokens=32, contexts=2)


def test_pairs():
    pairs = corpus(parallel=True)
    it = BucketIter(pairs, [(8, 8), (30, 30), (130, 130)], 32, contexts=2)
    assert it.default_bucket_key == (130, 130)
    assert [(d.name, d.shape) for d in it.provide_data] == [("source", (32, 130)), ("target", (32, 130))]
    got = {}
    for batch in it:
        source, target = (a.asnumpy() for a in batch.data)
        label = batch.label[0].asnumpy()
        for r in range(batch.valid_rows):
            row = int(batch.index[r])
            n = pairs.target.lengths[row]
            assert source[r][source[r] > 0].tolist() == pairs.source.ids(row).tolist()
            assert label[r, :n].tolist() == pairs.target.ids(row).tolist()
            assert not label[r, n:].any()
            assert target[r, :n].tolist() == [2, *pairs.target.ids(row).tolist()[:-1]]
            got[row] = batch.bucket_key
        assert batch.valid_tokens == pairs.lengths[batch.index[: batch.valid_rows]].sum()
    assert sorted(got) == list(range(len(pairs)))
    assert got[int(pairs.lengths.max(axis=1).argmin())] == (8, 8)
    plain = BucketIter([([1, 2], [3]), ([4], [5, 6])], [(2, 2)], 2, begin=9, shuffle=False)
    assert [a.asnumpy().tolist() for a in next(plain).data] == [[[1, 2], [4, 0]], [[9, 0], [9, 5]]]
    assert [s.tolist() for s in plain.sequence(1)] == [[4], [5, 6]]


def test_a_pair_goes_to_the_tightest_bucket():
    it = BucketIter([([1] * 3, [1])], [(9, 1), (3, 9), (4, 4)], 1, begin=9)
    assert next(it).bucket_key == (4, 4)


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        (([], [3], 2), {}, "sequences is empty"),
        ((5, [3], 2), {}, "sequences is int; give a corpus or a list"),
        (([[1], []], [3], 2), {}, r"sequences\[1\] is empty"),
        (([[1], 2], [3], 2), {}, r"sequences\[1\] is 2; give a list of token ids"),
        (([[1], [1.5]], [3], 2), {}, r"sequences\[1\] is \[1.5\]; token ids must be whole numbers"),
        (([[1], ["a"]], [3], 2), {}, r"sequences\[1\] is \['a'\]; token ids"),
        (([[1], [2, -3]], [3], 2), {}, r"sequences\[1\] holds the id -3; ids count from 0"),
        (([[1], [2, 0]], [3], 2), {}, r"sequences\[1\] holds the id 0, which is ignore_label"),
        (([[1], [2**24 + 1]], [3], 2), {}, "label_dtype float32 cannot hold the id 16777217"),
        ((SENTENCES, [], 2), {}, "bounds is empty"),
        ((SENTENCES, 5, 2), {}, "bounds is 5; give a BucketPlan or a list of bounds"),
        ((SENTENCES, [3, 1], 2), {}, r"bounds are \[3, 1\]; they must rise: \[1, 3\]"),
        ((SENTENCES, [3, 3], 2), {}, r"bounds are \[3, 3\]; they must rise: \[3\]"),
        ((SENTENCES, [0, 3], 2), {}, r"bounds\[0\] is 0; give a whole number of at least 1"),
        ((SENTENCES, [(1, 2)], 2), {}, r"bounds\[0\] is \(1, 2\); give a whole number"),
        (
            ([[1] * 9, [1] * 7], [3, 5], 2),
            {},
            r"bounds \[3, 5\] hold none of the 2 sequences; the shortest is 7",
        ),
        ((SENTENCES, [2], 2), {"too_long": "error"}, "sequence 0 has length 3, longer than every bucket"),
        ((SENTENCES, [5], None), {}, "give batch_size or tokens"),
        ((SENTENCES, [5], 2), {"tokens": 9}, "one of them only"),
        ((SENTENCES, [5], 0), {}, "batch_size is 0"),
        ((SENTENCES, [5], 1), {"contexts": 2}, r"batch_size is 1; 2 context\(s\)"),
        ((SENTENCES, [5], [2, 3]), {}, "batch_size has 2 entries for 1 bounds"),
        ((SENTENCES, [5], 2), {"layout": "NTC"}, "layout is 'NTC'; choose one of 'NT', 'TN'"),
        ((SENTENCES, [5], 2), {"last": "keep"}, "last is 'keep'"),
        ((SENTENCES, [5], 2), {"rank": 2, "size": 2}, "rank is 2 of size 2"),
        ((SENTENCES, [5], 2), {"seed": -1}, "seed is -1"),
        ((SENTENCES, [5], 2), {"end": 0}, "end is 0, which is ignore_label"),
        ((SENTENCES, [5], 2), {"data_name": ["a", "b"]}, r"give 1 different name\(s\)"),
        ((SENTENCES, [5], 8), {"last": "drop"}, r"no bucket fills a batch of \[8\] rows"),
        (([([1], [2])], [(1, 1)], 1), {}, "pairs need begin"),
        (([([1], [2]), [3]], [(1, 1)], 1), {"begin": 9}, r"sequences\[1\] is \[3\]; the first is a"),
        (([([1], [2])], [3], 1), {"begin": 9}, r"bounds\[0\] is 3; give a pair"),
        (([([1], [2])], [(1, 1), (1, 1)], 1), {"begin": 9}, "give each pair once"),
    ],
)
def test_bad_arguments_are_named(arguments, options, message):
    with pytest.raises(DataError, match=message):
        BucketIter(*arguments, **options)


def test_a_split_that_cannot_be_made_is_refused_at_once():
    with pytest.raises(SliceError, match="batch of 3 rows over 2 contexts"):
        BucketIter(SENTENCES, [5], 3, contexts=2, split="exact")


def test_what_is_given_stays_as_it_was():
    sentences, bounds = [list(s) for s in SENTENCES], [2, 5]
    it = BucketIter(sentences, bounds, 2)
    for batch in it:
        batch.index[:] = -1
    assert (sentences, bounds) == (SENTENCES, [2, 5])
    shuffled = [5, 2]
    BucketSentenceIter(sentences, 2, shuffled)
    assert (sentences, shuffled) == (SENTENCES, [5, 2])


def test_it_prints_its_buckets():
    it = BucketIter(SENTENCES, [2, 5, 9], 2)
    assert repr(it).splitlines() == [
        "4 batches an epoch, 0 of 7 sequences dropped",
        "bucket  sequences  rows  steps  padding",
        "2               4     2      2     25 %",
        "5               3     2      2   26.7 %",
        "9               0     2      0      0 %",
    ]
    assert it._repr_html_().count('<th scope="row">') == 3


def test_the_protocol_of_mx_iterators():
    it = BucketIter(SENTENCES, [5], 2, shuffle=False)
    with pytest.raises(DataError, match="call iter_next"):
        it.getdata()
    assert it.iter_next()
    assert it.getdata()[0].shape == it.getlabel()[0].shape == (2, 5)
    assert it.getindex().tolist() == [0, 1]
    assert it.getpad() == 0
    assert isinstance(it, mx.io.DataIter)
    assert isinstance(it.next(), mx.io.DataBatch)


def test_bucketing_module_trains_on_it():
    text = corpus().take(range(0, 3238, 8))
    it = quietly(text, [4, 10], 16, contexts=2)
    module = mx.mod.BucketingModule(
        lstm_lm(len(text.vocab), hidden=16, embed=16), it.default_bucket_key, context=[mx.cpu(0), mx.cpu(1)]
    )
    metric = mx.metric.Perplexity(ignore_label=0)
    seen = []
    mx.random.seed(1)
    module.fit(
        it,
        num_epoch=3,
        eval_metric=metric,
        optimizer="adam",
        optimizer_params={"learning_rate": 0.02},
        epoch_end_callback=lambda *_: seen.append(metric.get()[1]),
    )
    assert len(seen) == 3
    assert seen[2] < seen[0] / 2
    assert it.epoch == 3


def test_translation_trains_on_pairs():
    pairs = corpus(parallel=True).take(range(0, 3238, 16))
    it = quietly(pairs, [(6, 8), (20, 24)], 16)
    model = gru_translator(len(pairs.source.vocab), len(pairs.target.vocab), hidden=16, embed=16)
    module = mx.mod.BucketingModule(model, it.default_bucket_key, context=mx.cpu())
    metric = mx.metric.Perplexity(ignore_label=0)
    seen = []
    module.fit(
        it,
        num_epoch=2,
        eval_metric=metric,
        optimizer="adam",
        optimizer_params={"learning_rate": 0.02},
        epoch_end_callback=lambda *_: seen.append(metric.get()[1]),
    )
    assert seen[1] < seen[0] / 2


def rows_of(it):
    rows = Counter()
    for batch in it:
        data, label = numbers(batch)
        for r in range(len(data) - batch.pad):
            rows[batch.bucket_key, tuple(data[r]), tuple(label[r])] += 1
    return rows


@pytest.mark.parametrize("invalid", [0, 99])
def test_the_stand_in_gives_what_mx_gives(invalid, capsys):
    sentences = [[1 + (i * j) % 7 for j in range(n)] for i in range(4) for n in (2, 3, 5, 5)]
    arguments = (sentences, 4, [3, 5], invalid, "words", "next", "int32", "NT")
    theirs, ours = mx.rnn.BucketSentenceIter(*arguments), BucketSentenceIter(*arguments)
    assert rows_of(ours) == rows_of(theirs)
    assert ours.provide_data == theirs.provide_data
    assert ours.provide_label == theirs.provide_label
    names = (
        "batch_size",
        "buckets",
        "data_name",
        "label_name",
        "invalid_label",
        "major_axis",
        "default_bucket_key",
    )
    for name in names:
        assert getattr(ours, name) == getattr(theirs, name)


def test_the_stand_in_takes_the_same_arguments_in_the_same_places():
    def positional(cls):
        parameters = inspect.signature(cls.__init__).parameters.values()
        return [(p.name, p.default) for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]

    assert positional(BucketSentenceIter) == positional(mx.rnn.BucketSentenceIter)


def test_the_stand_in_keeps_the_tail_and_counts_the_rest(capsys):
    sentences = [[1, 2]] * 5 + [[1, 2, 3]] * 2 + [[4] * 40]
    it = BucketSentenceIter(sentences, 4, layout="TN")
    assert capsys.readouterr().out == ""
    assert (it.buckets, it.dropped, it.major_axis) == ([2, 40], 0, 1)
    assert sum(b.valid_rows for b in it) == 8
    assert BucketSentenceIter([[1] * 7], 4).buckets == [
        7
    ]  # no length is frequent: mx raises max() of an empty list
    with pytest.warns(UserWarning, match="leaves 2 of 9 sequences out: 1 longer than every bucket, 1 empty"):
        assert BucketSentenceIter([*sentences, []], 4, [2, 3]).dropped == 2


def test_the_stand_in_keeps_invalid_labels_out_of_the_embedding():
    batch = next(BucketSentenceIter([[3, -1, 4]], 1, [5]))
    data, label = numbers(batch)
    assert data.tolist() == [[3, 0, 4, 0, 0]]
    assert label.tolist() == [[-1, 4, -1, -1, -1]]
    assert batch.data[0].dtype is np.float32
    ended = next(BucketSentenceIter([[3, 4, 0]], 1, [4], 0))
    assert numbers(ended)[1].tolist() == [[4, 0, 0, 0]]
