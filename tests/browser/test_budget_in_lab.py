"""The budget widget alone in JupyterLab: what depends on JupyterLab and not on the lesson around it."""

import nbformat
import pytest

from minikv.i18n import LANGUAGES
from tests.browser.budget import BudgetOnPage

pytestmark = [pytest.mark.browser, pytest.mark.slow]

ACTIVE_CELL = "window.jupyterapp.shell.currentWidget.content.activeCellIndex"

# Busy until the test has turned the knobs; the kernel's folder is the notebook's.
BUSY = """
import pathlib, threading
while not pathlib.Path("knobs_turned").exists():
    threading.Event().wait(0.05)
"""


def open_cells(lab, page, *cells: str) -> None:
    notebook = nbformat.v4.new_notebook(
        cells=[nbformat.v4.new_code_cell(source) for source in cells],
        metadata={"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}},
    )
    nbformat.write(notebook, lab.root / "widget.ipynb")
    lab.open_notebook(page, "widget.ipynb")


def run_cells(lab, page, *cells: str) -> BudgetOnPage:
    open_cells(lab, page, *cells)
    assert lab.run_all(page) == []
    return BudgetOnPage(page)


def show(lang: str) -> str:
    return f"from minikv.course.widgets import BudgetWidget\nwidget = BudgetWidget({lang!r})\ndisplay(widget)"


@pytest.mark.parametrize("lang", LANGUAGES)
def test_every_control_is_reached_and_used_by_keyboard(lang, lab, watched_page, screenshot):
    watched = watched_page(lab.origin)
    page = watched.page
    widget = run_cells(lab, page, show(lang), "1 + 1")
    focused = "document.activeElement.name || document.activeElement.tagName"

    widget.control("model").focus()
    reached = [page.evaluate(focused)]
    while reached[-1] != "BUTTON" and len(reached) < 20:
        page.keyboard.press("Tab")
        reached.append(page.evaluate(focused))
    assert reached == [
        "model", "gpu", "tp", "kv_dtype", "context", "context-exact", "batch", "batch-exact",
        "utilization", "utilization-exact", "BUTTON",
    ]  # fmt: skip

    first = widget.readout()
    cell = page.evaluate(ACTIVE_CELL)
    for slider in ("context", "batch", "utilization"):
        widget.press(slider)
    widget.press("context", "ArrowDown")
    assert page.evaluate(ACTIVE_CELL) == cell, "an arrow key on a slider belongs to the slider"

    # An exact number that no stop of the slider has; then back to the start.
    old = widget.readout()
    widget.control("context-exact").fill("5000")
    assert "5,000" in widget.wait_for_another_readout(old)
    old = widget.readout()
    widget.root.get_by_role("button").focus()
    page.keyboard.press("Enter")
    assert widget.wait_for_another_readout(old) == first

    for theme, light in (("JupyterLab Light", "true"), ("JupyterLab Dark", "false")):
        page.evaluate("theme => window.jupyterapp.commands.execute('apputils:change-theme', {theme})", theme)
        page.wait_for_selector(f"body[data-jp-theme-light={light}]", state="attached")
        page.wait_for_selector("#jupyterlab-splash", state="detached")  # shown while a theme loads
        widget.control("context").focus()
        screenshot(widget.root, f"budget_{lang}_{theme.split()[1].lower()}")
    watched.assert_clean()


def test_a_choice_that_cannot_work_is_a_sentence_and_the_next_choice_works(lab, watched_page, screenshot):
    watched = watched_page(lab.origin)
    widget = run_cells(lab, watched.page, show("zh"))
    first, bar = widget.readout(), widget.bar()

    widget.control("context-exact").fill("9000000")
    refusal = widget.wait_for_another_readout(first)
    assert "9,000,000" in refusal
    assert widget.bar() == {}
    screenshot(widget.root, "budget_zh_refused")

    widget.control("context-exact").fill("4096")
    assert widget.wait_for_another_readout(refusal) == first
    assert widget.bar() == bar
    watched.assert_clean()


def test_what_is_turned_while_a_cell_is_busy_is_answered_and_the_last_turn_stands(lab, watched_page):
    """Whether the kernel answers at once, from another thread, or when the cell ends, depends on ipykernel."""
    watched = watched_page(lab.origin)
    page = watched.page
    open_cells(lab, page, show("en"), BUSY)
    lab.start_all(page)
    widget = BudgetOnPage(page)
    widget.root.wait_for(timeout=60_000)
    widget.control("batch").focus()
    for _ in range(4):  # 1, 2, 3, 4, 6
        page.keyboard.press("ArrowRight")
    (lab.root / "knobs_turned").touch()
    page.wait_for_function("window.allCellsRan", timeout=60_000)
    page.wait_for_function(
        "readout => readout.textContent.startsWith('6 x 4,096 tokens')",
        arg=widget.root.get_by_role("status").element_handle(),
    )
    assert widget.control("batch-exact").input_value() == "6"
    watched.assert_clean()
