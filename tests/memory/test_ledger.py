"""Bytes of known arrays and of a real run, worked out by hand or from shapes."""

from __future__ import annotations

import gc
import json

import numpy as np
import pytest

import bucketlab as bl
import memory_runs as runs
from bucketlab import mx
from bucketlab.memory import HeldArray, memory, snapshot
from bucketlab.memory.addresses import Layout
from bucketlab.memory.ledger import BucketBytes, EngineBytes, RoleBytes, ledger_of
from bucketlab.memory.snapshot import take


def lazy(shape):
    return mx.nd.NDArray(mx.nd.ndarray._new_alloc_handle(shape, mx.cpu(), True, np.float32))


def held(bucket, role, name, array, index=0):
    return HeldArray(bucket, index, f"cpu({index})", role, name, array)


def test_known_arrays():
    w, g, promised = mx.nd.zeros((10,)), mx.nd.zeros((10,)), lazy((100,))
    mx.nd.waitall()
    ledger = memory(
        [
            held("a", "parameter", "w", w),
            held("a", "gradient", "w", g),
            held("b", "parameter", "w", w),
            held("b", "gradient", "w", g[0:4]),
            held("b", "data", "x", promised),
            held("b", "state", "s", mx.nd.from_numpy(np.zeros(6, "float32"), zero_copy=True)),
        ]
    )
    assert ledger.roles == (
        RoleBytes("cpu(0)", "parameter", 2, 80, 40, 40, 0, 0),
        RoleBytes("cpu(0)", "gradient", 2, 56, 40, 40, 0, 0),
        RoleBytes("cpu(0)", "data", 1, 400, 400, 0, 400, 0),
        RoleBytes("cpu(0)", "state", 1, 24, 24, 24, 0, 24),
    )
    assert ledger.buckets == (
        BucketBytes("a", 80, 80, 24, 56, 80, (("b", 56),)),
        BucketBytes("b", 480, 480, 424, 56, 424, (("a", 56),)),
    )
    assert (ledger.declared, ledger.distinct, ledger.saved) == (560, 504, 56)
    assert (ledger.allocated, ledger.reserved) == (104, 400)
    assert (ledger.of("cpu(0)", "data"), ledger.of("cpu(0)"), ledger.of(role="gradient")) == (400, 504, 40)


def test_a_byte_of_several_roles_belongs_to_the_first():
    a = mx.nd.zeros((10,))
    ledger = memory([held(None, "output", "o", a[0:6]), held(None, "parameter", "w", a[4:10])])
    assert [(row.role, row.declared, row.distinct) for row in ledger.roles] == [
        ("parameter", 24, 24),
        ("output", 24, 16),
    ]
    assert ledger.saved == 8


def test_the_rest_of_a_block_that_a_view_keeps_is_shown():
    ledger = memory([held("a", "data", "x", mx.nd.zeros((100,))[10:20])])
    assert [(row.role, row.declared, row.distinct) for row in ledger.roles] == [
        ("data", 40, 40),
        ("rest of blocks", 0, 360),
    ]
    assert (ledger.distinct, ledger.saved) == (400, 0)
    assert ledger.buckets[0].distinct == 40


def test_nothing_at_all():
    ledger = memory([])
    assert (ledger.roles, ledger.buckets, ledger.distinct) == ((), (), 0)
    assert (
        repr(ledger).splitlines()[0] == "0 bytes (0 B), each counted once; 0 declared; sharing saves 0 (0 %)"
    )


@pytest.fixture(scope="module")
def run():
    module = runs.bucketing((8, 5))
    return module, memory(module)


def test_a_real_run_by_role(run):
    _, ledger = run
    floats = 12 * 5 + 6 * 5 + 6 + 6 + 6 + 3 * 6 + 3
    for context in ("cpu(0)", "cpu(1)"):
        rows = {row.role: row for row in ledger.roles if row.context == context}
        for role in ("parameter", "gradient"):
            assert (rows[role].declared, rows[role].distinct) == (2 * 4 * floats, 4 * floats)
        assert (rows["auxiliary"].declared, rows["auxiliary"].distinct) == (2 * 48, 48)
        assert (rows["data"].declared, rows["data"].distinct) == (4 * (16 + 10), 64)
        assert (rows["label"].distinct, rows["state"].distinct) == (8, 48)
    assert ledger.of(role="optimizer") == 4 * floats
    assert ledger.of("cpu(0)", "host") == 4 * floats + 48
    assert ledger.reserved == 0


def test_buckets_add_up(run):
    _, ledger = run
    in_buckets = sum(
        row.distinct
        for row in ledger.roles
        if row.role not in ("optimizer", "host", "kvstore", "rest of blocks")
    )
    assert sum(bucket.new for bucket in ledger.buckets) == in_buckets
    for bucket in ledger.buckets:
        assert bucket.distinct == bucket.own + bucket.shared
        assert bucket.shared_with[0][1] == bucket.shared
    first, second = ledger.buckets
    assert first.bucket == 8 and second.bucket == 5
    assert first.new == first.distinct
    assert second.new == second.own


