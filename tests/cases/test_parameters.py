"""Parameters: set all or none, named when they do not fit, read as they are now, and staying what was set."""

from __future__ import annotations

import numpy as np
import pytest

import bucketlab as bl
from bucketlab import mx
from bucketlab.errors import ShapeError
from kinds import (
    CLASSES,
    WIDTH,
    assert_equal,
    batch,
    bound,
    every_kind,
    every_number_of_contexts,
    inner,
    make,
    ready,
    refused,
    shapes,
    start,
    step,
    symbol,
    values,
)
from nets import CONTEXTS

ONE, TWO = mx.nd.ones((CLASSES, WIDTH)), mx.nd.ones((CLASSES,)) * 2


@every_kind
@every_number_of_contexts
def test_what_does_not_fit_is_named_and_nothing_is_set(kind, contexts):
    module = ready(kind, contexts=contexts)
    step(module, batch())
    before = values(module)
    for spoilt, words, error in (
        ({"fc_weight": mx.nd.ones((3, 5))}, ["fc_weight", "(3, 5)", "(3, 4)"], ShapeError),
        ({"fc_weight": np.ones((4, 3))}, ["fc_weight", "(4, 3)", "(3, 4)"], ShapeError),
        ({"fc_weight": [1, 2]}, ["fc_weight", "list"], TypeError),
        ({"fc_weight": None}, ["fc_weight", "NoneType"], TypeError),
        ({"fd_weight": ONE}, ["fd_weight"], ValueError),
        ({"fc_weight": mx.nd.ones((1,)), "fd_weight": ONE}, ["fd_weight"], ValueError),
    ):
        given = {"fc_bias": TWO, "fc_weight": ONE, **spoilt}
        for allow_missing in (False, True):
            with refused(*words, kind=error):
                module.set_params(given, {}, allow_missing=allow_missing)
            with refused(*words, kind=error):
                module.init_params(mx.init.One(), given, {}, allow_missing, force_init=True)
            assert_equal(values(module), before)


@every_kind
def test_what_is_no_table_of_values_is_refused(kind):
    module = bound(kind)
    for wrong in ([ONE], 3, ONE):
        with refused("dict", kind=TypeError):
            module.set_params(wrong, {})
    assert_equal(values(module), {name: value.asnumpy() for name, value in start().items()})


@every_kind
def test_a_name_that_two_layers_use_is_told(kind):
    twice = mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=CLASSES, name="fc")
    twice = mx.sym.FullyConnected(twice, num_hidden=CLASSES, name="fc")
    module = make(kind, mx.sym.SoftmaxOutput(twice, name="softmax"))
    with refused("'fc_bias', 'fc_weight' more than once", kind=ValueError):
        module.bind(*shapes())
    assert not module.binded


@pytest.mark.parametrize("given", ["data", 3])
@pytest.mark.parametrize("argument", ["data_names", "label_names", "state_names", "fixed_param_names"])
def test_names_come_as_a_list(argument, given):
    with refused(argument, repr(given), kind=TypeError):
        bl.Module(symbol(), **{argument: given})


@every_kind
def test_a_missing_parameter_is_named_unless_it_may_be(kind):
    module = bound(kind)
    with refused("fc_bias", "allow_missing", kind=RuntimeError):
        module.set_params({"fc_weight": ONE}, {})
    module.set_params({"fc_weight": ONE}, {}, allow_missing=True)
    assert_equal(values(module), {"fc_weight": ONE.asnumpy(), "fc_bias": start()["fc_bias"].asnumpy()})
    with refused("fc_bias", kind=RuntimeError):
        module.init_params(None, {"fc_weight": ONE}, {}, force_init=True)
    with refused("fc_bias", "fc_weight", "initializer", kind=ValueError):
        module.init_params(None, force_init=True)


@every_kind
def test_extra_values_are_passed_over_when_they_may_be(kind):
    module = bound(kind)
    module.set_params({**start(1), "other": ONE, "data": mx.nd.ones((9,))}, {"more": ONE}, allow_extra=True)
    assert_equal(values(module), {name: value.asnumpy() for name, value in start(1).items()})


@every_kind
@every_number_of_contexts
def test_numpy_arrays_and_other_types_are_taken(kind, contexts):
    module = bound(kind, contexts=contexts)
    module.set_params({name: value.asnumpy().astype("float64") for name, value in start(1).items()}, {})
    expected = {name: value.asnumpy() for name, value in start(1).items()}
    assert_equal(values(module), expected)
    assert {value.dtype for value in values(module).values()} == {np.dtype("float32")}
    module.set_params({name: value.astype("float16") for name, value in start(1).items()}, {})
    assert_equal(values(module), {name: value.astype("f2").astype("f4") for name, value in expected.items()})


@every_kind
@every_number_of_contexts
def test_get_params_is_a_snapshot(kind, contexts):
    module = ready(kind, contexts=contexts)
    kept, before = module.get_params()[0], values(module)
    step(module, batch())
    assert_equal({name: value.asnumpy() for name, value in kept.items()}, before)
    assert not np.array_equal(values(module)["fc_weight"], before["fc_weight"])
    now = values(module)
    for value in module.get_params()[0].values():
        value[:] = 99
    assert_equal(values(module), now)
    inner(module)._exec_group.set_params({"fc_weight": ONE}, {}, allow_extra=True)
    assert module.get_params()[0]["fc_weight"].shape == (CLASSES, WIDTH)


