"""Fresh virtual environments and copies of the project, for the tests that ask what an installation does."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

PROJECT = Path(__file__).resolve().parent.parent
SUPPORTED = ((3, 9), (3, 10), (3, 11), (3, 12))
# Python 3.12 came after the others: numpy has no older build for it.
OLDEST_NUMPY = {(3, 12): "1.26"}

TRAIN = """
import numpy as np
from bucketlab import mx
net = mx.sym.SoftmaxOutput(mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=2), name="softmax")
x = np.random.RandomState(0).randn(64, 3).astype("float32")
rows = mx.io.NDArrayIter(x, (x[:, 0] > 0).astype("float32"), 16)
mod = mx.mod.Module(net, context=[mx.cpu(0), mx.cpu(1)])
mod.fit(rows, num_epoch=8, optimizer_params={"learning_rate": 0.5})
print("accuracy", mod.score(rows, "acc")[0][1] > 0.9)
"""


def interpreters() -> dict[tuple[int, int], str]:
    """The supported interpreters of this machine: the one that runs, those on the path, those of pyenv."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    found = {}
    for version in SUPPORTED:
        number = ".".join(map(str, version))
        candidates = [shutil.which(f"python{number}"), *sorted(pyenv.glob(f"{number}.*/bin/python"))]
        if version == sys.version_info[:2]:
            candidates.insert(0, sys.executable)
        for candidate in filter(None, candidates):
            # A shim on the path may stand for an interpreter that is not there; a Debian one may lack venv.
            if subprocess.run([candidate, "-c", "import ensurepip"], capture_output=True).returncode == 0:
                found[version] = str(candidate)
                break
    return found


def edges() -> list[Any]:
    """Pairs (interpreter, numpy): the oldest interpreter with the oldest numpy it runs, the newest with the newest."""
    found = interpreters()
    oldest, newest = min(found), max(found)
    pairs = ((oldest, OLDEST_NUMPY.get(oldest, "1.23")), (newest, "1.26"))
    return [pytest.param((found[python], numpy), id="{}.{}".format(*python)) for python, numpy in pairs]


def copy_of_project(folder: Path) -> Path:
    """What a checkout holds, without what builds and runs left in it; building in the copy disturbs nobody."""
    leavings = shutil.ignore_patterns(".*", "*.egg-info", "__pycache__", "build", "dist", "venv*")
    shutil.copytree(PROJECT, folder, ignore=leavings)
    return folder


def make(folder: Path, interpreter: str, *requirements: str, cwd: Path | None = None) -> str:
    """A virtual environment with ``requirements`` (as pip takes them); returns its Python."""
    run([interpreter, "-m", "venv", str(folder)])
    python = str(folder / "bin" / "python")
    # What is imported gets compiled then; most of what is installed never is.
    run([python, "-m", "pip", "install", "--quiet", "--no-compile", *requirements], cwd=cwd, timeout=900)
    return python


def run(
    command: Sequence[str], cwd: Path | None = None, timeout: float = 300, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end; an exit status other than 0 fails the test with all that the command said."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    done = subprocess.run(
        command, cwd=cwd, env={**environment, **variables}, capture_output=True, text=True, timeout=timeout
    )
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}\n{done.stderr}"
    return done
