"""The block widget in JupyterLab: by keyboard, and live while a cell is busy."""

import pytest

from minikv.i18n import LANGUAGES
from tests.browser.test_budget_in_lab import ACTIVE_CELL, open_cells

pytestmark = [pytest.mark.browser, pytest.mark.slow]

SETUP = """
from minikv.course.widgets.blocks import BlocksWidget, SequenceBlocks
widget = BlocksWidget({lang!r}, num_blocks=12, block_size=16)
def grow(length):
    widget.add_step([SequenceBlocks("A", tuple(range(-(-length // 16))), length), SequenceBlocks("B", (11, 9), 20)])
"""
FILL = "for length in range(14, 35): grow(length)\ndisplay(widget)"

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


@pytest.mark.parametrize("lang", LANGUAGES)
def test_the_slider_and_play_answer_the_keyboard(lang, lab, watched_page, screenshot):
    watched = watched_page(lab.origin)
    page = watched.page
    open_cells(lab, page, SETUP.format(lang=lang) + FILL, "1 + 1")
    assert lab.run_all(page) == []
    widget = page.locator(".minikv-blocks")
    assert filled(widget)[:3] == [16, 16, 2]

    slider, status = widget.locator("[name=step]"), widget.get_by_role("status")
    slider.focus()
    cell = page.evaluate(ACTIVE_CELL)
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowDown")
    assert filled(widget)[:3] == [16, 16, 0]
    page.keyboard.press("Home")
    assert sum(filled(widget)) == 0
    assert page.evaluate(ACTIVE_CELL) == cell, "an arrow key on a slider belongs to the slider"
    empty = status.inner_text()

    page.keyboard.press("Shift+Tab")
    page.keyboard.press("Enter")
    page.wait_for_function("() => document.querySelector('[name=step]').value >= 2", timeout=30_000)
    page.keyboard.press("Enter")
    assert status.inner_text() != empty
    assert widget.get_by_role("button").get_attribute("aria-pressed") == "false"

    slider.focus()
    page.keyboard.press("End")
    for theme, light in (("JupyterLab Light", "true"), ("JupyterLab Dark", "false")):
        page.evaluate("theme => window.jupyterapp.commands.execute('apputils:change-theme', {theme})", theme)
        page.wait_for_selector(f"body[data-jp-theme-light={light}]", state="attached")
        # JupyterLab takes its splash away by a timer, and trips over it if the theme changes again before that.
        page.wait_for_selector("#jupyterlab-splash", state="detached")
        screenshot(widget, f"blocks_{lang}_{theme.split()[1].lower()}")
    watched.assert_clean()


def test_steps_appear_while_the_cell_runs_and_leave_alone_who_looks_back(lab, watched_page):
    watched = watched_page(lab.origin)
    page = watched.page
    open_cells(lab, page, SETUP.format(lang="en") + "display(widget)", BUSY)
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
    watched.assert_clean()