@every_kind
@pytest.mark.parametrize(
    ("kvstore", "contexts"), [(None, 2), ("local", 1), ("local", 2), ("device", 2), ("instance", 1), ("instance", 2)]
)
def test_what_is_set_after_init_optimizer_stays_set(kind, kvstore, contexts, tmp_path):
    store = mx.kv.create("local") if kvstore == "instance" else kvstore
    module, twin = ready(kind, contexts=contexts, kvstore=store), ready("Module")
    frozen = {name: value * 0 + 2 for name, value in start().items()}
    twin.set_params(frozen, {})
    twin.save_params(str(tmp_path / "p"))
    for set_them in (
        lambda given: module.set_params(given, {}),
        lambda given: module.set_params(given, {}, allow_missing=True),
        lambda given: module.init_params(mx.init.One(), given, {}, force_init=True),
        lambda given: module.load_params(str(tmp_path / "p")),
    ):
        step(module, batch())
        set_them(frozen)
        assert all((value == 2).all() for value in values(module).values())
        inner(module)._optimizer.lr = 0
        for parts in inner(module)._updater.states.values():
            if parts is not None:
                parts[:] = 0
        step(module, batch())
        inner(module)._optimizer.lr = 0.2
        assert all((value == 2).all() for value in values(module).values())


def unnamed():
    """A network with a parameter that the usual initializers do not know by its name."""
    scale = mx.sym.Variable("shift", shape=(1, CLASSES))
    scores = mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=CLASSES, name="fc")
    return mx.sym.SoftmaxOutput(mx.sym.broadcast_add(scores, scale), name="softmax")


@every_kind
@pytest.mark.parametrize("initialised", [False, True])
def test_an_initializer_that_refuses_a_name_leaves_all_as_they_were(kind, initialised):
    module = make(kind, unnamed())
    module.bind(*shapes())
    given = {**start(), "shift": mx.nd.array([[1, 2, 3]])}
    if initialised:
        module.init_params(arg_params=given, aux_params={})
    with refused("shift", kind=ValueError):
        module.init_params(mx.init.Uniform(5), force_init=True)
    assert module.params_initialized == initialised
    if initialised:
        assert_equal(values(module), {name: value.asnumpy() for name, value in given.items()})
    else:
        assert all(not value.asnumpy().any() for value in inner(module)._arg_params.values())
    module.init_params(arg_params=given, aux_params={}, force_init=True)
    assert_equal(values(module), {name: value.asnumpy() for name, value in given.items()})


@every_kind
@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"optimizer_params": 3}, ["optimizer_params is 3"]),
        ({"optimizer_params": ["learning_rate"]}, ["optimizer_params is"]),
        ({"optimizer": "none-such"}, ["none-such"]),
        ({"optimizer": 3}, ["optimizer is int"]),
        ({"kvstore": 3}, ["kvstore is a int"]),
        ({"kvstore": "none-such"}, ["'none-such'", "'local'", "'device'"]),
    ],
)
def test_what_is_no_optimizer_leaves_none_behind(kind, given, words):
    module = bound(kind)
    with refused(*words):
        module.init_optimizer(**given)
    assert not module.optimizer_initialized
    module.init_optimizer()
    assert module.optimizer_initialized


def test_what_names_no_rows_of_sparse_parameters_is_told():
    weight = mx.sym.Variable("rows", stype="row_sparse", init=mx.init.One())
    embedded = mx.sym.Embedding(mx.sym.Variable("data"), weight=weight, input_dim=6, output_dim=3, sparse_grad=True)
    scores = mx.sym.FullyConnected(embedded, num_hidden=CLASSES, name="fc")
    module = bl.Module(mx.sym.SoftmaxOutput(scores, name="softmax"), context=CONTEXTS[:2])
    module.bind(*shapes())
    module.init_params(mx.init.One())
    module.init_optimizer()
    for wrong, words, error in (
        (3, ["sparse_row_id_fn is 3"], TypeError),
        (lambda given: 3, ["sparse_row_id_fn returned int"], TypeError),
        (lambda given: {"none": mx.nd.zeros((1,))}, ["row ids", "'none'"], ValueError),
    ):
        with refused(*words, kind=error):
            module.prepare(batch(), sparse_row_id_fn=wrong)
    module.prepare(batch(), sparse_row_id_fn=lambda given: {"rows": mx.nd.array([0, 1])})


@every_kind
def test_what_is_no_initializer_is_refused(kind):
    module = make(kind)
    module.bind(*shapes())
    with refused("initializer is 'xavier'", kind=TypeError):
        module.init_params("xavier")
    assert not module.params_initialized


