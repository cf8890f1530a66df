"""The engine widget in JupyterLab: buttons by keyboard, Stop in the middle, a run that is seen while a cell is busy."""

import pytest

from tests.browser.lab import ACTIVE_CELL

pytestmark = [pytest.mark.browser, pytest.mark.slow]

# About 80 steps; slow ones, so that a test can press Stop in their middle, until it says go on.
SETUP = """
import pathlib, threading
from minikv import LLM, SamplingParams
from minikv.course.widgets import EngineWidget
llm = LLM("tiny-gqa", num_blocks=60, block_size=4, max_num_seqs=3, max_model_len=64, seed=1)
widget = EngineWidget(
    llm, [[5 + i, 6, 7, 8, 9] for i in range(4)],
    SamplingParams(temperature=0, max_tokens=40, ignore_eos=True), lang={lang!r},
)
step = llm.step
def slow():
    threading.Event().wait(0.03 if pathlib.Path("go_on").exists() else 0.3)
    return step()
llm.step = slow
display(widget)"""
BUSY = """
import pathlib, threading
while not pathlib.Path("seen").exists():
    threading.Event().wait(0.05)
"""
AFTER = "print(not widget.running, llm.manager.pools[0].num_used, len(widget.outputs))"


class EngineOnPage:
    """The widget as a reader without a mouse meets it."""

    def __init__(self, page):
        self.page = page
        self.root = page.locator(".minikv-engine")

    def figure(self, key: str) -> str:
        return self.root.locator(f"dd[data-key={key}]").inner_text()

    def press(self, action: str, key: str = "Enter") -> None:
        self.root.locator(f"button[name={action}]").focus()
        self.page.keyboard.press(key)

    def wait_for(self, condition: str) -> None:
        """``condition`` in JavaScript, of the widget's ``root``."""
        self.page.wait_for_function(
            f"() => {{ const root = document.querySelector('.minikv-engine'); return {condition}; }}",
            timeout=60_000,
        )


STEPS = "Number(root.querySelector('dd[data-key=steps]').textContent)"
STATES = "[...root.querySelectorAll('tbody tr')].map((one) => one.dataset.state)"


def test_every_button_answers_the_keyboard_and_stop_stops(lab, readers_page, screenshot):
    page = readers_page.page
    lab.open_cells(page, SETUP.format(lang="zh"), "1 + 1")
    assert lab.run_all(page) == []
    engine = EngineOnPage(page)
    assert engine.figure("steps") == "0"

    for step in (1, 2):
        engine.press("step", key="Space")
        engine.wait_for(f"{STEPS} === {step}")
    cell = page.evaluate(ACTIVE_CELL)  # the one that the widget stands in
    engine.press("start")
    engine.wait_for(f"root.dataset.running === 'true' && {STEPS} >= 3")
    disabled = engine.root.locator("button[aria-disabled=true]").evaluate_all("all => all.map((b) => b.name)")
    assert disabled == ["start", "step"], "Pause and Stop are there"
    assert page.evaluate("document.activeElement.name") == "start", "the focus stays where it was"
    screenshot(engine.root, "engine_running")
    engine.press("stop")
    engine.wait_for(f"root.dataset.running === 'false' && {STATES}.every((one) => one === 'abort')")
    assert 3 <= int(engine.figure("steps")) < 40
    assert engine.figure("used") == "0"
    said = engine.root.get_by_role("status").inner_text()
    assert said.startswith("已停止：")
    assert page.evaluate(ACTIVE_CELL) == cell, "the keys belong to the widget"
    readers_page.assert_clean()


def test_a_run_is_seen_while_a_cell_is_busy(lab, readers_page):
    page = readers_page.page
    (lab.root / "go_on").touch()
    try:
        lab.open_cells(page, SETUP.format(lang="en"), "widget.start()", BUSY, "widget.wait(60)", AFTER)
        lab.start_all(page)
        engine = EngineOnPage(page)
        engine.root.wait_for(timeout=60_000)
        engine.wait_for(f"{STEPS} > 0 && root.dataset.running === 'true'")
        early = int(engine.figure("steps"))
        engine.wait_for(f"{STEPS} > {early}")
        engine.wait_for("root.dataset.running === 'false' && root.querySelectorAll('tbody tr').length === 4")
        assert not page.evaluate("window.allCellsRan"), "the cell was busy all the while"
        (lab.root / "seen").touch()
        page.wait_for_function("window.allCellsRan", timeout=60_000)
    finally:
        (lab.root / "go_on").unlink()
        (lab.root / "seen").unlink(missing_ok=True)
    assert engine.figure("ended") == "4 of 4"
    assert engine.figure("used") == "0"
    output = page.locator(".jp-OutputArea-output pre").last
    assert output.inner_text().strip() == "True 0 4"
    readers_page.assert_clean()
