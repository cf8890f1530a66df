"""The block widget in JupyterLab: live while a cell is busy."""

import pytest

pytestmark = [pytest.mark.browser, pytest.mark.slow]

SETUP = """
from minikv.course.widgets.blocks import BlocksWidget, SequenceBlocks
widget = BlocksWidget({lang!r}, num_blocks=12, block_size=16)
def grow(length):
    widget.add_step([SequenceBlocks("A", tuple(range(-(-length // 16))), length), SequenceBlocks("B", (11, 9), 20)])
"""

# Adds steps, waits until the reader has looked back, adds more; the kernel's folder is the notebook's.
BUSY = """
import pathlib, threading
for length in range(1, 6): grow(length)
while not pathlib.Path("looked_back").exists():
    threading.Event().wait(0.05)
for length in range(6, 11): grow(length)
"""


def filled(widget) -> list[int]:
    return widget.locator("g.minikv-block").evaluate_all(
        "all => all.map((one) => Number(one.dataset.filled))"
    )


def test_steps_appear_while_the_cell_runs_and_leave_alone_who_looks_back(lab, readers_page):
    page = readers_page.page
    lab.open_cells(page, SETUP.format(lang="en") + "display(widget)", BUSY)
    lab.start_all(page)
    page.wait_for_function("() => document.querySelector('[name=step]')?.max === '5'", timeout=60_000)
    slider = page.locator("[name=step]")
    assert slider.input_value() == "5", "who does not touch it sees the latest step"
    slider.focus()
    page.keyboard.press("Home")
    (lab.root / "looked_back").touch()
    page.wait_for_function("() => document.querySelector('[name=step]').max === '10'", timeout=60_000)
    page.wait_for_function("window.allCellsRan", timeout=60_000)
    assert slider.input_value() == "0"
    page.keyboard.press("End")
    assert filled(page.locator(".minikv-blocks"))[0] == 10
    readers_page.assert_clean()
