"""An installation without a checkout, on the oldest and the newest Python and numpy that are supported."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

import pytest

import environments
from bucketlab.notebooks import notebooks

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

class Installed(NamedTuple):
    folder: Path
    numpy: str

    def run(self, *command: str) -> str:
        """What a command of the installation prints; it says nothing on stderr."""
        done = environments.run([str(self.folder / "venv" / "bin" / command[0]), *command[1:]], cwd=self.folder)
        assert done.stderr == ""
        return done.stdout


@pytest.fixture(scope="module", params=environments.edges())
def installed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    interpreter, numpy = request.param
    folder = tmp_path_factory.mktemp("installed")
    project = environments.copy_of_project(folder / "project")
    environments.make(folder / "venv", interpreter, str(project), f"numpy=={numpy}.*")
    environments.run(["rm", "-r", str(project)])
    return Installed(folder, numpy)


def test_it_trains(installed: Installed) -> None:
    ask = f"import numpy, sys; print(numpy.__version__, *sys.version_info[:2])\n{environments.TRAIN}"
    versions, trained = installed.run("python", "-W", "error::DeprecationWarning:bucketlab", "-c", ask).splitlines()
    assert versions.startswith(f"{installed.numpy}.")
    assert trained == "accuracy True"


def test_it_has_its_notebooks(installed: Installed) -> None:
    ask = "from bucketlab.notebooks import notebooks; print(*(notebook.name for notebook in notebooks()))"
    assert installed.run("python", "-c", ask).split() == [notebook.name for notebook in notebooks()]


def test_it_runs_the_demo(installed: Installed) -> None:
    said = installed.run("bucketlab", "demo", "--epochs", "1", "--sentences", "60", "--no-progress")
    assert re.findall(r"^(Slices|Sharing|Memory|Report): ", said, re.MULTILINE) == [
        "Slices", "Sharing", "Memory", "Report",
    ]  # fmt: skip
    assert (installed.folder / "bucketlab-report.html").is_file()
