"""What gradients are divided by: with tokens, an update goes by the mean over real tokens, whatever the batches are."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import bucketlab as bl
from bucketlab import mx
from bucketlab.errors import DataError
from bucketlab.training.scale import GradientScale, TokenCount, tokens_of

VOCAB, HIDDEN, RATE = 7, 3, 0.5


def words(key):
    """Scores for the next word from the present one alone, so that a gradient can be computed by hand."""
    embedded = mx.sym.Embedding(mx.sym.Variable("data"), input_dim=VOCAB, output_dim=HIDDEN, name="embed")
    flat = mx.sym.reshape(embedded, shape=(-1, HIDDEN))
    scores = mx.sym.FullyConnected(flat, num_hidden=VOCAB, no_bias=True, name="scores")
    label = mx.sym.reshape(mx.sym.Variable("softmax_label"), shape=(-1,))
    loss = mx.sym.SoftmaxOutput(scores, label, use_ignore=True, ignore_label=0, normalization="null", name="softmax")
    return loss, ("data",), ("softmax_label",)


def start():
    rng = np.random.RandomState(3)
    return {
        "embed_weight": rng.uniform(-1, 1, (VOCAB, HIDDEN)).astype("float32"),
        "scores_weight": rng.uniform(-1, 1, (VOCAB, HIDDEN)).astype("float32"),
    }


def mean_gradient(sentences, at):
    """The gradient of the mean loss over all pairs of a word and the one that follows it, in double precision."""
    embed, scores = (at[name].astype("float64") for name in ("embed_weight", "scores_weight"))
    gradients = {name: np.zeros(value.shape) for name, value in at.items()}
    pairs = [pair for sentence in sentences for pair in zip(sentence, sentence[1:])]
    for word, following in pairs:
        logits = scores @ embed[word]
        off = np.exp(logits - logits.max())
        off /= off.sum()
        off[following] -= 1
        gradients["scores_weight"] += np.outer(off, embed[word])
        gradients["embed_weight"][word] += scores.T @ off
    return {name: value / max(len(pairs), 1) for name, value in gradients.items()}


def module_for(batches, contexts=1, grad_req="write", optimizer="sgd", params=None, **options):
    module = bl.BucketingModule(
        words, batches.default_bucket_key, context=[mx.cpu(i) for i in range(contexts)],
        **{"grad_scale": "tokens", **options},
    )  # fmt: skip
    module.bind(batches.provide_data, batches.provide_label, grad_req=grad_req)
    module.init_params(arg_params={name: mx.nd.array(value) for name, value in start().items()}, aux_params={})
    module.init_optimizer(optimizer=optimizer, optimizer_params={"learning_rate": RATE} if params is None else params)
    return module


def params_of(module):
    return {name: value.asnumpy() for name, value in module.get_params()[0].items()}


def assert_stepped(before, after, gradient):
    for name, value in gradient.items():
        np.testing.assert_allclose(after[name], before[name] - RATE * value, rtol=0, atol=3e-6, err_msg=name)


corpora = st.lists(st.lists(st.integers(1, VOCAB - 1), min_size=1, max_size=9), min_size=1, max_size=12)


@settings(max_examples=12)
@given(corpora, st.integers(1, 3), st.integers(1, 3), st.sampled_from(["fill", "short"]), st.integers(0, 9))
def test_over_unequal_batches_of_any_buckets_it_is_the_mean_over_all_real_tokens(sentences, k, contexts, last, seed):
    plan = bl.data.plan_buckets([len(s) for s in sentences], k, budget=30, contexts=contexts)
    batches = bl.data.BucketIter(sentences, plan, seed=seed, last=last)
    module = module_for(batches, contexts, grad_req="add")
    for batch in batches:
        module.forward_backward(batch)
    before = params_of(module)
    module.update()
    assert_stepped(before, params_of(module), mean_gradient(sentences, before))


@settings(max_examples=10)
@given(corpora, st.integers(1, 3), st.integers(1, 2), st.sampled_from(["fill", "short"]))
def test_every_step_goes_by_the_mean_over_the_real_tokens_of_its_own_batch(sentences, k, contexts, last):
    plan = bl.data.plan_buckets([len(s) for s in sentences], k, budget=30, contexts=contexts)
    batches = bl.data.BucketIter(sentences, plan, last=last)
    module = module_for(batches, contexts)
    for batch in batches:
        before = params_of(module)
        module.forward_backward(batch)
        module.update()
        real = [sentences[row] for row in batch.index[: batch.valid_rows]]
        assert_stepped(before, params_of(module), mean_gradient(real, before))


SENTENCES = [[1, 2, 3], [2, 2], [5, 1, 3, 4, 2], [6, 5], [3, 3, 1, 1, 2, 6]]


def three_batches(**options):
    return bl.data.BucketIter(SENTENCES, [3, 6], batch_size=2, shuffle=False, **options)


def test_what_is_added_up_begins_anew_after_each_update():
    module = module_for(three_batches(), grad_req="add")
    for _ in range(2):
        for block in (array for m in module._buckets.values() for array in m._exec_group.grad_arrays):
            for array in block:
                array[:] = 0
        before = params_of(module)
        for batch in three_batches():
            module.forward_backward(batch)
        module.update()
        assert_stepped(before, params_of(module), mean_gradient(SENTENCES, before))


def test_a_second_update_with_the_same_gradients_divides_by_the_same():
    module, batch = module_for(three_batches()), next(three_batches())
    before = params_of(module)
    module.forward_backward(batch)
    module.update()
    module.update()
    gradient = mean_gradient(SENTENCES[:2], before)
    assert_stepped(before, params_of(module), {name: 2 * value for name, value in gradient.items()})


def test_rows_count_filler_and_padding_and_tokens_do_not():
    steps = {}
    for scale in ("rows", "tokens"):
        module = module_for(three_batches(), grad_scale=scale)
        scales = []
        for batch in three_batches():
            module.forward_backward(batch)
            module.update()
            scales.append(1 / module._curr_module._optimizer.rescale_grad)
        steps[scale] = scales
    assert steps["rows"] == pytest.approx([2, 2, 2])
    # Of [1, 2, 3] and [2, 2], then of [6, 5] beside filler, then of the two longest: their words but the first.
    assert steps["tokens"] == pytest.approx([2 + 1, 1, 4 + 5])


def test_a_bucket_of_single_words_has_no_gradient_and_moves_nothing():
    batches = bl.data.BucketIter([[1], [2]], [1], batch_size=2)
    module = module_for(batches)
    before = params_of(module)
    module.forward_backward(next(batches))
    module.update()
    for name, value in params_of(module).items():
        np.testing.assert_array_equal(value, before[name])


def test_fit_follows_tokens_with_an_optimizer_of_the_callers_own():
    first = mx.optimizer.SGD(learning_rate=RATE)
    by_name, by_object = (module_for(three_batches(), optimizer=given) for given in ("sgd", first))
    for module in (by_name, by_object):
        module.fit(three_batches(), num_epoch=2, eval_metric=mx.metric.Perplexity(0))
    for name, value in params_of(by_name).items():
        np.testing.assert_array_equal(value, params_of(by_object)[name])
    assert first.rescale_grad == pytest.approx(1 / 9)


def test_a_module_without_buckets_takes_it_too():
    batches = bl.data.BucketIter(SENTENCES, [6], batch_size=5, shuffle=False)
    module = bl.Module(words(6)[0], grad_scale="tokens")
    module.bind(batches.provide_data, batches.provide_label)
    module.init_params(arg_params={name: mx.nd.array(value) for name, value in start().items()}, aux_params={})
    module.init_optimizer(optimizer_params={"learning_rate": RATE})
    module.forward_backward(next(batches))
    module.update()
    assert_stepped(start(), params_of(module), mean_gradient(SENTENCES, start()))


def test_a_batch_that_does_not_tell_its_tokens_is_refused_before_anything_changes():
    module = module_for(three_batches())
    batch = next(three_batches())
    silent = mx.io.DataBatch(
        batch.data, batch.label, bucket_key=3, provide_data=batch.provide_data, provide_label=batch.provide_label
    )
    with pytest.raises(DataError, match=r"grad_scale is 'tokens', and the batch of bucket 3 does not tell"):
        module.forward_backward(silent)
    assert list(module._buckets) == [6] and module._curr_bucket_key == 6
    module.forward(silent, is_train=False)
    assert module.get_outputs()[0].shape == (6, VOCAB)
    silent.valid_tokens = 5
    module.forward_backward(silent)
    module.update()
    assert module._curr_module._optimizer.rescale_grad == pytest.approx(1 / 5)


@pytest.mark.parametrize(
    "optimizer, params, message",
    [
        ("sgd", {"rescale_grad": 0.5}, "optimizer_params has rescale_grad: leave it out"),
        (mx.optimizer.SGD(rescale_grad=0.25), {}, "the optimizer has 0.25 as rescale_grad"),
    ],
)
def test_a_scale_that_is_given_as_well_is_refused(optimizer, params, message):
    with pytest.raises(ValueError, match=message):
        module_for(three_batches(), optimizer=optimizer, params=params)


def test_a_loss_that_averages_by_itself_is_refused():
    def averaging(key):
        label = mx.sym.reshape(mx.sym.Variable("softmax_label"), shape=(-1,))
        scores = words(key)[0].get_internals()["scores_output"]
        loss = mx.sym.SoftmaxOutput(scores, label, use_ignore=True, ignore_label=0, normalization="valid", name="mean")
        return loss, ("data",), ("softmax_label",)

    module = bl.BucketingModule(averaging, 6, grad_scale="tokens")
    module.bind(three_batches().provide_data, three_batches().provide_label)
    module.init_params()
    with pytest.raises(ValueError, match=r"'mean' \(SoftmaxOutput, normalization='valid'\) divides by itself"):
        module.init_optimizer()
    assert not module.optimizer_initialized


def test_gradients_of_which_only_some_add_up_are_refused():
    with pytest.raises(ValueError, match="grad_req adds up some gradients over batches and not others"):
        module_for(three_batches(), grad_req={"embed_weight": "add", "scores_weight": "write"})


@pytest.mark.parametrize("cls", [bl.Module, bl.BucketingModule])
def test_another_scale_is_refused_by_name(cls):
    what = words(6)[0] if cls is bl.Module else words
    with pytest.raises(ValueError, match="grad_scale is 'sentences'; choose one of 'rows', 'tokens'"):
        cls(what, **({} if cls is bl.Module else {"default_bucket_key": 6}), grad_scale="sentences")


def test_tokens_of_batches_that_are_cut_already_are_taken_together():
    parts = [SimpleNamespace(valid_labels=4, valid_tokens=6), SimpleNamespace(valid_tokens=3)]
    assert tokens_of(parts) == 7


def test_a_scale_that_somebody_else_has_set_is_left_alone():
    optimizer = mx.optimizer.SGD(rescale_grad=1 / 8)
    scale = GradientScale(optimizer, 8, workers=2)
    scale.follow(4)
    assert optimizer.rescale_grad == 1 / 8
    optimizer.rescale_grad = 3.0
    scale.follow(2)
    assert optimizer.rescale_grad == 3.0


def test_tokens_add_up_over_backward_passes_only_where_gradients_do():
    count = TokenCount()
    count.ran(5, adds=False)
    count.ran(3, adds=False)
    assert count.spend() == 3
    count.ran(5, adds=True)
    count.ran(3, adds=True)
    assert (count.spend(), count.spend()) == (8, 8)
    count.ran(0, adds=True)
    assert count.spend() == 1
