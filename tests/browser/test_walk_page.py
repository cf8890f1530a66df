"""The walk widget's script on a plain page, without JupyterLab: the page of the notebooks' pictures."""

import pytest

from minikv.course.widgets import WalkWidget
from tests.browser.walk import WalkOnPage

pytestmark = [pytest.mark.browser, pytest.mark.slow]


def open_photo(watched_page, widget: WalkWidget, **options):
    watched = watched_page("", **options)
    watched.page.set_content(widget.photo_html())
    return watched, WalkOnPage(watched.page)


def test_the_drawing_says_what_is_read_now(watched_page, screenshot):
    for state in (
        {"splits": 3, "step": 2},
        {"length": 96, "block_size": 4, "window": 40, "step": 3},
        {"step": 0},
    ):
        widget = WalkWidget("zh", **state)
        watched, shown = open_photo(watched_page, widget)
        tiles = widget.view["tiles"]
        assert shown.tiles() == [[tile["letter"], tile["state"]] for tile in tiles]
        held = {tile["block"]: tile["state"] for tile in tiles if tile["state"] != "behind"}
        assert shown.blocks() == held
        arrows = shown.root.locator("path.minikv-walk-arrow").count()
        assert arrows == sum(tile["state"] == "now" for tile in tiles)
        box = shown.root.locator("svg[role=img]").evaluate("svg => svg.getBBox().x + svg.getBBox().width")
        assert box <= 720, "nothing is drawn outside the picture"
        assert not shown.root.get_by_role("img").get_attribute("aria-label").isascii()
        watched.assert_clean()
    screenshot(watched.page.locator("#photo"), "walk_photo")


def test_every_control_has_a_name(watched_page):
    watched, shown = open_photo(watched_page, WalkWidget())
    names = shown.control_names()
    assert len(names) == 9
    assert all(names)
    assert len(set(names)) == len(names)
    assert shown.control("step").get_attribute("aria-valuetext") == "step 1"
    watched.assert_clean()


def test_a_narrow_page_cuts_nothing_off(watched_page, screenshot):
    watched, _ = open_photo(watched_page, WalkWidget(splits=6))
    watched.page.set_viewport_size({"width": 420, "height": 1200})
    watched.page.add_style_tag(content="#photo { width: auto !important; }")
    screenshot(watched.page, "walk_narrow")
    assert watched.page.evaluate(
        "document.documentElement.scrollWidth <= document.documentElement.clientWidth"
    )
