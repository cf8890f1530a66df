"""The scripts of the widgets that plan, each on a plain page without JupyterLab: the page of the notebooks' pictures.

What they share is one test with a row for each widget; what each draws has a test of its own.
"""

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from minikv.course.widgets import FleetWidget, GrowthWidget, RooflineWidget, SwapCostWidget, WalkWidget
from minikv.plan.roofline import Roof
from minikv.simulate import Load
from tests.browser.form import FormOnPage
from tests.browser.growth import GrowthOnPage

pytestmark = [pytest.mark.browser, pytest.mark.slow]

TRACE = Load(
    60, 4.0, prompt_tokens=400, output_tokens=30, turns=3, think_seconds=5, system_tokens=4096
).trace()


class RooflineOnPage(FormOnPage):
    """The first roofline widget of ``page``."""

    WIDGET_CLASS = "minikv-roofline"

    def values(self) -> dict[str, float]:
        """FLOP per byte of each mark on the roof, by its key."""
        return _pairs(self, "g.minikv-on-roof", "[one.dataset.key, Number(one.dataset.value)]")

    def ridge(self) -> float:
        """The ridge point that is drawn, FLOP per byte."""
        return float(self.root.locator(".minikv-ridge").get_attribute("data-value"))


class SwapCostOnPage(FormOnPage):
    """The first swap widget of ``page``."""

    WIDGET_CLASS = "minikv-swap-cost"

    def values(self) -> dict[str, float]:
        """Seconds of each part of a bar, by its key."""
        return _pairs(self, "rect[data-seconds]", "[one.dataset.key, Number(one.dataset.seconds)]")

    def widths(self) -> dict[str, float]:
        return _pairs(self, "rect[data-seconds]", "[one.dataset.key, one.width.baseVal.value]")


class FleetOnPage(FormOnPage):
    """The first fleet widget of ``page``."""

    WIDGET_CLASS = "minikv-fleet"

    def values(self) -> dict[str, float]:
        """The share that each part of the bar stands for, by its key."""
        return _pairs(self, "rect[data-share]", "[one.dataset.key, Number(one.dataset.share)]")

    def widths(self) -> dict[str, float]:
        return _pairs(self, "rect[data-share]", "[one.dataset.key, one.width.baseVal.value]")

    def marks(self) -> dict[str, float]:
        """Seconds of each percentile that is marked."""
        return _pairs(self, ".minikv-percentile", "[one.dataset.key, Number(one.dataset.value)]")


class WalkOnPage(FormOnPage):
    """The first walk widget of ``page``."""

    WIDGET_CLASS = "minikv-walk"

    def tiles(self) -> list[list[str]]:
        """The letter and the state of each tile, as drawn."""
        return self.root.locator("g[data-entry]").evaluate_all(
            "tiles => tiles.map((tile) => [tile.textContent, tile.dataset.state])"
        )

    def blocks(self) -> dict[int, str]:
        """The state of each block of the pool that this sequence holds."""
        drawn = _pairs(self, "g[data-block]", "[Number(one.dataset.block), one.dataset.state]")
        return {block: state for block, state in drawn.items() if state != "foreign"}


def _pairs(shown: FormOnPage, selector: str, pair: str) -> dict[Any, Any]:
    """A dictionary of the pair that a JavaScript expression makes of each element ``one``."""
    return dict(shown.root.locator(selector).evaluate_all(f"all => all.map((one) => {pair})"))


@dataclass(frozen=True)
class Form:
    """A widget on a page: how it is made, and what the tests expect of it.

    ``gap`` is how far the boxes of two words may overlap, in pixels; a box is higher than its letters.
    """

    on_page: type[FormOnPage]
    make: Callable[[str], Any]
    controls: int
    said: tuple[str, str] | None = None  # a slider, and what a screen reader says of its value
    states: tuple[dict[str, Any], ...] = ()
    words: int = 0  # at least so many in the picture
    gap: int = 0
    label: str = ""  # a word of the picture's name
    refused: dict[str, Any] = field(default_factory=dict)
    refusal: str = ""
    narrow: dict[str, Any] = field(default_factory=dict)


