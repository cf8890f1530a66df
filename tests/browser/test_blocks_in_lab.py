"""The block widget in JupyterLab: by keyboard, without a kernel's help, and live while a cell is busy."""

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

# The second cell ends when the browser has moved the slider: it draws and it hears while it is busy.
BUSY = """
import threading
moved = threading.Event()
widget.observe(lambda change: moved.set() if change["new"] == 0 else None, "step")
for length in range(1, 6): grow(length)
print("heard" if moved.wait(60) else "silence")
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
        screenshot(widget, f"blocks_{lang}_{theme.split()[1].lower()}")
    watched.assert_clean()


def test_steps_appear_while_the_cell_runs(lab, watched_page):
    watched = watched_page(lab.origin)
    page = watched.page
    open_cells(lab, page, SETUP.format(lang="en") + "display(widget)", BUSY)
    lab.start_all(page)
    page.wait_for_function("() => document.querySelector('[name=step]')?.max === '5'", timeout=60_000)
    slider = page.locator("[name=step]")
    assert slider.input_value() == "5"
    slider.focus()
    page.keyboard.press("Home")
    page.locator(".jp-OutputArea-output", has_text="heard").wait_for(timeout=60_000)
    watched.assert_clean()
