"""The heat-map widget's script on a plain page, without JupyterLab: the page of the notebooks' pictures."""

from itertools import pairwise

import pytest

from minikv.course.widgets import HeatMapWidget
from minikv.course.widgets.base import photo_page
from minikv.models import load
from tests.browser.heat_map import HeatMapOnPage
from tests.browser.languages import one_language

pytestmark = [pytest.mark.browser, pytest.mark.slow]


@pytest.fixture(scope="module")
def model():
    return load("tiny-gqa", device="cpu", dtype="fp32").model


def open_page(watched_page, widget: HeatMapWidget, **options):
    """The widget as a notebook draws it."""
    traits = {name: dict(getattr(widget, name)) for name in ("form", "state", "view")}
    watched = watched_page("", **options)
    watched.page.set_content(photo_page("heat map", widget._esm, widget._css, traits))
    return watched, HeatMapOnPage(watched.page)


def chosen_map(widget: HeatMapWidget) -> dict:
    state = widget.state
    return widget.view["maps"][str(state["layer"])]["all" if state["head"] is None else str(state["head"])]


@pytest.mark.parametrize("lang", one_language("zh"))
def test_the_map_and_the_strip_are_what_python_wrote(lang, model, watched_page, screenshot):
    for number, state in enumerate(
        (
            {},
            {"policy": "snapkv", "share": 0.1, "layer": 0, "head": 1, "shade": "rank"},
            {"policy": "keydiff", "share": 0.5, "step": 12},
            {"policy": "streaming", "step": 0, "head": 0},
        )
    ):
        widget = HeatMapWidget(lang, model=model)
        widget.state = state
        watched, shown = open_page(watched_page, widget)
        screenshot(watched.page.locator("#photo"), f"heat_map_{lang}_{number}")
        rows, step = chosen_map(widget), widget.state["step"]
        length = len(widget.form["words"])
        assert [shown.shades(row, length) for _, _, row in shown.rows()] == rows[widget.state["shade"]]
        later = shown.root.locator(".minikv-later").count()
        assert later == len(rows["roles"]) - 1 - step, "what comes later is faint"
        assert [key for key, chosen, _ in shown.rows() if chosen] == [str(step)]
        assert shown.strip() == rows["roles"][step]
        assert shown.strip("shade") == rows[widget.state["shade"]][step]
        assert shown.frames() == [token for token, role in enumerate(rows["roles"][step]) if role in "SHR"]
        assert shown.readout() == rows["status"][step]
        label = shown.root.locator("svg[role=img]").get_attribute("aria-label")
        assert label.endswith(rows["status"][step])
        watched.assert_clean()


def test_the_slider_and_the_choices_of_a_row_need_no_python(model, watched_page, screenshot):
    widget = HeatMapWidget(model=model, step=10)
    watched, shown = open_page(watched_page, widget)
    maps = widget.view["maps"]
    shown.control("step").focus()
    watched.page.keyboard.press("ArrowRight")
    assert shown.readout() == maps["1"]["all"]["status"][11]
    watched.page.keyboard.press("End")
    assert shown.control("step").get_attribute("aria-valuetext") == "step 48"
    assert len(shown.rows()) == 49
    shown.control("layer").select_option(label="0")
    shown.control("head").select_option(label="1")
    shown.control("shade").select_option(index=1)
    assert shown.readout() == maps["0"]["1"]["status"][48]
    assert shown.shades(shown.rows()[-1][2], 72) == maps["0"]["1"]["rank"][48]
    shown.control("step-exact").fill("20")
    assert shown.strip() == maps["0"]["1"]["roles"][20]
    shown.control("rows").select_option(index=1)
    rows = shown.rows()
    assert [(key, chosen) for key, chosen, _ in rows] == [
        ("0 0", False),
        ("0 1", True),
        ("1 0", False),
        ("1 1", False),
    ]
    for key, _, row in rows:
        layer, head = key.split()
        assert shown.shades(row, 72) == maps[layer][head]["rank"][20]
    screenshot(watched.page.locator("#photo"), "heat_map_heads")
    shown.control("head").select_option(index=0)
    assert [chosen for _, chosen, _ in shown.rows()] == [True, True, False, False]
    shown.root.get_by_role("button").click()
    assert shown.readout() == maps["1"]["all"]["status"][10]
    watched.assert_clean()


def test_the_token_of_the_answer_is_marked_when_it_is_asked_for(model, watched_page):
    widget = HeatMapWidget(model=model)
    watched, shown = open_page(watched_page, widget)
    mark = shown.root.locator("svg[role=listbox] .minikv-answer")
    sources = [step["source"] for step in widget.view["steps"]]
    assert sum(source is not None for source in sources) == 5
    for step, source in enumerate(sources):
        shown.control("step-exact").fill(str(step))
        assert mark.count() == (source is not None)
        if source is not None:
            assert mark.get_attribute("data-source") == str(source)
            place = shown.root.locator(f".minikv-place[data-token='{source}'] .minikv-reach").bounding_box()
            box = mark.bounding_box()
            assert abs(box["x"] + box["width"] / 2 - place["x"] - place["width"] / 2) < 1
    watched.assert_clean()


