"""The segments widget's script on a plain page, without JupyterLab: the page of the notebooks' pictures."""

import pytest

from minikv.course.widgets import AllocatorStep, SegmentsWidget
from minikv.course.widgets.base import photo_page
from minikv.memory import AllocatorSettings
from minikv.units import GIB, MIB
from tests.browser.languages import one_language
from tests.course.test_segments_widget import SETTINGS, STORY, figures

pytestmark = [pytest.mark.browser, pytest.mark.slow]
STEPS = [
    AllocatorStep("malloc", "weights", GIB),
    *STORY,
    AllocatorStep("malloc", "mask", 3000),
    AllocatorStep("malloc", "next", 7 * GIB),
    AllocatorStep("free", "next"),
    AllocatorStep("malloc", "other", 5 * MIB, stream=3),
    AllocatorStep("record_stream", "other", stream=4),
    AllocatorStep("free", "other"),
]


def made(lang: str = "en", **values) -> SegmentsWidget:
    few = {label: SETTINGS[label] for label in ("defaults", "expandable")}
    return SegmentsWidget(lang, **{"steps": STEPS, "capacity": 9 * GIB, "settings": few, **values})


def open_page(watched_page, widget: SegmentsWidget):
    """The widget as a notebook draws it."""
    traits = {name: getattr(widget, name) for name in ("form", "map", "setting", "step")}
    watched = watched_page("")
    watched.page.set_content(photo_page("segments", widget._esm, widget._css, traits))
    return watched, watched.page.locator(".minikv-segments")


def boxes(root) -> list[tuple[int, list[tuple[str, int, float, float]]]]:
    """Each row's bytes, and its blocks: state, bytes, left edge, width."""
    return root.locator(".minikv-segment").evaluate_all(
        """groups => groups.map((group) => [Number(group.dataset.bytes),
             [...group.querySelectorAll('.minikv-place')].map((one) => {
               const box = one.querySelector('rect');
               return [one.dataset.state, Number(one.dataset.bytes), box.x.baseVal.value, box.width.baseVal.value];
             })])"""
    )


@pytest.mark.parametrize("lang", one_language("en"))
def test_every_frame_is_drawn_to_one_scale_and_says_its_figures(lang, watched_page, screenshot):
    widget = made(lang)
    watched, root = open_page(watched_page, widget)
    for setting, frames in widget.map["frames"].items():
        root.locator("select").select_option(label=setting)
        for step, frame in enumerate(frames):
            root.locator("[name=step]").fill(str(step))
            assert root.get_by_role("status").inner_text() == frame["status"]
            shown = root.locator("dd").evaluate_all(
                "all => all.map((one) => [one.dataset.key, one.textContent])"
            )
            assert dict(shown) == figures(frame)
            rows = boxes(root)
            assert sum(size for size, _ in rows) == widget._moments[setting][step].reserved
            for size, blocks in rows:
                assert sum(bytes_ for _, bytes_, _, _ in blocks) == size
                edge = 2.0
                for _, _, left, width in blocks:
                    assert left == pytest.approx(edge, abs=0.01), "no gap and no overlap"
                    assert width > 0
                    edge += width
                assert edge - 2 == pytest.approx(max(860 * size / widget.form["scale"], 12), abs=0.01)
                for state, bytes_, _, width in blocks:
                    exact = 860 * bytes_ / widget.form["scale"]
                    if exact > 60:
                        assert width == pytest.approx(exact, abs=13), state
            if frame["error"]:
                screenshot(watched.page.locator("#photo"), f"segments_oom_{lang}_{setting}")
                assert "minikv-error" in root.get_by_role("status").get_attribute("class")
    over = root.locator("svg text").evaluate_all(
        "all => all.map((one) => one.getBBox()).filter((box) => box.x < 0 || box.x + box.width > 864).length"
    )
    assert over == 0, "no words run out of the picture"
    root.locator("select").select_option(label="defaults")
    screenshot(watched.page.locator("#photo"), f"segments_{lang}")
    watched.assert_clean()


