"""Run notebooks and store their outputs, with nothing in them that changes from one run or machine to the next.

python tests/notebooks/rerun.py notebooks/01_bucketed_training.ipynb
"""

from __future__ import annotations

import argparse
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from tqdm import tqdm


def normalise(notebook: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """Drop run times, widget state (GitHub refuses a file whose state is incomplete) and versions of the machine."""
    notebook.metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    for number, cell in enumerate(notebook.cells):
        cell.id = f"cell-{number:02d}"
        cell.metadata = {key: value for key, value in cell.metadata.items() if key == "tags"}
    return notebook


def rerun(path: Path, timeout: float = 600) -> None:
    """Execute one notebook beside its own file and write it back. Raises what a cell raised."""
    notebook = nbformat.read(path, as_version=4)
    where = {"metadata": {"path": str(path.parent)}}
    # Else the output of one cell is cut where the kernel happened to flush it.
    NotebookClient(notebook, timeout=timeout, coalesce_streams=True, resources=where).execute()
    nbformat.write(normalise(notebook), path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("notebooks", nargs="+", type=Path)
    for path in tqdm(parser.parse_args().notebooks, unit="notebook"):
        rerun(path)


if __name__ == "__main__":
    main()
