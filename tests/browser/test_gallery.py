"""The gallery page: every widget, plot and table in both themes and both languages, measured and not compared pixel by
pixel: nothing is wider than its column, taller than a screen, faint, or the same in both themes.
"""

import pytest

from minikv.look import NEUTRAL
from tests.browser.accessibility import faint_words, violations
from tests.browser.conftest import watch
from tests.browser.lab import READY_MS
from tools.gallery import gallery

pytestmark = [pytest.mark.browser, pytest.mark.slow]

WIDE, NARROW, SCREEN = 2400, 1700, 900  # two columns side by side
TALLEST = 720
# [item, theme, how much wider than its column, the height of its widget]
_BOXES = """() => [...document.querySelectorAll(".item")].map((item) => {
  const area = item.querySelector(".jp-OutputArea"), widget = area.querySelector(".minikv-widget");
  return [item.dataset.item, item.dataset.theme, area.scrollWidth - area.clientWidth, widget?.offsetHeight ?? 0];
})"""
_PLOTS_FIT = """() => [...document.querySelectorAll(".js-plotly-plot")]
  .every((one) => one.scrollWidth <= one.clientWidth)"""
_SIDEWAYS = """() => [...document.querySelectorAll(".minikv-widget")]
  .filter((one) => one.scrollWidth > one.clientWidth).map((one) => one.className)"""
_INKS = """([theme, ink]) => [...new Set([...document.querySelectorAll(`.theme-${theme} .js-plotly-plot text`)]
  .filter((one) => one.getAttribute("style")?.includes(ink)).map((one) => getComputedStyle(one).fill))]"""
_GROUNDS = """() => [...new Set([...document.querySelectorAll(".js-plotly-plot .main-svg")]
  .map((one) => getComputedStyle(one).backgroundColor))]"""


@pytest.fixture(scope="module")
def everything(chromium, tmp_path_factory):
    """The page, loaded once: it has all of plotly in it, and a hundred drawings."""
    path = tmp_path_factory.mktemp("gallery") / "gallery.html"
    path.write_text(gallery().page(), encoding="utf-8")
    context = chromium.new_context(viewport={"width": WIDE, "height": SCREEN})
    watched = watch(context.new_page(), "file://")
    watched.page.goto(path.as_uri(), wait_until="commit")
    watched.page.wait_for_function("document.body?.dataset.ready", timeout=READY_MS)
    yield watched
    context.close()


def test_everything_fits_and_can_be_read_in_both_themes_and_both_languages(everything, screenshot):
    page = everything.page
    assert fits(page)
    assert violations(page, "main") == []
    for drawing in page.locator(".minikv-widget").all():
        assert faint_words(drawing) == []
    for theme in ("light", "dark"):
        screenshot(page.locator(f".theme-{theme}"), f"gallery_{theme}")
    page.set_viewport_size({"width": NARROW, "height": SCREEN})
    page.wait_for_function(_PLOTS_FIT)  # plotly draws anew a little later
    assert fits(page)
    everything.assert_clean()


def fits(page):
    assert page.locator(".minikv-widget").evaluate_all("drawn => drawn.every((one) => one.offsetHeight > 0)")
    boxes = page.evaluate(_BOXES)
    assert {theme for _, theme, _, _ in boxes} == {"light", "dark"}
    assert [box for box in boxes if box[2] > 0 and not box[0].startswith("table")] == []
    assert [box for box in boxes if box[3] > TALLEST] == []
    return page.evaluate(_SIDEWAYS) == []


def test_plots_have_the_themes_ink_on_the_themes_ground(everything):
    page = everything.page
    numbers = ", ".join(str(int(NEUTRAL[at : at + 2], 16)) for at in (1, 3, 5))
    inks = {theme: page.evaluate(_INKS, [theme, numbers]) for theme in ("light", "dark")}
    assert inks == {
        theme: [page.locator(f".theme-{theme}").evaluate("one => getComputedStyle(one).color")]
        for theme in ("light", "dark")
    }
    assert inks["light"] != inks["dark"]
    assert page.evaluate(_GROUNDS) == ["rgba(0, 0, 0, 0)"]
    # A change of theme is a change of the page's variables: the plots follow without being drawn again.
    page.evaluate("document.querySelector('.theme-light').className = 'column theme-dark'")
    assert page.evaluate(_INKS, ["dark", numbers]) == inks["dark"]
