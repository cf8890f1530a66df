"""The segments widget in JupyterLab: its keys are its own, and Python hears where the reader stands."""

import pytest

from minikv.i18n import LANGUAGES
from tests.browser.test_budget_in_lab import ACTIVE_CELL, open_cells

pytestmark = [pytest.mark.browser, pytest.mark.slow]

SETUP = """
from minikv.course.widgets import SegmentsWidget, Step
from minikv.memory import AllocatorSettings
G = 2**30
steps = [Step("malloc", "batch", 6 * G), Step("free", "batch"), Step("malloc", "survivor", G // 32),
         Step("empty_cache"), Step("malloc", "next", 7 * G)]
settings = {{"defaults": AllocatorSettings(), "expandable": AllocatorSettings(expandable_segments=True)}}
widget = SegmentsWidget({lang!r}, steps=steps, capacity=8 * G, settings=settings)
display(widget)"""


@pytest.mark.parametrize("lang", LANGUAGES)
def test_steps_settings_and_blocks_answer_the_keyboard(lang, lab, watched_page, screenshot):
    watched = watched_page(lab.origin)
    page = watched.page
    open_cells(lab, page, SETUP.format(lang=lang), "1 + 1")
    assert lab.run_all(page) == []
    root = page.locator(".minikv-segments")
    said = root.get_by_role("status")

    slider = root.locator("[name=step]")
    slider.focus()
    cell = page.evaluate(ACTIVE_CELL)
    seen = {said.inner_text()}
    for _ in range(5):
        page.keyboard.press("ArrowLeft")
        seen.add(said.inner_text())
    assert len(seen) == 6, "every step says something of its own"
    assert root.locator(".minikv-place").count() == 0
    page.keyboard.press("End")

    root.locator("button[name=back]").focus()
    page.keyboard.press("Enter")
    assert slider.input_value() == "4"
    stuck = root.locator("dd[data-key=reserved]").inner_text()
    root.locator("select[name=setting]").focus()
    page.keyboard.press("e")
    assert root.locator("select[name=setting]").input_value() == "1"
    assert root.locator("dd[data-key=reserved]").inner_text() != stuck
    root.locator(".minikv-place").first.focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowDown")
    assert root.locator(".minikv-detail").inner_text() == root.locator(".minikv-place").last.get_attribute(
        "aria-label"
    )
    assert page.evaluate(ACTIVE_CELL) == cell, "the keys belong to the widget"

    page.keyboard.press("Tab")
    for theme, light in (("JupyterLab Light", "true"), ("JupyterLab Dark", "false")):
        page.evaluate("theme => window.jupyterapp.commands.execute('apputils:change-theme', {theme})", theme)
        page.wait_for_selector(f"body[data-jp-theme-light={light}]", state="attached")
        page.wait_for_selector("#jupyterlab-splash", state="detached")
        screenshot(root, f"segments_{lang}_{theme.split()[1].lower()}")
    watched.assert_clean()
