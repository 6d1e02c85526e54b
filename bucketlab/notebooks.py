"""JupyterLab on bucketlab's notebooks, wherever they are: in a checkout, or installed with the package."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

__all__ = ["lab_command", "notebooks", "open_lab"]

WORK_FOLDER = "bucketlab-notebooks"
_CHECKOUT = Path(__file__).resolve().parent.parent


def notebooks() -> list[Path]:
    """The notebooks in order: those of the checkout that this code lies in, else those that were installed.

    Raises RuntimeError where there are none, as in a copy of the package's folder alone.
    """
    found = list((_CHECKOUT / "notebooks").glob("*.ipynb")) if _in_checkout() else _installed()
    if not found:
        raise RuntimeError(
            f"no notebooks are installed with the bucketlab in {_CHECKOUT}; install it with pip, "
            "or run from a checkout"
        )
    return sorted(found)


def lab_command(folder: Path | None = None, options: Sequence[str] = ()) -> list[str]:
    """The command that opens JupyterLab on the notebooks; copies those that ``folder`` lacks into it.

    Without ``folder``: a checkout's notebooks where they are; installed ones in ``./bucketlab-notebooks``,
    since what a person runs and changes should not be the installation. ``options`` go to JupyterLab. Raises
    RuntimeError where JupyterLab is not installed.
    """
    if importlib.util.find_spec("jupyterlab") is None:
        raise RuntimeError("JupyterLab is not installed here. Run: pip install 'bucketlab[lab]'")
    given = notebooks()
    if folder is None and not _in_checkout():
        folder = Path(WORK_FOLDER)
    if folder is None:
        folder = given[0].parent
    else:
        _copy(given, folder)
    command = [sys.executable, "-m", "jupyterlab", f"--ServerApp.root_dir={folder.resolve()}"]
    command.append(f"--LabApp.default_url=/lab/tree/{given[0].name}")
    # JupyterLab asks a root user to say that it is meant, and in a container there is no other.
    if os.geteuid() == 0:
        command.append("--allow-root")
    return [*command, *options]


def open_lab(folder: Path | None = None, options: Sequence[str] = ()) -> int:
    """Become JupyterLab: does not return, unless nothing can be started."""
    command = lab_command(folder, options)
    sys.stdout.flush()
    os.execv(command[0], command)


def _in_checkout() -> bool:
    return (_CHECKOUT / "pyproject.toml").is_file()


def _installed() -> list[Path]:
    try:
        files = importlib.metadata.files("bucketlab") or []
    except importlib.metadata.PackageNotFoundError:
        return []
    return [Path(str(file.locate())).resolve() for file in files if file.suffix == ".ipynb"]


def _copy(given: Sequence[Path], folder: Path) -> None:
    """Copy the notebooks that the folder lacks: one that a person has changed stays as it is."""
    folder.mkdir(parents=True, exist_ok=True)
    for notebook in given:
        if not (folder / notebook.name).exists():
            shutil.copyfile(notebook, folder / notebook.name)