def test_a_bucket_whose_parameter_no_initializer_knows_is_refused_every_time():
    def sym_gen(key):
        return (unnamed() if key else symbol()), ["data"], ["softmax_label"]

    module, twin = bl.BucketingModule(sym_gen, 0), bl.BucketingModule(sym_gen, 0)
    for each in (module, twin):
        each.bind(*shapes())
        each.init_params(arg_params=start(), aux_params={})
        each.init_optimizer(optimizer_params={"learning_rate": 0.2})
        step(each, batch())
    for _ in range(2):
        with refused("bucket 1", "shift", kind=ValueError):
            module.forward(batch(key=1))
        assert list(module._buckets) == [0] and set(values(module)) == {"fc_weight", "fc_bias"}
    for each in (module, twin):
        step(each, batch())
    assert_equal(values(module), values(twin))


class TestSharedModules:
    """Modules that share with bind(shared_module=...): one model, whoever is asked."""

    def pair(self, contexts=1, more=None):
        first = ready("Module", contexts=contexts)
        second = bl.Module(symbol() if more is None else more, context=CONTEXTS[:contexts])
        second.bind(*shapes(), shared_module=first)
        return first, second

    @every_number_of_contexts
    def test_what_one_trains_the_other_tells(self, contexts):
        first, second = self.pair(contexts)
        for trained, other in ((first, second), (second, first)):
            step(trained, batch())
            assert_equal(values(other), values(trained))

    def test_a_parameter_that_only_the_second_has_goes_through_the_first(self):
        deeper = mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=CLASSES, name="fc")
        deeper = mx.sym.SoftmaxOutput(
            mx.sym.FullyConnected(deeper, num_hidden=CLASSES, name="top"), name="softmax"
        )
        first, second = self.pair(more=deeper)
        step(second, batch())
        known = values(first)
        assert set(known) == {"fc_weight", "fc_bias", "top_weight", "top_bias"}
        assert_equal(values(second), known)
        for allow_missing in (False, True):
            first.set_params({name: mx.nd.array(value + 1) for name, value in known.items()}, {}, allow_missing)
            known = {name: value + 1 for name, value in known.items()}
            assert_equal(values(second), known)
        np.testing.assert_array_equal(
            second._exec_group.execs[0].arg_dict["top_weight"].asnumpy(), known["top_weight"]
        )
        with refused("top_weight", "(1,)", kind=ShapeError):
            first.set_params({**first.get_params()[0], "top_weight": mx.nd.ones((1,))}, {})

    @pytest.mark.parametrize("spoil", ["unbound", "bare", "bucketing", "contexts", "none of ours"])
    def test_a_module_that_cannot_share_is_refused_with_the_reason(self, spoil):
        taker = bl.Module(symbol(), context=CONTEXTS[:2] if spoil == "contexts" else CONTEXTS[:1])
        giver, words = {
            "unbound": lambda: (bl.Module(symbol()), ["shared_module", "bind()"]),
            "bare": lambda: (make("Module"), ["shared_module", "init_params()"]),
            "bucketing": lambda: (bound("BucketingModule"), ["shared_module", "BucketingModule"]),
            "contexts": lambda: (bound("Module"), ["shared_module", "1 context(s)", "2"]),
            "none of ours": lambda: (3, ["shared_module", "int"]),
        }[spoil]()
        if spoil == "bare":
            giver.bind(*shapes())
        with refused(*words):
            taker.bind(*shapes(), shared_module=giver)
        assert not taker.binded
        taker.bind(*shapes())
        assert taker.binded

    @pytest.mark.parametrize("kind", ["BucketingModule", "SequentialModule"])
    def test_modules_that_share_among_themselves_say_so(self, kind):
        module = make(kind)
        with refused("shared_module", kind=ValueError):
            module.bind(*shapes(), shared_module=ready("Module"))
        assert not module.binded

    def test_on_fewer_contexts_only_what_ran_is_learnt(self):
        giver, alone = ready("Module", contexts=2), ready("Module")
        taker = bl.Module(symbol())
        taker.bind(*shapes(), shared_module=giver)
        giver.forward_backward(batch(seed=9))
        for each in (taker, alone):
            step(each, batch())
        assert_equal(values(taker), values(alone))
        assert_equal(values(giver), values(alone))
        assert_equal(
            {"w": giver._exec_group.execs[1].arg_dict["fc_weight"].asnumpy()}, {"w": values(alone)["fc_weight"]}
        )


@every_number_of_contexts
def test_running_statistics_are_set_and_missed_by_name(contexts):
    net = mx.sym.BatchNorm(mx.sym.Variable("data"), fix_gamma=False, name="bn")
    module = bl.Module(net, label_names=None, context=CONTEXTS[:contexts])
    module.bind([("data", (4, 3))])
    module.init_params()
    args, aux = module.get_params()
    with refused("bn_moving_var", kind=RuntimeError):
        module.set_params(args, {"bn_moving_mean": aux["bn_moving_mean"]})
    with refused("bn_moving_mean", "(4,)", "(3,)", kind=ShapeError):
        module.set_params(args, {**aux, "bn_moving_mean": mx.nd.ones((4,))})
    module.set_params(args, {name: np.full(3, 7, "f") for name in aux})
    assert all((value.asnumpy() == 7).all() for value in module.get_params()[1].values())
