"""The swap widget's script on a plain page, without JupyterLab: the page of the notebooks' pictures."""

import itertools

import pytest

from minikv.course.widgets import SwapCostWidget
from tests.browser.form import FormOnPage

pytestmark = [pytest.mark.browser, pytest.mark.slow]
STATES = (
    {},
    {"model": "Llama-2-7B", "link": 1},
    {"model": "DeepSeek-V3", "tp": 8, "tokens": 100_000},
    {"link": 0.1, "tokens": 1},
    {"link": 10_000, "share": 0.02},
)


class SwapCostOnPage(FormOnPage):
    """The first swap widget of ``page``."""

    WIDGET_CLASS = "minikv-swap-cost"

    def seconds(self) -> dict[str, float]:
        """Seconds of each part of a bar, by its key."""
        shown = self.root.locator("rect[data-seconds]").evaluate_all(
            "parts => parts.map((part) => [part.dataset.key, Number(part.dataset.seconds)])"
        )
        return dict(shown)

    def widths(self) -> dict[str, float]:
        shown = self.root.locator("rect[data-seconds]").evaluate_all(
            "parts => parts.map((part) => [part.dataset.key, part.width.baseVal.value])"
        )
        return dict(shown)


def open_photo(watched_page, widget: SwapCostWidget, **options):
    watched = watched_page("", **options)
    watched.page.set_content(widget.photo_html())
    return watched, SwapCostOnPage(watched.page)


def test_the_bars_are_as_long_as_the_numbers_say(watched_page, screenshot):
    for state in STATES:
        widget = SwapCostWidget("zh")
        widget.state = state
        parts = {part["key"]: part for bar in widget.view["bars"] for part in bar["parts"]}
        watched, shown = open_photo(watched_page, widget)
        assert shown.seconds() == pytest.approx({key: part["seconds"] for key, part in parts.items()})
        widths = shown.widths()
        longest = max(widths["out"] + widths["in"], widths["again"])
        for key, part in parts.items():
            assert widths[key] == pytest.approx(part["share"] * longest, abs=3)
        watched.assert_clean()
        screenshot(watched.page.locator("#photo"), "swap_cost_photo")


def test_no_words_leave_the_picture_or_touch_each_other(watched_page):
    for state in STATES:
        widget = SwapCostWidget()
        widget.state = state
        watched, shown = open_photo(watched_page, widget)
        boxes = shown.root.locator("svg[role=img] text").evaluate_all(
            "texts => texts.map((t) => { const b = t.getBoundingClientRect();"
            " const s = t.ownerSVGElement.getBoundingClientRect();"
            " return [b.left - s.left, b.top - s.top, b.right - s.left, b.bottom - s.top, s.width, s.height]; })"
        )
        assert len(boxes) >= 4
        for left, top, right, bottom, width, height in boxes:
            assert left >= 0
            assert top >= -1
            assert right <= width
            assert bottom <= height + 1
        for one, other in itertools.combinations(boxes, 2):
            apart = one[2] <= other[0] or other[2] <= one[0] or one[3] <= other[1] or other[3] <= one[1]
            assert apart, (one, other)
        watched.assert_clean()


def test_a_setting_that_cannot_be_is_a_sentence_and_no_bars(watched_page):
    widget = SwapCostWidget()
    widget.state = {"model": "Qwen2.5-0.5B", "tp": 8}
    watched, shown = open_photo(watched_page, widget)
    assert "14" in shown.readout()
    assert shown.seconds() == {}
    assert not shown.root.locator("svg[role=img]").is_visible()
    assert not shown.root.locator("table").is_visible()
    watched.assert_clean()


def test_every_control_has_a_name_and_the_picture_its_words(watched_page):
    watched, shown = open_photo(watched_page, SwapCostWidget())
    names = shown.control_names()
    assert len(names) == 10
    assert all(names)
    assert len(set(names)) == len(names)
    assert shown.control("tokens").get_attribute("aria-valuetext") == "4,096 tokens"
    label = shown.root.get_by_role("img").get_attribute("aria-label")
    assert label.isascii()
    assert "Swap" in label
    watched.assert_clean()


def test_a_slider_is_moved_by_the_arrow_keys_and_a_box_takes_fractions(watched_page):
    watched, shown = open_photo(watched_page, SwapCostWidget())
    slider = shown.control("link")
    slider.focus()
    watched.page.keyboard.press("ArrowRight")
    assert slider.get_attribute("aria-valuetext") == "64 GB/s"
    shown.control("link-exact").fill("12.5")
    assert slider.get_attribute("aria-valuetext") == "12.5 GB/s"
    watched.assert_clean()


def test_a_narrow_page_cuts_nothing_off(watched_page, screenshot):
    watched, _ = open_photo(watched_page, SwapCostWidget())
    watched.page.set_viewport_size({"width": 420, "height": 1300})
    watched.page.add_style_tag(content="#photo { width: auto !important; }")
    screenshot(watched.page, "swap_cost_narrow")
    assert watched.page.evaluate(
        "document.documentElement.scrollWidth <= document.documentElement.clientWidth"
    )
