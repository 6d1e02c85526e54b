"""Files of parameters, symbols, buckets and optimizer states: what is written can be read, what cannot is said."""

from __future__ import annotations

import collections

import numpy as np
import pytest

import bucketlab as bl
from bucketlab import mx
from bucketlab.errors import BucketError, CheckpointError, NotReadyError
from kinds import (
    CLASSES,
    assert_equal,
    batch,
    bound,
    every_number_of_contexts,
    make,
    ready,
    refused,
    shapes,
    start,
    step,
    symbol,
    values,
)
from nets import CONTEXTS, Batches

Lengths = collections.namedtuple("Lengths", ["source", "target"])
SETTINGS = {"learning_rate": 0.2, "momentum": 0.9}


def same(key):
    return symbol(), ["data"], ["softmax_label"]


def unnamed(key):
    """Layers that are called what the NameManager calls them."""
    scores = mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=4 + len(str(key)) * 0)
    scores = mx.sym.FullyConnected(mx.sym.Activation(scores, act_type="tanh"), num_hidden=CLASSES)
    return mx.sym.SoftmaxOutput(scores, name="softmax"), ["data"], ["softmax_label"]


def trained(sym_gen, keys, **more):
    module = bl.BucketingModule(sym_gen, keys[0], **more)
    module.bind(*shapes())
    mx.random.seed(1)
    module.init_params(mx.init.Uniform(1))
    module.init_optimizer(optimizer_params=SETTINGS)
    for seed, key in enumerate(keys):
        step(module, batch(key=key, seed=seed))
    return module


@pytest.mark.parametrize("sym_gen", [same, unnamed])
@pytest.mark.parametrize(
    "keys",
    [
        [10, 5],
        [-1, 0],
        [2**40, 1],
        [np.int64(5), np.int32(3)],
        ["long", "short"],
        ["a/b", "c d", "", "é", "..", "10"],
        [(5, 5), (3, 5)],
        [((1, "x"), 2.5), ((), None)],
        [Lengths(5, 5), Lengths(3, 5)],
        [1.5, 2.5],
        [True, 2],
        [7, "seven", (7,)],
    ],
    ids=str,
)
def test_every_bucket_comes_back_and_training_goes_on(tmp_path, sym_gen, keys):
    module, prefix = trained(sym_gen, keys), str(tmp_path / "m")
    module.save_checkpoint(prefix, 1, True)
    again = bl.BucketingModule.load(
        prefix, 1, sym_gen=sym_gen, default_bucket_key=keys[0], load_optimizer_states=True
    )
    assert list(again._buckets) == keys
    again.bind(*shapes())
    again.init_optimizer(optimizer_params=SETTINGS)
    assert_equal(values(again), values(module))
    for key in keys:
        for each in (module, again):
            each.forward(batch(key=key), is_train=False)
        np.testing.assert_array_equal(again.get_outputs()[0].asnumpy(), module.get_outputs()[0].asnumpy())
    for key in keys:
        for each in (module, again):
            step(each, batch(key=key, seed=4))
    assert_equal(values(again), values(module))
    again.save_checkpoint(prefix, 2, True)
    assert (tmp_path / "m-0002.params").exists() and (tmp_path / "m-0002.states").exists()


@pytest.mark.parametrize(
    ("keys", "words"), [([frozenset([1]), 2], ["frozenset"]), (["10", 10], ["10"]), ([object(), 1], ["object"])]
)
def test_keys_that_files_cannot_tell_apart_or_hold_are_refused_before_any_is_written(tmp_path, keys, words):
    with refused(*words, "key", kind=BucketError):
        trained(same, keys).save_checkpoint(str(tmp_path / "m"), 1)
    assert not list(tmp_path.iterdir())


