"""The allocation widget and the report's bar on a plain page, that of the pictures."""

import pytest

from minikv.course.widgets import AllocationWidget, report_bar
from minikv.course.widgets.base import photo_page
from tests.browser.allocation import AllocationOnPage
from tests.browser.languages import one_language
from tests.course.test_allocation_widget import a_report, shown_parts

pytestmark = [pytest.mark.browser, pytest.mark.slow]

SHORTCUTS = "data-lm-suppress-shortcuts"


def open_page(watched_page, widget, **options):
    """The widget as a notebook draws it."""
    traits = {name: getattr(widget, name) for name in ("form", "state", "view") if hasattr(widget, name)}
    watched = watched_page("", **options)
    watched.page.set_content(photo_page("minikv", widget._esm, widget._css, traits))
    return watched, AllocationOnPage(watched.page)


def values_of(widget: AllocationWidget) -> list[tuple[str, str, int]]:
    return [
        (row["key"], value["key"], value["bytes"])
        for row in widget.view["moments"]
        for value in row["values"]
    ]


@pytest.mark.parametrize("lang", one_language("zh"))
def test_the_time_line_and_the_bar_are_to_scale(lang, watched_page, screenshot):
    for name, widget in (
        ("plan", AllocationWidget(lang)),
        ("full", AllocationWidget(lang, gpu="RTX 4090", non_torch=2.25, utilization=1)),
        ("report", AllocationWidget(lang, report=a_report())),
    ):
        watched, shown = open_page(watched_page, widget)
        assert shown.columns() == values_of(widget)
        assert shown.bar() == {key: size for key, size in shown_parts(widget.view).items() if size}
        heights = shown.root.locator("rect[data-size]").evaluate_all(
            "rects => rects.map((r) => r.height.baseVal.value)"
        )
        scale = widget.view["scale"]
        assert heights == pytest.approx([150 * size / scale for *_, size in values_of(widget)], abs=0.01)
        for drawing in shown.root.locator("svg[role=img]").all():
            left, top, right, bottom, wide, high = drawing.evaluate(
                "svg => { const b = svg.getBBox(), v = svg.viewBox.baseVal;"
                " return [b.x, b.y, b.x + b.width, b.y + b.height, v.width, v.height]; }"
            )
            assert left >= 0
            assert top >= 0
            assert right <= wide
            assert bottom <= high
            assert drawing.get_attribute("aria-label")
        screenshot(watched.page.locator("#photo"), f"allocation_{name}_{lang}")
        watched.assert_clean()


def test_the_line_of_the_limit_crosses_no_number(watched_page):
    # Whole cards, nearly empty caches, and a cache that ends just below the limit.
    for widget in (
        AllocationWidget(),
        AllocationWidget(gpu="RTX 4090", non_torch=2.25),
        AllocationWidget(gpu="RTX 4090", non_torch=0, utilization=0.76),
    ):
        watched, shown = open_page(watched_page, widget)
        crossings = shown.root.evaluate(
            """root => {
              const line = [...root.querySelectorAll("path.minikv-limit")].pop();
              const stretches = [...line.getAttribute("d").matchAll(/M(\\S+) (\\S+?)H([^M]+)/g)]
                .map(([, from, y, to]) => [Number(from), Number(y), Number(to)]);
              return [...root.querySelectorAll(".minikv-size")].filter((number) => {
                const box = number.getBBox();
                return stretches.some(([from, y, to]) =>
                  y > box.y && y < box.y + box.height && from < box.x + box.width && to > box.x);
              }).map((number) => number.textContent);
            }"""
        )
        assert crossings == []
        watched.assert_clean()


def test_every_control_has_a_name_and_keeps_its_arrow_keys(watched_page):
    for widget, count in ((AllocationWidget(), 13), (AllocationWidget(report=a_report()), 9)):
        watched, shown = open_page(watched_page, widget)
        names = shown.control_names()
        assert len(names) == count
        assert all(names)
        assert len(set(names)) == len(names)
        controls = shown.root.locator("select, input, button")
        assert controls.evaluate_all(f"all => all.every((c) => c.getAttribute('{SHORTCUTS}') === 'true')")
        assert shown.control("non_torch").get_attribute("aria-valuetext").endswith("GiB")
        watched.assert_clean()


