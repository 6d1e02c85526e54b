"""The dashboard over real runs, of bucketlab's modules and of mx.mod's; no browser and no kernel needed."""

from __future__ import annotations

import os
import re
import signal
import threading

import pytest

import bucketlab as bl
from bucketlab import mx
from bucketlab.widgets import Lab
from bucketlab.widgets.control import ACTIVE
from small_runs import Batches, batch, old_bucketing_module, old_module, three_buckets, words_symbol

SECONDS = 30
CONTEXTS = [mx.cpu(0), mx.cpu(1)]


def new_bucketing_module():
    return bl.BucketingModule(words_symbol, default_bucket_key=8, context=CONTEXTS)


def new_module():
    return bl.Module(words_symbol(5)[0], context=CONTEXTS)


BUCKETED = [new_bucketing_module, old_bucketing_module]
ALL = [*BUCKETED, new_module, old_module]
# A second fit says that it goes on from the parameters there are.
AGAIN = pytest.mark.filterwarnings("ignore:Parameters (are|already) initiali[sz]ed")


def batches_for(module):
    return three_buckets() if hasattr(module, "_buckets") else Batches([batch(5, pad=i % 2) for i in range(5)])


def settled(lab: Lab, *states: str) -> bool:
    """The run came to one of these states, and that is painted."""
    control = lab._session.control
    return control.wait_while((ACTIVE | {"idle", "finished", "stopped", "failed"}) - set(states), SECONDS) and (
        lab._painter.flush()
    )


def html_of(lab: Lab) -> str:
    found: list[str] = []

    def walk(widget):
        found.append(getattr(widget, "value", ""))
        for child in getattr(widget, "children", ()):
            walk(child)

    walk(lab.widget)
    return "\n".join(map(str, found))


def words_of(html: str) -> str:
    html = re.sub(r"<style>.*?</style>", " ", html, flags=re.S)
    return " ".join(re.sub(r"<[^>]+>", " ", html).split())


def enabled(lab: Lab) -> set[str]:
    return {name for name, button in lab._controls.buttons.items() if not button.disabled}


@pytest.mark.parametrize("make", ALL)
def test_it_shows_at_once_and_fills_in_as_the_training_runs(make):
    module = make()
    lab = Lab(module)
    assert "No step yet." in html_of(lab) and "Nothing is bound yet." in html_of(lab)
    assert enabled(lab) == set()
    lab.fit(batches_for(module), num_epoch=3)
    assert lab.wait(SECONDS)
    words = words_of(html_of(lab))
    assert lab.state == "finished" and "finished" in words
    assert "step 15" in words and "epoch 2" in words and "accuracy" in words
    assert "rows over" in words and "distinct: every byte once" in words and "Time and padding by bucket" in words
    assert "failed" not in words
    assert lab.recorder.summary().epochs == 3
    lab.close()


@pytest.mark.parametrize("make", BUCKETED)
def test_pause_holds_step_trains_exactly_one_and_the_buttons_follow(make):
    module = make()
    lab = Lab(module)
    lab.fit(three_buckets(), num_epoch=200, paused=True)
    assert settled(lab, "paused")
    assert lab.recorder.step_count == 0
    assert enabled(lab) == {"run", "step", "stop"}
    for steps in (1, 2, 3):
        lab._controls.buttons["step"].click()
        assert settled(lab, "paused")
        assert lab.recorder.step_count == steps
        assert f"step {steps} " in words_of(html_of(lab))
    assert "bucket 3" in words_of(html_of(lab)).lower(), "the third batch is of bucket 3"
    lab._controls.buttons["run"].click()
    assert settled(lab, "running")
    assert enabled(lab) == {"pause", "stop"}
    lab._controls.buttons["pause"].click()
    assert settled(lab, "paused")
    held = lab.recorder.step_count
    assert not lab.wait(0.3)
    assert lab.recorder.step_count == held
    lab._controls.buttons["stop"].click()
    assert lab.wait(SECONDS)
    assert lab.state == "stopped" and enabled(lab) == set()
    assert lab.recorder.step_count == held
    lab.close()


