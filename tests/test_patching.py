"""patch(): bucketlab's classes under mxnet's names, for as long as someone asks, and not a trace after that."""

from __future__ import annotations

import importlib
import sys
import textwrap
import threading
import types

import numpy as np
import pytest

import bucketlab as bl
from bucketlab import helpers, mx
from bucketlab.errors import ShapeError
from bucketlab.module.svrg import _SVRGOptimizer

NAMES = {
    "BaseModule": bl.BaseModule,
    "Module": bl.Module,
    "BucketingModule": bl.BucketingModule,
    "SequentialModule": bl.SequentialModule,
    "PythonModule": bl.PythonModule,
    "PythonLossModule": bl.PythonLossModule,
}
PLACES = {
    "mxnet.module.base_module": ("BaseModule", bl.BaseModule),
    "mxnet.module.module": ("Module", bl.Module),
    "mxnet.module.bucketing_module": ("BucketingModule", bl.BucketingModule),
    "mxnet.module.sequential_module": ("SequentialModule", bl.SequentialModule),
    "mxnet.module.python_module": ("PythonLossModule", bl.PythonLossModule),
    "mxnet.module.executor_group": ("DataParallelExecutorGroup", bl.DataParallelExecutorGroup),
    "mxnet.contrib.svrg_optimization.svrg_module": ("SVRGModule", bl.SVRGModule),
    "mxnet.contrib.svrg_optimization.svrg_optimizer": ("_SVRGOptimizer", _SVRGOptimizer),
}
HELPERS = ("_load_general", "_load_data", "_load_label", "_merge_multi_context", "_prepare_group2ctxs")


def everything():
    """All globals of all of mxnet's modules, by place."""
    return {
        (name, key): value
        for name, module in sys.modules.items()
        if isinstance(module, types.ModuleType) and name.split(".")[0] == "mxnet"
        for key, value in vars(module).items()
        if key != "__builtins__"
    }


def classifier():
    return mx.sym.SoftmaxOutput(mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=3, name="fc"), name="softmax")


@pytest.fixture(autouse=True)
def imported():
    for name in PLACES:
        importlib.import_module(name)
    yield
    assert mx.mod.Module is not bl.Module


