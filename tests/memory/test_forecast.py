"""What a run will take, said before it runs, against what it then holds."""

from __future__ import annotations

import gc
import json
import subprocess
import sys
from pathlib import Path

import pytest

import bucketlab as bl
from bucketlab import mx
from bucketlab.data import Budget
from bucketlab.errors import BucketError, BudgetError, ShapeError
from bucketlab.memory import addresses, dry, memory
from bucketlab.memory.forecast import forecast
from bucketlab.memory.search import largest_within
from forecast_runs import MODELS, batches, run, shapes

ROWS = 6
TWO = [mx.cpu(0), mx.cpu(1)]


def off(expected, module) -> float:
    """How far the forecast is off, once the engine rests and nothing waits to be collected."""
    mx.nd.waitall()
    gc.collect()
    return expected.compare(module).off


@pytest.mark.parametrize("name", list(MODELS))
def test_a_run_holds_what_was_forecast_to_the_byte(name):
    model, lengths = MODELS[name]
    given = {key: shapes(key, ROWS) for key in lengths}
    expected = forecast(model, given, mx.cpu())
    module = run(model, given, [mx.cpu()])
    assert off(expected, module) == 0
    found = expected.compare(module)
    assert expected.exact
    assert sum(size for *_, size in found.rows) == expected.total


@pytest.mark.parametrize(
    "optimizer",
    [("sgd", {"momentum": 0.9}), ("adam", {}), ("rmsprop", {"centered": True}), ("adagrad", {})],
)
def test_uneven_contexts_and_every_kind_of_optimizer_state(optimizer):
    model, lengths = MODELS["gru"]
    given = {key: shapes(key, 7) for key in lengths}
    expected = forecast(model, given, TWO, workloads=[1, 2], optimizer=optimizer)
    module = run(model, given, TWO, workloads=[1, 2], optimizer=optimizer)
    assert off(expected, module) == 0
    assert [one.rows for one in expected[lengths[0]].contexts] == [2, 5]
    assert expected.of(role="kvstore") > 0


def test_a_module_answers_for_itself_before_and_after_its_bind():
    model, lengths = MODELS["lstm"]
    given = {key: shapes(key, ROWS) for key in lengths}
    module = bl.BucketingModule(model, default_bucket_key=lengths[1], context=TWO, work_load_list=[2, 1])
    before = forecast(module, given, optimizer=("sgd", {"momentum": 0.9}))
    assert before.order[0] == lengths[1]
    module = run(module, given, TWO, optimizer=("sgd", {"momentum": 0.9}))
    after = forecast(module)
    assert after.total == before.total == memory(module).distinct
    assert {role for role in ("optimizer", "kvstore") if after.of(role=role)} == {"optimizer", "kvstore"}


def test_the_peak_is_the_most_that_has_memory_after_any_step():
    model, lengths = MODELS["lstm"]
    given = {key: shapes(key, rows) for key, rows in zip(lengths, (40, 6, 20))}
    expected = forecast(model, given)
    allocated = []

    def look(module):
        mx.nd.waitall()
        gc.collect()
        allocated.append(memory(module).allocated)

    run(model, given, [mx.cpu()], after=look)
    assert expected.peak == max(allocated)
    assert allocated[-1] == expected.total


def test_nothing_is_allocated_and_nothing_bound():
    model, lengths = MODELS["lstm"]
    module = bl.BucketingModule(model, default_bucket_key=lengths[0], context=TWO)
    forecast(module, {key: shapes(key, 100_000) for key in lengths})
    assert not module.binded and module._buckets == {}


def test_inference_states_input_gradients_and_fixed_parameters():
    from memory_runs import ROWS as rows
    from memory_runs import batch, sym_gen

    given = {length: (batch(length).provide_data, batch(length).provide_label) for length in (8, 5)}
    settings = {"state_names": ["memory"], "fixed_param_names": ["fc_weight"]}
    for binding in (
        {"for_training": False},
        {"for_training": True, "grad_req": "add"},
        {"for_training": True, "grad_req": {"fc_bias": "null"}},
    ):
        module = bl.BucketingModule(sym_gen, default_bucket_key=8, context=TWO, **settings)
        expected = forecast(sym_gen, given, TWO, **settings, **binding)
        module.bind(*given[8], **binding)
        module.init_params()
        if binding["for_training"]:
            module.init_optimizer()
        for length in (8, 5, 8, 5):
            module.forward(batch(length))
            if binding["for_training"]:
                module.backward()
                module.update()
        assert off(expected, module) == 0
        assert expected.of(role="state") == 2 * rows // 2 * 6 * 4
        assert bool(expected.of(role="gradient")) is binding["for_training"]


