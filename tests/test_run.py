"""bucketlab run: an old script as Python would run it, on our classes, and the page that tells of it."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import textwrap
import threading

import pytest

import bucketlab as bl
from bucketlab import mx
from bucketlab.__main__ import main
from bucketlab.module.base import BaseModule
from bucketlab.runner import run_script

HEAD = """
import mxnet as mx
def symbol(name="fc"):
    layer = mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=3, name=name)
    return mx.sym.SoftmaxOutput(layer, name="softmax")
def batch(width=4, rows=4, **more):
    return mx.io.DataBatch(
        [mx.nd.ones((rows, width))], [mx.nd.zeros((rows,))],
        provide_data=[("data", (rows, width))], provide_label=[("softmax_label", (rows,))], **more)
def bound(module):
    module.bind([("data", (4, 4))], [("softmax_label", (4,))])
    module.init_params()
    module.init_optimizer()
    return module
def step(module, given):
    module.forward_backward(given)
    module.update()
"""

BUCKETS = """
def sym_gen(key):
    word = mx.sym.sum(mx.sym.Variable("data"), axis=1, keepdims=True)
    layer = mx.sym.FullyConnected(word, num_hidden=3, name="fc")
    return mx.sym.SoftmaxOutput(layer, name="softmax"), ["data"], ["softmax_label"]
module = bound(mx.mod.BucketingModule(sym_gen, default_bucket_key=4, context=[mx.cpu(0), mx.cpu(1)]))
for key in (4, 2, 4, 3):
    step(module, batch(key, bucket_key=key))
