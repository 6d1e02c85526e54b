"""BucketingModule: buckets that come and go on the same memory, and the files they are kept in."""

from __future__ import annotations

import numpy as np
import pytest

import bucketlab as bl
from bucketlab import mx
from bucketlab.errors import BucketError, NotReadyError, ShapeError, StaleError
from bucketlab.sharing import pool_bytes

VOCAB = 20


class Counting:
    """A sym_gen that remembers what it was asked for."""

    def __init__(self):
        self.keys = []
        self.make = bl.models.lstm_lm(VOCAB, hidden=6, embed=5)

    def __call__(self, key):
        self.keys.append(key)
        return self.make(key)


def batch(length, rows=4, seed=0, key=None):
    rng = np.random.RandomState(seed)
    data, label = (mx.nd.array(rng.randint(1, VOCAB, (rows, length))) for _ in range(2))
    return mx.io.DataBatch(
        [data], [label], bucket_key=length if key is None else key,
        provide_data=[mx.io.DataDesc("data", data.shape, layout="NT")],
        provide_label=[mx.io.DataDesc("softmax_label", label.shape, layout="NT")],
    )  # fmt: skip


def bound(default=6, sym_gen=None, contexts=1, rows=4, **kwargs):
    module = bl.BucketingModule(sym_gen or Counting(), default, context=[mx.cpu(i) for i in range(contexts)], **kwargs)
    first = batch(default, rows)
    module.bind(first.provide_data, first.provide_label)
    mx.random.seed(1)
    np.random.seed(1)
    module.init_params(mx.init.Uniform(0.3))
    module.init_optimizer(optimizer_params={"learning_rate": 0.1, "momentum": 0.9})
    return module


def train(module, lengths, rows=4):
    for seed, length in enumerate(lengths):
        module.forward_backward(batch(length, rows, seed))
        module.update()
    return {name: value.asnumpy() for name, value in module.get_params()[0].items()}


def total_pool(module):
    executors = [e for m in module._buckets.values() for e in m._exec_group.execs]
    return pool_bytes(executors)


def test_the_symbol_of_a_bucket_is_made_once():
    made = Counting()
    module = bound(sym_gen=made)
    train(module, [6, 3, 6, 3, 5, 3])
    assert made.keys == [6, 3, 5]


@pytest.mark.parametrize("contexts", [1, 2])
def test_memory_does_not_depend_on_the_order_of_arrival(contexts):
    totals, results = set(), []
    for default, order in [(8, [8, 5, 3, 2]), (2, [2, 3, 5, 8]), (3, [3, 8, 2, 5]), (5, [5, 2, 8, 3])]:
        module = bound(default, contexts=contexts)
        results.append(train(module, order))
        train(module, [8, 5, 3, 2])
        mx.nd.waitall()
        totals.add(total_pool(module))
    assert len(totals) == 1


def test_training_does_not_depend_on_which_bucket_came_first():
    order = [5, 8, 2, 3, 8, 5]
    first, second = bound(8), bound(2)
    for a, b in zip(train(first, order).values(), train(second, order).values()):
        assert np.array_equal(a, b)


def test_buckets_can_be_bound_ahead():
    made = Counting()
    module = bound(8, sym_gen=made)
    shapes = {k: (batch(k).provide_data, batch(k).provide_label) for k in (5, 3)}
    module.prebind(shapes)
    assert list(module._buckets) == [8, 5, 3] and module._curr_bucket_key == 8
    train(module, [3, 5, 8])
    assert made.keys == [8, 5, 3]


def test_a_plan_alone_is_enough_to_bind_ahead():
    plan = bl.data.plan_buckets([2] * 8 + [4] * 8 + [7] * 4, k=3, contexts=1)
    module = bound(plan.default_bucket_key, rows=plan[plan.default_bucket_key].rows)
    module.prebind(plan)
    assert set(module._buckets) == set(plan.keys)
    for key in plan.keys:
        assert module._buckets[key].data_shapes[0].shape == (plan[key].rows, key)
    with pytest.raises(BucketError, match="given int"):
        module.prebind(3)


def test_a_released_bucket_comes_back_with_the_same_results():
    module, other = bound(8), bound(8)
    train(module, [8, 5, 3])
    train(other, [8, 5, 3])
    module.release(5)
    assert "execs" not in vars(module._buckets[5]._exec_group)
    pool = total_pool(other)
    for a, b in zip(train(module, [5, 8, 3]).values(), train(other, [5, 8, 3]).values()):
        assert np.array_equal(a, b)
    assert total_pool(module) == pool
    with pytest.raises(BucketError, match="bucket 9 is not bound"):
        module.release(9)


def test_under_a_limit_the_least_used_buckets_go():
    module = bound(8)
    module.limit(buckets=2)
    train(module, [8, 5, 3, 5, 2])

    def live():
        return {key for key, m in module._buckets.items() if "execs" in vars(m._exec_group)}

    assert live() == {5, 2}
    reference = train(bound(8), [8, 5, 3, 5, 2, 8, 3, 8])
    train_more = bound(8)
    train_more.limit(buckets=1)
    for a, b in zip(train(train_more, [8, 5, 3, 5, 2, 8, 3, 8]).values(), reference.values()):
        assert np.array_equal(a, b)
    with pytest.raises(BucketError, match="buckets is 0"):
        module.limit(buckets=0)