def test_input_gradients_of_a_network_without_a_loss():
    data = mx.sym.Variable("data")
    symbol = mx.sym.FullyConnected(data, num_hidden=5, name="fc")
    given = ([("data", (4, 3))], None)
    expected = forecast(symbol, given, inputs_need_grad=True)
    module = bl.Module(symbol, label_names=None)
    module.bind(*given, inputs_need_grad=True)
    module.init_params()
    module.init_optimizer()
    module.forward(mx.io.DataBatch([mx.nd.ones((4, 3))]), is_train=True)
    module.backward([mx.nd.ones((4, 5))])
    module.update()
    assert off(expected, module) == 0
    assert expected.of(role="input_gradient") == 4 * 3 * 4
    # Room for the gradients of its outputs, which no array shows.
    assert [(one.role, one.low) for one in expected.besides if one.exact] == [("head gradients", 4 * 5 * 4)]


def test_contexts_with_shapes_of_their_own():
    symbol = bl.models.small_convnet(4, filters=(4,))
    data = [[("data", (2, 1, 8, 8))], [("data", (1, 1, 12, 10))]]
    label = [[("softmax_label", (2,))], [("softmax_label", (1,))]]
    expected = forecast(bl.Module(symbol, context=TWO), (data, label))
    module = bl.Module(symbol, context=TWO)
    module.bind(data, label)
    module.init_params()
    module.init_optimizer()
    arrays = [[mx.nd.ones(shape) for _, shape in part] for part in data]
    labels = [[mx.nd.zeros(shape) for _, shape in part] for part in label]
    module.forward_backward(mx.io.DataBatch(arrays, labels, provide_data=data, provide_label=label))
    module.update()
    assert off(expected, module) == 0
    assert [one.rows for one in expected.buckets[0].contexts] == [2, 1]


def test_one_module_that_meets_several_shapes():
    symbol = MODELS["lstm"][0](4)[0]
    given = [shapes(4, rows) for rows in (6, 2, 5)]
    several = [mx.io.DataBatch(*batches(4, data), provide_data=data, provide_label=label) for data, label in given]
    expected = forecast(bl.Module(symbol), several)
    module = bl.Module(symbol)
    module.bind(*given[0])
    module.init_params()
    module.init_optimizer()
    for batch in [*several, *several, several[0]]:
        module.forward_backward(batch)
        module.update()
    assert off(expected, module) == 0
    assert [bucket.rows for bucket in expected.buckets] == [6, 2, 5]


def test_an_arena_is_as_large_as_the_hungriest_bucket_needs():
    model, lengths = MODELS["lstm"]
    given = {key: shapes(key, rows) for key, rows in zip(lengths, (9, 4, 6))}
    expected = forecast(model, given, TWO, working_memory="arena")
    module = bl.BucketingModule(model, default_bucket_key=lengths[0], context=TWO, working_memory="arena")
    module = run(module, given, TWO)
    assert off(expected, module) == 0
    assert forecast(module).total == expected.total
    assert expected.total < forecast(model, given, TWO).total


def test_mxmod_holds_what_the_comparison_says():
    for name, contexts in (("gru", [mx.cpu()]), ("fused", TWO)):
        model, lengths = MODELS[name]
        given = {key: shapes(key, ROWS) for key in lengths}
        theirs = forecast(model, given, contexts, split="mxnet").under_mxnet()
        module = mx.mod.BucketingModule(model, default_bucket_key=lengths[0], context=contexts)
        run(module, given, contexts)
        assert off(theirs, module) == 0
        assert theirs.working_memory == "mxnet"


