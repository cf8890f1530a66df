"""What the widgets answer to a reader at the keys: each on a page of its own, with its own Python behind it."""

import pytest

from minikv.course.widgets import (
    AllocationWidget,
    AllocatorStep,
    BlocksWidget,
    BudgetWidget,
    GrowthWidget,
    HeatMapWidget,
    PoolWidget,
    SegmentsWidget,
    SequenceBlocks,
)
from minikv.i18n import text
from minikv.memory import AllocatorSettings
from minikv.units import GIB
from tests.browser.allocation import AllocationOnPage
from tests.browser.budget import BudgetOnPage
from tests.browser.growth import GrowthOnPage
from tests.browser.heat_map import HeatMapOnPage
from tests.browser.languages import one_language
from tests.browser.live import open_live

pytestmark = [pytest.mark.browser, pytest.mark.slow]


@pytest.mark.parametrize("lang", one_language("en"))
def test_an_allocation_is_answered_and_refused(lang, watched_page):
    watched, _ = open_live(watched_page, AllocationWidget(lang))
    shown, here = AllocationOnPage(watched.page), AllocationWidget(lang)
    first = shown.readout()
    assert first == here.view["status"]
    shown.press("utilization")
    here.state = {"utilization": 0.91}
    assert shown.readout() == here.view["status"]
    rows = [(row["key"], one["key"], one["bytes"]) for row in here.view["moments"] for one in row["values"]]
    assert shown.columns() == rows
    assert shown.sum("formula") == here.view["sums"][0]["text"]

    old = shown.readout()
    shown.control("non_torch-exact").fill("200")  # more than the GPU has
    refusal = shown.wait_for_another_readout(old)
    here.state = {"non_torch": 200}
    assert refusal == here.view["status"]
    assert shown.bar() == {}
    shown.root.get_by_role("button").focus()
    watched.page.keyboard.press("Enter")
    assert shown.wait_for_another_readout(refusal) == first
    watched.assert_clean()


@pytest.mark.parametrize("lang", one_language("zh"))
def test_a_budget_takes_a_number_that_no_stop_of_its_slider_has(lang, watched_page):
    watched, _ = open_live(watched_page, BudgetWidget(lang))
    shown = BudgetOnPage(watched.page)
    first = shown.readout()
    for slider in ("context", "batch", "utilization"):
        shown.press(slider)
    shown.press("context", "ArrowDown")
    old = shown.readout()
    shown.control("context-exact").fill("5000")
    assert "5,000" in shown.wait_for_another_readout(old)
    old = shown.readout()
    shown.root.get_by_role("button").focus()
    watched.page.keyboard.press("Enter")
    assert shown.wait_for_another_readout(old) == first
    watched.assert_clean()


def test_a_budget_that_cannot_work_is_a_sentence_and_the_next_choice_works(watched_page):
    watched, _ = open_live(watched_page, BudgetWidget("zh"))
    shown = BudgetOnPage(watched.page)
    first, bar = shown.readout(), shown.bar()
    shown.control("context-exact").fill("9000000")
    refusal = shown.wait_for_another_readout(first)
    assert "9,000,000" in refusal
    assert shown.bar() == {}
    shown.control("context-exact").fill("4096")
    assert shown.wait_for_another_readout(refusal) == first
    assert shown.bar() == bar
    watched.assert_clean()


