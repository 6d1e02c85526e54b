"""Why memory grew, and at which batch: against runs whose every byte is known."""

from __future__ import annotations

import gc
import json
import weakref

import pytest

import bucketlab as bl
from bucketlab import mx
from bucketlab.errors import NotReadyError
from bucketlab.memory import memory
from bucketlab.record import Recorder, timeline
from bucketlab.views.tables import byte_size
from small_runs import VOCAB, batch, old_bucketing_module, three_buckets, words_symbol

TWO = [mx.cpu(0), mx.cpu(1)]
PARAMETERS = 4 * (VOCAB * 6 + VOCAB * 6 + VOCAB)


def trained(module, batches, momentum=0.9):
    first = batches[0]
    module.bind(first.provide_data, first.provide_label)
    module.init_params()
    module.init_optimizer(optimizer_params={"learning_rate": 0.1, "momentum": momentum})
    for one in batches:
        module.forward_backward(one)
        module.update()
    mx.nd.waitall()
    return module


def told(line):
    return [(event.step, event.kind, event.bucket, event.added) for event in line.events]


def test_every_byte_is_told_with_the_step_that_needed_it():
    module = bl.BucketingModule(words_symbol, default_bucket_key=3, context=TWO)
    recorder = Recorder(module)
    trained(module, [batch(3), batch(5), batch(3), batch(8)])
    line = timeline(recorder)
    assert [(event.step, event.kind, event.bucket) for event in line.events] == [
        (0, "bind", 3),
        (1, "first use", 3),
        (2, "bind", 5),
        (2, "first use", 5),
        (3, "bound again", 3),
        (4, "bind", 8),
        (4, "first use", 8),
    ]
    assert line.switches == 3
    gc.collect()
    assert line.start == 0
    assert line.end == memory(module).distinct == sum(event.added for event in line.events)
    changes = {change.label: change.added for change in line.events[0].changes}
    assert changes["cpu(1)", "parameter"] == changes["cpu(0)", "gradient"] == PARAMETERS
    assert changes["cpu(0)", "data"] == 2 * 3 * 4
    assert line.events[0].arrays[0] == "+embed_weight (gradient)"
    states = {change.label: change.added for change in line.events[1].changes}
    assert states["cpu(0)", "optimizer"] == PARAMETERS
    assert states["cpu(0)", "kvstore"] >= PARAMETERS
    assert line.events[1].arrays[0] == "+sum of gradients 0 (kvstore)"
    assert line.largest is line.events[0]
    assert recorder.faults == ()


def test_a_hungrier_bucket_takes_the_working_memory_over():
    module = bl.BucketingModule(words_symbol, default_bucket_key=3)
    Recorder(module)
    trained(module, [batch(3), batch(8), batch(3), batch(8)])
    line = timeline(module)
    came, used = line.events[2:4]
    assert (came.kind, came.bucket, used.kind, used.bucket) == ("bind", 8, "first use", 8)
    pools = [{change.label[1]: change.added for change in event.changes}["pool"] for event in (came, used)]
    # At the bind there are both, at the first use the old one is gone.
    assert pools[0] > 0 > pools[1]
    assert {change.label[1] for change in used.changes} == {"pool", "data", "label"}
    assert "-data (data)" in used.arrays


def test_other_shapes_and_released_buckets():
    module = bl.BucketingModule(words_symbol, default_bucket_key=5)
    recorder = Recorder(module)
    trained(module, [batch(5), batch(3), batch(5, rows=7)])
    before = recorder.timeline()
    assert before.events[-1].kind == "reshape"
    assert (before.events[-1].step, before.events[-1].bucket) == (3, 5)
    assert {change.label[1] for change in before.events[-1].changes} == {"pool", "data", "label"}
    module.switch_bucket(3, batch(3).provide_data, batch(3).provide_label)
    module.release(5)
    assert recorder.timeline().events[-1].kind == "release"
    module.forward_backward(batch(5))
    module.update()
    assert [event.kind for event in recorder.timeline().events[len(before.events) :]] == ["release", "bound again"]


