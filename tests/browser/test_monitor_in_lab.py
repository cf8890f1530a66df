"""A monitor in JupyterLab: a run is seen while its cell is busy, and Stop stops, by keyboard."""

import pytest

from tests.browser.lab import ACTIVE_CELL

pytestmark = [pytest.mark.browser, pytest.mark.slow]

SETUP = """
import pathlib, threading
from minikv import LLM, SamplingParams
from minikv.course import monitor, show
llm = LLM("tiny-gqa", num_blocks=60, block_size=4, max_num_seqs=3, max_model_len=64, seed=1)
seen = monitor.cache(llm, lang={lang!r})
show(seen)"""
# A step each time that the page has shown the one before: nobody sleeps, and the cell is busy all the while.
BUSY = """
llm.add_request([5, 6, 7, 8, 9], SamplingParams(temperature=0, max_tokens=40, ignore_eos=True))
for step in range(6):
    llm.step()
    while not pathlib.Path(f"seen {step + 1}").exists():
        threading.Event().wait(0.02)
"""
AFTER = "print(seen.running, len(threading.enumerate()) > 0, seen.view['figures'][0])"
STEPS = "document.querySelector('.minikv-engine dd[data-key=steps]').textContent"


def test_a_run_is_seen_while_its_cell_is_busy_and_stop_stops(lab, readers_page, screenshot):
    page = readers_page.page
    marks = [lab.root / f"seen {step}" for step in range(1, 7)]
    try:
        lab.open_cells(page, SETUP.format(lang="zh"), BUSY, "1 + 1")
        lab.start_all(page)
        root = page.locator(".minikv-engine")
        root.wait_for(timeout=60_000)
        for step, mark in enumerate(marks, start=1):
            page.wait_for_function(f"() => {STEPS} === '{step}'", timeout=60_000)
            assert not page.evaluate("window.allCellsRan")
            if step == 3:
                screenshot(root, "monitor_busy")
            mark.touch()
        page.wait_for_function("window.allCellsRan", timeout=60_000)
    finally:
        for mark in marks:
            mark.unlink(missing_ok=True)
    assert root.get_attribute("data-running") == "true"
    # Though nothing changes any more
    root.get_by_role("status").filter(has_text="第 6 步").wait_for(timeout=60_000)
    root.locator("button[name=stop]").focus()
    cell = page.evaluate(ACTIVE_CELL)  # the one that the monitor stands in
    page.keyboard.press("Enter")
    page.wait_for_function(
        "() => document.querySelector('.minikv-engine').dataset.running === 'false'", timeout=60_000
    )
    assert page.evaluate("document.activeElement.name") == "stop"
    assert page.evaluate(ACTIVE_CELL) == cell, "the keys belong to the monitor"
    root.locator("button[name=start]").focus()
    page.keyboard.press("Space")
    page.wait_for_function(
        "() => document.querySelector('.minikv-engine').dataset.running === 'true'", timeout=60_000
    )
    readers_page.assert_clean()


def test_the_other_two_are_live(lab, readers_page):
    page = readers_page.page
    setup = """
from minikv import install_kv_eviction
from minikv.course import monitor, show
from minikv.models import load
import torch
model = load("tiny-gqa", device="cpu", dtype="fp32").model
handle = install_kv_eviction(model, policy="h2o", budget=16, n_sink=2, n_recent=6)
memory, eviction = monitor.memory("cpu"), monitor.eviction(model)
show(memory)
show(eviction)"""
    run = "out = model.generate(torch.arange(5, 45)[None], max_new_tokens=60, min_new_tokens=60, do_sample=False)"
    lab.open_cells(
        page, setup, run, "eviction.stop(); memory.stop(); print(memory.running, eviction.running)"
    )
    assert lab.run_all(page) == []
    for name in ("memory", "eviction"):
        root = page.locator(f".minikv-{name}-monitor")
        root.wait_for()
        assert root.get_attribute("data-running") == "false"
        root.locator(".minikv-area").first.wait_for(state="attached")
    assert page.locator(".minikv-eviction-monitor tbody tr").count() == 2
    assert page.locator(".minikv-eviction-monitor tbody td:nth-child(6)").first.inner_text() != "0"
    readers_page.assert_clean()
