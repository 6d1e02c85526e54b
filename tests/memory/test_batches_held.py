"""A batch that ran is the program's own again: nothing of it is kept alive, but labels that are cut over contexts."""

from __future__ import annotations

import weakref

import pytest

import bucketlab as bl
from bucketlab import mx


class Labels(list):
    """A list that can be watched."""


def batch(length):
    shape = (4, length)
    return mx.io.DataBatch(
        [mx.nd.ones(shape)], Labels([mx.nd.zeros(shape)]), bucket_key=length,
        provide_data=[mx.io.DataDesc("data", shape)], provide_label=[mx.io.DataDesc("softmax_label", shape)],
    )  # fmt: skip


@pytest.mark.parametrize(("contexts", "held"), [(1, False), (2, True)])
def test_no_batch_is_held_beyond_the_next_one_whatever_bucket_that_is_of(contexts, held):
    model = bl.models.lstm_lm(10, hidden=4, embed=4, layers=1)
    module = bl.BucketingModule(model, 3, context=[mx.cpu(i) for i in range(contexts)])
    first = batch(3)
    module.bind(first.provide_data, first.provide_label)
    module.init_params()
    module.init_optimizer()
    alive = []
    for length in (3, 2, 3, 2):
        given = batch(length)
        module.forward_backward(given)
        module.update()
        module.update_metric(mx.metric.Perplexity(None), given.label)
        alive.append(weakref.ref(given.label))
        del given
        assert [one() is not None for one in alive] == [False] * (len(alive) - 1) + [held]


class Parameters(dict):
    """A dict that can be watched."""


def test_fit_holds_copies_of_the_parameters_no_longer_than_the_callbacks_of_an_epoch():
    class Watched(bl.Module):
        def get_params(self):
            arguments, auxiliary = super().get_params()
            copies = Parameters(arguments)
            alive.append(weakref.ref(copies))
            return copies, auxiliary

    alive, seen = [], []
    layer = mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=2, name="fc")
    rows = mx.io.NDArrayIter(mx.nd.ones((4, 3)), mx.nd.zeros((4,)), batch_size=2)
    Watched(mx.sym.SoftmaxOutput(layer, name="softmax"), context=mx.cpu()).fit(
        rows, eval_data=rows, num_epoch=3,
        batch_end_callback=lambda param: seen.append(sum(one() is not None for one in alive)),
        eval_end_callback=lambda param: seen.append(sum(one() is not None for one in alive)),
        epoch_end_callback=lambda epoch, symbol, arguments, auxiliary: seen.append(sorted(arguments)),
    )  # fmt: skip
    epoch = [0, 0, ["fc_bias", "fc_weight"], 0]
    assert seen == 3 * epoch and len(alive) == 3
