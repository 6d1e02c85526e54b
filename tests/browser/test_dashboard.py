"""Notebook 01 in JupyterLab, as a person uses it: run, watch, pause, step, point, tab, stop."""

from __future__ import annotations

import re
import time
from pathlib import Path

import nbformat
from playwright.sync_api import Locator, Page, expect

ROOT = Path(__file__).resolve().parents[2]
NAME = "01_bucketed_training.ipynb"
LIT = "rgb(240, 228, 66)"
PATIENCE = 120_000


class Dashboard:
    """The dashboard on the page, read the way a person reads it."""

    def __init__(self, page: Page):
        self.page = page
        self.root = page.locator(".bl-lab")

    def button(self, name: str) -> Locator:
        # Before the word stands the icon, which is a letter of an icon font.
        return self.root.get_by_role("button", name=re.compile(rf"\b{name}$"))

    @property
    def step(self) -> int:
        return int(self.root.locator(".bl-tick b").first.inner_text())

    @property
    def state(self) -> Locator:
        return self.root.locator(".bl-state b").first

    def steps_past(self, step: int) -> None:
        end = time.monotonic() + PATIENCE / 1000
        while self.step <= step:
            assert time.monotonic() < end, f"the step counter stays at {self.step}"
            self.page.wait_for_timeout(50)


def cell(page: Page, source: str) -> Locator:
    return page.locator(".jp-CodeCell").filter(has=page.locator(".jp-InputArea", has_text=source))


def colour(label: Locator) -> str:
    return str(label.evaluate("label => getComputedStyle(label).backgroundColor"))


def run_up_to(page: Page, source: str) -> None:
    """Shift+Enter from the first cell until the one with this source has been sent."""
    page.locator(".jp-Cell").first.click()
    page.keyboard.press("Escape")
    cells = page.locator(".jp-Cell")
    for number in range(cells.count()):
        text = cells.nth(number).locator(".jp-InputArea").inner_text()
        page.keyboard.press("Shift+Enter")
        if source in text:
            return
    raise AssertionError(f"no cell has {source!r}")


def test_a_person_watches_pauses_steps_points_tabs_and_stops(server, page: Page, screenshots: Path):
    notebook = nbformat.read(ROOT / "notebooks" / NAME, as_version=4)
    changed = 0
    for one in notebook.cells:
        if one.cell_type == "code":
            one.outputs, one.execution_count = [], None
            if "num_epoch=3" in one.source:
                # Long enough that nothing here races against its end.
                one.source, changed = one.source.replace("num_epoch=3", "num_epoch=2000"), changed + 1
    assert changed == 1
    nbformat.write(notebook, server.folder / NAME)

    page.goto(server.address(NAME))
    expect(cell(page, "bl.data.corpus")).to_be_visible(timeout=PATIENCE)
    page.wait_for_function("window.jupyterapp.shell.currentWidget?.context?.sessionContext?.isReady", timeout=PATIENCE)
    lab = Dashboard(page)

    def shoot(name: str) -> None:
        page.screenshot(path=screenshots / f"{name}.png")

    # It shows at once, before anything trains, and every button rests.
    run_up_to(page, "lab.wait()")
    expect(lab.root).to_be_visible(timeout=PATIENCE)

    # The counter moves while a cell runs.
    waiting = cell(page, "lab.wait()").locator(".jp-InputPrompt").first
    expect(lab.state).to_have_text("running", timeout=PATIENCE)
    expect(waiting).to_have_text("[*]:")
    lab.steps_past(lab.step + 5)
    expect(waiting).to_have_text("[*]:")

    # Interrupting the kernel ends the waiting, not the training.
    page.evaluate("window.jupyterapp.commands.execute('notebook:interrupt-kernel')")
    expect(cell(page, "lab.wait()")).to_contain_text("KeyboardInterrupt", timeout=PATIENCE)
    expect(lab.state).to_have_text("running")
    for name, can in (("Run", False), ("Pause", True), ("Step", False), ("Stop", True)):
        expect(lab.button(name)).to_be_enabled(enabled=can)
    shoot("running")

    # Pause holds.
    lab.button("Pause").click()
    expect(lab.state).to_have_text("paused", timeout=PATIENCE)
    held = lab.step
    page.wait_for_timeout(1500)
    assert lab.step == held
    expect(lab.button("Pause")).to_be_disabled()

    # Step trains exactly one, every time.
    for more in (1, 2, 3):
        expect(lab.button("Step")).to_be_enabled()
        lab.button("Step").click()
        lab.steps_past(held + more - 1)
        expect(lab.state).to_have_text("paused", timeout=PATIENCE)
        page.wait_for_timeout(500)
        assert lab.step == held + more
    shoot("paused")

    # Pointing at an array lights all that are the same memory, and no other.
    row = lab.root.locator(".bl-aliases tbody tr").filter(has_text="pred_weight").first
    labels = row.locator("td b")
    assert labels.count() >= 3
    group = labels.first.get_attribute("class")
    same = lab.root.locator(f".bl-aliases td b.{group}")
    other = lab.root.locator(f".bl-aliases td b:not(.{group})").first
    labels.first.scroll_into_view_if_needed()
    page.mouse.move(1, 1)
    assert colour(labels.first) != LIT
    labels.first.hover()
    expect(labels.first).to_have_css("background-color", LIT)
    assert same.count() >= labels.count()
    assert {colour(same.nth(i)) for i in range(same.count())} == {LIT}
    assert colour(other) != LIT
    shoot("pointed")
    page.mouse.move(1, 1)
    expect(labels.first).not_to_have_css("background-color", LIT)

    # So does the Tab key.
    labels.first.focus()
    page.keyboard.press("Tab")
    focused = page.locator(".bl-aliases td b:focus")
    expect(focused).to_have_count(1)
    tabbed = focused.get_attribute("class")
    assert tabbed != group
    lit = lab.root.locator(f".bl-aliases td b.{tabbed}")
    assert {colour(lit.nth(i)) for i in range(lit.count())} == {LIT}
    assert colour(labels.first) != LIT
    shoot("tabbed")

    # In the dark theme it reads as well.
    page.evaluate("window.jupyterapp.commands.execute('apputils:change-theme', {theme: 'JupyterLab Dark'})")
    page.wait_for_function("document.body.dataset.jpThemeLight === 'false'")
    ink, back = (
        lab.root.locator("h3").first.evaluate("h => getComputedStyle(h).color"),
        page.locator(".jp-Notebook").first.evaluate("n => getComputedStyle(n).backgroundColor"),
    )
    assert ink != back
    shoot("dark")
    page.set_viewport_size({"width": 1500, "height": 2400})
    shoot("whole")

    # Run goes on, Stop ends it; the rest of the notebook works on what there is.
    lab.button("Run").click()
    lab.steps_past(held + 3)
    lab.button("Stop").click()
    expect(lab.state).to_have_text("stopped", timeout=PATIENCE)
    for name in ("Run", "Pause", "Step", "Stop"):
        expect(lab.button(name)).to_be_disabled()
    cell(page, "lab.wait()").locator(".jp-InputPrompt").first.click()
    page.keyboard.press("Escape")
    page.evaluate("void window.jupyterapp.commands.execute('notebook:run-all-below')")
    expect(cell(page, "bl.aliases(mod)").locator(".bl-aliases")).to_be_visible(timeout=PATIENCE)
    expect(cell(page, "mod.memory()").locator(".bl-ledger")).to_be_visible(timeout=PATIENCE)
    shoot("stopped")
