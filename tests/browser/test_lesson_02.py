"""Lesson 02 in a real browser: its widget answers the keyboard, all stays local."""

import nbformat
import pytest

from tests.browser.budget import BudgetOnPage
from tests.browser.conftest import REPOSITORY
from tests.browser.languages import one_language
from tests.browser.slices import widget_cells
from tools.changes import lesson_changed

LESSON = "02_how_many_bytes.ipynb"

pytestmark = [pytest.mark.browser, pytest.mark.slow]


@pytest.mark.parametrize("lang", one_language("en", changed=lesson_changed("02_how_many_bytes")))
def test_the_slider_of_lesson_02_answers_the_keyboard(lang, lab, readers_page, screenshot):
    lesson = nbformat.read(REPOSITORY / "notebooks" / lang / LESSON, as_version=4)
    page = readers_page.page
    lab.open_copy(page, lesson, f"02_{lang}")
    assert lab.run_cells(page, widget_cells(lesson)) == []

    widget = BudgetOnPage(page)
    widget.root.scroll_into_view_if_needed()
    bar, context = widget.bar(), int(widget.control("context-exact").input_value())
    widget.press("context")
    longer = int(widget.control("context-exact").input_value())
    assert longer > context
    assert f"{longer:,}" in widget.readout()
    after = widget.bar()
    assert after["kv_used"] > bar["kv_used"]
    assert sum(after.values()) == sum(bar.values()), "the GPU did not grow"

    screenshot(page, f"lesson_02_{lang}")
    screenshot(widget.root, f"lesson_02_{lang}_widget")
    readers_page.assert_clean()
