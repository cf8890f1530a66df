"""The roofline widget's script on a plain page, without JupyterLab: the page of the notebooks' pictures."""

import itertools

import pytest

from minikv.course.widgets import RooflineWidget
from minikv.plan.roofline import Roof
from tests.browser.roofline import RooflineOnPage

pytestmark = [pytest.mark.browser, pytest.mark.slow]
STATES = (
    {},
    {"batch": 64, "context": 32768},
    {"model": "DeepSeek-V3", "batch": 4096, "context": 1},
    {"model": "Llama-2-7B", "gpu": "slow"},
    {"model": "gpt-oss-20b", "batch": 4096, "gpu": "T4"},
)


def open_photo(watched_page, widget: RooflineWidget, **options):
    watched = watched_page("", **options)
    watched.page.set_content(widget.photo_html())
    return watched, RooflineOnPage(watched.page)


def test_the_marks_stand_on_the_roof_where_the_numbers_say(watched_page, screenshot):
    for state in STATES:
        widget = RooflineWidget("zh", measured=Roof("slow", 20, 0.05))
        widget.state = state
        plot = widget.view["plot"]
        watched, shown = open_photo(watched_page, widget)
        assert shown.marks() == pytest.approx({mark["key"]: mark["value"] for mark in plot["marks"]})
        assert shown.ridge() == pytest.approx(plot["ridge"]["value"])
        points = shown.root.locator("polyline.minikv-roof").evaluate(
            "line => [...line.points].map((p) => [p.x, p.y])"
        )
        circles = shown.root.locator("g.minikv-on-roof circle").evaluate_all(
            "circles => circles.map((c) => [c.cx.baseVal.value, c.cy.baseVal.value])"
        )
        assert len(circles) == 3
        (left, low), (corner, top), (right, level) = points
        assert top == level
        for x, y in circles:
            assert left <= x <= right
            on_slope = low + (top - low) * (x - left) / (corner - left)
            assert y == pytest.approx(max(top, on_slope), abs=0.5)
        watched.assert_clean()
        screenshot(watched.page.locator("#photo"), "roofline_photo")


def test_no_words_leave_the_picture_or_touch_each_other(watched_page):
    for state in STATES:
        widget = RooflineWidget(measured=Roof("slow", 20, 0.05))
        widget.state = state
        watched, shown = open_photo(watched_page, widget)
        boxes = shown.root.locator("svg[role=img] text").evaluate_all(
            "texts => texts.map((t) => { const b = t.getBoundingClientRect();"
            " const s = t.ownerSVGElement.getBoundingClientRect();"
            " return [b.left - s.left, b.top - s.top, b.right - s.left, b.bottom - s.top, s.width, s.height]; })"
        )
        assert len(boxes) > 12
        for left, top, right, bottom, width, height in boxes:
            assert left >= 0
            assert top >= -1
            assert right <= width
            assert bottom <= height + 1
        for one, other in itertools.combinations(boxes, 2):
            apart = (
                one[2] <= other[0] or other[2] <= one[0] or one[3] <= other[1] + 4 or other[3] <= one[1] + 4
            )
            assert apart, (one, other)
        watched.assert_clean()


def test_a_setting_that_cannot_be_is_a_sentence_and_no_plot(watched_page):
    widget = RooflineWidget()
    widget.state = {"model": "Jamba-v0.1"}
    watched, shown = open_photo(watched_page, widget)
    assert "linear" in shown.readout()
    assert shown.marks() == {}
    assert not shown.root.locator("svg[role=img]").is_visible()
    assert not shown.root.locator("table").is_visible()
    watched.assert_clean()


def test_every_control_has_a_name_and_the_picture_its_words(watched_page):
    watched, shown = open_photo(watched_page, RooflineWidget())
    names = shown.control_names()
    assert len(names) == 8
    assert all(names)
    assert len(set(names)) == len(names)
    assert shown.control("batch").get_attribute("aria-valuetext") == "1 sequences"
    label = shown.root.get_by_role("img").get_attribute("aria-label")
    assert label.isascii()
    assert "Memory-bound" in label
    watched.assert_clean()


def test_a_slider_is_moved_by_the_arrow_keys(watched_page):
    watched, shown = open_photo(watched_page, RooflineWidget())
    slider = shown.control("batch")
    slider.focus()
    watched.page.keyboard.press("ArrowRight")
    assert slider.get_attribute("aria-valuetext") == "2 sequences"
    assert shown.control("batch-exact").input_value() == "2"
    watched.assert_clean()


def test_a_narrow_page_cuts_nothing_off(watched_page, screenshot):
    watched, _ = open_photo(watched_page, RooflineWidget(batch=32))
    watched.page.set_viewport_size({"width": 420, "height": 1300})
    watched.page.add_style_tag(content="#photo { width: auto !important; }")
    screenshot(watched.page, "roofline_narrow")
    assert watched.page.evaluate(
        "document.documentElement.scrollWidth <= document.documentElement.clientWidth"
    )
