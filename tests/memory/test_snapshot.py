"""What a snapshot tells of known arrays and of a real run, and what a later one finds changed."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

import memory_runs as runs
from bucketlab import mx
from bucketlab.memory import HeldArray, snapshot
from bucketlab.memory.addresses import Layout
from bucketlab.memory.protocol import collect
from bucketlab.memory.snapshot import take


@pytest.fixture(scope="module")
def module():
    return runs.bucketing()


def test_records_of_known_arrays():
    a = mx.nd.zeros((10, 4))
    other = mx.nd.zeros((2,), ctx=mx.cpu(1), dtype="int8")
    mx.nd.waitall()
    shot = snapshot({"whole": a, "part": a[2:5], "other": other})
    told = [record.to_dict() for record in shot.records]
    assert told[1] == {
        "bucket": None,
        "context_index": -1,
        "context": "cpu(0)",
        "role": "other",
        "name": "part",
        "shape": [3, 4],
        "dtype": "float32",
        "storage": "default",
        "bytes": 48,
        "group": "m0",
        "offset": 32,
        "allocated": True,
    }
    assert (told[2]["context"], told[2]["bytes"], told[2]["group"]) == ("cpu(1)", 2, "m1")
    assert [group._asdict() for group in shot.groups] == [
        {"name": "m0", "context": "cpu(0)", "bytes": 160, "declared": 208, "arrays": 2},
        {"name": "m1", "context": "cpu(1)", "bytes": 2, "declared": 2, "arrays": 1},
    ]
    assert shot.notes == ()


def test_parameters_in_one_flat_buffer_are_groups_of_their_own():
    flat = mx.nd.zeros((20,))
    shot = snapshot([flat[0:8].reshape((2, 4)), flat[8:20], flat[8:10]])
    assert [(record.group, record.offset) for record in shot.records] == [("m0", 0), ("m1", 0), ("m1", 0)]
    joined = snapshot([flat[0:8], flat[8:20], flat[6:10]])
    assert [record.group for record in joined.records] == ["m0", "m0", "m0"]
    assert joined.groups[0].bytes == 80


def test_a_sparse_array_is_one_group_with_all_its_parts():
    rows = mx.nd.array([[1, 0], [0, 0], [0, 2]]).tostype("row_sparse")
    mx.nd.waitall()
    shot = snapshot([rows, rows.detach(), mx.nd.zeros((3,))])
    assert [record.group for record in shot.records] == ["m0", "m0", "m1"]
    # Two rows of 8 bytes, and room for the indices of all three.
    assert (shot.records[0].storage, shot.records[0].bytes, shot.groups[0].bytes) == ("row_sparse", 40, 40)


def test_every_role_of_a_real_run(module):
    shot = snapshot(module)
    shapes = {
        (record.bucket, record.context_index, record.role, record.name): record.shape
        for record in shot.records
        if record.role != "pool"
    }
    parameters = {
        "embed_weight": (12, 5),
        "fc_weight": (6, 5),
        "fc_bias": (6,),
        "bn_gamma": (6,),
        "bn_beta": (6,),
        "out_weight": (3, 6),
        "out_bias": (3,),
    }
    auxiliary = {"bn_moving_mean": (6,), "bn_moving_var": (6,)}
    expected = {}
    for length in (8, 5):
        for i in (0, 1):
            roles = {
                "parameter": parameters,
                "gradient": parameters,
                "auxiliary": auxiliary,
                "data": {"data": (2, length)},
                "label": {"softmax_label": (2,)},
                "state": {"memory": (2, 6)},
                "output": {"softmax_output": (2, 3)},
            }
            expected.update({(length, i, role, n): s for role, of in roles.items() for n, s in of.items()})
    expected.update({(None, -1, "host", n): s for n, s in {**parameters, **auxiliary}.items()})
    optimizer = {key: shape for key, shape in shapes.items() if key[2] == "optimizer"}
    assert {key[3]: shape for key, shape in optimizer.items()} == parameters
    assert {key: shape for key, shape in shapes.items() if key[2] != "optimizer"} == expected
    assert {record.context for record in shot.records if record.context_index == 1} == {"cpu(1)"}
    assert [record for record in shot.records if record.role == "pool"]


def test_buckets_share_what_bucketing_shares(module):
    groups = {}
    for record in snapshot(module).records:
        groups.setdefault((record.role, record.context, record.name), []).append(record.group)
    for (role, _, _), found in groups.items():
        if role in ("parameter", "gradient", "auxiliary", "data", "label", "state"):
            assert len(found) == 2 and len(set(found)) == 1
    assert len({found[0] for key, found in groups.items() if key[0] == "parameter"}) == 14


def test_two_snapshots_of_one_state_are_equal_and_change_nothing(module):
    before = snapshot(module)
    after = snapshot(module)
    assert before == after
    assert not before.diff(after)
    assert repr(before) == repr(after)


def test_a_snapshot_knows_whether_it_still_holds():
    lazy = mx.nd.NDArray(mx.nd.ndarray._new_alloc_handle((4,), mx.cpu(), True, mx.nd.ndarray.np.float32))
    arrays = [lazy, mx.nd.zeros((3, 3)), mx.nd.sparse.zeros("row_sparse", (4, 2))]
    mx.nd.waitall()
    before = snapshot(arrays)
    assert before.is_current()
    arrays[1][:] = 5
    mx.nd.waitall()
    assert before.is_current()
    lazy[:] = 1
    mx.nd.waitall()
    assert not before.is_current()
    after = snapshot(arrays)
    arrays[2][:] = mx.nd.ones((4, 2)).tostype("row_sparse")
    mx.nd.waitall()
    assert not after.is_current()


def test_the_first_run_of_a_bucket_ends_what_was_current():
    module = runs.bucketing((8, 5))
    module.switch_bucket(30, [("data", (runs.ROWS, 30))], [("softmax_label", (runs.ROWS,))])
    mx.nd.waitall()
    bound = snapshot(module)
    waiting = [record for record in bound.records if not record.allocated]
    assert {record.bucket for record in waiting} == {30}
    assert bound.is_current()
    runs.step(module, 30)
    mx.nd.waitall()
    assert not bound.is_current()
    assert all(record.allocated for record in snapshot(module).records)


def test_groups_are_named_by_first_appearance(module):
    names = list(dict.fromkeys(record.group for record in snapshot(module).records if record.role != "pool"))
    assert names == [f"m{i}" for i in range(len(names))]


def test_input_gradients_and_fixed_parameters():
    module = mx.mod.Module(
        mx.sym.LinearRegressionOutput(
            mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=2, name="fc"), name="end"
        ),
        label_names=["end_label"],
        fixed_param_names=["fc_weight"],
    )
    module.bind([("data", (3, 4))], [("end_label", (3, 2))], inputs_need_grad=True)
    roles = {(record.role, record.name) for record in snapshot(module).records if record.role != "pool"}
    assert ("input_gradient", "data") in roles and ("gradient", "fc_bias") in roles
    assert ("gradient", "fc_weight") not in roles


def test_an_inference_bind_has_no_gradients():
    symbol, data, label = runs.sym_gen(4)
    module = mx.mod.Module(symbol, data, label, state_names=["memory"])
    module.bind([("data", (4, 4))], for_training=False)
    assert not [record for record in snapshot(module).records if "gradient" in record.role]


def test_a_module_that_is_not_bound_holds_nothing():
    symbol, data, label = runs.sym_gen(4)
    shot = snapshot(mx.mod.Module(symbol, data, label))
    assert (shot.records, shot.groups) == ((), ())


def test_modules_in_a_sequence_keep_apart():
    first = mx.mod.Module(
        mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=3, name="a"), label_names=None
    )
    last = mx.mod.Module(mx.sym.SoftmaxOutput(mx.sym.Variable("data"), name="softmax"), data_names=["data"])
    module = mx.mod.SequentialModule().add(first).add(last, take_labels=True, auto_wiring=True)
    module.bind([("data", (2, 4))], [("softmax_label", (2,))])
    found = {record.bucket for record in snapshot(module).records if record.role != "host"}
    assert found == {"module 0", "module 1"}


def test_several_sources_carry_their_names(module):
    a = mx.nd.zeros((2,))
    by_position = snapshot(module, {"a": a})
    assert {record.bucket for record in by_position.records} == {
        "source 0",
        "source 0/8",
        "source 0/5",
        "source 1",
    }
    by_name = snapshot(a, a, mine=[a])
    assert [(record.bucket, record.name) for record in by_name.records] == [
        (None, "array 0"),
        (None, "array 1"),
        ("mine", "0"),
    ]
    assert {record.group for record in by_name.records} == {"m0"}


def test_a_source_may_tell_its_arrays_itself():
    array = mx.nd.zeros((3,))
    source = SimpleNamespace(
        held_arrays=lambda: iter([HeldArray("b", 0, "cpu(0)", "kvstore", "copy", array)])
    )
    record = snapshot(source).records[0]
    assert (record.bucket, record.role, record.name, record.bytes) == ("b", "kvstore", "copy", 12)


def test_an_updater_is_a_source():
    updater = mx.optimizer.get_updater(mx.optimizer.Adam(param_idx2name={0: "w"}))
    updater(0, mx.nd.ones((2, 2)), mx.nd.ones((2, 2)))
    assert [(r.role, r.name, r.bytes) for r in snapshot(updater).records] == [
        ("optimizer", "w.0", 16),
        ("optimizer", "w.1", 16),
    ]


def test_what_holds_no_arrays_is_refused():
    with pytest.raises(TypeError, match="cannot see the arrays of a int"):
        snapshot(3)


def test_arrays_of_the_groups_input_store_that_no_executor_uses():
    symbol, data, label = runs.sym_gen(4)
    module = mx.mod.Module(symbol, data, label, state_names=["memory"])
    module.bind([("data", (4, 4))], [("softmax_label", (4,))])
    module._exec_group.shared_data_arrays[0]["left_over"] = mx.nd.zeros((5,))
    found = [record for record in snapshot(module).records if record.role == "other"]
    assert [(record.name, record.bytes) for record in found] == [("left_over", 20)]


def test_without_proof_every_array_is_its_own_and_the_note_says_so():
    a = mx.nd.zeros((10, 4))
    arrays, pools = collect([a, a, a[2:5]])
    shot = take(arrays, pools, Layout(False, False, "the layout is another"))
    # The very same object is known to be the same memory; a view is not.
    assert [record.group for record in shot.records] == ["m0", "m0", "m1"]
    assert [group.bytes for group in shot.groups] == [160, 48]
    assert shot.notes == (
        "3 of 3 arrays: memory not seen, each object counts as its own (the layout is another)",
    )


def test_diff_names_what_came_went_moved_and_changed_company():
    a, b, c = mx.nd.zeros((4,)), mx.nd.zeros((4,)), mx.nd.zeros((6,))
    mx.nd.waitall()
    before = snapshot({"a": a, "b": b, "c": c, "gone": mx.nd.zeros((2,))})
    d = mx.nd.zeros((3, 3))
    mx.nd.waitall()
    after = snapshot({"a": a, "b": a, "c": d, "new": a})
    diff = before.diff(after)
    assert [record.name for record in diff.appeared] == ["new"]
    assert [record.name for record in diff.gone] == ["gone"]
    assert [change.after.name for change in diff.moved] == ["b", "c"]
    assert [(change.before.bytes, change.after.bytes) for change in diff.resized] == [(24, 36)]
    assert [change.after.name for change in diff.regrouped] == ["a", "b"]
    assert (diff.bytes_before, diff.bytes_after) == (64, 52)
    assert diff.to_dict()["moved"][0]["after"]["name"] == "b"


def test_allocation_counts_as_a_move():
    lazy = mx.nd.NDArray(mx.nd.ndarray._new_alloc_handle((4,), mx.cpu(), True, mx.nd.ndarray.np.float32))
    before = snapshot([lazy])
    assert not before.records[0].allocated
    lazy[:] = 1
    lazy.wait_to_read()
    diff = before.diff(snapshot([lazy]))
    assert [change.after.allocated for change in diff.moved] == [True]
    assert not diff.regrouped
