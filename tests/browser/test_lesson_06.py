"""Lesson 06 in a real browser, in both languages: it runs, its widget answers the keyboard, all stays local."""

import shutil

import pytest

from minikv.i18n import LANGUAGES
from tests.browser.conftest import REPOSITORY
from tests.browser.growth import GrowthOnPage
from tests.browser.test_budget_in_lab import ACTIVE_CELL

LESSON = "06_the_linear_cache.ipynb"

pytestmark = [pytest.mark.browser, pytest.mark.slow]


@pytest.mark.parametrize("lang", LANGUAGES)
def test_lesson_06_runs_and_its_rows_grow_by_keyboard(lang, lab, watched_page, screenshot):
    # A copy: JupyterLab saves what it runs.
    folder = lab.root / lang
    folder.mkdir()
    shutil.copy(REPOSITORY / "notebooks" / lang / LESSON, folder)
    watched = watched_page(lab.origin)
    page = watched.page

    lab.open_notebook(page, f"{lang}/{LESSON}")
    assert lab.run_all(page) == []

    widget = GrowthOnPage(page)
    widget.root.scroll_into_view_if_needed()
    focused = "document.activeElement.name || document.activeElement.tagName"
    widget.control("step").focus()
    cell, reached = page.evaluate(ACTIVE_CELL), [page.evaluate(focused)]
    while reached[-1] != "BUTTON" and len(reached) < 12:
        page.keyboard.press("Tab")
        reached.append(page.evaluate(focused))
    assert reached == [
        "step", "step-exact", "length", "length-exact", "max_seq", "max_seq-exact", "block_size", "BUTTON",
    ]  # fmt: skip

    # A step: every row of both caches holds a token more, and the linear bytes stay as they were.
    start, linear, paged = widget.readout(), widget.drawn("linear"), widget.drawn("paged")
    bytes_before = widget.figures("measured")
    assert bytes_before == widget.figures("planned")
    widget.press("step")
    assert widget.drawn("linear") == [tokens + 1 for tokens in linear]
    assert widget.drawn("paged") == [tokens + 1 for tokens in paged]
    widget.press("step", "ArrowUp")
    widget.press("step", "ArrowDown")
    assert page.evaluate(ACTIVE_CELL) == cell, "an arrow key on a slider belongs to the slider"
    assert widget.figures("measured")[0] == bytes_before[0]
    screenshot(widget.root, f"lesson_06_{lang}_widget")

    # Row A meets max_seq: the linear cache stops, the paged one takes more blocks.
    old = widget.readout()
    widget.control("step-exact").fill("180")
    assert "256" in widget.wait_for_another_readout(old)
    assert widget.drawn("linear")[0] == 256
    assert widget.drawn("paged")[0] == 280
    assert widget.figures("measured") == widget.figures("planned")
    old = widget.readout()
    widget.control("max_seq-exact").fill("300")
    widget.wait_for_another_readout(old)
    assert widget.drawn("linear") == widget.drawn("paged")
    old = widget.readout()
    widget.control("block_size").select_option(label="64")
    widget.wait_for_another_readout(old)
    assert all(slots % 64 == 0 for slots in widget.drawn("paged", "slots"))
    old = widget.readout()
    widget.root.get_by_role("button").focus()
    page.keyboard.press("Enter")
    assert widget.wait_for_another_readout(old) == start

    for theme, light in (("JupyterLab Light", "true"), ("JupyterLab Dark", "false")):
        page.evaluate("theme => window.jupyterapp.commands.execute('apputils:change-theme', {theme})", theme)
        page.wait_for_selector(f"body[data-jp-theme-light={light}]", state="attached")
        page.wait_for_selector("#jupyterlab-splash", state="detached")  # shown while a theme loads
        widget.control("step").focus()
        screenshot(widget.root, f"growth_{lang}_{theme.split()[1].lower()}")
    watched.assert_clean()