def deep(key):
    scores = mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=CLASSES, name="fc")
    if key == "deep":
        scores = mx.sym.BatchNorm(
            mx.sym.FullyConnected(scores, num_hidden=CLASSES, name="top"), fix_gamma=False, name="bn"
        )
    return mx.sym.SoftmaxOutput(scores, name="softmax"), ["data"], ["softmax_label"]


@every_number_of_contexts
@pytest.mark.parametrize("default", ["flat", "deep"])
def test_parameters_that_only_another_bucket_has(tmp_path, contexts, default):
    order = [default, "flat" if default == "deep" else "deep"]
    module, prefix = trained(deep, order, context=CONTEXTS[:contexts]), str(tmp_path / "m")
    module.save_checkpoint(prefix, 1, True)
    again = bl.BucketingModule.load(
        prefix, 1, deep, default, load_optimizer_states=True, context=CONTEXTS[:contexts]
    )
    again.bind(*shapes())
    again.init_optimizer(optimizer_params=SETTINGS)
    assert_equal(values(again), values(module))
    for key in (order[1], order[0], order[1]):
        for each in (module, again):
            step(each, batch(key=key, seed=4))
    for name, value in values(module).items():
        # The file has the mean of running statistics over the contexts.
        np.testing.assert_allclose(values(again)[name], value, rtol=1e-5, atol=1e-7, err_msg=name)


def test_parameters_of_a_bucket_that_is_not_there_at_the_moment(tmp_path):
    """A bucket that was let go of, or is not in the file, finds its parameters when it is met again."""
    module, prefix = trained(deep, ["flat", "deep"]), str(tmp_path / "m")
    known = values(module)
    module.bind(*shapes(), force_rebind=True)
    assert list(module._buckets) == ["flat"] and "top_weight" in values(module)
    module.save_checkpoint(prefix, 1)
    again = bl.BucketingModule.load(prefix, 1, deep, "flat")
    again.bind(*shapes())
    assert list(again._buckets) == ["flat"]
    for each in (module, again):
        each.forward(batch(key="deep"), is_train=False)
        assert_equal(values(each), known)


@pytest.mark.parametrize("kind", ["Module", "MutableModule", "SVRGModule"])
@every_number_of_contexts
def test_a_module_comes_back_over_any_number_of_contexts(tmp_path, kind, contexts):
    module, prefix = ready(kind, contexts=contexts), str(tmp_path / "m")
    step(module, batch())
    module.save_checkpoint(prefix, 3, save_optimizer_states=True)
    for then in (1, 2):
        names = {"data_names": ["data"], "label_names": ["softmax_label"]} if kind == "MutableModule" else {}
        again = getattr(bl, kind).load(prefix, 3, load_optimizer_states=True, context=CONTEXTS[:then], **names)
        assert type(again) is (bl.Module if kind == "SVRGModule" else getattr(bl, kind))
        again.bind(*shapes())
        again.init_optimizer(optimizer_params=SETTINGS)
        assert_equal(values(again), values(module))
        found = inner_states(again)
        for name, state in inner_states(module).items():
            np.testing.assert_array_equal(found[name], state, err_msg=name)


def inner_states(module):
    module = getattr(module, "_curr_module", module)
    return {name: module._updater.states[name].asnumpy() for name in ("fc_weight", "fc_bias")}


def test_a_checkpoint_of_another_network_is_refused_by_name(tmp_path):
    bound("Module").save_checkpoint(str(tmp_path / "m"), 1)
    symbol("fd").save(str(tmp_path / "m-symbol.json"))
    again = bl.Module.load(str(tmp_path / "m"), 1)
    with refused("fd_weight", "fd_bias", kind=RuntimeError):
        again.bind(*shapes())
    assert not again.binded
    wide = mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=9, name="fc")
    mx.sym.SoftmaxOutput(wide, name="softmax").save(str(tmp_path / "m-symbol.json"))
    again = bl.Module.load(str(tmp_path / "m"), 1)
    with refused("fc_", "(9,", "(3,", kind=ValueError):
        again.bind(*shapes())
    assert not again.binded