"""


@pytest.fixture
def run(tmp_path):
    def run(text, *arguments, head=HEAD):
        script = tmp_path / "script.py"
        script.write_text(textwrap.dedent(head) + textwrap.dedent(text), encoding="utf-8")
        return run_script(script, arguments, tmp_path / "report.html")

    yield run
    assert mx.mod.Module is not bl.Module and sys.modules["__main__"].__name__ == "__main__"
    assert "noticed" not in BaseModule.__init__.__qualname__


def page(result):
    return result.report.read_text(encoding="utf-8")


class TestAsPythonDoes:
    def test_the_script_is_main(self, run, tmp_path, capsys):
        (tmp_path / "neighbour.py").write_text("VALUE = 42", encoding="utf-8")
        before = sys.argv[:], sys.path[:], sys.modules["__main__"]
        result = run(
            """
            import os, pickle, sys, __main__, neighbour
            class Mine: pass
            assert __name__ == "__main__" and __main__.Mine is Mine
            assert type(pickle.loads(pickle.dumps(Mine()))) is Mine
            assert os.path.isabs(__file__) and os.path.samefile(__file__, sys.argv[0])
            print(sys.argv[1:], neighbour.VALUE, os.path.samefile(sys.path[0], os.path.dirname(__file__)))
            """,
            "--epochs",
            "3",
            head="",
        )
        assert capsys.readouterr().out == "['--epochs', '3'] 42 True\n"
        assert (result.status, result.failure, result.modules) == (0, None, ())
        assert before == (sys.argv[:], sys.path[:], sys.modules["__main__"])
        assert "bound no module" in page(result)
        sys.modules.pop("neighbour")

    @pytest.mark.parametrize(
        ("code", "status", "text"), [("", 0, ""), ("0", 0, ""), ("7", 7, ""), ("True", 1, ""), ("'bye'", 1, "bye\n")]
    )
    def test_exit_statuses(self, run, capsys, code, status, text):
        result = run(f"import sys\nsys.exit({code})", head="")
        assert (result.status, result.failure, capsys.readouterr().err) == (status, None, text)

    @pytest.mark.parametrize(
        "text",
        [
            "def f(x):\n    return 1 / x\n"
            "try:\n    f(0)\nexcept ZeroDivisionError as error:\n    raise ValueError('no') from error\n",
            "import json\njson.loads('{')\n",
            "x = (\n",
            "raise KeyboardInterrupt\n",
            "class Own(BaseException): pass\nraise Own('text')\n",
        ],
    )
    def test_what_ends_it_is_printed_as_python_prints_it(self, run, tmp_path, capsys, text):
        result = run(text, head="")
        python = subprocess.run(
            [sys.executable, str(tmp_path / "script.py")], capture_output=True, text=True, timeout=60
        )
        assert capsys.readouterr().err == python.stderr == result.failure
        interrupted = "KeyboardInterrupt" in text
        assert (result.status, result.interrupted) == ((130, True) if interrupted else (1, False))
        assert python.returncode == (-signal.SIGINT if interrupted else 1)

    def test_its_own_excepthook_is_asked(self, run, capsys):
        hook = sys.excepthook
        try:
            run("import sys\nsys.excepthook = lambda *what: print(what[0].__name__)\n1 / 0", head="")
        finally:
            sys.excepthook = hook
        assert capsys.readouterr() == ("ZeroDivisionError\n", "")

    def test_threads_that_were_there_before_are_not_waited_for(self, run):
        told = threading.Event()
        other = threading.Thread(target=told.wait, args=(60,))
        other.start()
        try:
            assert run("", head="").status == 0
            assert other.is_alive()
        finally:
            told.set()
            other.join()

    def test_threads_are_waited_for(self, run):
        result = run(
            """
            import threading, time
            module = bound(mx.mod.Module(symbol()))
            def train():
                time.sleep(0.05)
                step(module, batch())
            threading.Thread(target=train).start()
            """
        )
        assert result.modules[0].summary.total.steps == 1

    def test_what_cannot_be_read_or_written_is_told_before_anything_runs(self, tmp_path, capsys):
        script = tmp_path / "script.py"
        script.write_text("print('ran')", encoding="utf-8")
        for asked, text in (
            ((tmp_path / "none.py",), "none.py"),
            ((tmp_path,), "script"),
            ((script, (), tmp_path), "report"),
            ((script, (), tmp_path / "no" / "r.html"), "report"),
        ):
            with pytest.raises(ValueError, match=text):
                run_script(*asked)
        assert capsys.readouterr().out == ""


class TestWhatIsRecorded:
    def test_buckets_slices_memory_and_time(self, run):
        result = run(BUCKETS)
        (module,) = result.modules
        assert (module.kind, module.contexts, module.gone) == ("BucketingModule", ("cpu(0)", "cpu(1)"), False)
        binds = [(event.step, event.bucket) for event in module.timeline.events if event.kind == "bind"]
        assert binds == [(0, 4), (2, 2), (4, 3)]
        assert [(bucket.bucket, bucket.steps) for bucket in module.summary.buckets] == [(4, 2), (2, 1), (3, 1)]
        assert [report.bucket for report in module.slices] == [4, 2, 3]
        assert [part.rows for part in module.slices[0].contexts] == [2, 2]
        assert module.ledger.distinct == module.timeline.end > 0
        shared = {tuple(member.bucket for member in group.members) for group in module.aliases.groups}
        assert any({4, 2, 3} <= set(buckets) for buckets in shared)
        told = page(result)
        for text in (
            "BucketingModule over cpu(0), cpu(1)",
            "How memory grew",
            "Time and padding by bucket",
            "Bucket 3",
        ):
            assert text in told
        assert "http" not in told.replace("http://www.w3.org/", "") and "<script" not in told

    def test_fit_is_recorded_with_its_metric(self, run):
        result = run(
            """
            data = mx.io.NDArrayIter(mx.nd.ones((8, 4)), mx.nd.zeros((8,)), 4, label_name="softmax_label")
            module = mx.mod.Module(symbol())
            module.fit(data, num_epoch=2)
            """
        )
        (module,) = result.modules
        assert (module.summary.total.steps, module.summary.epochs) == (4, 2)
        assert [name for name, _ in module.summary.metrics] == ["accuracy"]
        assert module.summary.total.seconds <= result.seconds

    def test_a_script_that_fails_gives_its_report_up_to_there(self, run, capsys):
        result = run(
            """
            module = bound(mx.mod.Module(symbol()))
            step(module, batch())
            module.forward(batch(width=9))
            step(module, batch())
            """
        )
        assert result.status == 1 and result.modules[0].summary.total.steps == 1
        assert "ShapeError" in result.failure and result.failure == capsys.readouterr().err
        lines = result.failure.splitlines()
        assert lines[0].startswith("Traceback") and re.fullmatch(
            r'  File ".*script.py", line 21, in <module>', lines[1]
        )
        assert "runner.py" not in result.failure
        told = page(result)
        assert "ended by an error, exit status 1" in told and "module.forward(batch(width=9))" in told
        assert "Time and padding by bucket" in told

    def test_modules_inside_others_are_seen_through_them(self, run):
        result = run(
            BUCKETS
            + """