class TestNames:
    def test_every_name_means_ours_inside_and_theirs_after(self):
        before = everything()
        with bl.patch():
            for name, ours in NAMES.items():
                assert getattr(mx.mod, name) is getattr(mx.module, name) is ours
            for place, (name, ours) in PLACES.items():
                assert getattr(importlib.import_module(place), name) is ours
            assert importlib.import_module("mxnet.contrib.svrg_optimization").svrg_module.SVRGModule is bl.SVRGModule
        after = everything()
        assert {place for place in after if place not in before or after[place] is not before[place]} == set()
        assert before.keys() <= after.keys()

    def test_a_plain_call_holds_until_undone(self):
        patched = bl.patch()
        assert patched.active and mx.mod.Module is bl.Module and "active" in repr(patched)
        patched.undo()
        patched.undo()
        assert not patched.active and mx.mod.Module is not bl.Module and "undone" in repr(patched)

    def test_it_is_undone_after_an_error(self):
        with pytest.raises(KeyError), bl.patch():
            raise KeyError
        assert mx.mod.Module is not bl.Module

    def test_requests_nest_and_end_in_any_order(self):
        first, second = bl.patch(), bl.patch()
        with bl.patch() as third:
            first.undo()
            assert mx.mod.Module is bl.Module and third.active and not first.active
        assert mx.mod.Module is bl.Module
        second.undo()
        assert mx.mod.Module is not bl.Module

    def test_requests_from_several_threads(self):
        seen, barrier = [], threading.Barrier(8)

        def ask():
            barrier.wait()
            for _ in range(20):
                with bl.patch():
                    seen.append(mx.mod.Module is bl.Module)

        threads = [threading.Thread(target=ask) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert seen == [True] * 160 and mx.mod.Module is not bl.Module

    def test_what_others_put_in_a_place_stays_theirs(self):
        own = type("Own", (), {})
        theirs = mx.mod.Module
        patched = bl.patch()
        mx.mod.Module = own
        patched.undo()
        assert mx.mod.Module is own
        mx.mod.Module = theirs
        ours = mx.mod.PythonModule
        mx.mod.SomeoneElses = bl.Module
        with bl.patch():
            assert mx.mod.PythonModule is bl.PythonModule
        assert mx.mod.SomeoneElses is bl.Module and mx.mod.PythonModule is ours
        del mx.mod.SomeoneElses

    def test_modules_that_mxnet_imports_inside_are_put_right_after(self):
        known = sys.modules.pop("mxnet.contrib.quantization", None)
        with bl.patch():
            inside = importlib.import_module("mxnet.contrib.quantization")
            assert inside.Module is bl.Module
        assert inside.Module is mx.mod.Module is not bl.Module
        if known is not None:
            sys.modules["mxnet.contrib.quantization"] = known


class TestPrograms:
    def test_old_code_runs_and_its_checks_hold(self):
        source = textwrap.dedent(
            """
            import mxnet as mx
            from mxnet.module import Module, BaseModule
            from mxnet.module.bucketing_module import BucketingModule
            from mxnet.module.executor_group import DataParallelExecutorGroup, _load_general, _merge_multi_context
            from mxnet.module.base_module import _check_input_names, _parse_data_desc, _as_list

            class Group(DataParallelExecutorGroup):
                pass

            class Mine(Module):
                executor_group_class = Group

            made = Mine(symbol, context=[mx.cpu(0), mx.cpu(1)])
            made.bind([("data", (4, 5))], [("softmax_label", (4,))])
            made.init_params()
            bucketing = BucketingModule(lambda key: (symbol, ["data"], ["softmax_label"]), 1)
            checks = [
                isinstance(made, mx.mod.BaseModule),
                isinstance(made, BaseModule) and isinstance(bucketing, BaseModule),
                isinstance(made._exec_group, DataParallelExecutorGroup) and type(made._exec_group) is Group,
                not isinstance(bucketing, Module),
                issubclass(mx.mod.SequentialModule, mx.mod.BaseModule),
                _as_list(3) == [3],
                _parse_data_desc(["data"], ["l"], [("data", (2, 3))], [("l", (2,))])[0][0].shape == (2, 3),
            ]
            """
        )
        scope = {"symbol": classifier(), "__name__": "old"}
        with bl.patch():
            exec(compile(source, "old.py", "exec"), scope)
        assert all(scope["checks"]) and len(scope["checks"]) == 7
        assert isinstance(scope["made"], bl.Module)

    def test_mixed_precision_converts_our_buckets(self):
        def sym_gen(key):
            return classifier(), ["data"], ["softmax_label"]

        with bl.patch():
            module = mx.mod.BucketingModule(sym_gen, 4)
            module.bind([("data", (2, 5))], [("softmax_label", (2,))])
            module.init_params(mx.init.One())
            converted = importlib.import_module("mxnet.contrib.amp.amp").convert_bucketing_module(module)
            assert type(converted) is bl.BucketingModule
            converted.bind([("data", (2, 5))], [("softmax_label", (2,))], for_training=False)
            assert converted.get_params()[0]["fc_weight"].shape == (3, 5)

    def test_checkpoint_callback(self, tmp_path):
        with bl.patch():
            module = mx.mod.Module(classifier())
            data = mx.io.NDArrayIter(np.ones((4, 5)), np.zeros(4), 2, label_name="softmax_label")
            callback = mx.callback.module_checkpoint(module, str(tmp_path / "c"), save_optimizer_states=True)
            module.fit(data, num_epoch=1, epoch_end_callback=callback)
        assert sorted(path.name for path in tmp_path.iterdir()) == ["c-0001.params", "c-0001.states", "c-symbol.json"]


class TestHelpers:
    def test_they_do_what_mxnets_do(self):
        mxnets = importlib.import_module("mxnet.module.executor_group")
        x = mx.nd.array(np.arange(24).reshape(4, 3, 2))
        cases = [
            (lambda: ([x], [[(slice(0, 3), mx.nd.zeros((3, 3, 2))), (slice(3, 4), mx.nd.zeros((1, 3, 2)))]], [0])),
            (lambda: ([x], [[(slice(0, 1), mx.nd.zeros((4, 1, 2))), (slice(1, 3), mx.nd.zeros((4, 2, 2)))]], [1])),
            (lambda: ([x], [[(slice(0, 4), mx.nd.zeros((4, 3, 2)))] * 2], [-1])),
            (lambda: ([x], [mx.nd.zeros((4, 3, 2))], [0])),
            (lambda: ([[x, x + 1]], [[mx.nd.zeros((4, 3, 2)), mx.nd.zeros((4, 3, 2))]], [0])),
        ]
        for case in cases:
            results = []
            for load in (mxnets._load_general, helpers._load_general):
                data, targets, axes = case()
                load(data, targets, axes)
                target = targets[0] if isinstance(targets[0], list) else [targets[0]]
                results.append([(t[1] if isinstance(t, tuple) else t).asnumpy() for t in target])
            for found, expected in zip(*results):
                np.testing.assert_array_equal(found, expected)
                assert found.any()

    @pytest.mark.parametrize("kind", ["data", "label"])
    def test_loading_a_batch_and_a_list_of_batches(self, kind):
        load = getattr(helpers, f"_load_{kind}")
        halves = [mx.nd.full((2, 3), i) for i in (1, 2)]
        for batch in (
            mx.io.DataBatch([mx.nd.concat(*halves, dim=0)], [mx.nd.concat(*halves, dim=0)]),
            [mx.io.DataBatch([half], [half]) for half in halves],
        ):
            targets = [[(slice(0, 2), mx.nd.zeros((2, 3))), (slice(2, 4), mx.nd.zeros((2, 3)))]]
            load(batch, targets, [0])
            assert [array.asnumpy()[0, 0] for _, array in targets[0]] == [1, 2]

    def test_merging(self):
        parts = [mx.nd.full((1, 2), 1), mx.nd.full((3, 2), 2, ctx=mx.cpu(1))]
        rows, columns, none = helpers._merge_multi_context([parts, [p.T for p in parts], parts], [0, 1, -1])
        assert (rows.shape, columns.shape, none is parts[0], rows.context) == ((4, 2), (2, 4), True, mx.cpu(0))
        assert helpers._merge_multi_context([parts[:1]], [0])[0] is parts[0]

    def test_parsing_descriptions(self):
        data, label = helpers._parse_data_desc(["data"], [], [("data", (2, 3))], None)
        assert data == [("data", (2, 3))] and isinstance(data[0], mx.io.DataDesc) and label is None
        with pytest.raises(ShapeError, match="data_shapes"):
            helpers._parse_data_desc(["data"], [], [("x", (2, 3))], None)
        with pytest.raises(ShapeError, match="names"):
            helpers._check_names_match(["a"], [("b", (1,))], "data", True)
        with pytest.warns(UserWarning, match="names"):
            helpers._check_names_match(["a"], [("b", (1,))], "label", False)

    def test_all_of_them_are_swapped(self):
        mxnets = importlib.import_module("mxnet.module.executor_group")
        before = {name: getattr(mxnets, name) for name in HELPERS}
        with bl.patch():
            assert all(getattr(mxnets, name) is not before[name] for name in HELPERS)
            assert mxnets._prepare_group2ctxs({"a": mx.cpu(1)}, 2) == [{"a": mx.cpu(1)}] * 2
        assert all(getattr(mxnets, name) is before[name] for name in HELPERS)