@pytest.mark.parametrize("name", ["top_weight", "bn_moving_mean"])
def test_values_that_do_not_fit_a_bucket_to_come_are_refused_every_time(name):
    """And are not passed over the second time, with the bucket left at zeros."""
    module = trained(deep, ["deep"])
    args, aux = module.get_params()
    given = {**args, **aux, name: mx.nd.ones((9, 9))}
    again = bl.BucketingModule.load_dict(
        {"flat": deep("flat")[0]}, deep, "flat", {n: given[n] for n in args}, {n: given[n] for n in aux}
    )
    again.bind(*shapes())
    for _ in range(3):
        with refused("'deep'", name, "(9, 9)", kind=ValueError):
            again.forward(batch(key="deep"), is_train=False)
        assert list(again._buckets) == ["flat"]
        again.forward(batch(key="flat"), is_train=False)
    hosts = again._buckets["flat"]
    (hosts._arg_params if name in args else hosts._aux_params)[name] = {**args, **aux}[name]
    for each in (module, again):
        each.forward(batch(key="deep"), is_train=False)
    np.testing.assert_array_equal(again.get_outputs()[0].asnumpy(), module.get_outputs()[0].asnumpy())


def test_parameters_that_no_bucket_has_are_kept(tmp_path):
    """They may be those of a bucket to come: told, saved, set again, and in nobody's way."""
    prefix, spare = str(tmp_path / "m"), mx.nd.full((2,), 5)
    given = {**start(), "spare": spare}
    module = bl.BucketingModule.load_dict({0: symbol()}, same, 0, given, {})
    module.bind(*shapes())
    module.init_optimizer(optimizer_params=SETTINGS)
    twin = ready("Module")
    for key in (0, 1):
        step(module, batch(key=key))
        step(twin, batch())
    found = values(module)
    np.testing.assert_array_equal(found.pop("spare"), spare.asnumpy())
    assert_equal(found, values(twin))
    module.set_params(*module.get_params())
    module.save_checkpoint(prefix, 1)
    again = bl.BucketingModule.load(prefix, 1, same, 0)
    again.bind(*shapes())
    assert_equal(values(again), values(module))
    with refused("spare", "(3,)", "(2,)", kind=ValueError):
        again.set_params({**again.get_params()[0], "spare": mx.nd.ones((3,))}, {})


def test_files_that_are_missing_or_something_else_are_named(tmp_path):
    module, there = ready("Module"), str(tmp_path / "none")
    for call in (
        lambda: bl.Module.load(there, 1),
        lambda: bl.MutableModule.load(there, 1, data_names=["data"], label_names=[]),
        lambda: bl.SVRGModule.load(there, 1),
        lambda: bl.BucketingModule.load(there, 1, same, 0),
        lambda: module.load_params(there),
    ):
        with refused("none", kind=CheckpointError):
            call()
    (tmp_path / "other").write_bytes(b"something else")
    mx.nd.save(str(tmp_path / "list"), [mx.nd.ones((1,))])
    mx.nd.save(str(tmp_path / "names"), {"fc_weight": mx.nd.ones((1,))})
    before = values(module)
    for name in ("other", "list", "names"):
        with refused(name, kind=CheckpointError):
            module.load_params(str(tmp_path / name))
    with refused("other", kind=ValueError):
        module.load_optimizer_states(str(tmp_path / "other"))
    with pytest.raises(FileNotFoundError, match="none"):
        module.load_optimizer_states(there)
    with refused("nowhere", kind=CheckpointError):
        module.save_checkpoint(str(tmp_path / "nowhere" / "m"), 1)
    assert_equal(values(module), before)


