"""The command line as a person meets it: the demo, the end of it at a key, the notebooks in JupyterLab."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

import environments
from bucketlab.__main__ import main
from bucketlab.demo import run_demo
from bucketlab.notebooks import lab_command, notebooks

SMALL = {"sentences": 40, "buckets": 2, "rows": 8, "hidden": 8, "progress": False}
TABLES = ["Slices: ", "Sharing: ", "Memory: ", "Report: "]


def headings(text: str) -> list[str]:
    return re.findall(r"^(?:Slices|Sharing|Memory|Report): ", text, re.MULTILINE)


def test_demo_learns_shows_three_tables_and_writes_the_page(tmp_path: Path) -> None:
    said: list[str] = []
    page = tmp_path / "page.html"
    result = run_demo(page, epochs=3, say=said.append, **SMALL)
    text = "\n".join(said)
    first, second, third = result.perplexities
    assert first > second > third > 1
    assert not result.stopped
    planned = [line.split() for line in text.splitlines() if re.match(r"\d+ .*\d\+\d", line)]
    assert result.steps == 3 * sum(int(row[4]) for row in planned)
    assert headings(text) == TABLES
    assert [line.split()[:2] for line in text.splitlines() if line.startswith("epoch ")] == [
        ["epoch", "1"],
        ["epoch", "2"],
        ["epoch", "3"],
    ]
    assert [piece.context for piece in result.slices.contexts] == ["cpu(0)", "cpu(1)"]
    for shown in (result.slices, result.sharing, result.ledger):
        assert repr(shown) in text
    html = page.read_text(encoding="utf-8")
    assert result.report == page
    assert html.rstrip().endswith("</html>")
    assert not re.search(r"""(?:src|href)\s*=\s*["']?(?:https?:)?//|@import|url\(""", html)
    for picture in ("Training", "Slices", "Memory", "Aliasing"):
        assert re.search(f"<h2[^>]*>{picture}", html)


def test_demo_is_the_same_each_time(tmp_path: Path) -> None:
    runs = [run_demo(tmp_path / "page.html", epochs=1, say=lambda line: None, **SMALL) for _ in range(2)]
    assert runs[0].perplexities == runs[1].perplexities
    assert repr(runs[0].sharing) == repr(runs[1].sharing)


def test_demo_ends_when_its_time_is_up(tmp_path: Path) -> None:
    said: list[str] = []
    result = run_demo(tmp_path / "page.html", epochs=9, seconds=1e-9, contexts=1, say=said.append, **SMALL)
    assert (result.steps, result.stopped, result.perplexities) == (1, True, ())
    text = "\n".join(said)
    assert "\nthe 1e-09 seconds are up: stopped after step 1;" in text
    assert headings(text) == TABLES
    assert result.report.is_file()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"epochs": 0}, "epochs is 0"),
        ({"contexts": 0}, "contexts is 0"),
        ({"seconds": 0.0}, "seconds is 0"),
        ({"sentences": 0}, "no sentence"),
    ],
)
def test_demo_refuses_before_it_trains(options: dict, says: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=says):
        run_demo(tmp_path / "page.html", **{**SMALL, **options})
    assert list(tmp_path.iterdir()) == []


def test_a_report_that_cannot_be_written_is_refused_before_the_training(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["demo", "--report", str(tmp_path / "missing" / "page.html")]) == 2
    assert main(["demo", "--report", str(tmp_path)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert [line.split(",")[-1] for line in err.splitlines()] == [
        " which cannot be written; give another place",
        " a folder; give the name of a file",
    ]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "COMMAND"),
        (["demo", "--epochs", "0"], "'0' is not a whole number of 1 or more"),
        (["demo", "--seconds", "nan"], "'nan' is not a positive number"),
        (["demo", "--colour"], "demo does not know --colour"),
    ],
)
def test_arguments_that_make_no_sense_are_named(
    arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        main(arguments)
    assert left.value.code == 2
    assert says in capsys.readouterr().err


@pytest.mark.slow
def test_ctrl_c_ends_the_demo_at_a_step_with_what_there_is(tmp_path: Path) -> None:
    endless = ["--epochs", "9999", "--seconds", "250", "--sentences", "60"]
    with subprocess.Popen(
        [sys.executable, "-m", "bucketlab", "demo", *endless],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as demo:
        assert demo.stdout is not None and demo.stderr is not None
        for line in demo.stdout:
            if line.startswith("epoch 2 "):
                demo.send_signal(signal.SIGINT)
                break
        rest, errors = demo.stdout.read(), demo.stderr.read()
    assert demo.returncode == 0, errors
    assert "Traceback" not in errors
    assert re.search(r"^stopped after step \d+;", rest, re.MULTILINE)
    assert headings(rest) == TABLES
    assert (tmp_path / "bucketlab-report.html").read_text(encoding="utf-8").rstrip().endswith("</html>")


def test_lab_without_jupyterlab_names_the_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "jupyterlab", None)
    assert importlib.util.find_spec("jupyterlab") is None
    assert main(["lab"]) == 2
    assert "pip install 'bucketlab[lab]'" in capsys.readouterr().err


def test_lab_opens_the_notebooks_of_a_checkout_where_they_are() -> None:
    command = lab_command(options=["--no-browser"])
    assert f"--ServerApp.root_dir={environments.PROJECT / 'notebooks'}" in command
    assert "--LabApp.default_url=/lab/tree/01_bucketed_training.ipynb" in command
    assert ("--allow-root" in command) == (os.geteuid() == 0)
    assert command[-1] == "--no-browser"


def test_lab_copies_what_a_folder_lacks_and_leaves_what_it_has(tmp_path: Path) -> None:
    first, *others = notebooks()
    mine = tmp_path / "work" / first.name
    mine.parent.mkdir()
    mine.write_text("changed")
    assert f"--ServerApp.root_dir={mine.parent}" in lab_command(mine.parent)
    assert mine.read_text() == "changed"
    assert sorted(mine.parent.iterdir()) == sorted([mine, *(mine.parent / other.name for other in others)])


def answer(server: subprocess.Popen[bytes], address: str) -> bytes:
    """What a server says, which may tell its address a moment before it listens there."""
    while True:
        try:
            with urllib.request.urlopen(f"{address}?token=known", timeout=60) as said:
                return said.read()
        except urllib.error.HTTPError:
            raise
        except urllib.error.URLError:
            assert server.poll() is None
            time.sleep(0.2)


@pytest.mark.notebook
def test_lab_serves_the_notebooks(tmp_path: Path) -> None:
    """JupyterLab itself starts and hands out the notebooks; ``jpserver-PID.json`` says where it listens."""
    options = ["--no-browser", "--ServerApp.port=0", "--IdentityProvider.token=known"]
    variables = {**os.environ, "JUPYTER_RUNTIME_DIR": str(tmp_path / "runtime")}
    with subprocess.Popen(
        [sys.executable, "-m", "bucketlab", "lab", "--folder", str(tmp_path / "work"), *options],
        env=variables,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as server:
        try:
            facts = tmp_path / "runtime" / f"jpserver-{server.pid}.json"
            while not (facts.is_file() and facts.stat().st_size):
                assert server.poll() is None
                time.sleep(0.2)
            address = json.loads(facts.read_text())["url"]
            names = [item["name"] for item in json.loads(answer(server, f"{address}api/contents"))["content"]]
            answer(server, f"{address}lab")
        finally:
            server.terminate()
    assert sorted(names) == [notebook.name for notebook in notebooks()]
