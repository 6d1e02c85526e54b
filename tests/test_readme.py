"""What the README tells people to type works as it stands there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import environments
from bucketlab.__main__ import main

README = (environments.PROJECT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


def test_the_three_commands_stand_at_the_top_each_in_one_line() -> None:
    fresh = "python3 -m venv .venv && .venv/bin/pip install -e "
    assert blocks("sh")[:3] == [
        f"{fresh}'.[lab]' && .venv/bin/bucketlab demo\n",
        ".venv/bin/bucketlab lab\n",
        f"{fresh}'.[test]' && .venv/bin/pytest\n",
    ]
    assert README.index(blocks("sh")[2]) < README.index("\n## ")


def test_the_options_that_it_names_are_those_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("demo", "lab"):
        line = re.search(rf"^- `bucketlab {command} (.*?)`", README, re.MULTILINE)
        assert line is not None
        with pytest.raises(SystemExit):
            main([command, "--help"])
        there = set(re.findall(r"--[a-z-]+", capsys.readouterr().out))
        named = set(re.findall(r"--[a-z-]+", line[1]))
        assert named and named <= there


@pytest.mark.slow
def test_the_first_five_minutes_run(tmp_path: Path) -> None:
    cells = blocks("python")
    assert len(cells) == 4
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(cells) + "\nprint(lab.state, mod.memory().to_dict() != {})"],
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.stdout.split() == ["finished", "True"], done.stderr
    assert (tmp_path / "run.html").read_text(encoding="utf-8").rstrip().endswith("</html>")
