"""Small graphs are planned as tight as the engine can, as long as that takes less than a plan that others fit into."""

from __future__ import annotations

import pytest

import bucketlab as bl
from bucketlab import mx
from bucketlab.memory import memory

LONGEST = 50


def working_bytes(lengths):
    """Working memory, outputs with it, once every length has come twice; and the weights after that."""
    module = bl.BucketingModule(bl.models.lstm_lm(200, hidden=32, embed=32, layers=2, fused=True), lengths[0])
    module.bind([("data", (16, lengths[0]))], [("softmax_label", (16, lengths[0]))])
    mx.random.seed(1)
    module.init_params(mx.init.Uniform(0.1))
    module.init_optimizer()
    for length in [*lengths, *lengths, LONGEST, *lengths]:
        shape = (16, length)
        module.forward_backward(
            mx.io.DataBatch(
                [mx.nd.ones(shape)], [mx.nd.ones(shape)], bucket_key=length,
                provide_data=[("data", shape)], provide_label=[("softmax_label", shape)],
            )
        )  # fmt: skip
        module.update()
    book = memory(module)
    weights = {name: array.asnumpy().tobytes() for name, array in module.get_params()[0].items()}
    return book.of(role="pool") + book.of(role="output"), weights


@pytest.mark.parametrize(
    ("lengths", "less"), [((10, 30, LONGEST), True), ((LONGEST, 30, 10), True), ((*range(1, 20, 2), LONGEST), False)]
)
def test_they_take_no_more_than_plans_that_fit_each_other_and_the_same_weights_come_out(monkeypatch, lengths, less):
    tight, weights = working_bytes(lengths)
    # What a user has set stays: then nothing else is looked for.
    monkeypatch.setenv("NNVM_EXEC_MATCH_RANGE", "1")
    plain, same = working_bytes(lengths)
    assert (tight < plain) if less else (tight == plain)
    assert weights == same
