"""The sliders of notebook 04 in JupyterLab, moved as a person moves them."""

from __future__ import annotations

from pathlib import Path

import nbformat
from playwright.sync_api import Locator, Page, expect

ROOT = Path(__file__).resolve().parents[2]
NAME = "04_choosing_buckets.ipynb"
PATIENCE = 120_000


def test_a_person_moves_the_sliders_and_the_picture_follows(server, page: Page, screenshots: Path):
    notebook = nbformat.read(ROOT / "notebooks" / NAME, as_version=4)
    last = next(i for i, one in enumerate(notebook.cells) if "bl.PlanExplorer" in one.source)
    notebook.cells = notebook.cells[: last + 1]
    for one in notebook.cells:
        if one.cell_type == "code":
            one.outputs, one.execution_count = [], None
    nbformat.write(notebook, server.folder / NAME)

    page.goto(server.address(NAME))
    page.wait_for_function("window.jupyterapp.shell.currentWidget?.context?.sessionContext?.isReady", timeout=PATIENCE)
    page.evaluate("void window.jupyterapp.commands.execute('notebook:run-all-cells')")
    explorer = page.locator(".bl-lab")
    caption, alert = explorer.locator(".bl-plan caption"), explorer.get_by_role("alert")
    expect(caption).to_contain_text("8 buckets for 21,256 tokens over 2 contexts, at most 512 tokens", timeout=PATIENCE)

    def slider(name: str) -> Locator:
        return explorer.locator(".widget-hslider").filter(has_text=name)

    def press(name: str, key: str, times: int = 1) -> None:
        slider(name).get_by_role("slider").focus()
        for _ in range(times):
            page.keyboard.press(key)

    # A hand on the handle: three steps of the arrow key, a new bound in the picture for each.
    bounds = explorer.locator(".bl-plan svg [stroke-dasharray]")
    expect(bounds).to_have_count(8)
    press("buckets, at most", "ArrowRight", 3)
    expect(bounds).to_have_count(11)
    expect(caption).to_contain_text("11 buckets")
    expect(explorer.locator(".bl-tick")).to_contain_text("11")

    # A number typed beside it.
    number = slider("buckets, at most").locator(".widget-readout")
    number.fill("4")
    number.press("Enter")
    expect(caption).to_contain_text("4 buckets")

    # Contexts bring their workloads; every row of the table is cut anew.
    press("contexts", "ArrowRight")
    expect(slider("work of context 2")).to_be_visible()
    press("work of context 2", "ArrowRight")
    expect(caption).to_contain_text("over 3 contexts")
    longest = explorer.get_by_role("row").filter(has=page.get_by_role("rowheader", name="123", exact=True))
    expect(longest).to_contain_text("1+1+2")
    explorer.scroll_into_view_if_needed()
    page.screenshot(path=screenshots / "explorer.png")

    # Too small a batch is refused in words; the plan stays until there is another.
    press("a batch, at most", "ArrowLeft")
    expect(alert).to_contain_text("the smallest batch for 3 context(s) (workload 1:1:2) is 4 row(s), 4 x 123 = 492")
    expect(caption).to_contain_text("at most 512 tokens")
    press("a batch, at most", "ArrowRight", 2)
    expect(caption).to_contain_text("at most 768 tokens")
    expect(alert).to_have_count(0)

    # The rules of other systems, once they are asked for.
    explorer.get_by_text("The same under other systems' rules").click()
    expect(explorer.locator("tr").filter(has_text="lhotse")).to_be_visible()
    page.evaluate("window.jupyterapp.commands.execute('apputils:change-theme', {theme: 'JupyterLab Dark'})")
    page.wait_for_function("document.body.dataset.jpThemeLight === 'false'")
    page.set_viewport_size({"width": 1500, "height": 1500})
    page.screenshot(path=screenshots / "explorer_dark.png")
