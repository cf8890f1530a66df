"""The budget widget in JupyterLab while a cell is busy."""

import pytest

from tests.browser.budget import BudgetOnPage

pytestmark = [pytest.mark.browser, pytest.mark.slow]

SHOW = "from minikv.course.widgets import BudgetWidget\nwidget = BudgetWidget()\ndisplay(widget)"
# Busy until the test has turned the knobs; the kernel's folder is the notebook's.
BUSY = """
import pathlib, threading
while not pathlib.Path("knobs_turned").exists():
    threading.Event().wait(0.05)
"""


def test_what_is_turned_while_a_cell_is_busy_is_answered_and_the_last_turn_stands(lab, readers_page):
    """Whether the kernel answers at once, from another thread, or when the cell ends, depends on ipykernel."""
    page = readers_page.page
    lab.open_cells(page, SHOW, BUSY)
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
    readers_page.assert_clean()
