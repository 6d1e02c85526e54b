"""A bucketed run that is stopped in mid-epoch and goes on from its files, against one that was never stopped."""

from __future__ import annotations

import json

import numpy as np
import pytest

import bucketlab as bl
from bucketlab import mx

VOCAB = 12
SENTENCES = [[1 + (3 * i + j) % (VOCAB - 1) for j in range(2 + i % 7)] for i in range(40)]
SYM_GEN = bl.models.gru_lm(VOCAB, hidden=5, embed=4, fused=True)
CONTEXTS = [mx.cpu(0), mx.cpu(1)]


def batches():
    return bl.data.BucketIter(SENTENCES, bl.data.plan_buckets([len(s) for s in SENTENCES], 3, 24, CONTEXTS), seed=4)


def train(module, source, steps):
    for _ in range(steps):
        try:
            batch = next(source)
        except StopIteration:
            source.reset()
            batch = next(source)
        module.forward_backward(batch)
        module.update()


@pytest.mark.parametrize(
    ("optimizer", "settings"), [("sgd", {"momentum": 0.9}), ("adam", {"begin_num_update": 5, "learning_rate": 0.01})]
)
def test_it_goes_on_to_the_same_bits(tmp_path, optimizer, settings):
    prefix = str(tmp_path / "run")
    source = batches()
    module = bl.BucketingModule(SYM_GEN, source.default_bucket_key, context=CONTEXTS, grad_scale="tokens")
    module.bind(source.provide_data, source.provide_label)
    mx.random.seed(1)
    module.init_params(mx.init.Xavier())
    first = {**settings, "begin_num_update": 0} if "begin_num_update" in settings else settings
    module.init_optimizer(optimizer=optimizer, optimizer_params=first)
    train(module, source, 5)
    module.save_checkpoint(prefix, 1, True)
    state = json.dumps(source.state_dict())
    assert 0 < source.state_dict()["position"] < len(source)
    train(module, source, len(source))

    again = batches()
    again.load_state_dict(json.loads(state))
    resumed = bl.BucketingModule.load(
        prefix, 1, SYM_GEN, again.default_bucket_key, load_optimizer_states=True, context=CONTEXTS, grad_scale="tokens"
    )
    resumed.bind(again.provide_data, again.provide_label)
    resumed.init_optimizer(optimizer=optimizer, optimizer_params=settings)
    resumed.prebind(again)
    train(resumed, again, len(again))
    assert again.state_dict() == source.state_dict() and source.epoch == 1
    expected, got = module.get_params()[0], resumed.get_params()[0]
    assert list(expected) == list(got)
    for name, value in expected.items():
        np.testing.assert_array_equal(got[name].asnumpy(), value.asnumpy(), err_msg=name)


def test_states_can_be_saved_and_loaded_by_themselves(tmp_path):
    source = batches()
    modules = []
    for _ in range(2):
        module = bl.BucketingModule(SYM_GEN, source.default_bucket_key)
        module.bind(source.provide_data, source.provide_label)
        module.init_params(mx.init.One())
        module.init_optimizer(optimizer_params={"momentum": 0.9})
        modules.append(module)
    train(modules[0], batches(), 3)
    modules[0].save_optimizer_states(str(tmp_path / "states"))
    modules[1].load_optimizer_states(str(tmp_path / "states"))
    modules[1].set_params(*modules[0].get_params())
    for module in modules:
        train(module, batches(), 3)
    for name, value in modules[0].get_params()[0].items():
        np.testing.assert_array_equal(modules[1].get_params()[0][name].asnumpy(), value.asnumpy(), err_msg=name)