def test_a_heap_limit_keeps_the_current_bucket_only_when_it_is_tiny():
    module = bound(8)
    module.limit(heap=1)
    train(module, [8, 5, 3])
    assert [key for key, m in module._buckets.items() if "execs" in vars(m._exec_group)] == [3]


def test_a_deleted_bucket_is_bound_again():
    module = bound(8)
    train(module, [8, 3])
    before = total_pool(module)
    del module._buckets[3]
    train(module, [3, 8])
    assert total_pool(module) == before


def test_a_deleted_default_bucket_is_still_the_one_that_others_share_with(tmp_path):
    """It is in nobody's list, and yet new buckets have their parameters, optimizer and checkpoint from it."""
    kept, deleted = bound(), bound()
    for module in (kept, deleted):
        train(module, [3])
    del deleted._buckets[6]
    for module in (kept, deleted):
        module.init_optimizer(optimizer="adam", force_init=True)
        module.init_params(mx.init.One(), force_init=True)
    expected, found = (train(module, [3, 5, 6]) for module in (kept, deleted))
    del deleted._buckets[6]
    deleted.save_checkpoint(str(tmp_path / "m"), 1)
    loaded = bl.BucketingModule.load(str(tmp_path / "m"), 1, Counting(), 6)
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)
        np.testing.assert_array_equal(loaded.get_params()[0][name].asnumpy(), value, err_msg=name)


@pytest.mark.parametrize("between", ["a hungrier bucket", "a release", "a limit", "nothing"])
def test_gradients_of_inputs_that_add_up_outlive_the_executors(between):
    symbol = mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=2, name="fc")
    module = bl.BucketingModule(lambda key: (symbol, ("data",), None), 0)
    module.bind([("data", (2, 3))], inputs_need_grad=True, grad_req="add")
    module.init_params(mx.init.One())

    def run(key, rows, head):
        given = mx.io.DataBatch([mx.nd.ones((rows, 3))], bucket_key=key, provide_data=[("data", (rows, 3))])
        module.forward(given, is_train=True)
        module.backward([mx.nd.full((rows, 2), head)])

    run(0, 2, 1)
    if between == "a hungrier bucket":
        run(1, 50, 7)
    elif between == "a release":
        module.release(0)
    elif between == "a limit":
        run(1, 2, 7)
        module.limit(buckets=1)
    run(0, 2, 10)
    np.testing.assert_array_equal(module.get_input_grads()[0].asnumpy(), np.full((2, 3), 22))


def test_backward_of_a_bucket_that_was_overrun_is_refused():
    module = bound(8)
    train(module, [8, 3])
    module.forward(batch(8), is_train=True)
    overrun = module._curr_module
    module.forward(batch(3), is_train=True)
    with pytest.raises(StaleError, match="another bucket"):
        overrun.backward()
    module.backward()


def test_outputs_kept_from_one_bucket_survive_another():
    module = bound(8)
    module.forward(batch(8), is_train=False)
    kept = module.get_outputs()[0]
    before = kept.asnumpy()
    for length in (3, 5, 8):
        module.forward(batch(length, seed=length), is_train=True)
        module.backward()
    assert np.array_equal(kept.asnumpy(), before)


def test_rescale_grad_follows_the_rows_that_ran_until_somebody_sets_it():
    module = bound(6, rows=4)
    for rows in (4, 2, 8):
        module.forward_backward(batch(6, rows))
        module.update()
        assert module._curr_module._optimizer.rescale_grad == 1 / rows
    module._curr_module._optimizer.rescale_grad = 0.5
    module.forward_backward(batch(6, 4))
    module.update()
    assert module._curr_module._optimizer.rescale_grad == 0.5


def test_a_bucket_may_bring_parameters_of_its_own():
    def sym_gen(key):
        hidden = mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=4, name="fc")
        if key == "deep":
            hidden = mx.sym.FullyConnected(hidden, num_hidden=4, name="extra")
        return mx.sym.SoftmaxOutput(hidden, name="softmax"), ["data"], ["softmax_label"]

    def given(key):
        data, label = mx.nd.ones((2, 3)), mx.nd.array([0, 1])
        return mx.io.DataBatch(
            [data], [label], bucket_key=key, provide_data=[("data", (2, 3))], provide_label=[("softmax_label", (2,))]
        )  # fmt: skip

    module = bl.BucketingModule(sym_gen, "flat")
    module.bind([("data", (2, 3))], [("softmax_label", (2,))])
    module.init_params(mx.init.One())
    module.init_optimizer(optimizer_params={"learning_rate": 0.1, "momentum": 0.9})
    for key in ("flat", "deep", "deep", "flat"):
        module.forward_backward(given(key))
        module.update()
    params = module.get_params()[0]
    assert set(params) == {"fc_weight", "fc_bias", "extra_weight", "extra_bias"}
    assert 0 < abs(params["extra_weight"].asnumpy() - 1).max() < 0.5


