"""A report or source that a cell of JupyterLab shows: it can be read in both themes, and asks nobody for anything."""

import nbformat
import pytest

from tests.browser.accessibility import violations
from tests.browser.conftest import REPOSITORY
from tests.browser.lab import change_theme

pytestmark = [pytest.mark.browser, pytest.mark.slow]

BUDGET = (
    "from minikv.plan import plan_memory\nbudget = plan_memory('Llama-3.1-8B', gpu='H200', batch=64)\nbudget"
)
SOURCE = """from minikv.course import show_source
from minikv.nano.block_manager import BlockManager
show_source(BlockManager.allocate, BlockManager.free)"""
DIAGRAM = """from minikv.blocks import BlockManager
from minikv.course import show
from minikv.course.diagrams import slots
manager = BlockManager(num_blocks=12, block_size=4)
manager.allocate("A", list(range(9)))
show(slots(manager, "A"))"""
PLOT = """import plotly.graph_objects as go
from minikv.course import show
show(go.Figure(go.Scatter(y=[1, 3, 2]), layout={"height": 300, "xaxis": {"title": "step"}}), text="three points")"""
SHOWN = ".jp-OutputArea-output .minikv-shown:not(.minikv-source)"
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


def test_a_diagram_takes_the_ink_of_each_theme(lab, readers_page, screenshot):
    page = readers_page.page
    lab.open_cells(page, DIAGRAM)
    assert lab.run_all(page) == []
    picture = page.locator(".minikv-diagram svg")
    picture.wait_for()
    assert page.locator(".minikv-diagram img").count() == 0
    inks = []
    for theme in ("Dark", "Light"):
        change_theme(page, theme)
        inks.append(picture.locator("text").first.evaluate("word => getComputedStyle(word).fill"))
        screenshot(page.locator(".minikv-diagram"), f"diagram_in_lab_{theme.lower()}")
    assert inks[0] != inks[1]


def test_a_diagram_of_a_notebook_that_is_not_trusted_is_an_image_with_its_alternative_text(
    lab, readers_page, screenshot
):
    page = readers_page.page
    saved = nbformat.read(REPOSITORY / "notebooks" / "en" / "03_the_2_86x_mistake.ipynb", as_version=4)
    saved.cells = [cell for cell in saved.cells if cell.id == "heads_picture"]
    lab.open_copy(page, saved, "not_trusted")
    image = page.locator(".jp-OutputArea-output img")
    image.wait_for()
    assert image.evaluate("async (image) => { await image.decode(); return image.naturalWidth; }") == 864
    assert "16,384 B" in image.get_attribute("alt")
    assert page.locator(".jp-OutputArea-output svg").count() == 0
    screenshot(page.locator(".jp-OutputArea-output"), "diagram_not_trusted")


def test_a_plot_follows_the_theme_and_the_width_of_its_column(lab, readers_page, screenshot):
    page = readers_page.page
    lab.open_cells(page, PLOT)
    assert lab.run_all(page) == []
    plot = page.locator(".jp-OutputArea-output.js-plotly-plot, .jp-OutputArea-output .js-plotly-plot").first
    plot.locator(".xtitle").wait_for()
    inks = []
    for theme in ("Dark", "Light"):
        change_theme(page, theme)
        inks.append(plot.locator(".xtitle").evaluate("one => getComputedStyle(one).fill"))
        assert plot.locator(".main-svg").first.evaluate("one => getComputedStyle(one).backgroundColor") == (
            "rgba(0, 0, 0, 0)"
        )
        screenshot(plot, f"plot_in_lab_{theme.lower()}")
    assert inks[0] != inks[1]
    assert 720 < plot.bounding_box()["width"] <= 1200
    readers_page.assert_clean()
