"""Working memory in one arena for each context."""

from __future__ import annotations

import numpy as np
import pytest

import bucketlab as bl
from bucketlab import mx
from bucketlab.errors import NotReadyError
from bucketlab.memory import arena

LENGTHS = (2, 3, 5, 8)


def batch(length, seed):
    rng = np.random.RandomState(seed)
    rows = 16 // length * 2
    data, label = (mx.nd.array(rng.randint(1, 20, (rows, length))) for _ in range(2))
    return mx.io.DataBatch(
        [data], [label], bucket_key=length,
        provide_data=[("data", data.shape)], provide_label=[("softmax_label", label.shape)],
    )  # fmt: skip


def module_with(working_memory, default, sym_gen, contexts):
    module = bl.BucketingModule(
        sym_gen, default, context=[mx.cpu(i) for i in range(contexts)], working_memory=working_memory
    )
    first = batch(default, 0)
    module.bind(first.provide_data, first.provide_label)
    mx.random.seed(1)
    np.random.seed(1)
    module.init_params(mx.init.Uniform(0.3))
    module.init_optimizer(optimizer_params={"learning_rate": 0.05, "momentum": 0.9})
    return module


def switched_at_random(module, steps):
    rng, metric = np.random.RandomState(3), mx.metric.Perplexity(0)
    for step in range(steps):
        given = batch(LENGTHS[rng.randint(len(LENGTHS))], step)
        if step % 7 == 3:
            module.forward(given, is_train=False)
        else:
            module.forward_backward(given)
            module.update()
        module.update_metric(metric, given.label)
    return {name: value.asnumpy() for name, value in module.get_params()[0].items()}, metric.get()[1]


def assert_same_bits(sym_gen, default, contexts, steps):
    (shared, perplexity), (laid, other) = (
        switched_at_random(module_with(way, default, sym_gen, contexts), steps) for way in ("shared", "arena")
    )
    assert perplexity == other
    for name in shared:
        assert np.array_equal(shared[name], laid[name]), name


@pytest.mark.parametrize("contexts", [1, 2])
@pytest.mark.parametrize("default", [2, 8])
def test_random_switches_between_batch_sizes_give_the_same_bits(default, contexts):
    assert_same_bits(bl.models.lstm_lm(20, hidden=6, embed=5, layers=2), default, contexts, 12)


@pytest.mark.slow
@pytest.mark.parametrize(("fused", "switches"), [(False, 2500), (True, 1000)])
def test_thousands_of_random_switches_give_the_same_bits(fused, switches):
    assert_same_bits(bl.models.lstm_lm(20, hidden=6, embed=5, fused=fused), 3, 2, switches)


def test_an_arena_holds_the_hungriest_bucket_and_no_more():
    sizes = set()
    for default in LENGTHS:
        module = module_with("arena", default, bl.models.lstm_lm(20, hidden=6, embed=5), 1)
        for key in LENGTHS:
            module.forward_backward(batch(key, key))
        mx.nd.waitall()
        memory = module._curr_module._exec_group._memory
        sizes.add(memory.arenas[0].capacity)
        ledger = module.memory()
        assert ledger.of(role="pool") + ledger.of(role="output") == memory.arenas[0].buffer.size
    assert len(sizes) == 1


def test_outputs_that_were_handed_out_stay():
    module = module_with("arena", 8, bl.models.lstm_lm(20, hidden=6, embed=5), 1)
    module.forward(batch(8, 1), is_train=False)
    kept = module.get_outputs()[0]
    before = kept.asnumpy()
    for key in LENGTHS:
        module.forward_backward(batch(key, 2))
    assert np.array_equal(kept.asnumpy(), before)


def test_it_is_refused_where_it_is_not_proved(monkeypatch):
    monkeypatch.setattr(arena, "proved", lambda: "the trial gave other results")
    with pytest.raises(NotReadyError, match="the trial gave other results; use 'shared'"):
        module_with("arena", 8, bl.models.lstm_lm(20), 1)
    with pytest.raises(ValueError, match="'bumpy'"):
        module_with("bumpy", 8, bl.models.lstm_lm(20), 1)


def test_a_module_may_be_dropped_while_the_engine_is_still_at_work():
    # With the arena freed under running operators this corrupts the heap, and the process ends.
    sym_gen = bl.models.lstm_lm(20, hidden=16, embed=8, layers=2)
    rng = np.random.RandomState(0)
    for turn in range(12):
        module = module_with("arena", LENGTHS[turn % 4], sym_gen, 1 + turn % 2)
        for key in rng.permutation(LENGTHS):
            module.forward_backward(batch(int(key), turn))
        module.forward(batch(8, turn), is_train=False)
        del module
        others = [mx.nd.zeros((int(size),)) for size in rng.randint(10, 3000, 50)]
    mx.nd.waitall()
    assert all(not array.asnumpy().any() for array in others)