FORMS = {
    "fleet": Form(
        FleetOnPage,
        lambda lang: FleetWidget(lang, TRACE),
        controls=6,
        states=(
            {},
            {"replicas": 1, "load": 2.0},
            {"replicas": 16},
            {"gpu": "H100 SXM 80GB", "replicas": 1, "load": 2.0},
            {"gpu": "H100 SXM 80GB", "host_gib": 64},
        ),
        words=12,
        gap=3,
        label="p99",
        refused={"gpu": "RTX 4090"},
        refusal="Llama-3.1-70B",
    ),
    "growth": Form(GrowthOnPage, GrowthWidget, 8, ("step", "0 steps"), narrow={"step": 200}),
    "roofline": Form(
        RooflineOnPage,
        lambda lang: RooflineWidget(lang, measured=Roof("slow", 20, 0.05)),
        controls=8,
        said=("batch", "1 sequences"),
        states=(
            {},
            {"batch": 64, "context": 32768},
            {"model": "DeepSeek-V3", "batch": 4096, "context": 1},
            {"model": "Llama-2-7B", "gpu": "slow"},
            {"model": "gpt-oss-20b", "batch": 4096, "gpu": "T4"},
        ),
        words=13,
        gap=4,
        label="Memory-bound",
        refused={"model": "Jamba-v0.1"},
        refusal="linear",
        narrow={"batch": 32},
    ),
    "swap_cost": Form(
        SwapCostOnPage,
        SwapCostWidget,
        controls=10,
        said=("tokens", "4,096 tokens"),
        states=(
            {},
            {"model": "Llama-2-7B", "link": 1},
            {"model": "DeepSeek-V3", "tp": 8, "tokens": 100_000},
            {"link": 0.1, "tokens": 1},
            {"link": 10_000, "share": 0.02},
        ),
        words=4,
        label="Swap",
        refused={"model": "Qwen2.5-0.5B", "tp": 8},
        refusal="14",
    ),
    "walk": Form(WalkOnPage, WalkWidget, 9, ("step", "step 1"), narrow={"splits": 6}),
}
DRAWN = [name for name, form in FORMS.items() if form.states]


@pytest.fixture
def open_form(watched_page):
    """``open_form(name, lang, state)``: a new page with that widget; also the widget itself."""

    def opened(name: str, lang: str = "en", state: dict[str, Any] | None = None):
        widget = FORMS[name].make(lang)
        widget.state = {**widget.state, **(state or {})}
        watched = watched_page("")
        watched.page.set_content(widget.photo_html())
        return watched, FORMS[name].on_page(watched.page), widget

    return opened


@pytest.mark.parametrize("name", FORMS)
def test_every_control_has_a_name_and_the_picture_its_words(name, open_form):
    form = FORMS[name]
    watched, shown, _ = open_form(name)
    names = shown.control_names()
    assert len(names) == form.controls
    assert all(names)
    assert len(set(names)) == len(names)
    if form.said:
        slider, said = form.said
        assert shown.control(slider).get_attribute("aria-valuetext") == said
    label = shown.root.get_by_role("img").get_attribute("aria-label")
    assert label.isascii()
    assert form.label in label
    watched.assert_clean()


@pytest.mark.parametrize("name", FORMS)
def test_a_narrow_page_cuts_nothing_off(name, open_form, screenshot):
    watched, _, _ = open_form(name, state=FORMS[name].narrow)
    watched.page.set_viewport_size({"width": 420, "height": 1300})
    watched.page.add_style_tag(content="#photo { width: auto !important; }")
    screenshot(watched.page, f"{name}_narrow")
    assert watched.page.evaluate(
        "document.documentElement.scrollWidth <= document.documentElement.clientWidth"
    )


@pytest.mark.parametrize("name", DRAWN)
def test_no_words_leave_the_picture_or_touch_each_other(name, open_form):
    form = FORMS[name]
    for state in form.states:
        watched, shown, _ = open_form(name, state=state)
        boxes = shown.root.locator("svg[role=img] text").evaluate_all(
            "texts => texts.map((t) => { const b = t.getBoundingClientRect();"
            " const s = t.ownerSVGElement.getBoundingClientRect();"
            " return [b.left - s.left, b.top - s.top, b.right - s.left, b.bottom - s.top, s.width, s.height]; })"
        )
        assert len(boxes) >= form.words
        edge = 1 if name == "fleet" else 0
        for left, top, right, bottom, width, height in boxes:
            assert left >= -edge
            assert top >= -1
            assert right <= width + edge
            assert bottom <= height + 1
        for one, other in itertools.combinations(boxes, 2):
            beside = one[2] <= other[0] or other[2] <= one[0]
            assert beside or one[3] <= other[1] + form.gap or other[3] <= one[1] + form.gap, (
                state,
                one,
                other,
            )
        watched.assert_clean()


@pytest.mark.parametrize("name", DRAWN)
def test_a_setting_that_cannot_be_is_a_sentence_and_no_picture(name, open_form):
    form = FORMS[name]
    watched, shown, _ = open_form(name, state=form.refused)
    assert form.refusal in shown.readout()
    assert shown.values() == {}
    assert not shown.root.locator("svg[role=img]").is_visible()
    assert not shown.root.locator("table").is_visible()
    watched.assert_clean()


