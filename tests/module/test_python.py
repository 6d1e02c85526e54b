"""PythonModule and PythonLossModule: on their own, as mx.mod's, and what they refuse."""

from __future__ import annotations

import numpy as np
import pytest

import bucketlab as bl
from bucketlab import mx
from bucketlab.errors import NotReadyError, ShapeError


class Doubled(bl.PythonModule):
    """Gives out twice what comes in."""

    def __init__(self):
        super().__init__(("data",), ("softmax_label",), ["doubled_output"])

    def _compute_output_shapes(self):
        return [("doubled_output", self.data_shapes[0].shape)]

    def forward(self, data_batch, is_train=None):
        self._out = [2 * data_batch.data[0]]

    def get_outputs(self, merge_multi_context=True):
        return self._out

    def backward(self, out_grads=None):
        pass


def difference(scores, labels):
    return scores - labels.reshape((-1, 1))


def batch(rows=3, **kwargs):
    return mx.io.DataBatch([mx.nd.arange(rows * 2).reshape((rows, 2))], [mx.nd.ones((rows,))], **kwargs)


def bound_loss(grad_func=difference, rows=3, **kwargs):
    loss = bl.PythonLossModule(grad_func=grad_func)
    loss.bind([("data", (rows, 2))], [("softmax_label", (rows,))], **kwargs)
    return loss


class TestPythonModule:
    def test_bind_takes_note_of_shapes(self):
        module = Doubled()
        assert (module.data_shapes, module.label_shapes, module.output_shapes) == (None, None, None)
        module.bind([("data", (4, 2))], [("softmax_label", (4,))])
        assert module.binded and module.data_shapes == [("data", (4, 2))]
        assert module.output_shapes == [("doubled_output", (4, 2))] and module.label_shapes == [("softmax_label", (4,))]
        module.bind([("data", (9, 2))], force_rebind=True)
        assert module.output_shapes == [("doubled_output", (9, 2))] and module.label_shapes is None
        assert module.data_names == ["data"] and module.output_names == ["doubled_output"]

    def test_bound_twice_is_a_warning_and_nothing_else(self, caplog):
        module = Doubled()
        for rows in (4, 5):
            module.bind([("data", (rows, 2))])
        assert "force_rebind" in caplog.text and module.data_shapes == [("data", (4, 2))]

    @pytest.mark.parametrize(
        ("shapes", "text"),
        [
            (([("x", (4, 2))],), r"data_shapes names \['x'\].*\['data'\]"),
            (([("data", (4, 2)), ("more", (4,))],), r"\['data', 'more'\]"),
            (([("data", (4, 2))], [("label", (4,))]), r"label_shapes names \['label'\].*softmax_label"),
        ],
    )
    def test_names_that_are_not_its_own(self, shapes, text):
        module = Doubled()
        with pytest.raises(ShapeError, match=text):
            module.bind(*shapes)
        assert not module.binded and module.data_shapes is None

    def test_a_failure_in_the_subclass_leaves_it_as_it_was(self):
        class Picky(Doubled):
            def _compute_output_shapes(self):
                if self.data_shapes[0].shape[0] > 4:
                    raise ValueError("too many rows")
                return super()._compute_output_shapes()

        module = Picky()
        with pytest.raises(ValueError, match="too many"):
            module.bind([("data", (5, 2))])
        assert not module.binded and module.data_shapes is None
        module.bind([("data", (4, 2))])
        with pytest.raises(ValueError, match="too many"):
            module.bind([("data", (5, 2))], for_training=False, force_rebind=True)
        assert module.binded and module.for_training and module.data_shapes == [("data", (4, 2))]

    def test_refusals_name_the_argument(self):
        with pytest.raises(ValueError, match="grad_req"):
            Doubled().bind([("data", (4, 2))], grad_req="add")
        with pytest.raises(ValueError, match="for_training"):
            Doubled().bind([("data", (4, 2))], for_training=False, inputs_need_grad=True)
        with pytest.raises(NotImplementedError, match="PythonModule"):
            bl.PythonModule(["data"], None, []).bind([("data", (4, 2))])

    def test_no_labels(self):
        module = Doubled()
        module.bind([("data", (4, 2))], [])
        assert module.label_shapes is None
        metric = mx.metric.create("mse")
        module.update_metric(metric, [mx.nd.ones((4,))])
        assert metric.num_inst == 0

    def test_fit_score_and_predict_alone(self):
        module, seen = Doubled(), []
        x = np.arange(10, dtype="f").reshape(5, 2)
        data = mx.io.NDArrayIter(x, np.zeros((5, 2), "f"), batch_size=2, label_name="softmax_label")
        module.fit(data, num_epoch=2, eval_metric="mae", batch_end_callback=lambda p: seen.append(p.nbatch))
        assert seen == [0, 1, 2] * 2
        assert module.get_params() == ({}, {})
        # The last batch has one row of padding, which counts in neither.
        assert module.score(data, "mae") == [
            ("mae", np.mean([2.0 * x[:2].mean(), 2 * x[2:4].mean(), 2 * x[4:].mean()]))
        ]
        np.testing.assert_array_equal(module.predict(data).asnumpy(), 2 * x)

    def test_labels_of_several_contexts_are_joined(self):
        module = Doubled()
        module.bind([("data", (3, 1))], [("softmax_label", (3, 1))])
        module.forward(mx.io.DataBatch([mx.nd.array([[1], [2], [3]])]))
        metric = mx.metric.create("mae")
        module.update_metric(metric, [[mx.nd.array([[2], [4]])], [mx.nd.array([[3]])]], pre_sliced=True)
        assert metric.get()[1] == 1.0

    def test_score_before_anything_says_what_to_call(self):
        with pytest.raises(NotReadyError, match=r"call bind\("):
            Doubled().score(mx.io.NDArrayIter(np.ones((2, 2))), "mae")


