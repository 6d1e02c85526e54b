"""The environment of binder/, made from its files as repo2docker makes it, runs the first notebook."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from pathlib import Path

import pytest

import environments
from bucketlab.notebooks import notebooks

BINDER = environments.PROJECT / "binder"
# In every Debian image that has Python, the one that repo2docker starts from included.
BASE = {"libc6", "libgcc-s1", "libstdc++6", "zlib1g"}

pytestmark = [pytest.mark.slow, pytest.mark.notebook, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("binder")
    project = environments.copy_of_project(folder / "project")
    version = re.fullmatch(r"python-(3)\.(\d+)\n", (BINDER / "runtime.txt").read_text())
    assert version is not None
    wanted = (int(version[1]), int(version[2]))
    # A machine without binder's Python tells as much by the one it has: all are supported.
    interpreter = environments.interpreters().get(wanted, sys.executable)
    assert wanted in environments.SUPPORTED
    environments.make(folder / "venv", interpreter, "-r", "binder/requirements.txt", cwd=project)
    return folder


def test_the_first_notebook_runs(environment: Path) -> None:
    first = notebooks()[0]
    options = ["--to=notebook", "--execute", "--ExecutePreprocessor.timeout=600"]
    source = environment / "project" / "notebooks" / first.name
    python = str(environment / "venv" / "bin" / "python")
    environments.run(
        [python, "-m", "nbconvert", *options, f"--output-dir={environment}", str(source)],
        timeout=1200,
        PATH=f"{Path(python).parent}{os.pathsep}{os.environ['PATH']}",
        JUPYTER_PREFER_ENV_PATH="1",
        OMP_NUM_THREADS="1",
    )
    cells = json.loads((environment / first.name).read_text(encoding="utf-8"))["cells"]
    ran = [cell["execution_count"] for cell in cells if cell["cell_type"] == "code"]
    assert ran == list(range(1, len(ran) + 1)) and ran


def test_apt_lists_every_library_that_mxnet_needs(environment: Path) -> None:
    """Only Debian can be asked which package a library comes from; elsewhere ldd's names must do."""
    library = next((environment / "venv").glob("lib/python3*/site-packages/mxnet/libmxnet.so"))
    needed = re.findall(r"^\s*(\S+) => (/\S+)", environments.run(["ldd", str(library)]).stdout, re.MULTILINE)
    listed = set((BINDER / "apt.txt").read_text().split())
    assert {"libgomp.so.1", "libquadmath.so.0"} <= {name for name, _ in needed}
    if shutil.which("dpkg"):
        owners = {owner_of(path) for _, path in needed if not path.startswith(str(environment))}
        assert owners - BASE == listed


def owner_of(path: str) -> str:
    """The Debian package of a library, by its name: dpkg may know another path, from before /usr was merged."""
    name = Path(path).resolve().name
    found = environments.run(["dpkg", "-S", f"*/{name}"]).stdout
    return found.split(":")[0]
