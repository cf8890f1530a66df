"""A cell that ends in a report, in JupyterLab: its table can be read in both themes, and asks nobody for anything."""

import pytest

from tests.browser.accessibility import violations
from tests.browser.lab import change_theme

pytestmark = [pytest.mark.browser, pytest.mark.slow]

BUDGET = (
    "from minikv.plan import plan_memory\nbudget = plan_memory('Llama-3.1-8B', gpu='H200', batch=64)\nbudget"
)
SHOWN = ".jp-OutputArea-output .minikv-shown"


def test_a_report_at_the_end_of_a_cell_is_a_table_in_both_themes(lab, watched_page, screenshot):
    watched = watched_page(lab.origin)
    page = watched.page
    lab.open_cells(page, BUDGET, "budget.spec", "budget.shown('zh')")
    assert lab.run_all(page) == []
    page.wait_for_function("selector => document.querySelectorAll(selector).length === 3", arg=SHOWN)
    for theme in ("Light", "Dark"):
        change_theme(page, theme)
        assert violations(page, SHOWN) == []
        screenshot(page, f"shown_in_lab_{theme.lower()}")
    rows = page.locator(SHOWN).first.locator("tbody tr")
    bars = [row.locator("span").bounding_box() for row in rows.all() if row.locator("span").count()]
    assert len(bars) == 7
    assert max(bar["width"] for bar in bars) > 20 * min(bar["width"] for bar in bars)
    watched.assert_clean()
