"""A report or source that a cell of JupyterLab shows: it can be read in both themes, and asks nobody for anything."""

import pytest

from tests.browser.accessibility import violations
from tests.browser.lab import change_theme

pytestmark = [pytest.mark.browser, pytest.mark.slow]

BUDGET = (
    "from minikv.plan import plan_memory\nbudget = plan_memory('Llama-3.1-8B', gpu='H200', batch=64)\nbudget"
)
SOURCE = """from minikv.course import show_source
from minikv.nano.block_manager import BlockManager
show_source(BlockManager.allocate, BlockManager.free)"""
SHOWN = ".jp-OutputArea-output .minikv-shown"
COLOURS = """(views) => views.map((view) =>
  [...view.querySelectorAll("pre span")].map((span) => getComputedStyle(span).color))"""
CODE = ".jp-OutputArea-output .minikv-source"


def test_a_report_at_the_end_of_a_cell_is_a_table_in_both_themes(lab, readers_page, screenshot):
    page = readers_page.page
    lab.open_cells(page, SOURCE, BUDGET, "budget.spec", "budget.shown('zh')")
    assert lab.run_all(page) == []
    page.wait_for_function("selector => document.querySelectorAll(selector).length === 3", arg=SHOWN)
    seen = []
    for theme in ("Dark", "Light"):
        change_theme(page, theme)
        assert violations(page, SHOWN) == []
        assert violations(page, CODE) == []
        colours = page.locator(CODE).evaluate_all(COLOURS)[0]
        assert len(set(colours)) >= 4, "code without colours"
        seen.append(colours)
        screenshot(page, f"shown_in_lab_{theme.lower()}")
    assert seen[0] != seen[1], "the colours are the same in both themes"
    rows = page.locator(SHOWN).first.locator("tbody tr")
    bars = [row.locator("span").bounding_box() for row in rows.all() if row.locator("span").count()]
    assert len(bars) == 7
    assert max(bar["width"] for bar in bars) > 20 * min(bar["width"] for bar in bars)
    readers_page.assert_clean()


def test_a_fold_opens_and_closes(lab, readers_page, screenshot):
    page = readers_page.page
    lab.open_cells(page, SOURCE.replace("BlockManager.allocate, BlockManager.free", "BlockManager"))
    assert lab.run_all(page) == []
    line, code = page.locator(f"{CODE} summary").last, page.locator(f"{CODE} details pre").last
    line.wait_for()
    for key in ("Enter", "Space", "a click"):
        for is_open in (False, True, False, True):
            assert code.is_visible() == is_open, key
            line.focus()
            assert line.evaluate("one => one.matches(':focus') && getComputedStyle(one).cursor") == "pointer"
            if key == "a click":
                line.click()
            else:
                page.keyboard.press(key)
    readers_page.assert_clean()
    for theme in ("Dark", "Light"):
        change_theme(page, theme)
        assert violations(page, CODE) == []
        screenshot(page, f"folded_in_lab_{theme.lower()}")
