"""The growth widget's script on a plain page, without JupyterLab: the page of the notebooks' pictures."""

import pytest

from minikv.course.widgets import GrowthWidget
from tests.browser.growth import GrowthOnPage

pytestmark = [pytest.mark.browser, pytest.mark.slow]


def open_photo(watched_page, widget: GrowthWidget, **options):
    watched = watched_page("", **options)
    watched.page.set_content(widget.photo_html())
    return watched, GrowthOnPage(watched.page)


def test_the_drawing_is_to_scale_and_says_the_rows(watched_page, screenshot):
    for state in ({"step": 50}, {"step": 200}, {"length": 1, "max_seq": 1024, "block_size": 128}):
        widget = GrowthWidget("zh", **state)
        watched, shown = open_photo(watched_page, widget)
        rows, scale = widget.view["rows"], widget.view["scale"]
        assert shown.drawn("linear") == [row["linear"]["filled"] for row in rows]
        assert shown.drawn("paged") == [sum(row["paged"]["filled"]) for row in rows]
        assert shown.drawn("paged", "slots") == [row["paged"]["slots"] for row in rows]
        for cache in ("linear", "paged"):
            rooms = shown.root.locator(f'g[data-cache="{cache}"]').evaluate_all(
                "groups => groups.map((g) => [...g.querySelectorAll('.minikv-room')]"
                ".reduce((sum, room) => sum + room.width.baseVal.value, 0))"
            )
            assert rooms == pytest.approx(
                [336 * slots / scale for slots in shown.drawn(cache, "slots")], abs=0.1
            )
        box = shown.root.locator("svg[role=img]").evaluate("svg => svg.getBBox().x + svg.getBBox().width")
        assert box <= 720, "nothing is drawn outside the picture"
        assert widget.view["aria"] == shown.root.get_by_role("img").get_attribute("aria-label")
        watched.assert_clean()
    screenshot(watched.page.locator("#photo"), "growth_photo")


def test_every_control_has_a_name(watched_page):
    watched, shown = open_photo(watched_page, GrowthWidget())
    names = shown.control_names()
    assert len(names) == 8
    assert all(names)
    assert len(set(names)) == len(names)
    assert shown.control("step").get_attribute("aria-valuetext") == "0 steps"
    watched.assert_clean()


def test_a_narrow_page_cuts_nothing_off(watched_page, screenshot):
    watched, _ = open_photo(watched_page, GrowthWidget(step=200))
    watched.page.set_viewport_size({"width": 420, "height": 1200})
    watched.page.add_style_tag(content="#photo { width: auto !important; }")
    screenshot(watched.page, "growth_narrow")
    assert watched.page.evaluate(
        "document.documentElement.scrollWidth <= document.documentElement.clientWidth"
    )