@pytest.mark.parametrize(
    ("name", "slider", "turned", "exact"),
    [("roofline", "batch", "2 sequences", "2"), ("swap_cost", "link", "64 GB/s", "64")],
)
def test_a_slider_is_moved_by_the_arrow_keys(name, slider, turned, exact, open_form):
    watched, shown, _ = open_form(name)
    shown.control(slider).focus()
    watched.page.keyboard.press("ArrowRight")
    assert shown.control(slider).get_attribute("aria-valuetext") == turned
    assert shown.control(f"{slider}-exact").input_value() == exact
    watched.assert_clean()


def test_a_box_takes_fractions(open_form):
    watched, shown, _ = open_form("swap_cost")
    shown.control("link-exact").fill("12.5")
    assert shown.control("link").get_attribute("aria-valuetext") == "12.5 GB/s"
    watched.assert_clean()


def test_a_list_is_changed_by_the_arrow_keys(open_form):
    """The page of a picture has no kernel: what the reader chose stays chosen, and nothing breaks."""
    watched, shown, _ = open_form("fleet")
    replicas = shown.control("replicas")
    replicas.focus()
    before = replicas.input_value()
    watched.page.keyboard.press("ArrowDown")
    assert int(replicas.input_value()) == int(before) + 1
    watched.assert_clean()


def test_the_marks_of_the_roofline_stand_on_the_roof_where_the_numbers_say(open_form, screenshot):
    for state in FORMS["roofline"].states:
        watched, shown, widget = open_form("roofline", "zh", state)
        plot = widget.view["plot"]
        assert shown.values() == pytest.approx({mark["key"]: mark["value"] for mark in plot["marks"]})
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


def test_the_bars_of_a_swap_are_as_long_as_the_numbers_say(open_form, screenshot):
    for state in FORMS["swap_cost"].states:
        watched, shown, widget = open_form("swap_cost", "zh", state)
        parts = {part["key"]: part for bar in widget.view["bars"] for part in bar["parts"]}
        assert shown.values() == pytest.approx({key: part["seconds"] for key, part in parts.items()})
        widths = shown.widths()
        longest = max(widths["out"] + widths["in"], widths["again"])
        for key, part in parts.items():
            assert widths[key] == pytest.approx(part["share"] * longest, abs=3)
        watched.assert_clean()
        screenshot(watched.page.locator("#photo"), "swap_cost_photo")


def test_the_bar_and_the_marks_of_a_fleet_are_what_python_says(open_form, screenshot):
    for number, state in enumerate(FORMS["fleet"].states):
        watched, shown, widget = open_form("fleet", "zh", state)
        parts = {part["key"]: part["share"] for part in widget.view["bar"]["parts"]}
        assert shown.values() == pytest.approx(parts)
        widths = shown.widths()
        total = sum(widths.values())
        assert widths == pytest.approx({key: share * total for key, share in parts.items()}, abs=0.5)
        assert shown.marks() == pytest.approx(
            {mark["key"]: mark["value"] for mark in widget.view["plot"]["marks"]}
        )
        watched.assert_clean()
        screenshot(watched.page.locator("#photo"), f"fleet_photo_{number}")


def test_the_growth_is_drawn_to_scale_and_says_the_rows(open_form, screenshot):
    for state in ({"step": 50}, {"step": 200}, {"length": 1, "max_seq": 1024, "block_size": 128}):
        watched, shown, widget = open_form("growth", "zh", state)
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
        assert_inside(shown)
        assert widget.view["aria"] == shown.root.get_by_role("img").get_attribute("aria-label")
        watched.assert_clean()
        screenshot(watched.page.locator("#photo"), "growth_photo")


def test_the_walk_says_what_is_read_now(open_form, screenshot):
    for state in (
        {"splits": 3, "step": 2},
        {"length": 96, "block_size": 4, "window": 40, "step": 3},
        {"step": 0},
    ):
        watched, shown, widget = open_form("walk", "zh", state)
        tiles = widget.view["tiles"]
        assert shown.tiles() == [[tile["letter"], tile["state"]] for tile in tiles]
        assert shown.blocks() == {tile["block"]: tile["state"] for tile in tiles if tile["state"] != "behind"}
        arrows = shown.root.locator("path.minikv-walk-arrow").count()
        assert arrows == sum(tile["state"] == "now" for tile in tiles)
        assert_inside(shown)
        assert not shown.root.get_by_role("img").get_attribute("aria-label").isascii()
        watched.assert_clean()
        screenshot(watched.page.locator("#photo"), "walk_photo")


def assert_inside(shown: FormOnPage) -> None:
    box = shown.root.locator("svg[role=img]").evaluate("svg => svg.getBBox().x + svg.getBBox().width")
    assert box <= 720, "nothing is drawn outside the picture"
