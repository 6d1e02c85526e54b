"""What an exception says about the batch that it came up with."""

from __future__ import annotations

import pytest

import bucketlab as bl
from bucketlab import mx
from bucketlab.errors import ShapeError
from bucketlab.failures import Failure, tell
from small_runs import Batches, batch, words_symbol

TWO = [mx.cpu(0), mx.cpu(1)]


def bucketing():
    module = bl.BucketingModule(words_symbol, default_bucket_key=8, context=TWO)
    module.bind(batch(8).provide_data, batch(8).provide_label)
    module.init_params()
    module.init_optimizer()
    return module


def said(error: BaseException) -> list[str]:
    """The lines that a traceback shows under the error's own message."""
    return [*getattr(error, "__notes__", ()), *str(error).splitlines()[1:]]


def test_an_error_in_forward_carries_shapes_bucket_and_largest_arrays(monkeypatch):
    module = bucketing()
    module.forward_backward(batch(5))

    def fails(*_, **__):
        raise MemoryError("no room for it")

    monkeypatch.setattr(module._curr_module._exec_group, "forward", fails)
    with pytest.raises(MemoryError, match="no room for it") as caught:
        module.forward(batch(5), is_train=True)
    failure = caught.value.failure
    assert failure.bucket == 5
    assert failure.shapes == (("data", (4, 5)), ("softmax_label", (4, 5)))
    assert failure.contexts == ("cpu(0)", "cpu(1)")
    names = [(name, shape, size) for name, _, _, shape, size in failure.largest]
    # Outputs are (positions, words): two contexts with two rows each, of 8 and of 5 words.
    assert names[0] == ("softmax_output", (16, 11), 704)
    assert [size for *_, size in names] == sorted((size for *_, size in names), reverse=True)
    assert len(names) == 5
    assert [context for context, _ in failure.working] == ["cpu(0)", "cpu(1)"]
    assert said(caught.value) == [str(failure)]
    assert str(failure).startswith(
        "bucket 5, data (4, 5), softmax_label (4, 5) on cpu(0), cpu(1); largest arrays: "
    )


def test_an_error_in_backward_knows_what_ran(monkeypatch):
    module = bucketing()
    module.forward(batch(3), is_train=True)
    monkeypatch.setattr(
        module._curr_module._exec_group, "backward", lambda out_grads=None: (_ for _ in ()).throw(RuntimeError("lost"))
    )
    with pytest.raises(RuntimeError) as caught:
        module.backward()
    assert caught.value.failure.bucket == 3
    assert caught.value.failure.shapes == (("data", (4, 3)), ("softmax_label", (4, 3)))
    assert said(caught.value) == [str(caught.value.failure)]


class Refuses(mx.operator.CustomOp):
    def forward(self, is_train, req, in_data, out_data, aux):
        raise ValueError("this operator gives up")


@mx.operator.register("bucketlab_refuses")
class RefusesProp(mx.operator.CustomOpProp):
    def __init__(self):
        super().__init__(need_top_grad=True)

    def create_operator(self, ctx, shapes, dtypes):
        return Refuses()


def test_an_engine_error_that_comes_up_later_is_told_by_fit():
    def sym_gen(key):
        symbol, data, label = words_symbol(key)
        if key == 5:
            words = mx.sym.Custom(mx.sym.Variable("data"), op_type="bucketlab_refuses")
            embedded = mx.sym.Embedding(words, input_dim=11, output_dim=6, name="embed")
            scores = mx.sym.FullyConnected(mx.sym.Reshape(embedded, shape=(-1, 6)), num_hidden=11, name="scores")
            symbol = mx.sym.SoftmaxOutput(scores, mx.sym.Reshape(mx.sym.Variable("softmax_label"), shape=(-1,)))
        return symbol, data, label

    module = bl.BucketingModule(sym_gen, default_bucket_key=8)
    data = Batches([batch(8), batch(3), batch(5), batch(8)])
    with pytest.raises(mx.base.MXNetError, match="kCustomOpForward") as caught:
        module.fit(data, eval_metric=mx.metric.Perplexity(None), num_epoch=1)
    failure = caught.value.failure
    assert (failure.bucket, failure.epoch, failure.nbatch) == (5, 0, 2)
    assert failure.shapes[0] == ("data", (4, 5))
    assert str(failure).startswith("epoch 0, batch 2, bucket 5, data (4, 5), softmax_label (4, 5) on cpu(0); ")
    assert str(failure) in said(caught.value)


def test_a_refused_bind_names_its_shapes():
    module = bucketing()
    with pytest.raises(ShapeError, match="bucket 4") as caught:
        module.forward(mx.io.DataBatch(
            [mx.nd.ones((4, 6))], [mx.nd.ones((4, 5))], bucket_key=4,
            provide_data=[("data", (4, 6))], provide_label=[("softmax_label", (4, 5))],
        ), is_train=True)  # fmt: skip
    assert caught.value.failure.shapes == (("data", (4, 6)), ("softmax_label", (4, 5)))
    assert caught.value.failure.bucket == 4
    assert caught.value.failure.largest == ()
    assert said(caught.value) == []


def test_fit_tells_of_the_batch_that_it_made_ready_when_that_is_refused():
    """A bucket is bound while the batch before it is the current one."""
    wrong = batch(5)
    wrong.label, wrong.provide_label = [mx.nd.ones((4, 6))], [mx.io.DataDesc("softmax_label", (4, 6), layout="NT")]
    module = bl.BucketingModule(words_symbol, default_bucket_key=8, context=TWO)
    with pytest.raises(ShapeError, match="bucket 5") as caught:
        module.fit(Batches([batch(8), batch(3), wrong]), eval_metric=mx.metric.Perplexity(None), num_epoch=1)
    failure = caught.value.failure
    assert (failure.bucket, failure.epoch, failure.nbatch) == (5, 0, 2)
    assert failure.shapes == (("data", (4, 5)), ("softmax_label", (4, 6)))


def test_before_python_3_11_the_message_says_it():
    class Old(Exception):
        add_note = None

        def __getattribute__(self, name):
            if name == "add_note":
                raise AttributeError(name)
            return super().__getattribute__(name)

    error = Old("what happened")
    tell(error, None, batch(3))
    tell(error, None, batch(3), epoch=1, nbatch=2)
    assert isinstance(error.failure, Failure)
    assert str(error) == "what happened\nepoch 1, batch 2, bucket 3, data (4, 3), softmax_label (4, 3) on "


def test_telling_never_hides_the_error():
    class Closed(Exception):
        __slots__ = ()

        def __setattr__(self, name, value):
            raise AttributeError(name)

    error = Closed("what happened")
    tell(error, object(), object())
    assert str(error) == "what happened"