def test_a_press_of_a_key_asks_for_the_next_stop(watched_page):
    """There is no kernel here: what is asked is the state that Python would read."""
    watched, shown = open_page(watched_page, AllocationWidget())
    for slider, value in (("utilization", "0.91"), ("warmup_tokens", "12288"), ("non_torch", "0.75")):
        shown.control(slider).focus()
        watched.page.keyboard.press("ArrowRight")
        assert shown.control(f"{slider}-exact").input_value() == value
    shown.root.get_by_role("button").focus()
    watched.page.keyboard.press("Enter")
    assert shown.control("utilization-exact").input_value() == "0.9"
    watched.assert_clean()


@pytest.mark.parametrize("lang", one_language("en"))
def test_a_refusal_is_the_readout_and_nothing_is_drawn(lang, watched_page, screenshot):
    widget = AllocationWidget(lang, gpu="T4")
    watched, shown = open_page(watched_page, widget)
    assert shown.readout() == widget.view["status"]
    assert shown.bar() == {}
    assert shown.columns() == []
    assert not shown.root.locator("table").evaluate_all("tables => tables.some((t) => !t.hidden)")
    screenshot(watched.page.locator("#photo"), f"allocation_refused_{lang}")
    watched.assert_clean()


def test_the_tables_say_the_same_bytes(watched_page):
    widget = AllocationWidget("zh")
    watched, shown = open_page(watched_page, widget)
    shown.root.locator("summary").click()
    cells = shown.root.locator(".minikv-moments td.minikv-number").all_inner_texts()
    assert cells == [f"{size:,}" for *_, size in values_of(widget)]
    for row in widget.view["sums"]:
        assert shown.sum(row["key"]) == row["text"]
    *parts, total = shown.root.locator(".minikv-parts tbody td:last-child").all_inner_texts()
    assert sum(int(part.replace(",", "")) for part in parts) == int(total.replace(",", ""))
    watched.assert_clean()


@pytest.mark.parametrize("lang", one_language("en"))
def test_it_fits_a_laptops_screen(lang, watched_page):
    """960 pixels wide, as in a saved notebook; the bar's parts have their names beside the folded bytes."""
    widget = AllocationWidget(lang)
    watched, shown = open_page(watched_page, widget)
    assert watched.page.locator("#photo").bounding_box()["height"] <= 720
    names = [name.strip() for name in shown.root.locator(".minikv-legend span").all_inner_texts()]
    assert names == [f"{row['letter']} {row['label']}" for row in widget.view["rows"] if row["letter"]]
    watched.assert_clean()


@pytest.mark.parametrize("lang", one_language("zh"))
def test_the_reports_bar_shows_its_parts(lang, watched_page, screenshot):
    for name, report in (("measured", a_report()), ("given", a_report(None))):
        bar = report_bar(report, lang)
        watched, _ = open_page(watched_page, bar)
        drawn = watched.page.locator("rect[data-bytes]").evaluate_all(
            "parts => parts.map((part) => [part.dataset.key, Number(part.dataset.bytes)])"
        )
        assert dict(drawn) == {key: size for key, size in report.parts().items() if size}
        cells = watched.page.locator(".minikv-parts tbody td:last-child").all_inner_texts()
        assert cells == [f"{size:,}" for size in (*report.parts().values(), sum(report.parts().values()))]
        screenshot(watched.page.locator("#photo"), f"report_bar_{name}_{lang}")
        watched.assert_clean()


def test_dark_and_narrow_pages_lose_nothing(watched_page, screenshot):
    watched, _ = open_page(watched_page, AllocationWidget("zh"), color_scheme="dark")
    watched.page.set_viewport_size({"width": 420, "height": 1200})
    watched.page.add_style_tag(
        content="#photo { width: auto !important; } body { background: #111; color: #eee; }"
    )
    screenshot(watched.page.locator("#photo"), "allocation_narrow_dark")
    assert watched.page.evaluate(
        "document.documentElement.scrollWidth <= document.documentElement.clientWidth"
    )