@pytest.mark.parametrize("lang", one_language("en"))
def test_blocks_are_walked_through_and_played(lang, watched_page):
    widget = BlocksWidget(lang, num_blocks=12, block_size=16)
    for length in range(14, 35):
        held = SequenceBlocks("A", tuple(range(-(-length // 16))), length)
        widget.add_step([held, SequenceBlocks("B", (11, 9), 20)])
    watched, live = open_live(watched_page, widget)
    page, root = watched.page, live.root

    def filled() -> list[int]:
        cells = root.locator("g.minikv-block")
        return cells.evaluate_all("all => all.map((one) => Number(one.dataset.filled))")

    assert filled()[:3] == [16, 16, 2]
    root.locator("[name=step]").focus()
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowDown")
    assert filled()[:3] == [16, 16, 0]
    page.keyboard.press("Home")
    assert sum(filled()) == 0
    status, play = root.get_by_role("status"), root.get_by_role("button")
    empty = status.inner_text()
    page.keyboard.press("Shift+Tab")
    page.keyboard.press("Enter")
    page.wait_for_function("() => document.querySelector('[name=step]').value >= 2")
    assert play.get_attribute("aria-pressed") == "true"
    assert status.get_attribute("aria-live") == "off", "a screen reader cannot follow at this pace"
    page.keyboard.press("Enter")
    assert play.get_attribute("aria-pressed") == "false"
    assert status.get_attribute("aria-live") == "polite"
    assert status.inner_text() != empty
    watched.assert_clean()


@pytest.mark.parametrize("lang", one_language("zh"))
def test_the_rows_of_both_caches_grow(lang, watched_page):
    watched, _ = open_live(watched_page, GrowthWidget(lang, step=100, max_seq=256))
    shown = GrowthOnPage(watched.page)
    # A step: every row of both caches holds a token more, and the linear bytes stay as they were.
    start, linear, paged = shown.readout(), shown.drawn("linear"), shown.drawn("paged")
    before = shown.figures("measured")
    assert before == shown.figures("planned")
    shown.press("step")
    assert shown.drawn("linear") == [tokens + 1 for tokens in linear]
    assert shown.drawn("paged") == [tokens + 1 for tokens in paged]
    assert shown.figures("measured")[0] == before[0]

    # Row A meets max_seq: the linear cache stops, the paged one takes more blocks.
    longest = shown.drawn("paged")[0] - int(shown.control("step-exact").input_value())
    for name, value in (("step", "180"), ("max_seq", f"{longest + 200}")):
        old = shown.readout()
        shown.control(f"{name}-exact").fill(value)
        shown.wait_for_another_readout(old)
        if name == "step":
            assert shown.drawn("linear")[0] == 256
            assert shown.drawn("paged")[0] == longest + 180 > 256
            assert shown.figures("measured") == shown.figures("planned")
    assert shown.drawn("linear") == shown.drawn("paged")
    old = shown.readout()
    shown.control("block_size").select_option(label="64")
    shown.wait_for_another_readout(old)
    assert all(slots % 64 == 0 for slots in shown.drawn("paged", "slots"))
    old = shown.readout()
    shown.root.get_by_role("button").focus()
    watched.page.keyboard.press("Enter")
    assert shown.wait_for_another_readout(old) == start
    watched.assert_clean()


@pytest.mark.parametrize("lang", one_language("en"))
def test_a_policy_and_a_share_are_computed_by_python(lang, watched_page):
    here = HeatMapWidget(lang)
    watched, _ = open_live(watched_page, HeatMapWidget(lang))
    page, shown = watched.page, HeatMapOnPage(watched.page)
    assert shown.readout() == here.view["maps"]["1"]["all"]["status"][-1]
    for key, press in (("share", "ArrowDown"), ("policy", "ArrowDown")):
        old = shown.readout()
        shown.control(key).focus()
        page.keyboard.press(press)
        shown.wait_for_another_readout(old)
        offered = [value for value, _ in next(f for f in here.form["fields"] if f["key"] == key)["options"]]
        here.state = {key: offered[offered.index(here.state[key]) + 1]}
        rows = here.view["maps"]["1"]["all"]
        assert shown.readout() == rows["status"][-1]
        assert shown.strip() == rows["roles"][-1]
    shown.control("step").focus()
    page.keyboard.press("ArrowLeft")
    assert shown.readout() == here.view["maps"]["1"]["all"]["status"][-2]
    watched.assert_clean()


class PoolOnPage:
    """The pool as a reader without a mouse meets it."""

    def __init__(self, live):
        self.live, self.root = live, live.root

    def owners(self) -> list[str]:
        """Who holds each block, and "cached" or "free" where nobody does."""
        return self.root.locator("g.minikv-block").evaluate_all(
            "all => all.map((one) => one.dataset.owners || one.dataset.kind)"
        )

    def press(self, action: str, key: str = "Enter") -> str:
        """Press a button; what the readout says once Python has answered."""
        self.root.locator(f"button[name={action}]").focus()
        self.live.page.keyboard.press(key)
        self.live.wait()
        return self.root.get_by_role("status").inner_text()

    def choose(self, name: str) -> None:
        """Choose a sequence by its first letter, as a keyboard does in a list."""
        target = self.root.locator("select[name=target]")
        target.focus()
        self.live.page.keyboard.press(name)
        assert target.input_value() == name


@pytest.mark.parametrize("lang", one_language("zh"))
def test_every_button_of_the_pool_asks_the_manager(lang, watched_page):
    watched, live = open_live(watched_page, PoolWidget(lang, num_blocks=8, block_size=4))
    pool = PoolOnPage(live)
    assert pool.owners() == ["free"] * 8
    pool.press("new")
    assert pool.owners() == ["A", "A"] + ["free"] * 6
    pool.press("fork", key="Space")
    assert pool.owners()[:2] == ["A+B", "A+B"]
    pool.press("step")
    assert pool.owners()[:3] == ["A+B", "B", "A"], "A wrote into a copy"
    pool.press("step")
    pool.choose("B")
    pool.press("share")
    assert pool.owners()[:4] == ["A+B+C", "B+C", "A", "C"], "C found two blocks of B"
    pool.choose("A")
    pool.press("free")
    assert pool.owners()[:4] == ["B+C", "B+C", "cached", "C"]
    assert "'A'" in pool.press("free")
    assert pool.owners()[:4] == ["B+C", "B+C", "cached", "C"]
    pool.press("new")
    pool.press("new")
    full = pool.press("new")
    assert "free" not in pool.owners()
    assert text("errors.out_of_blocks", lang, asked=3, free=0, total=8, fits=0) in full
    shared = pool.root.locator("g[data-block='0'] rect").first.get_attribute("fill")
    alone = pool.root.locator("g[data-block='3'] rect").first.get_attribute("fill")
    assert shared != alone
    assert "url(#" in shared, "a pattern, not a colour alone"
    pool.root.locator("[name=step][type=range]").focus()
    watched.page.keyboard.press("Home")
    assert pool.owners() == ["free"] * 8, "the slider leads back to the empty pool"
    pool.press("reset")
    assert pool.owners() == ["free"] * 8
    watched.assert_clean()


@pytest.mark.parametrize("lang", one_language("en"))
def test_every_step_of_the_segments_says_something_of_its_own(lang, watched_page):
    steps = [
        AllocatorStep("malloc", "batch", 6 * GIB),
        AllocatorStep("free", "batch"),
        AllocatorStep("malloc", "survivor", GIB // 32),
        AllocatorStep("empty_cache"),
        AllocatorStep("malloc", "next", 7 * GIB),
    ]
    settings = {"defaults": AllocatorSettings(), "expandable": AllocatorSettings(expandable_segments=True)}
    widget = SegmentsWidget(lang, steps=steps, capacity=8 * GIB, settings=settings)
    watched, live = open_live(watched_page, widget)
    page, root = watched.page, live.root
    said, slider = root.get_by_role("status"), root.locator("[name=step]")
    slider.focus()
    seen = {said.inner_text()}
    for _ in range(5):
        page.keyboard.press("ArrowLeft")
        seen.add(said.inner_text())
    assert len(seen) == 6
    assert root.locator(".minikv-place").count() == 0
    page.keyboard.press("End")
    root.locator("button[name=back]").focus()
    page.keyboard.press("Enter")
    assert slider.input_value() == "4"
    stuck = root.locator("dd[data-key=reserved]").inner_text()
    root.locator("select[name=setting]").focus()
    page.keyboard.press("e")
    assert root.locator("select[name=setting]").input_value() == "1"
    assert root.locator("dd[data-key=reserved]").inner_text() != stuck
    root.locator(".minikv-place").first.focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowDown")
    last = root.locator(".minikv-place").last.get_attribute("aria-label")
    assert root.locator(".minikv-detail").inner_text() == last
    live.wait()
    assert (widget.step, widget.setting) == (4, "expandable"), "Python hears where the reader stands"
    watched.assert_clean()