def test_the_best_order_begins_with_the_bucket_that_should_be_the_default():
    model, lengths = MODELS["attention"]
    given = {key: shapes(key, ROWS) for key in lengths}
    found = forecast(model, given)
    assert found.order == tuple(lengths)
    assert found.default_bucket_key == found.best_order[0] == max(lengths) == found.hungriest.bucket
    assert found.best_total <= found.total
    theirs = found.under_mxnet()
    assert theirs.best_total < theirs.total
    best = {key: given[key] for key in theirs.best_order}
    assert forecast(model, best).under_mxnet().total == theirs.best_total


def test_the_largest_batch_fits_and_one_row_more_does_not():
    model, lengths = MODELS["gru"]
    found = forecast(model, {key: shapes(key, ROWS) for key in lengths}, 2)
    limit = 3 * found.total
    rows = found.largest_batch(limit)
    sizes = [
        forecast(model, {key: shapes(key, rows + more) for key in found.best_order}, 2).at_least for more in (0, 1)
    ]
    assert sizes[0] <= limit < sizes[1]
    alone = found.largest_batch(limit, lengths[0])
    assert found.bytes_of(lengths[0], alone) <= limit < found.bytes_of(lengths[0], alone + 1)
    assert found.largest_batch(limit, lengths[0], step=4) == alone // 4 * 4
    refused = r"a batch of 1 row\(s\) does not fit: the run would take .* and limit_bytes is 10.0 kB"
    with pytest.raises(BudgetError, match=refused):
        found.largest_batch(10_000)


def test_it_is_a_byte_cost_for_the_planner():
    model, lengths = MODELS["lstm"]
    found = forecast(model, {key: shapes(key, ROWS) for key in lengths})
    limit = found.bytes_of(6, 20)
    budget = Budget.bytes(limit, found.bytes_of)
    assert budget.rows_for(6) == 20
    plan = bl.data.plan_buckets([3, 4, 4, 6, 6, 5] * 30, k=2, budget=budget)
    planned = forecast(model, plan)
    assert {bucket.bucket: bucket.alone for bucket in planned.buckets} == {b.key: b.bytes for b in plan.buckets}
    assert all(bucket.alone <= limit for bucket in planned.buckets)


def test_iterators_and_plans_tell_shapes_and_contexts():
    plan = bl.data.plan_buckets([3, 4, 4, 5, 5, 6] * 4, k=2, contexts=2)
    iterator = bl.data.BucketIter([[1] * n for n in [3, 4, 4, 5, 5, 6] * 4], plan, shuffle=False)
    model = MODELS["lstm"][0]
    by_plan, by_iterator, by_batches = (forecast(model, of, 2) for of in (plan, iterator, list(iterator)))
    assert by_plan.total == by_iterator.total
    assert by_plan.order[0] == plan.default_bucket_key
    assert set(by_batches.order) == set(by_plan.order)
    assert forecast(model, plan).of(context="cpu(1)") == by_plan.of(context="cpu(1)") > 0


def test_a_plan_that_cannot_be_read_is_an_interval_that_says_why(monkeypatch):
    model, lengths = MODELS["lstm"]
    given = {key: shapes(key, 300) for key in lengths[:2]}
    known = forecast(model, given)
    monkeypatch.setattr(dry, "layout", lambda: addresses.Layout(False, False, "the layout is another"))
    blind = forecast(model, given)
    (pool,) = [amount for amount in blind.amounts if amount.role == "pool"]
    assert not blind.exact
    assert pool.low <= known.of(role="pool") <= pool.high
    assert pool.why == (
        "the layout is another; the engine reports whole megabytes, of elements of 4 bytes; "
        "between the largest plan and all of them together"
    )
    assert f"pool on cpu(0): {pool.low:,} to {pool.high:,} bytes: the layout is another" in repr(blind)
    assert [a for a in blind.amounts if a.role != "pool"] == [a for a in known.amounts if a.role != "pool"]