@AGAIN
@pytest.mark.parametrize("make", ALL)
def test_after_a_stop_another_fit_starts_with_a_whole_epoch(make):
    module = make()
    lab, batches = Lab(module), batches_for(module)
    lab.fit(batches, num_epoch=50, paused=True)
    lab.step(2)
    assert settled(lab, "paused")
    lab.stop()
    assert lab.wait(SECONDS) and lab.state == "stopped"
    lab.fit(batches, num_epoch=1)
    assert lab.wait(SECONDS) and lab.state == "finished"
    assert [s.nbatch for s in lab.recorder.steps] == [0, 1, 0, 1, 2, 3, 4]
    module.forward(batches.batches[0], is_train=False)
    assert module.get_outputs()[0].shape[1] == 11
    lab.close()


@pytest.mark.parametrize("make", BUCKETED)
def test_the_background_trains_what_the_foreground_trains(make):
    weights = []
    for background in (False, True):
        module, lab = make(), None
        options = {"num_epoch": 2, "initializer": mx.init.Xavier()}
        if background:
            lab = Lab(module)
            lab.fit(three_buckets(), seed=9, **options)
            assert lab.wait(SECONDS)
            lab.close()
        else:
            mx.random.seed(9)
            module.fit(three_buckets(), **options)
        weights.append({name: array.asnumpy() for name, array in module.get_params()[0].items()})
    assert weights[0].keys() == weights[1].keys()
    assert all((weights[0][name] == weights[1][name]).all() for name in weights[0])


def test_a_seed_of_the_callers_thread_reaches_the_training():
    weights = []
    for _ in range(2):
        mx.random.seed(4)
        module = new_module()
        lab = Lab(module)
        lab.fit(batches_for(module), num_epoch=1, initializer=mx.init.Xavier())
        assert lab.wait(SECONDS)
        lab.close()
        weights.append(module.get_params()[0]["embed_weight"].asnumpy())
    assert (weights[0] == weights[1]).all()


@pytest.mark.parametrize("make", BUCKETED)
def test_layers_without_names_get_the_same_ones_in_the_background(make):
    def unnamed(bucket):
        words = mx.sym.Variable("data")
        embedded = mx.sym.Embedding(words, input_dim=11, output_dim=6)
        scores = mx.sym.FullyConnected(mx.sym.Reshape(embedded, shape=(-1, 6)), num_hidden=11)
        label = mx.sym.Reshape(mx.sym.Variable("softmax_label"), shape=(-1,))
        return mx.sym.SoftmaxOutput(scores, label, name="softmax"), ("data",), ("softmax_label",)

    kind = type(make())
    mx.sym.FullyConnected(mx.sym.Variable("x"), num_hidden=1)
    module = kind(unnamed, default_bucket_key=8, context=mx.cpu())
    lab = Lab(module)
    lab.fit(three_buckets(), num_epoch=1)
    assert lab.wait(SECONDS)
    names = {key: sorted(inner._param_names) for key, inner in module._buckets.items()}
    assert set(names) == {3, 5, 8}
    assert all(found == names[8] for found in names.values())
    lab.close()


@pytest.mark.parametrize("make", ALL)
def test_a_fit_in_the_foreground_updates_the_same_dashboard(make):
    module = make()
    lab = Lab(module)
    module.fit(batches_for(module), num_epoch=2)
    assert lab._painter.flush()
    assert "step 10" in words_of(html_of(lab)) and lab.state == "finished"
    assert lab.wait(0) is True
    lab.close()


@pytest.mark.parametrize("make", BUCKETED)
def test_an_interrupt_in_the_foreground_stops_at_the_next_step_boundary(make):
    module = make()
    lab = Lab(module)
    before = signal.getsignal(signal.SIGINT)
    whole = []

    def interrupt(param):
        if param.nbatch == 1:
            os.kill(os.getpid(), signal.SIGINT)
        whole.append(param.nbatch)

    module.fit(three_buckets(), num_epoch=100, batch_end_callback=interrupt)
    assert whole == [0, 1]
    assert (lab.state, lab.recorder.step_count) == ("stopped", 2)
    assert signal.getsignal(signal.SIGINT) is before
    module.fit(three_buckets(), num_epoch=1)
    assert lab.recorder.step_count == 7
    lab.close()