def test_a_token_says_its_score_to_the_pointer_and_to_the_keyboard(model, watched_page):
    watched, shown = open_page(watched_page, HeatMapWidget(model=model))
    detail, places = shown.root.locator(".minikv-detail"), shown.root.locator(".minikv-place")
    labels = places.evaluate_all("all => all.map((one) => one.getAttribute('aria-label'))")
    assert len(labels) == 72
    assert labels[0].startswith("'<bos>' at position 0: score ")
    hint = detail.inner_text()
    places.nth(40).hover()
    assert detail.inner_text() == labels[40]
    watched.page.mouse.move(0, 0)
    assert detail.inner_text() == hint

    shown.root.get_by_role("button").focus()
    watched.page.keyboard.press("Tab")
    assert detail.inner_text() == labels[0], "the strip follows the controls"
    for key, reached in (
        ("ArrowRight", 1), ("ArrowRight", 2), ("ArrowLeft", 1), ("Home", 0), ("ArrowLeft", 0), ("End", 71),
        ("ArrowRight", 71), ("ArrowLeft", 70),
    ):  # fmt: skip
        watched.page.keyboard.press(key)
        assert detail.inner_text() == labels[reached]
        assert places.nth(reached).get_attribute("aria-selected") == "true"
    watched.page.keyboard.press("Tab")
    assert detail.inner_text() == hint, "the strip is one stop of the Tab key"
    watched.assert_clean()


def test_nothing_leaves_the_picture_and_no_word_covers_its_neighbour(model, watched_page):
    watched, shown = open_page(watched_page, HeatMapWidget(model=model))
    outside = shown.root.locator(".minikv-stage > svg").evaluate_all(
        """svgs => svgs.flatMap((svg) => { const all = svg.getBoundingClientRect();
             return [...svg.querySelectorAll('text, rect, g path')].filter((one) => {
               const box = one.getBoundingClientRect();
               return box.width && (box.left < all.left - 1 || box.right > all.right + 1 || box.top < all.top - 1
                 || box.bottom > all.bottom + 1);
             }).map((one) => one.outerHTML); })"""
    )
    assert outside == []
    words = shown.root.locator(".minikv-word").evaluate_all(
        "all => all.map((one) => { const box = one.getBoundingClientRect(); return [box.left, box.width]; })"
    )
    pitch = [b[0] - a[0] for a, b in pairwise(words)]
    assert len(words) == 72
    assert min(pitch) > 8
    assert all(height < 14 for _, height in words), "a line of small type, standing upright"
    watched.assert_clean()


def test_a_long_text_still_fits(watched_page, screenshot, model):
    from minikv.models import recall_documents

    document = recall_documents(1, seed=1, facts=10, context=96, queries=5, span=23)[0]
    watched, shown = open_page(watched_page, HeatMapWidget("zh", model=model, document=document, prompt=20))
    assert len(shown.rows()) == 101
    screenshot(watched.page.locator("#photo"), "heat_map_long")
    watched.assert_clean()


def test_every_control_has_a_name_and_every_role_its_letter(model, watched_page):
    watched, shown = open_page(watched_page, HeatMapWidget(model=model, step=30))
    names = shown.control_names()
    assert len(names) == 9
    assert all(names)
    assert len(set(names)) == len(names)
    letters = shown.root.locator(".minikv-role").all_text_contents()
    drawn = [role for role in shown.strip() if role in "SHRx"]
    assert letters == ["\u00d7" if role == "x" else role for role in drawn]
    legend = shown.root.locator(".minikv-legend span").all_inner_texts()
    assert len(legend) == 8
    assert all(legend)
    watched.assert_clean()


def test_a_setting_that_cannot_be_is_a_sentence_and_no_map(model, watched_page):
    widget = HeatMapWidget(model=model)
    widget.state = {"layer": 9}
    watched, shown = open_page(watched_page, widget)
    assert "9" in shown.readout()
    assert not shown.root.locator("svg[role=img]").is_visible()
    assert not shown.root.locator("svg[role=listbox]").is_visible()
    watched.assert_clean()


def test_words_are_text_and_never_markup(model, watched_page):
    bad = "</script><img src=x onerror=alert(1)>"
    watched, shown = open_page(
        watched_page, HeatMapWidget(model=model, word=lambda token: f"{bad}{{role}}{token}")
    )
    assert shown.root.locator("img:not(svg)").count() == 0
    assert bad in shown.root.locator(".minikv-place").first.get_attribute("aria-label")
    watched.assert_clean()


def test_dark_and_narrow_pages_lose_nothing(model, watched_page, screenshot):
    watched, shown = open_page(watched_page, HeatMapWidget("zh", model=model))
    light = shown.root.locator(".minikv-shade-0").first.evaluate("one => getComputedStyle(one).fill")
    watched.page.evaluate(
        "document.body.dataset.jpThemeLight = 'false'; document.body.style.background = '#111';"
        "document.body.style.setProperty('--jp-ui-font-color1', '#eee');"
        "document.body.style.setProperty('--jp-layout-color1', '#222')"
    )
    dark = shown.root.locator(".minikv-shade-0").first.evaluate("one => getComputedStyle(one).fill")
    assert dark != light, "the lowest score is near the page, whichever colour that has"
    screenshot(watched.page.locator("#photo"), "heat_map_dark")
    watched.page.set_viewport_size({"width": 420, "height": 1400})
    watched.page.add_style_tag(content="#photo { width: auto !important; }")
    screenshot(watched.page, "heat_map_narrow")
    assert watched.page.evaluate(
        "document.documentElement.scrollWidth <= document.documentElement.clientWidth"
    )
    watched.assert_clean()
