"""The widget's script on a plain page, without JupyterLab: the page that the notebooks' pictures are taken of."""

from itertools import pairwise

import pytest

from minikv.course.widgets import BudgetWidget
from tests.browser.budget import BudgetOnPage

pytestmark = [pytest.mark.browser, pytest.mark.slow]


def open_photo(watched_page, widget: BudgetWidget, **options):
    watched = watched_page("", **options)
    watched.page.set_content(widget.photo_html())
    return watched, BudgetOnPage(watched.page)


def test_the_bar_says_the_bytes_of_the_plan(watched_page, screenshot):
    widget = BudgetWidget("zh", batch=16, context=32768)
    watched, shown = open_photo(watched_page, widget)
    assert shown.bar() == {key: size for key, size in widget.budget.parts().items() if size}
    label = shown.root.get_by_role("img").get_attribute("aria-label")
    assert f"{widget.budget.weight_bytes / 2**30:.2f} GiB" in label
    assert label == widget.view["bar"]["aria"]
    assert shown.readout() == widget.view["status"]
    table = shown.root.locator("tbody tr td:last-child").all_inner_texts()
    *parts, total = [int(cell.replace(",", "")) for cell in table]
    assert sum(parts) == total == widget.budget.total_bytes
    screenshot(watched.page.locator("#photo"), "budget_photo")
    watched.assert_clean()


def test_the_bar_fills_its_frame_and_every_part_can_be_seen(watched_page):
    # The A10 is nearly full of weights and the T4 of Qwen3-0.6B nearly empty: thin parts at either end.
    for widget in (
        BudgetWidget(gpu="A10", batch=64),
        BudgetWidget(model="Qwen3-0.6B", gpu="T4", utilization=0.99),
        BudgetWidget(model="DeepSeek-V3", tp=8, batch=2),
    ):
        watched, shown = open_photo(watched_page, widget)
        boxes = shown.root.locator("rect[data-key]").evaluate_all(
            "rects => rects.map((r) => [r.x.baseVal.value, r.width.baseVal.value])"
        )
        assert len(boxes) == sum(part["bytes"] > 0 for part in widget.view["bar"]["parts"])
        assert all(width >= 2 for _, width in boxes)
        for (start, width), (following, _) in pairwise(boxes):
            assert start + width == pytest.approx(following, abs=0.01)
        frame = shown.root.locator(".minikv-bar-frame").evaluate(
            "r => [r.x.baseVal.value, r.width.baseVal.value]"
        )
        assert boxes[0][0] == pytest.approx(frame[0])
        assert sum(boxes[-1]) == pytest.approx(sum(frame))
        letters = shown.root.locator(".minikv-letter").evaluate_all(
            "texts => texts.map((t) => [t.getBoundingClientRect().left, t.getBoundingClientRect().right])"
        )
        for (_, right), (left, _) in pairwise(letters):
            assert right < left, "letters above the bar do not touch"
        watched.assert_clean()


def test_every_control_has_a_name(watched_page):
    watched, shown = open_photo(watched_page, BudgetWidget())
    names = shown.control_names()
    assert len(names) == 11
    assert all(names)
    assert len(set(names)) == len(names)
    assert shown.control("context").get_attribute("aria-valuetext") == "4,096 tokens"
    watched.assert_clean()


def test_half_a_number_is_not_sent_and_the_last_good_one_comes_back(watched_page):
    watched, shown = open_photo(watched_page, BudgetWidget())
    box = shown.control("context-exact")
    for bad in ("", "0", "-3", "1.5"):
        box.fill(bad)
        assert box.get_attribute("aria-invalid") == "true"
        box.blur()
        assert box.input_value() == "4096"
        assert box.get_attribute("aria-invalid") is None
    watched.assert_clean()


def test_names_are_text_and_never_markup(watched_page):
    name = "</script><img src=x onerror=alert(1)>"
    config = {"model_type": "llama"}
    watched, shown = open_photo(watched_page, BudgetWidget(model=name, configs={name: config}))
    assert shown.root.locator("img:not(svg)").count() == 0
    assert shown.control("model").locator("option").first.inner_text() == name
    watched.assert_clean()


def test_a_narrow_page_cuts_nothing_off(watched_page, screenshot):
    watched, _ = open_photo(watched_page, BudgetWidget(batch=16))
    watched.page.set_viewport_size({"width": 420, "height": 1200})
    watched.page.add_style_tag(content="#photo { width: auto !important; }")
    assert watched.page.evaluate(
        "document.documentElement.scrollWidth <= document.documentElement.clientWidth"
    )
    screenshot(watched.page, "budget_narrow")