def test_shapes_that_were_seen_before_are_no_event():
    module = bl.Module(words_symbol(4)[0])
    recorder = Recorder(module)
    trained(module, [batch(4), batch(4, rows=2), batch(4), batch(4, rows=2), batch(4)])
    assert [(event.step, event.kind) for event in recorder.timeline().events] == [
        (0, "bind"), (1, "first use"), (2, "reshape")
    ]  # fmt: skip


def test_a_module_of_mxmod_is_told_too():
    module = old_bucketing_module()
    recorder = Recorder(module)
    module.fit(three_buckets(), num_epoch=1, optimizer_params={"learning_rate": 0.1})
    line = timeline(module)
    assert [(event.kind, event.bucket) for event in line.events if event.kind == "bind"] == [
        ("bind", 8), ("bind", 3), ("bind", 5)
    ]  # fmt: skip
    assert line.end == memory(module).distinct
    assert recorder.faults == ()


def test_a_bound_module_begins_with_what_it_holds():
    module = trained(bl.BucketingModule(words_symbol, default_bucket_key=8), [batch(8)])
    held = memory(module).distinct
    recorder = Recorder(module)
    module.forward_backward(batch(8))
    module.update()
    assert recorder.timeline().start == recorder.timeline().end == held
    assert recorder.timeline().events == ()
    assert timeline(recorder).largest is None


def test_what_the_first_step_takes_is_told_with_it_where_the_module_was_bound_before():
    module = bl.BucketingModule(words_symbol, default_bucket_key=8)
    module.bind(batch(8).provide_data, batch(8).provide_label)
    module.init_params()
    module.init_optimizer(optimizer_params={"learning_rate": 0.1, "momentum": 0.9})
    recorder = Recorder(module)
    for key in (8, 5):
        module.forward_backward(batch(key))
        module.update()
    events = recorder.timeline().events
    assert [(event.step, event.kind, event.bucket) for event in events] == [(1, "first use", 8), (2, "bind", 5)]
    assert {change.label: change.added for change in events[0].changes}["cpu(0)", "optimizer"] == PARAMETERS
    assert all("optimizer" not in change.label for change in events[1].changes)


def test_what_was_not_watched_is_told_by_bucket():
    module = trained(bl.BucketingModule(words_symbol, default_bucket_key=8), [batch(8), batch(3)])
    line = timeline(module)
    assert [(event.step, event.kind, event.bucket) for event in line.events] == [(None, "bind", 8), (None, "bind", 3)]
    assert line.end == memory(module).distinct
    assert line.events[1].added == 0
    assert line.notes[0].startswith("nobody watched")
    with pytest.raises(NotReadyError, match="nothing is bound yet: attach a Recorder"):
        timeline(bl.BucketingModule(words_symbol, default_bucket_key=8))


def test_watching_keeps_nothing_alive():
    module = bl.BucketingModule(words_symbol, default_bucket_key=3)
    recorder = Recorder(module)
    trained(module, [batch(3), batch(8)])
    executors = [weakref.ref(executor) for executor in module._curr_module._exec_group.execs]
    module._reset_bind()
    module._giver = None
    gc.collect()
    assert [executor() for executor in executors] == [None]
    assert recorder.ledger.distinct > 0


def test_it_reads_as_text_html_figure_and_plain_data():
    module = bl.BucketingModule(words_symbol, default_bucket_key=3)
    recorder = Recorder(module)
    trained(module, [batch(3), batch(8)])
    line = recorder.timeline()
    text = repr(line).splitlines()
    assert text[0] == (
        f"0 bytes at first, {line.end:,} ({byte_size(line.end)}) after 4 events; 1 switch between buckets"
    )
    assert text[1].startswith(f"most was added in step 2, by the bind of bucket 8: {line.largest.added:+,} bytes, +")
    assert text[2].split() == ["step", "event", "bucket", "added", "after", "by", "context", "and", "role", "arrays"]
    assert text[3].split()[:5] == ["0", "bind", "3", f"{line.events[0].added:+,}", f"{line.events[0].after:,}"]
    html = line._repr_html_()
    assert "How memory grew" in html and "<script" not in html
    assert json.loads(json.dumps(recorder.to_dict()))["timeline"]["end"] == line.end
    assert line.plot().axes[0].get_title().endswith("after 4 events")
