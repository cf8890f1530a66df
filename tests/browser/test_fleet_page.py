"""The fleet widget's script on a plain page, without JupyterLab: the page of the notebooks' pictures."""

import itertools

import pytest

from minikv.course.widgets import FleetWidget
from minikv.engine.simulate import Load
from tests.browser.form import FormOnPage

pytestmark = [pytest.mark.browser, pytest.mark.slow]
TRACE = Load(
    60, 4.0, prompt_tokens=400, output_tokens=30, turns=3, think_seconds=5, system_tokens=4096
).trace()
STATES = (
    {},
    {"replicas": 1, "load": 2.0},
    {"replicas": 16},
    {"gpu": "H100 SXM 80GB", "replicas": 1, "load": 2.0},
    {"gpu": "H100 SXM 80GB", "host_gib": 64},
)


class FleetOnPage(FormOnPage):
    """The first fleet widget of ``page``."""

    WIDGET_CLASS = "minikv-fleet"

    def shares(self) -> dict[str, float]:
        """The share that each part of the bar stands for, by its key."""
        shown = self.root.locator("rect[data-share]").evaluate_all(
            "parts => parts.map((part) => [part.dataset.key, Number(part.dataset.share)])"
        )
        return dict(shown)

    def widths(self) -> dict[str, float]:
        shown = self.root.locator("rect[data-share]").evaluate_all(
            "parts => parts.map((part) => [part.dataset.key, part.width.baseVal.value])"
        )
        return dict(shown)

    def marks(self) -> dict[str, float]:
        """Seconds of each percentile that is marked."""
        shown = self.root.locator(".minikv-percentile").evaluate_all(
            "marks => marks.map((mark) => [mark.dataset.key, Number(mark.dataset.value)])"
        )
        return dict(shown)


def open_photo(watched_page, widget: FleetWidget, **options):
    watched = watched_page("", **options)
    watched.page.set_content(widget.photo_html())
    return watched, FleetOnPage(watched.page)


def test_the_bar_and_the_marks_are_what_python_says(watched_page, screenshot):
    widget = FleetWidget("zh", TRACE)
    for number, state in enumerate(STATES):
        widget.state = {**widget.form["defaults"], **state}
        watched, shown = open_photo(watched_page, widget)
        parts = {part["key"]: part["share"] for part in widget.view["bar"]["parts"]}
        assert shown.shares() == pytest.approx(parts)
        widths = shown.widths()
        total = sum(widths.values())
        assert widths == pytest.approx({key: share * total for key, share in parts.items()}, abs=0.5)
        assert shown.marks() == pytest.approx(
            {mark["key"]: mark["value"] for mark in widget.view["plot"]["marks"]}
        )
        watched.assert_clean()
        screenshot(watched.page.locator("#photo"), f"fleet_photo_{number}")


def test_no_words_leave_the_picture_or_touch_each_other(watched_page):
    widget = FleetWidget("en", TRACE)
    for state in STATES:
        widget.state = {**widget.form["defaults"], **state}
        watched, shown = open_photo(watched_page, widget)
        boxes = shown.root.locator("svg[role=img] text").evaluate_all(
            "texts => texts.map((t) => { const b = t.getBoundingClientRect();"
            " const s = t.ownerSVGElement.getBoundingClientRect();"
            " return [b.left - s.left, b.top - s.top, b.right - s.left, b.bottom - s.top, s.width, s.height]; })"
        )
        assert len(boxes) >= 12
        for left, top, right, bottom, width, height in boxes:
            assert left >= -1
            assert top >= -1
            assert right <= width + 1
            assert bottom <= height + 1
        for one, other in itertools.combinations(boxes, 2):
            apart = (
                one[2] <= other[0] or other[2] <= one[0] or one[3] <= other[1] + 3 or other[3] <= one[1] + 3
            )
            assert apart, (state, one, other)
        watched.assert_clean()


def test_a_setting_that_cannot_be_is_a_sentence_and_no_picture(watched_page):
    widget = FleetWidget("en", TRACE)
    widget.state = {"gpu": "RTX 4090"}
    watched, shown = open_photo(watched_page, widget)
    assert "Llama-3.1-70B" in shown.readout()
    assert shown.shares() == {}
    assert not shown.root.locator("svg[role=img]").is_visible()
    assert not shown.root.locator("table").is_visible()
    watched.assert_clean()


def test_every_control_has_a_name_and_the_picture_its_words(watched_page):
    watched, shown = open_photo(watched_page, FleetWidget("en", TRACE))
    names = shown.control_names()
    assert len(names) == 6
    assert all(names)
    assert len(set(names)) == len(names)
    label = shown.root.get_by_role("img").get_attribute("aria-label")
    assert label.isascii()
    assert "p99" in label
    watched.assert_clean()


def test_a_list_is_changed_by_the_arrow_keys(watched_page):
    """The page of a picture has no kernel: what the reader chose stays chosen, and nothing breaks."""
    watched, shown = open_photo(watched_page, FleetWidget("en", TRACE))
    replicas = shown.control("replicas")
    replicas.focus()
    before = replicas.input_value()
    watched.page.keyboard.press("ArrowDown")
    assert int(replicas.input_value()) == int(before) + 1
    watched.assert_clean()


def test_a_narrow_page_cuts_nothing_off(watched_page, screenshot):
    watched, _ = open_photo(watched_page, FleetWidget("en", TRACE))
    watched.page.set_viewport_size({"width": 420, "height": 1300})
    watched.page.add_style_tag(content="#photo { width: auto !important; }")
    screenshot(watched.page, "fleet_narrow")
    assert watched.page.evaluate(
        "document.documentElement.scrollWidth <= document.documentElement.clientWidth"
    )
