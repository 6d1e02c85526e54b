"""The recorder against runs whose every figure is known."""

from __future__ import annotations

import pytest

from bucketlab import mx
from bucketlab.errors import StopTraining
from bucketlab.record import Recorder
from bucketlab.record.attach import attach, attached
from bucketlab.record.batches import batch_facts
from small_runs import Batches, batch, old_bucketing_module, old_module, three_buckets

# A second fit says that it goes on from the parameters there are.
AGAIN = pytest.mark.filterwarnings("ignore:Parameters already initialized")


def steps_of(recorder: Recorder) -> list[tuple]:
    return [(s.step, s.epoch, s.nbatch, s.bucket, s.rows, s.pad, s.tokens, s.slots) for s in recorder.steps]


def test_a_fit_of_mx_mod_is_recorded_step_by_step():
    module = old_bucketing_module()
    recorder = Recorder(module)
    module.fit(three_buckets(), num_epoch=2)
    one_epoch = [(3, 4, 0, 10, 12), (5, 4, 0, 17, 20), (3, 4, 1, 8, 12), (8, 4, 2, 14, 32), (5, 4, 0, 20, 20)]
    assert steps_of(recorder) == [
        (1 + i + 5 * epoch, epoch, i, *facts) for epoch in range(2) for i, facts in enumerate(one_epoch)
    ]
    assert all(step.seconds > 0 for step in recorder.steps)


def test_totals_per_bucket_add_up():
    module = old_bucketing_module()
    recorder = Recorder(module)
    module.fit(three_buckets(), num_epoch=2)
    summary = recorder.summary()
    assert [(b.bucket, b.steps, b.rows, b.pad, b.tokens, b.slots) for b in summary.buckets] == [
        (3, 4, 16, 2, 36, 48),
        (5, 4, 16, 0, 74, 80),
        (8, 2, 8, 4, 28, 64),
    ]
    assert (summary.total.steps, summary.total.rows, summary.total.pad) == (10, 40, 6)
    assert summary.total.padding_share == pytest.approx(1 - 138 / 192)
    assert summary.total.seconds == pytest.approx(sum(step.seconds for step in recorder.steps))
    assert summary.total.tokens_per_second == pytest.approx(138 / summary.total.seconds)
    assert summary.total.rows_per_second == pytest.approx(34 / summary.total.seconds)
    assert summary.epochs == 2


def test_buckets_are_bound_once_and_switched_to_as_the_batches_say():
    module = old_bucketing_module()
    recorder = Recorder(module)
    module.fit(three_buckets(), num_epoch=1)
    assert [e.bucket for e in recorder.structure if e.kind == "bind"] == [8, 3, 5]
    assert [e.bucket for e in recorder.structure if e.kind == "switch"] == [5, 3, 8, 5]
    assert [step.bound for step in recorder.steps] == [True, False, False, False, False]


def test_the_metric_read_at_the_end_of_an_epoch_is_the_users_own():
    module = old_bucketing_module()
    recorder = Recorder(module)
    metric = mx.metric.Perplexity(ignore_label=None)
    at_the_end = []
    module.fit(
        three_buckets(),
        eval_metric=metric,
        num_epoch=2,
        epoch_end_callback=lambda *_: at_the_end.append(tuple(metric.get_name_value())),
    )
    assert [epoch.values for epoch in recorder.epochs] == at_the_end
    assert [(e.epoch, e.steps, e.rows, e.tokens) for e in recorder.epochs] == [(0, 5, 17, 69), (1, 5, 17, 69)]


def test_the_metric_is_neither_reset_nor_read_more_often_than_asked():
    module = old_module(5)
    recorder = Recorder(module, metric_hz=0.001)

    class Counted(mx.metric.Accuracy):
        reads = 0

        def get_name_value(self):
            self.reads += 1
            return super().get_name_value()

    metric = Counted()
    module.fit(Batches([batch(5)] * 20), eval_metric=metric, num_epoch=1)
    # the first step, and the end of the epoch
    assert metric.reads == 2
    assert metric.num_inst == 20 * 4 * 5
    assert [reading.step for reading in recorder.metrics] == [1, 20]