@pytest.mark.parametrize("kind", ["Module", "BucketingModule"])
def test_states_that_cannot_be_loaded_leave_no_optimizer_behind(tmp_path, kind):
    module, prefix = ready(kind), str(tmp_path / "m")
    module.save_checkpoint(prefix, 1)
    (tmp_path / "m-0001.states").write_bytes(b"something else")
    more = (same, 0) if kind == "BucketingModule" else ()
    again = getattr(bl, kind).load(prefix, 1, *more, load_optimizer_states=True)
    again.bind(*shapes())
    with refused("m-0001.states", kind=ValueError):
        again.init_optimizer(optimizer_params=SETTINGS)
    assert not again.optimizer_initialized
    with refused("init_optimizer(", kind=NotReadyError):
        again.update()
    if kind == "Module":
        module.save_optimizer_states(prefix + "-0001.states")
    else:
        module.save_optimizer_states(prefix + "-0001.states")
    again.init_optimizer(optimizer_params=SETTINGS)
    for each in (module, again):
        step(each, batch())
    assert_equal(values(again), values(module))


@pytest.mark.parametrize("kind", ["Module", "BucketingModule", "MutableModule", "SVRGModule"])
def test_nothing_is_written_that_would_be_half_a_checkpoint(tmp_path, kind):
    module = make(kind)
    module.bind(*shapes())
    with refused("init_params(", kind=NotReadyError):
        module.save_checkpoint(str(tmp_path / "m"), 1)
    module.init_params()
    with refused("init_optimizer(", kind=NotReadyError):
        module.save_checkpoint(str(tmp_path / "m"), 1, True)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("kind", ["Module", "BucketingModule"])
def test_the_callbacks_of_mxnet_write_what_can_be_loaded(tmp_path, kind):
    module = make(kind)
    module.fit(
        Batches([batch(seed=seed) for seed in range(2)]),
        num_epoch=2,
        epoch_end_callback=[
            mx.callback.module_checkpoint(module, str(tmp_path / "mod"), save_optimizer_states=True),
            mx.callback.do_checkpoint(str(tmp_path / "do")),
        ],
        optimizer_params=SETTINGS,
    )
    for epoch in (1, 2):
        assert {f"mod-000{epoch}.params", f"mod-000{epoch}.states"} <= {file.name for file in tmp_path.iterdir()}
    _, args, aux = mx.model.load_checkpoint(str(tmp_path / "do"), 2)
    assert_equal({name: value.asnumpy() for name, value in {**args, **aux}.items()}, values(module))
    more = (same, 0) if kind == "BucketingModule" else ()
    again = getattr(bl, kind).load(str(tmp_path / "mod"), 2, *more, load_optimizer_states=True)
    again.bind(*shapes())
    again.init_optimizer(optimizer_params=SETTINGS)
    for each in (module, again):
        step(each, batch(seed=5))
    assert_equal(values(again), values(module))


def test_a_loaded_module_can_be_saved_and_asked_before_it_is_bound(tmp_path):
    module = bound("BucketingModule")
    module.forward(batch(key=3))
    module.save_checkpoint(str(tmp_path / "m"), 1)
    again = bl.BucketingModule.load(str(tmp_path / "m"), 1, same, 0)
    assert_equal(values(again), {name: value.asnumpy() for name, value in start().items()})
    again.save_checkpoint(str(tmp_path / "n"), 1)
    assert list(bl.BucketingModule.load(str(tmp_path / "n"), 1, same, 0)._buckets) == [0, 3]
    plain = bl.Module.load(str(tmp_path / "m"), 1) if (tmp_path / "m-symbol.json").exists() else None
    assert plain is None
    with refused("sym_gen", kind=ValueError):
        bl.BucketingModule.load(str(tmp_path / "m"), 1, None, 0)
    with refused("default_bucket_key", kind=BucketError):
        bl.BucketingModule.load(str(tmp_path / "m"), 1, same)
    with refused("default_bucket_key is 9", kind=BucketError):
        bl.BucketingModule.load(str(tmp_path / "m"), 1, same, 9)