def test_a_second_interrupt_is_not_waited_for():
    module = new_module()
    lab = Lab(module)

    def interrupts(param):
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        module.fit(batches_for(module), num_epoch=5, batch_end_callback=interrupts)
    assert lab.state == "failed"
    lab.close()


@AGAIN
@pytest.mark.parametrize("make", ALL)
def test_an_exception_in_the_training_is_shown_and_raised_to_who_waits(make):
    module = make()
    lab = Lab(module)

    def fails(param):
        if param.nbatch == 2:
            raise ArithmeticError("the loss is <nan>")

    lab.fit(batches_for(module), num_epoch=2, batch_end_callback=fails)
    with pytest.raises(ArithmeticError, match="the loss is <nan>"):
        lab.wait(SECONDS)
    with pytest.raises(ArithmeticError):
        lab.result(SECONDS)
    assert lab._painter.flush()
    assert "ArithmeticError</b>: the loss is &lt;nan&gt;" in html_of(lab)
    assert lab.state == "failed" and isinstance(lab.error, ArithmeticError) and enabled(lab) == set()
    lab.fit(batches_for(module), num_epoch=1)
    assert lab.wait(SECONDS) and lab.error is None
    lab.close()


def test_arguments_that_fit_refuses_are_told_the_same_way():
    lab = Lab(new_module())
    lab.fit(Batches([batch(5)]))
    with pytest.raises(ValueError, match="num_epoch"):
        lab.wait(SECONDS)
    lab.close()


def test_a_view_that_fails_says_so_in_its_place_and_the_training_goes_on(monkeypatch):
    def broken(report):
        raise LookupError("no <colour>")

    monkeypatch.setattr("bucketlab.widgets.lab.slices_html", broken)
    monkeypatch.setattr("bucketlab.widgets.session.snapshot", broken)
    module = new_bucketing_module()
    lab = Lab(module)
    lab.fit(three_buckets(), num_epoch=2)
    assert lab.wait(SECONDS) and lab.state == "finished"
    failed = "This view failed: <b>LookupError</b>: no &lt;colour&gt;. The training goes on."
    for panel in (lab._slices, lab._memory, lab._aliases):
        assert failed in panel.widget.value
    assert "step 10" in words_of(lab._tick.widget.value) and "failed" not in lab._training.widget.value
    lab.close()


def test_a_second_fit_is_refused_while_the_first_goes_on():
    module = new_bucketing_module()
    lab = Lab(module)
    lab.fit(three_buckets(), num_epoch=200, paused=True)
    assert settled(lab, "paused")
    with pytest.raises(RuntimeError, match="training already"):
        lab.fit(three_buckets(), num_epoch=1)
    with pytest.raises(RuntimeError, match="training already"):
        module.fit(three_buckets(), num_epoch=1)
    assert (lab.state, lab.recorder.step_count) == ("paused", 0)
    lab.stop()
    assert lab.wait(SECONDS)
    lab.close()


@pytest.mark.parametrize("make", BUCKETED)
def test_two_labs_on_one_module_show_and_steer_one_run(make):
    module = make()
    first, second = Lab(module), Lab(module)
    first.fit(three_buckets(), num_epoch=200, paused=True)
    assert settled(second, "paused") and settled(first, "paused")
    second._controls.buttons["step"].click()
    assert settled(first, "paused") and settled(second, "paused")
    assert first.recorder is second.recorder and first.recorder.step_count == 1
    assert "step 1 " in words_of(html_of(first)) and "step 1 " in words_of(html_of(second))
    first.close()
    assert second.state == "paused"
    second.stop()
    assert second.wait(SECONDS)
    second.close()
    assert "fit" not in vars(module) and not getattr(module, "_observer", None)


def test_closing_the_last_lab_lets_a_paused_run_go_on_and_then_leaves_the_module_as_it_was():
    module, done = new_bucketing_module(), threading.Event()
    lab = Lab(module)
    lab.fit(
        three_buckets(),
        num_epoch=2,
        paused=True,
        epoch_end_callback=lambda epoch, *_: epoch == 1 and done.set(),
    )
    assert settled(lab, "paused")
    session = lab._session
    lab.close()
    assert done.wait(SECONDS) and session.wait(SECONDS)
    assert session.recorder.step_count == 10
    session._thread.join(SECONDS)
    assert "fit" not in vars(module) and module._observer is None
    again = Lab(module)
    module.fit(three_buckets(), num_epoch=1)
    assert again.recorder.step_count == 5
    again.close()