def test_declared_is_what_the_buckets_would_need_alone(run):
    """Pools count once for each bucket, without the outputs that lie in them."""
    module, ledger = run
    shot = snapshot(module)
    alone = 0
    for key in (8, 5, None):
        arrays = [
            held(r.bucket, r.role, r.name, None, r.context_index) for r in shot.records if r.bucket == key
        ]
        assert arrays
    for bucket in ledger.buckets:
        alone += bucket.distinct
    rest = ledger.of(role="optimizer") + ledger.of(role="host")
    assert ledger.declared == alone + rest
    assert ledger.saved == ledger.declared - ledger.distinct + ledger.of(role="rest of blocks")


def test_diff_of_two_ledgers(run):
    module = runs.bucketing((8, 5))
    before = memory(module)
    runs.step(module, 11)
    mx.nd.waitall()
    diff = before.diff(memory(module))
    changes = {change.label: change.added for change in diff.roles}
    assert changes["cpu(0)", "data"] == changes["cpu(1)", "data"] == 2 * 11 * 4
    assert ("cpu(0)", "parameter") not in changes
    assert diff.added == sum(changes.values())
    assert {record.bucket for record in diff.arrays.appeared} == {11}


def test_engine_counters_stand_beside_the_sums():
    arrays = [mx.nd.zeros((10,)), mx.nd.zeros((5,), ctx=mx.cpu(1)), mx.nd.zeros((3,), ctx=mx.cpu_pinned(0))]
    mx.nd.waitall()
    ledger = ledger_of(
        snapshot(arrays), {"cpu(0)": 140, "cpu(1)": 20, "cpu_pinned(0)": 10, "cpu_shared(0)": 0}, (5000, 9000)
    )
    assert ledger.engine == (
        EngineBytes("cpu(0)", ("cpu(0)",), 140, 40),
        EngineBytes("cpu(1)", ("cpu(1)",), 20, 20),
        EngineBytes("cpu_pinned(0)", ("cpu_pinned(0)",), 10, 12),
    )
    assert [row.remaining for row in ledger.engine] == [100, 0, -2]
    assert (ledger.process.arrays, ledger.process.beyond) == (170, 4830)


def test_the_process_is_measured_on_request():
    a = mx.nd.zeros((1000,))
    assert memory([a]).process is None
    process = memory([a], process=True).process
    assert process.resident > 10_000_000
    if process.heap is not None:
        assert process.beyond == process.heap - process.arrays > 0


@pytest.mark.parametrize("kind", [bl.Module, bl.MutableModule, bl.BucketingModule, bl.SequentialModule])
def test_a_module_measures_the_process_beside_its_own_bytes(kind):
    symbol = mx.sym.SoftmaxOutput(mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=2), name="softmax")
    if kind is bl.SequentialModule:
        module = kind().add(bl.Module(symbol), take_labels=True)
    elif kind is bl.BucketingModule:
        module = kind(lambda key: (symbol, ("data",), ("softmax_label",)), default_bucket_key=3)
    elif kind is bl.MutableModule:
        module = kind(symbol, ["data"], ["softmax_label"])
    else:
        module = kind(symbol)
    module.bind([("data", (4, 3))], [("softmax_label", (4,))])
    assert module.memory().process is None
    book = module.memory(process=True)
    assert book.process.resident > 10_000_000
    assert book.process.arrays == book.allocated > 0


def test_without_sources_it_is_of_all_that_still_holds_memory():
    def alive():
        gc.collect()
        return [(record.name, record.bytes) for record in memory().snapshot.records if record.role != "pool"]

    symbol = mx.sym.SoftmaxOutput(mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=2003), name="softmax")
    module = bl.Module(symbol)
    module.bind([("data", (4, 3))], [("softmax_label", (4,))])
    module.init_params()
    module.forward(mx.io.DataBatch([mx.nd.ones((4, 3))], None), is_train=False)
    left = {"what_was_kept": module.get_outputs()[0]}
    assert 4 * 2003 in [size for _, size in alive()]
    del module
    assert [size for _, size in alive() if size % 2003 == 0 and size] == [4 * 4 * 2003]
    assert ("what_was_kept", 4 * 4 * 2003) in alive()
    left.clear()
    assert not [size for _, size in alive() if size % 2003 == 0 and size]


def test_plain_data_survives_json(run):
    told = json.loads(json.dumps(run[1].to_dict()))
    assert told["distinct"] == run[1].distinct
    assert told["buckets"][0]["shared_with"][0]["bucket"] == 5
    assert told["process"] is None


def test_where_memory_is_not_seen_the_ledger_gives_bounds():
    w = mx.nd.zeros((10,))
    arrays = [held("a", "parameter", "w", w[0:10]), held("b", "parameter", "w", w[0:10])]
    ledger = ledger_of(take(arrays, (), Layout(False, False, "another layout")))
    assert (ledger.declared, ledger.distinct) == (80, 80)
    assert ledger.notes == (
        "2 of 2 arrays: memory not seen, each object counts as its own (another layout)",
        "of the distinct bytes, 80 are an upper bound: as much as if nothing unseen were shared; "
        "40 if all of one context, role and name are the same memory",
    )