def test_what_depends_on_data_or_on_a_kvstore_is_an_interval():
    words = mx.sym.Variable("words_weight", stype="row_sparse")
    embedded = mx.sym.sparse.Embedding(
        mx.sym.Variable("data"), words, input_dim=30, output_dim=4, sparse_grad=True, name="words"
    )
    symbol = mx.sym.SoftmaxOutput(mx.sym.FullyConnected(embedded, num_hidden=3, name="fc"), name="softmax")
    found = forecast(symbol, ([("data", (4, 6))], [("softmax_label", (4,))]))
    by_role = {amount.role: amount for amount in found.amounts}
    dense = 3 * 24 * 4 + 3 * 4
    assert (by_role["gradient"].low, by_role["gradient"].high) == (dense, dense + 30 * (4 * 4 + 8))
    assert by_role["gradient"].why == "a row_sparse array holds as many rows as the data ever touch"
    model, lengths = MODELS["lstm"]
    remote = forecast(model, {lengths[0]: shapes(lengths[0], ROWS)}, kvstore="dist_sync")
    assert remote.at_most is None
    why = "kvstore 'dist_sync' keeps copies of weights and gradients"
    assert f"kvstore on cpu(0): at least 0 bytes: {why}" in repr(remote)


def test_refusals_name_what_does_not_fit():
    model, lengths = MODELS["lstm"]
    given = {key: shapes(key, ROWS) for key in lengths}
    with pytest.raises(TypeError, match=r"forecast takes a Module or BucketingModule .* given int"):
        forecast(3, given)
    with pytest.raises(TypeError, match="of a SequentialModule forecast each module"):
        forecast(bl.SequentialModule(), given)
    with pytest.raises(BucketError, match="nothing is bound and no batches are given"):
        forecast(bl.BucketingModule(model, default_bucket_key=4))
    with pytest.raises(ShapeError, match="bucket 5: data_shapes names"):
        forecast(model, {**given, 5: ([("words", (ROWS, 5))], given[3][1])})
    with pytest.raises(ShapeError, match=r"bucket 7: .*the symbol softmax_output does not fit"):
        forecast(model, {**given, 7: shapes(8, ROWS)})
    with pytest.raises(BucketError, match=r"bucket \(3, 4\) is not among those forecast, .*give shapes_of"):
        forecast(model, given).bytes_of((3, 4), 2)
    with pytest.raises(ValueError, match="working_memory is 'pool'; choose 'shared' or 'arena'"):
        forecast(model, given, working_memory="pool")
    with pytest.raises(TypeError, match="optimizer is 3; expected a name"):
        forecast(model, given, optimizer=3)
    with pytest.raises(KeyError, match="there is no bucket 99 in the forecast"):
        forecast(model, given)[99]


def test_the_search_finds_the_edge_in_few_steps():
    asked = []

    def cost(n: int) -> int:
        asked.append(n)
        return 1000 + 37 * n + n % 3

    assert largest_within(cost, 1000 + 37 * 518 + 2) == 518
    assert len(asked) < 20
    assert largest_within(lambda n: n * n, 1_000_000, start=7) == 1000
    assert largest_within(lambda n: 5 * n, 4) == 0
    with pytest.raises(ValueError, match="does not grow"):
        largest_within(lambda n: 1, 4)


def test_it_reads_as_text_html_figure_and_plain_data():
    model, lengths = MODELS["fused"]
    found = forecast(model, {key: shapes(key, ROWS) for key in lengths}, 2)
    text = repr(found).splitlines()
    assert text[0].startswith(f"{found.total:,} bytes (")
    assert text[1] == (
        f"in the order 4, 6, 3: {found.total:,} bytes; in the best of {found.orders_tried} orders tried, "
        f"{', '.join(map(str, found.best_order))}: {found.best_total:,} bytes"
    )
    assert any(line.startswith("operators on cpu(1): ") and "RNN operator" in line for line in text)
    html = found._repr_html_()
    assert f"{found.total:,} bytes" in html and "<script" not in html
    assert json.loads(json.dumps(found.to_dict()))["total"] == found.total
    assert found.plot().axes[0].get_title().startswith("Forecast: ")
    alone = found[6].contexts[1]
    assert alone.of("data") == alone.rows * 6 * 4
    assert 0 < alone.outputs <= alone.of("pool")


@pytest.fixture(scope="module")
def counted():
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("counted_forecast.py"))],
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
@pytest.mark.parametrize("name", list(MODELS))
def test_the_engine_counts_within_the_interval(counted, name):
    """By the engine's own counters, which see what no array shows."""
    one = counted[name]
    assert one["allocated by forecasting"] == 0
    # Working memory that no operator writes is promised and never has any memory.
    assert one["at least"] - one["never touched"] <= one["counted"] <= one["at most"]
    assert one["held"] == one["total"]
