"""Every lesson in a real browser: all that it shows is drawn, no console error, no outside request.

Its widgets are live: the cells that make them run here. The other cells show what they say in the file: nbval runs all,
each lesson in a kernel of its own. Here one kernel serves them all, emptied each time: it imports torch once.
"""

from copy import deepcopy

import nbformat
import pytest

from tests.browser.conftest import REPOSITORY
from tests.browser.languages import lessons
from tests.browser.slices import PLOT, WIDGET, shows, widget_cells

LESSONS = sorted(path.name for path in (REPOSITORY / "notebooks" / "en").glob("*.ipynb"))
# This one runs from top to bottom, as a newcomer runs it; lesson 02 has a test of its own.
WHOLE = "00_start_here.ipynb"
OTHERS = [name for name in LESSONS if name != "02_how_many_bytes.ipynb"]

_DRAWN = """() => ["js-plotly-plot", "minikv-widget"].map((name) => document.querySelectorAll(`.${name}`).length)"""
_SAID = """(ids) => {
  const cells = window.jupyterapp.shell.currentWidget.content.model.sharedModel.toJSON().cells;
  const said = (cell) => cell.outputs.map((one) => one.data?.["text/plain"]);
  return cells.filter((cell) => ids.includes(cell.id)).map(said);
}"""

pytestmark = [pytest.mark.browser, pytest.mark.slow]


def count(notebook, mime: str) -> int:
    return sum(shows(cell, mime) for cell in notebook.cells)


def plots_without_pictures(notebook):
    """A copy whose plots are drawn, as they are where a cell has just run; of a saved plot the picture is shown."""
    copied = deepcopy(notebook)
    for cell in copied.cells:
        for output in cell.get("outputs", ()):
            if PLOT in output.get("data", {}):
                output["data"].pop("image/png", None)
    return copied


@pytest.mark.parametrize(("lesson", "lang"), lessons(OTHERS))
def test_a_lesson_is_drawn_and_its_widgets_live(lesson, lang, lab, readers_page, screenshot):
    saved = nbformat.read(REPOSITORY / "notebooks" / lang / lesson, as_version=4)
    page, number = readers_page.page, lesson.split("_")[0]
    lab.open_copy(page, plots_without_pictures(saved), f"{number}_{lang}")
    screenshot(page, f"lesson_{number}_{lang}_top")
    ids = widget_cells(saved)
    assert (lab.run_all(page) if lesson == WHOLE else lab.run_cells(page, ids)) == []

    drawn = [count(saved, PLOT), count(saved, WIDGET)]
    page.wait_for_function(f"(drawn) => String(({_DRAWN})()) === String(drawn)", arg=drawn, timeout=60_000)
    # What no other run repeats (a thread that streams meanwhile) is drawn, and not compared.
    repeats = [cell for cell in saved.cells if "nbval-ignore-output" not in cell.metadata.get("tags", ())]
    showing = [cell for cell in repeats if shows(cell, WIDGET)]
    said = [[output.get("data", {}).get("text/plain") for output in cell.outputs] for cell in showing]
    assert page.evaluate(_SAID, [cell.id for cell in showing]) == said
    if any(drawn):
        page.locator(".minikv-widget, .js-plotly-plot").last.scroll_into_view_if_needed()
    screenshot(page, f"lesson_{number}_{lang}_drawn")
    readers_page.assert_clean()


def test_there_are_lessons_to_open_and_most_have_a_widget():
    assert {"00", "01", "03", "A"} <= {name.split("_")[0] for name in OTHERS}
    made = [nbformat.read(REPOSITORY / "notebooks" / "en" / name, as_version=4) for name in LESSONS]
    assert sum(count(notebook, WIDGET) > 0 for notebook in made) >= 14
    assert all(bool(widget_cells(notebook)) == (count(notebook, WIDGET) > 0) for notebook in made)
