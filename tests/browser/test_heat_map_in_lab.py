"""The heat-map widget in JupyterLab: a policy and a share by keyboard, with the model behind it, in both themes."""

import pytest

from minikv.course.widgets import HeatMapWidget
from minikv.i18n import LANGUAGES
from tests.browser.heat_map import HeatMapOnPage
from tests.browser.test_budget_in_lab import ACTIVE_CELL, open_cells

pytestmark = [pytest.mark.browser, pytest.mark.slow]

SETUP = """
from minikv.course.widgets import HeatMapWidget
widget = HeatMapWidget({lang!r})
display(widget)"""


@pytest.mark.parametrize("lang", LANGUAGES)
def test_a_policy_and_a_share_are_computed_by_python(lang, lab, watched_page, screenshot):
    here = HeatMapWidget(lang)
    watched = watched_page(lab.origin)
    page = watched.page
    open_cells(lab, page, SETUP.format(lang=lang), "1 + 1")
    assert lab.run_all(page) == []
    shown = HeatMapOnPage(page)
    assert shown.readout() == here.view["maps"]["1"]["all"]["status"][-1]
    shown.control("share").focus()
    cell = page.evaluate(ACTIVE_CELL)

    for key, press in (("share", "ArrowDown"), ("policy", "ArrowDown")):
        old = shown.readout()
        shown.control(key).focus()
        page.keyboard.press(press)
        shown.wait_for_another_readout(old)
        offered = [value for value, _ in next(f for f in here.form["fields"] if f["key"] == key)["options"]]
        here.state = {key: offered[offered.index(here.state[key]) + 1]}
        rows = here.view["maps"]["1"]["all"]
        assert shown.readout() == rows["status"][-1]
        assert shown.strip() == rows["roles"][-1]

    shown.control("step").focus()
    page.keyboard.press("ArrowLeft")
    assert shown.readout() == here.view["maps"]["1"]["all"]["status"][-2]
    shown.root.locator(".minikv-place").first.focus()
    page.keyboard.press("End")
    assert shown.root.locator(".minikv-place").last.get_attribute("aria-selected") == "true"
    assert page.evaluate(ACTIVE_CELL) == cell, "the keys belong to the widget"
    fills = set()
    for theme, light in (("JupyterLab Light", "true"), ("JupyterLab Dark", "false")):
        page.evaluate("theme => window.jupyterapp.commands.execute('apputils:change-theme', {theme})", theme)
        page.wait_for_selector(f"body[data-jp-theme-light={light}]", state="attached")
        page.wait_for_selector("#jupyterlab-splash", state="detached")
        screenshot(shown.root, f"heat_map_lab_{lang}_{theme.split()[1].lower()}")
        fills.add(shown.root.locator(".minikv-shade-0").first.evaluate("one => getComputedStyle(one).fill"))
    assert len(fills) == 2, "the lowest score is near the page in both themes"
    watched.assert_clean()
