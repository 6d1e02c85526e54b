"""What is stored in the notebooks: readable on any host, the same from any machine."""

from __future__ import annotations

import re
from pathlib import Path

import nbformat
import pytest

from notebooks.rerun import normalise

FOLDER = Path(__file__).resolve().parents[2] / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
WIDGET = "application/vnd.jupyter.widget-view+json"


def read(path: Path) -> nbformat.NotebookNode:
    return nbformat.read(path, as_version=4)


def outputs_of(notebook: nbformat.NotebookNode) -> list[nbformat.NotebookNode]:
    return [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]


def text_of(output: nbformat.NotebookNode) -> str:
    data = output.get("data", {})
    return output.get("text", "") + "".join(data.get(kind, "") for kind in ("text/plain", "text/html"))


def test_there_are_notebooks():
    assert FOLDER / "01_bucketed_training.ipynb" in NOTEBOOKS


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_as_rerun_writes_it(path):
    stored = path.read_text(encoding="utf-8")
    assert nbformat.writes(normalise(read(path))) + "\n" == stored
    nbformat.validate(read(path))
    assert "widgets" not in read(path).metadata


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_every_cell_was_run_in_order_and_none_failed(path):
    cells = [cell for cell in read(path).cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    assert {output.output_type for output in outputs_of(read(path))} <= {"execute_result", "display_data", "stream"}


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_outputs_read_without_widgets_styles_or_pictures_and_hold_no_addresses(path):
    outputs = outputs_of(read(path))
    for output in outputs:
        if output.output_type != "stream":
            assert output.data.get("text/plain", "").strip()
        words = re.sub(r"<style>.*?</style>", "", text_of(output), flags=re.S)
        assert not re.search(r"\b0x[0-9a-f]{6,}|/tmp/|/home/|/root/|site-packages", words)
        assert output.get("name") != "stderr"
    assert sum("image/png" in output.get("data", {}) for output in outputs) <= 1
    assert any(WIDGET in output.get("data", {}) for output in outputs)