def test_messages_are_small_and_pictures_change_only_with_what_they_show():
    module = new_bucketing_module()
    lab = Lab(module)
    lab.fit(three_buckets(), num_epoch=400, paused=True)
    assert settled(lab, "paused")
    lab.step(7)
    assert settled(lab, "paused")
    seen = {panel: [] for panel in (lab._tick, lab._memory, lab._aliases)}
    for panel, values in seen.items():
        panel.widget.observe(lambda change, values=values: values.append(change["new"]), "value")
    for steps in range(8, 14):
        lab.step()
        assert settled(lab, "paused")
        assert f"step <b>{steps}</b>" in lab._tick.widget.value
    lab.stop()
    assert lab.wait(SECONDS)
    assert seen[lab._tick] and all(len(value.encode()) <= 300 for value in seen[lab._tick])
    assert seen[lab._memory] == [] and seen[lab._aliases] == [], "every bucket was bound before"
    lab.close()


def test_a_loop_written_by_hand_is_followed():
    module, batches = new_bucketing_module(), three_buckets()
    lab = Lab(module)
    module.bind(batches.provide_data, batches.provide_label)
    module.init_params()
    module.init_optimizer()
    for one in batches:
        module.forward_backward(one)
        module.update()
    assert lab._painter.flush()
    assert lab.recorder.step_count == 4, "the fifth step ends where a sixth begins, or at close()"
    assert "distinct: every byte once" in words_of(html_of(lab))
    lab.close()
    assert lab.recorder.step_count == 5


@pytest.mark.parametrize("make", ALL)
def test_hosts_without_widgets_get_the_same_in_text(make):
    module = make()
    lab = Lab(module)
    name = type(module).__name__
    contexts = "cpu(0)" if make is old_module else "cpu(0), cpu(1)"
    assert repr(lab) == f"Lab of {name} over {contexts}: idle"
    lab.fit(batches_for(module), num_epoch=1)
    assert lab.wait(SECONDS)
    text = repr(lab)
    assert text.startswith(f"Lab of {name} over {contexts}: finished")
    assert "5 steps, 1 epochs ended, accuracy" in text
    assert "rows over" in text and "bytes, each counted once" in text
    bundle = lab._repr_mimebundle_()
    data = bundle[0] if isinstance(bundle, tuple) else bundle
    assert data["text/plain"] == text
    assert data["application/vnd.jupyter.widget-view+json"]["model_id"] == lab.widget.model_id
    lab.close()


def test_what_was_seen_is_at_hand():
    module = new_bucketing_module()
    lab = Lab(module)
    assert lab.snapshot is None and lab.slices is None
    lab.fit(three_buckets(), num_epoch=1)
    summary = lab.result(SECONDS)
    assert summary.total.steps == 5
    assert (lab.slices.bucket, lab.slices.rows, [c.rows for c in lab.slices.contexts]) == (5, 4, [2, 2])
    assert {record.bucket for record in lab.snapshot.records if record.role == "parameter"} == {3, 5, 8}
    roles = {record.role for record in lab.snapshot.records}
    assert {"parameter", "gradient", "data", "label", "output"} <= roles
    lab.close()


def test_objects_that_cannot_train_and_rates_that_are_none_are_refused():
    with pytest.raises(TypeError, match="no fit"):
        Lab(object())
    module = new_module()
    with pytest.raises(ValueError, match="max_hz"):
        Lab(module, max_hz=0)
    assert module._observer is None and "fit" not in vars(module)


def test_waiting_too_short_says_so():
    lab = Lab(new_bucketing_module())
    lab.fit(three_buckets(), num_epoch=200, paused=True)
    assert lab.wait(0.01) is False
    with pytest.raises(TimeoutError, match="goes on"):
        lab.result(0.01)
    lab.stop()
    assert lab.wait(SECONDS)
    lab.close()