def test_a_metric_that_cannot_be_read_is_a_fault_and_no_more():
    module = old_module(5)
    recorder = Recorder(module)

    class Broken(mx.metric.Accuracy):
        def get_name_value(self):
            raise ZeroDivisionError("no instances")

    # mx.mod itself reads the metric through get_global_name_value at the end of an epoch
    module.fit(Batches([batch(5)] * 3), eval_metric=Broken(), num_epoch=1)
    assert recorder.step_count == 3
    assert {type(fault) for fault in recorder.faults} == {ZeroDivisionError}
    assert recorder.metrics == ()


def test_history_is_bounded_and_totals_are_not():
    module = old_module(5)
    recorder = Recorder(module, history=3)
    module.fit(Batches([batch(5, tokens=18)] * 7), num_epoch=1)
    assert [step.step for step in recorder.steps] == [5, 6, 7]
    assert recorder.summary().total.steps == 7
    assert recorder.summary().total.tokens == 7 * 18


def test_a_batch_without_token_counts_measures_padding_in_rows():
    module = old_module(5)
    recorder = Recorder(module)
    module.fit(Batches([batch(5, pad=1), batch(5)]), num_epoch=1)
    total = recorder.summary().total
    assert (total.tokens, total.slots, total.tokens_per_second) == (None, None, None)
    assert total.padding_share == 1 / 8


def test_callbacks_of_the_caller_still_run_and_come_first():
    module = old_module(5)
    recorder = Recorder(module)
    seen = []
    module.fit(
        Batches([batch(5)] * 3),
        num_epoch=1,
        batch_end_callback=[lambda p: seen.append((p.nbatch, recorder.step_count))],
    )
    assert seen == [(0, 0), (1, 1), (2, 2)]


def test_callbacks_given_by_position_are_kept():
    module = old_module(5)
    Recorder(module)
    epochs, batches = [], []
    module.fit(
        Batches([batch(5)] * 2),
        None,
        "acc",
        lambda epoch, *_: epochs.append(epoch),
        lambda p: batches.append(p.nbatch),
        num_epoch=1,
    )
    assert (epochs, batches) == ([0], [0, 1])


def test_training_is_the_same_watched_and_unwatched():
    weights = []
    for watched in (False, True):
        mx.random.seed(5)
        module = old_bucketing_module()
        if watched:
            Recorder(module)
        module.fit(three_buckets(), num_epoch=2, initializer=mx.init.Xavier())
        weights.append({name: array.asnumpy() for name, array in module.get_params()[0].items()})
    assert weights[0].keys() == weights[1].keys()
    assert all((weights[0][name] == weights[1][name]).all() for name in weights[0])


@AGAIN
def test_closing_leaves_the_module_as_it_was():
    module = old_module(5)
    before = set(vars(module))
    recorder = Recorder(module)
    module.fit(Batches([batch(5)]), num_epoch=1)
    recorder.close()
    assert "fit" not in vars(module) and "_observer" not in vars(module)
    assert before <= set(vars(module))
    module.fit(Batches([batch(5)]), num_epoch=1)
    assert recorder.step_count == 1


@AGAIN
def test_two_recorders_count_the_same_and_close_apart():
    module = old_module(5)
    first, second = Recorder(module), Recorder(module)
    module.fit(Batches([batch(5)] * 2), num_epoch=1)
    first.close()
    module.fit(Batches([batch(5)] * 2), num_epoch=1)
    assert (first.step_count, second.step_count) == (2, 4)


@AGAIN
def test_a_gate_that_stops_leaves_the_iterator_ready_for_the_next_fit():
    module = old_module(5)
    recorder = Recorder(module)

    def gate(kind, *_):
        if kind == "step" and recorder.step_count == 2:
            raise StopTraining("enough")

    detach = attach(module, gate, gate=True)
    batches = Batches([batch(5)] * 5)
    module.fit(batches, num_epoch=3)
    assert (recorder.step_count, batches.at) == (2, 0)
    detach()
    module.fit(batches, num_epoch=1)
    assert recorder.step_count == 7


class Ours:
    """Sends what bucketlab's own modules send."""

    def __init__(self):
        self._observer = None

    def fit(self):
        raise NotImplementedError

    def send(self, kind, detail=None):
        self._observer(kind, self, detail)


def test_a_loop_written_by_hand_is_counted_without_step_events():
    module = Ours()
    recorder = Recorder(module)
    for bucket in (3, 5, 3):
        module.send("forward", batch(bucket, tokens=9))
        module.send("update")
    assert recorder.step_count == 2
    recorder.close()
    assert [(s.step, s.bucket, s.nbatch) for s in recorder.steps] == [(1, 3, 0), (2, 5, 1), (3, 3, 2)]


