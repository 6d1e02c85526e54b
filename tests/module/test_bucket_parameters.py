"""Buckets that have parameters which others lack: set, initialised, trained and read back as one model's."""

from __future__ import annotations

import numpy as np
import pytest

from bucketlab import BucketingModule, mx
from bucketlab.errors import ShapeError
from nets import CONTEXTS

DATA, LABEL = [("data", (4, 6))], [("softmax_label", (4,))]


def deep(layers):
    """As many layers as the bucket key says; an odd number of them ends in a BatchNorm of its own."""
    found = mx.sym.Variable("data")
    for i in range(layers):
        found = mx.sym.FullyConnected(found, num_hidden=5, name=f"fc{i}")
    if layers % 2:
        found = mx.sym.BatchNorm(found, name="bn", fix_gamma=False)
    logits = mx.sym.FullyConnected(found, num_hidden=3, name="out")
    return mx.sym.SoftmaxOutput(logits, name="softmax"), ["data"], ["softmax_label"]


def batch(layers, seed=0):
    rng = np.random.RandomState(seed)
    data, label = mx.nd.array(rng.uniform(-1, 1, (4, 6))), mx.nd.array(rng.randint(0, 3, 4))
    return mx.io.DataBatch([data], [label], bucket_key=layers, provide_data=DATA, provide_label=LABEL)


class Depths(mx.io.DataIter):
    def __init__(self, order):
        super().__init__(4)
        self.order, self.at = order, 0
        self.provide_data, self.provide_label = DATA, LABEL

    def reset(self):
        self.at = 0

    def next(self):
        if self.at >= len(self.order):
            raise StopIteration
        self.at += 1
        return batch(self.order[self.at - 1], self.at)


def module(*layers):
    made = BucketingModule(deep, default_bucket_key=layers[0], context=CONTEXTS[:2])
    made.bind(DATA, LABEL)
    made.init_params(mx.init.Xavier())
    for key in layers[1:]:
        made.switch_bucket(key, DATA, LABEL)
    return made


NAMES = {"fc0_weight", "fc0_bias", "fc1_weight", "fc1_bias", "out_weight", "out_bias"}
ONLY_DEEP = {"fc2_weight", "fc2_bias", "bn_gamma", "bn_beta"}


@pytest.mark.parametrize("order", [[3, 2], [2, 3], [3, 2, 3]])
def test_fit_ends_an_epoch_with_any_bucket(order):
    made, seen = BucketingModule(deep, default_bucket_key=3, context=CONTEXTS[:2]), []
    made.fit(
        Depths(order),
        num_epoch=3,
        initializer=mx.init.Xavier(),
        epoch_end_callback=lambda epoch, symbol, args, aux: seen.append((set(args), set(aux))),
    )
    assert seen == [(NAMES | ONLY_DEEP, {"bn_moving_mean", "bn_moving_var"})] * 3


@pytest.mark.parametrize("allow_missing", [False, True])
@pytest.mark.parametrize("current", [2, 3])
def test_values_go_to_the_buckets_that_have_the_names(current, allow_missing):
    made = module(3, 2)
    made.switch_bucket(current, DATA, LABEL)
    arguments, auxiliary = made.get_params()
    assert set(arguments) == NAMES | ONLY_DEEP
    values = {name: mx.nd.full(value.shape, i) for i, (name, value) in enumerate(sorted(arguments.items()))}
    states = {name: mx.nd.full(value.shape, 9) for name, value in auxiliary.items()}
    made.set_params(values, states, allow_missing=allow_missing)
    now, now_states = made.get_params()
    for name, value in {**values, **states}.items():
        assert np.array_equal({**now, **now_states}[name].asnumpy(), value.asnumpy()), name
    deeper = made._buckets[3]._exec_group.execs[1]
    assert np.array_equal(deeper.arg_dict["fc2_weight"].asnumpy(), values["fc2_weight"].asnumpy())
    assert np.array_equal(deeper.aux_dict["bn_moving_var"].asnumpy(), states["bn_moving_var"].asnumpy())


def test_what_only_another_bucket_has_stays_when_it_is_not_given():
    made = module(3, 2)
    made.init_optimizer(optimizer_params={"learning_rate": 0.5})
    made.forward_backward(batch(3))
    made.update()
    made.switch_bucket(2, DATA, LABEL)
    before = made.get_params()[0]["fc2_weight"].asnumpy()
    made.forward_backward(batch(3, 1))
    made.update()
    made.switch_bucket(2, DATA, LABEL)
    own = {name: mx.nd.zeros(value.shape) for name, value in made.get_params()[0].items() if name in NAMES}
    trained = made.get_params()[0]["fc2_weight"].asnumpy()
    assert not np.array_equal(trained, before)
    made.set_params(own, {})
    after = made.get_params()[0]
    assert not after["fc0_weight"].asnumpy().any() and np.array_equal(after["fc2_weight"].asnumpy(), trained)


def test_initialising_anew_reaches_every_bucket_and_each_parameter_once():
    made, calls = module(3, 2), []

    class Counts(mx.init.Initializer):
        def __call__(self, desc, array):
            calls.append(str(desc))
            array[:] = len(calls)

    made.init_params(Counts(), force_init=True)
    assert sorted(calls) == sorted([*NAMES, *ONLY_DEEP, "bn_moving_mean", "bn_moving_var"])


def test_values_are_checked_for_all_buckets_before_any_is_written():
    made = module(3, 2)
    before = made.get_params()[0]
    values = {name: mx.nd.zeros(value.shape) for name, value in before.items()}
    for spoilt, says, kind in (
        (
            {"fc2_weight": mx.nd.zeros((5, 6))},
            r"'fc2_weight' is given with shape \(5, 6\), expected",
            ShapeError,
        ),
        ({"fc9_weight": mx.nd.zeros((5, 6))}, "parameter 'fc9_weight' is not in the symbol", ValueError),
    ):
        for allow_missing in (False, True):
            with pytest.raises(kind, match=says):
                made.set_params({**values, **spoilt}, made.get_params()[1], allow_missing=allow_missing)
            for name, value in made.get_params()[0].items():
                assert np.array_equal(value.asnumpy(), before[name].asnumpy()), name