def test_a_block_says_what_it_is_to_the_pointer_and_to_the_keyboard(watched_page):
    watched, root = open_page(watched_page, made(stop_at=5))
    detail, places = root.locator(".minikv-detail"), root.locator(".minikv-place")
    labels = places.evaluate_all("all => all.map((one) => one.getAttribute('aria-label'))")
    assert len(labels) == 3
    hint = detail.inner_text()
    places.nth(2).hover()
    assert detail.inner_text() == labels[2]
    watched.page.mouse.move(0, 0)
    assert detail.inner_text() == hint

    root.locator("[name=step]").focus()
    watched.page.keyboard.press("Tab")
    assert detail.inner_text() == labels[0], "the first block follows the slider"
    for key, reached in (
        ("ArrowRight", 1), ("ArrowRight", 2), ("ArrowRight", 2), ("ArrowUp", 0), ("ArrowDown", 1),
        ("End", 2), ("ArrowLeft", 1), ("Home", 0), ("ArrowLeft", 0),
    ):  # fmt: skip
        watched.page.keyboard.press(key)
        assert detail.inner_text() == labels[reached]
        assert places.nth(reached).get_attribute("aria-selected") == "true"
    watched.page.keyboard.press("Tab")
    assert detail.inner_text() == hint, "the map is one stop of the Tab key"
    watched.assert_clean()


def test_many_segments_fill_no_more_than_their_rows(watched_page, screenshot):
    steps = [AllocatorStep("malloc", f"a{place}", (12 + 2 * place) * MIB) for place in range(25)]
    widget = made(steps=steps, capacity=GIB, settings={"defaults": AllocatorSettings()})
    watched, root = open_page(watched_page, widget)
    assert root.locator(".minikv-segment").count() == 16
    assert root.locator(".minikv-words").text_content() == widget.map["frames"]["defaults"][-1]["more"]
    svg, words = (root.locator(name).bounding_box() for name in ("svg[role=listbox]", ".minikv-words"))
    assert words["y"] + words["height"] <= svg["y"] + svg["height"]
    screenshot(watched.page.locator("#photo"), "segments_many")
    root.locator("[name=step]").fill("0")
    assert root.get_by_role("img").get_attribute("aria-label").endswith(widget.form["empty"])
    assert root.locator("svg[role=img]").bounding_box() == svg, "nothing below the map jumps"
    watched.assert_clean()


def test_the_map_takes_the_room_of_what_it_shows_and_never_jumps_back(watched_page):
    steps = [AllocatorStep("malloc", f"a{place}", 20 * MIB) for place in range(9)]
    steps += [AllocatorStep("free", f"a{place}") for place in range(8)] + [AllocatorStep("empty_cache")]
    watched, root = open_page(
        watched_page, made(steps=steps, capacity=GIB, settings={"d": AllocatorSettings()})
    )

    def places():
        tops = [
            root.locator(name).first.bounding_box() for name in ("dl", ".minikv-segment", ".minikv-detail")
        ]
        return [place["y"] for place in tops]

    few = places()
    assert few[2] - few[1] < 60, "one row"
    root.locator("[name=step]").fill("9")
    many = places()
    assert many[:2] == few[:2], "what stands above the map stays"
    assert many[2] - many[1] > 9 * 30
    assert root.bounding_box()["height"] <= 720
    root.locator("[name=step]").fill(str(len(steps)))
    assert places() == many
    watched.assert_clean()


def test_every_control_has_a_name_and_every_mark_its_words(watched_page):
    watched, root = open_page(watched_page, made())
    names = root.locator("select, input, button").evaluate_all(
        "all => all.map((c) => c.getAttribute('aria-label') || c.labels?.[0]?.textContent || c.textContent)"
    )
    assert len(set(names)) == len(names) == 4
    assert all(names)
    assert root.locator("[name=step]").get_attribute("aria-valuetext") == "11 of 11"
    assert root.get_by_role("listbox").get_attribute("aria-label")
    for name in ("cached", "waiting"):
        assert root.locator(f".minikv-place[data-state={name}]").count()
    legend = root.locator(".minikv-legend span").all_inner_texts()
    assert legend == [
        "weights", "batch", "survivor", "mask", "next", "other",
        "cached: free for torch, not for others", "freed, waits for another stream",
    ]  # fmt: skip
    watched.assert_clean()


def test_names_are_text_and_never_markup(watched_page):
    name = "</script><img src=x onerror=alert(1)>"
    watched, root = open_page(
        watched_page,
        made(steps=[AllocatorStep("malloc", name, GIB, note=name)], settings={name: AllocatorSettings()}),
    )
    assert root.locator("img:not(svg)").count() == 0
    assert name in root.get_by_role("status").inner_text()
    watched.assert_clean()


def test_a_narrow_page_cuts_nothing_off(watched_page, screenshot):
    watched, _ = open_page(watched_page, made("zh"))
    watched.page.set_viewport_size({"width": 420, "height": 1200})
    watched.page.add_style_tag(content="#photo { width: auto !important; }")
    screenshot(watched.page, "segments_narrow")
    assert watched.page.evaluate(
        "document.documentElement.scrollWidth <= document.documentElement.clientWidth"
    )