def test_time_is_measured_between_step_boundaries_less_binding_before_the_first_and_pauses(monkeypatch):
    now = 100.0
    monkeypatch.setattr("bucketlab.record.recorder.time.perf_counter", lambda: now)
    module = Ours()
    recorder = Recorder(module)
    module.send("bind", 5)
    now += 3  # the default bucket is bound before the first step
    module.send("forward", batch(5, tokens=10))
    now += 0.25
    module.send("update")
    module.send("step", (0, 0))
    now += 7
    module.send("paused", 7)
    module.send("forward", batch(3, tokens=6))
    module.send("bind", 3)
    now += 2
    module.send("update")
    module.send("step", (0, 1))
    now += 7
    module.send("paused", 7)
    module.send("forward", batch(3, tokens=6))
    now += 0.5
    module.send("update")
    module.send("step", (0, 2))
    module.send("epoch", 0)
    now += 60  # validation
    module.send("forward", batch(3))
    now += 1
    module.send("forward", batch(3, tokens=6))
    now += 0.75
    module.send("update")
    module.send("step", (1, 0))
    assert [(s.bucket, s.seconds, s.bound) for s in recorder.steps] == [
        (5, 0.25, False),
        (3, 2.0, True),
        (3, 0.5, False),
        (3, 0.75, False),
    ]
    five, three = recorder.summary().buckets
    assert (five.step_seconds, three.step_seconds, three.seconds) == (0.25, 0.625, 3.25)
    assert three.tokens_per_second == 18 / 3.25
    assert [(e.steps, e.seconds) for e in recorder.epochs] == [(3, 2.75)]


def test_forwards_without_an_update_are_no_steps():
    module = Ours()
    recorder = Recorder(module)
    for _ in range(3):
        module.send("forward", batch(3))
    module.send("update")
    module.send("step", (0, 0))
    assert steps_of(recorder) == [(1, 0, 0, 3, 4, 0, None, None)]


def test_an_observer_that_was_there_before_keeps_hearing():
    module, heard = Ours(), []
    module._observer = lambda kind, *_: heard.append(kind)
    recorder = Recorder(module)
    module.send("update")
    module.send("step", (0, 0))
    assert heard == ["update", "step"]
    assert recorder.step_count == 1
    assert len(attached(module)) == 2


def test_gates_hear_an_event_after_all_others_whoever_came_first():
    module, heard = Ours(), []
    attach(module, lambda *_: heard.append("gate"), gate=True)
    attach(module, lambda *_: heard.append("other"))
    module.send("step", (0, 0))
    assert heard == ["other", "gate"]


def test_everyone_hears_the_step_at_which_one_stops():
    module, heard = Ours(), []

    def stopping(*_):
        raise StopTraining("here")

    attach(module, stopping)
    attach(module, lambda kind, *_: heard.append(kind))
    with pytest.raises(StopTraining, match="here"):
        module.send("step", (0, 0))
    assert heard == ["step"]


@pytest.mark.parametrize("wrong", [0, -1, True, 2.5])
def test_a_history_that_is_no_count_is_refused(wrong):
    module = Ours()
    with pytest.raises(ValueError, match="history"):
        Recorder(module, history=wrong)
    assert module._observer is None


def test_an_object_that_cannot_train_is_refused():
    with pytest.raises(TypeError, match="no fit"):
        Recorder(object())


def test_rows_and_places_follow_layout_and_contexts():
    def facts(data, described, **told):
        made = mx.io.DataBatch(data, None, provide_data=described)
        for name, value in told.items():
            setattr(made, name, value)
        return batch_facts(made)

    time_first = facts([mx.nd.zeros((7, 4))], [mx.io.DataDesc("data", (7, 4), layout="TN")], valid_tokens=20)
    assert time_first == (None, 4, 0, 20, 28)
    pairs = facts([mx.nd.zeros((4, 7)), mx.nd.zeros((4, 9))], None, valid_tokens=50, pad=1)
    assert pairs == (None, 4, 1, 50, 64)
    by_context = facts([[mx.nd.zeros((1, 3, 8, 8))], [mx.nd.zeros((2, 3, 4, 4))]], None)
    assert by_context == (None, 3, 0, None, None)
    assert batch_facts(None) == (None, 0, 0, None, None)