from mxnet.contrib.svrg_optimization.svrg_module import SVRGModule
bound(SVRGModule(symbol(), update_freq=1))
chain = mx.mod.SequentialModule()
chain.add(mx.mod.Module(mx.sym.Variable("data") * 2, label_names=None))
chain.add(mx.mod.Module(symbol("other")), take_labels=True, auto_wiring=True)
step(bound(chain), batch())
never_bound = mx.mod.Module(symbol())
class Holder(mx.mod.BaseModule):
    def __init__(self):
        super().__init__()
        self.inner = bound(mx.mod.Module(symbol("inner")))
holder = Holder()
bound(mx.mod.Module(symbol("another")))
"""
        )
        kinds = [module.kind for module in result.modules]
        assert kinds == ["BucketingModule", "SVRGModule", "SequentialModule", "Module", "Module"]
        assert result.modules[2].summary.total.steps == 1
        told = page(result)
        assert "Module 1 over cpu(0)" in told and "Module 2 over cpu(0) (let go of before the end)" in told

    def test_modules_live_no_longer_than_the_script_wants(self, run, capsys):
        result = run(
            """
            import gc, weakref
            gc.disable()
            gone = []
            for rows in (4, 4, 2):
                module = bound(mx.mod.Module(symbol(), context=[mx.cpu(0), mx.cpu(1)]))
                step(module, batch(rows=rows))
                gone.append(weakref.ref(module))
                del module
            print([each() is None for each in gone])
            gc.enable()
            """
        )
        # The newest one is held for the sake of its memory, which is looked at last.
        assert capsys.readouterr().out == "[True, True, False]\n"
        assert [module.gone for module in result.modules] == [True] * 3
        assert [module.summary.total.steps for module in result.modules] == [1] * 3
        assert all(module.ledger.distinct == module.timeline.end > 0 for module in result.modules)
        assert [[part.rows for part in module.slices[0].contexts] for module in result.modules] == [
            [2, 2],
            [2, 2],
            [1, 1],
        ]

    def test_the_scripts_logging_stays_its_own(self, run, caplog):
        caplog.set_level(0)
        run("import logging\nlogging.getLogger().setLevel(0)\nbound(mx.mod.Module(symbol()))")
        assert not [record for record in caplog.records if record.name.startswith("matplotlib")]

    def test_as_data_and_as_text(self, run):
        result = run(BUCKETS)
        data = result.to_dict()
        assert data["status"] == 0 and data["modules"][0]["summary"]["total"]["steps"] == 4
        text = repr(result)
        assert "exit status 0" in text and "4 training steps" in text and "BucketingModule" in text
        assert result._repr_html_().startswith("<!DOCTYPE html>")


class TestCommand:
    def test_options_before_the_script_are_ours_and_after_it_the_scripts(self, tmp_path, capsys):
        script = tmp_path / "script.py"
        script.write_text("import sys\nprint(sys.argv[1:])\nsys.exit(5)", encoding="utf-8")
        report = tmp_path / "page.html"
        assert main(["run", "--report", str(report), str(script), "--report", "x", "-v", "a b"]) == 5
        out, err = capsys.readouterr()
        assert out == "['--report', 'x', '-v', 'a b']\n" and f"report: {report}" in err
        assert "exit status 5" in report.read_text(encoding="utf-8")

    def test_what_cannot_be_run_is_a_plain_refusal(self, tmp_path, capsys):
        assert main(["run", str(tmp_path / "none.py")]) == 2
        assert "none.py" in capsys.readouterr().err

    def test_an_interrupted_script_ends_by_the_signal_after_its_exit_handlers(self, tmp_path):
        script = tmp_path / "script.py"
        text = (
            "import atexit, os, signal\natexit.register(print, 'bye')\n"
            "os.kill(os.getpid(), signal.SIGINT)\nwhile True: pass"
        )
        script.write_text(text, encoding="utf-8")
        command = [sys.executable, "-m", "bucketlab", "run", "--report", str(tmp_path / "r.html"), str(script)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        assert done.returncode == -signal.SIGINT
        assert done.stdout == "bye\n" and done.stderr.splitlines()[-2] == "KeyboardInterrupt"
        assert "interrupted, exit status 130" in (tmp_path / "r.html").read_text(encoding="utf-8")
