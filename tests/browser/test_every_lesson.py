"""Every lesson in a real browser, in both languages: all cells run, no console error, no outside request."""

import shutil

import pytest

from minikv.i18n import LANGUAGES
from tests.browser.conftest import REPOSITORY

LESSONS = sorted(path.name for path in (REPOSITORY / "notebooks" / "en").glob("*.ipynb"))
# It has a test of its own, which does all of this and moves a slider besides.
OTHERS = [name for name in LESSONS if name != "02_how_many_bytes.ipynb"]

pytestmark = [pytest.mark.browser, pytest.mark.slow]


@pytest.mark.parametrize("lesson", OTHERS)
@pytest.mark.parametrize("lang", LANGUAGES)
def test_a_lesson_runs_from_top_to_bottom(lang, lesson, lab, watched_page, screenshot):
    # A copy: JupyterLab saves what it runs.
    folder = lab.root / lang
    folder.mkdir(exist_ok=True)
    shutil.copy(REPOSITORY / "notebooks" / lang / lesson, folder)
    watched = watched_page(lab.origin)
    page = watched.page

    number = lesson.split("_")[0]
    lab.open_notebook(page, f"{lang}/{lesson}")
    screenshot(page, f"lesson_{number}_{lang}_top")
    assert lab.run_all(page) == []

    screenshot(page, f"lesson_{number}_{lang}_end")
    watched.assert_clean()


def test_there_are_lessons_to_open():
    assert {"00", "01", "03", "A"} <= {name.split("_")[0] for name in OTHERS}