@pytest.mark.parametrize("keys", [[6, 3], ["long", "short"], [(6, 6), (3, 2)], [6, "six"]])
def test_checkpoints_bring_every_bucket_back(tmp_path, keys):
    lengths = dict(zip(keys, (6, 3)))
    sym_gen = lambda key: bl.models.lstm_lm(VOCAB, hidden=6, embed=5)(lengths[key])  # noqa: E731
    module = bl.BucketingModule(sym_gen, keys[0])
    given = {key: batch(length, key=key) for key, length in lengths.items()}
    first = given[keys[0]]
    module.bind(first.provide_data, first.provide_label)
    module.init_params(mx.init.Uniform(0.3))
    outputs = {}
    for key in keys:
        module.forward(given[key], is_train=False)
        outputs[key] = module.get_outputs()[0].asnumpy()
    module.save_checkpoint(str(tmp_path / "model"), 3)
    again = bl.BucketingModule.load(str(tmp_path / "model"), 3, sym_gen=sym_gen, default_bucket_key=keys[0])
    again.bind(first.provide_data, first.provide_label, for_training=False)
    assert list(again._buckets) == keys
    for key in keys:
        again.forward(given[key], is_train=False)
        assert np.array_equal(again.get_outputs()[0].asnumpy(), outputs[key])


def test_checkpoints_go_to_and_from_mxnet(tmp_path):
    sym_gen = bl.models.lstm_lm(VOCAB, hidden=6, embed=5)
    first = batch(6)
    results = []
    for writer, reader in ((mx.mod, bl), (bl, mx.mod)):
        module = writer.BucketingModule(sym_gen, 6)
        module.bind(first.provide_data, first.provide_label)
        module.init_params(mx.init.Uniform(0.3))
        module.forward(batch(3), is_train=False)
        prefix = str(tmp_path / writer.__name__)
        module.save_checkpoint(prefix, 1)
        again = reader.BucketingModule.load(prefix, 1, sym_gen=sym_gen, default_bucket_key=6)
        again.bind(first.provide_data, first.provide_label, for_training=False)
        again.forward(batch(3), is_train=False)
        results.append((module.get_outputs()[0].asnumpy(), again.get_outputs()[0].asnumpy()))
    for written, read in results:
        assert np.array_equal(written, read)


def test_keys_that_cannot_be_written_are_refused(tmp_path):
    marker = object()
    module = bl.BucketingModule(lambda key: bl.models.lstm_lm(VOCAB)(4), marker)
    first = batch(4)
    module.bind(first.provide_data, first.provide_label)
    module.init_params()
    with pytest.raises(BucketError, match="cannot be written"):
        module.save_checkpoint(str(tmp_path / "model"), 1)
    assert not list(tmp_path.iterdir())


def test_wrong_keys_and_orders_are_named_and_change_nothing():
    module = bl.BucketingModule(Counting(), 6)
    with pytest.raises(NotReadyError, match="call bind"):
        module.forward(batch(6))
    with pytest.raises(BucketError, match="default_bucket_key is None"):
        bl.BucketingModule(Counting())
    module = bound(6)
    without = batch(3)
    without.bucket_key = None
    with pytest.raises(BucketError, match="no bucket_key"):
        module.forward(without)
    unhashable = batch(3)
    unhashable.bucket_key = [3]
    with pytest.raises(BucketError, match="not hashable"):
        module.forward(unhashable)
    with pytest.raises(BucketError, match="bucket 4 is not bound and no data_shapes"):
        module.switch_bucket(4, None)
    other = batch(3)
    other.provide_data = [("words", (4, 3))]
    with pytest.raises(ShapeError, match="bucket 3: data_shapes names"):
        module.forward(other)
    assert module._curr_bucket_key == 6 and list(module._buckets) == [6]
    train(module, [6, 3])


def test_a_failed_bind_leaves_it_unbound():
    module = bl.BucketingModule(Counting(), 6)
    with pytest.raises(ShapeError, match="'words'"):
        module.bind([("words", (4, 6))], [("softmax_label", (4, 6))])
    assert not module.binded
    module.bind([("data", (4, 6))], [("softmax_label", (4, 6))])
    assert module.binded


def test_a_rebind_keeps_parameters_and_momentum():
    module, other = bound(6), bound(6)
    train(module, [6, 3])
    train(other, [6, 3])
    module.bind([("data", (2, 6))], [("softmax_label", (2, 6))], force_rebind=True)
    for a, b in zip(train(module, [6, 3], rows=2).values(), train(other, [6, 3], rows=2).values()):
        assert np.array_equal(a, b)


def test_looking_at_memory_binds_nothing_again():
    module = bound(8)
    train(module, [8, 5, 3])
    module.release(5)
    ledger = module.memory()
    assert "execs" not in vars(module._buckets[5]._exec_group)
    bl.aliases(module)
    assert "execs" not in vars(module._buckets[5]._exec_group)
    assert ledger.of(role="parameter") > 0 and module._total_exec_bytes == ledger.distinct