class TestPythonLossModule:
    def test_gradient_of_the_scores(self):
        loss = bound_loss(inputs_need_grad=True)
        given = batch()
        loss.forward(given, is_train=True)
        assert loss.get_outputs()[0] is given.data[0]
        loss.backward()
        np.testing.assert_array_equal(loss.get_input_grads()[0].asnumpy(), given.data[0].asnumpy() - 1)
        assert loss.get_outputs(merge_multi_context=False) == [[given.data[0]]]
        assert len(loss.get_input_grads(merge_multi_context=False)[0]) == 1

    def test_numpy_gradients_take_the_type_of_the_scores(self):
        loss = bound_loss(lambda scores, labels: np.ones((3, 2)))
        scores = mx.nd.ones((3, 2), dtype="float16")
        loss.forward(mx.io.DataBatch([scores], [mx.nd.ones((3,))]))
        loss.backward()
        assert loss.get_input_grads()[0].dtype == np.float16

    def test_a_subclass_writes_its_own_gradient(self):
        class Halved(bl.PythonLossModule):
            def _backward_impl(self):
                self._scores_grad = self._scores / 2

        loss = Halved(name="half")
        loss.bind([("data", (3, 2))], [("softmax_label", (3,))])
        loss.forward_backward(batch())
        np.testing.assert_array_equal(loss.get_input_grads()[0].asnumpy(), batch().data[0].asnumpy() / 2)
        assert loss.output_names == ["half_output"] and loss.output_shapes == [("half_output", (3, 2))]

    def test_order_of_calls(self):
        loss = bound_loss()
        with pytest.raises(NotReadyError, match=r"forward\("):
            loss.backward()
        with pytest.raises(NotReadyError, match=r"forward\("):
            loss.get_outputs()
        loss.forward(batch())
        with pytest.raises(NotReadyError, match=r"backward\("):
            loss.get_input_grads()
        loss.backward()
        loss.forward(batch())
        with pytest.raises(NotReadyError, match=r"backward\("):
            loss.get_input_grads()
        loss.forward(mx.io.DataBatch(batch().data), is_train=False)
        with pytest.raises(NotReadyError, match="no labels"):
            loss.backward()

    def test_a_training_batch_without_a_label_is_refused_and_changes_nothing(self):
        loss = bound_loss()
        loss.forward(batch())
        before = loss.get_outputs()[0]
        with pytest.raises(ShapeError, match=r"softmax_label.*take_labels=True"):
            loss.forward(mx.io.DataBatch([mx.nd.ones((3, 2))]), is_train=True)
        assert loss.get_outputs()[0] is before

    def test_refusals_name_the_argument(self):
        with pytest.raises(ValueError, match="data_names"):
            bl.PythonLossModule(data_names=("a", "b"))
        with pytest.raises(ValueError, match="label_names"):
            bl.PythonLossModule(label_names=None)
        with pytest.raises(TypeError, match="grad_func"):
            bl.PythonLossModule(grad_func=3)
        loss = bound_loss()
        loss.forward(batch())
        with pytest.raises(ValueError, match="out_grads"):
            loss.backward([mx.nd.ones((3, 2))])
        loss = bound_loss(lambda scores, labels: labels)
        loss.forward(batch())
        with pytest.raises(ShapeError, match=r"grad_func returned shape \(3,\); expected that of the scores, \(3, 2\)"):
            loss.backward()
        loss = bound_loss(lambda scores, labels: "words")
        loss.forward(batch())
        with pytest.raises(TypeError, match="grad_func returned 'words'"):
            loss.backward()
        loss = bound_loss(None)
        loss.forward(batch())
        with pytest.raises(NotImplementedError, match="grad_func"):
            loss.backward()
        loss = bound_loss(for_training=False)
        loss.forward(batch())
        with pytest.raises(NotReadyError, match="for_training=True"):
            loss.backward()

    def test_padded_rows_count_in_no_metric(self):
        loss = bound_loss()
        loss.forward(batch(pad=1), is_train=False)
        metric = mx.metric.create("acc")
        loss.update_metric(metric, batch().label)
        assert metric.num_inst == 2

    def test_a_monitor_finds_nothing_to_watch(self):
        loss = bound_loss()
        loss.install_monitor(mx.mon.Monitor(1))
        loss.forward_backward(batch())
        assert loss.get_input_grads()[0].shape == (3, 2)
