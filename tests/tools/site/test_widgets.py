"""Widgets of lessons on their pages: what the cell shows, with all of its states, or answered by Python in the page."""

import json
import subprocess
import sys
import zipfile
from functools import partial

import pytest

from minikv.i18n import LANGUAGES
from tools.notebooks.course import Target, open_course
from tools.project import ROOT
from tools.site.browser.widgets import LIVE, answer
from tools.site.calculator import write_package
from tools.site.markdown import Prose
from tools.site.notebook import NotebookPage, Pictures
from tools.site.widgets import CELLS, Offered, offered, widget_classes, write_assets
from tools.site.words import words

LESSONS = {lesson.number: lesson.stem for lesson in open_course(ROOT).lessons}


def cells_of(number: str, lang: str) -> list[dict]:
    path = ROOT / Target("lesson", lang, LESSONS[number]).path
    return json.loads(path.read_text(encoding="utf-8"))["cells"]


def offer(number: str, key: str, lang: str) -> Offered:
    found = offered(number, cells_of(number, lang), lang, key)
    assert found is not None
    return found


@pytest.mark.parametrize("lang", LANGUAGES)
def test_the_cells_make_their_widgets_in_the_reader_s_language(lang):
    seen = set()
    for number, key in CELLS:
        found = offer(number, key, lang)
        whole = json.loads(json.dumps(found.as_dict(), ensure_ascii=False))
        assert any("\u4e00" <= letter <= "\u9fff" for letter in str(whole["traits"])) == (lang == "zh")
        assert (found.live is None) == (found.name not in LIVE)
        seen.add(found.name)
    assert seen == set(widget_classes())
    assert offered("02", cells_of("02", lang), lang, "another") is None


def test_python_in_the_page_answers_what_the_widget_answers(tmp_path):
    package, folder = tmp_path / "minikv.zip", tmp_path / "unpacked"
    write_package(package)
    zipfile.ZipFile(package).extractall(folder)
    asked = []
    for place, (number, key) in enumerate(CELLS):
        found = offer(number, key, LANGUAGES[place % 2])
        if found.live:
            assert json.loads(answer(json.dumps({**found.live, "state": {}}))) == json.loads(
                json.dumps(found.traits["view"])
            )
            asked.append(json.dumps({**found.live, "state": found.traits["state"]}))
    assert len(asked) == len(LIVE)
    code = (
        "import sys, json; sys.path.insert(0, sys.argv[1]); import widgets;"
        "print(*map(widgets.answer, json.load(sys.stdin)), sep='\\n')"
    )
    command = [sys.executable, "-I", "-S", "-X", "utf8", "-c", code, str(folder)]
    done = subprocess.run(command, input=json.dumps(asked), capture_output=True, text=True, encoding="utf-8")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [answer(each) for each in asked]


def test_a_page_has_the_widget_beside_its_picture_and_without_python_the_picture(tmp_path):
    def html(size: int, number: str, key: str) -> str:
        cells = cells_of(number, "en")
        offers = partial(offered, number, cells, "en")
        page = NotebookPage(Prose(str), Pictures(tmp_path), "../pictures", words("en"), offers, size)
        return page.html([cell for cell in cells if cell["id"] == key])

    live, picture = (html(size, "10", "widget") for size in (14, 0))
    assert 'class="photo widget"' in live
    assert "14 MB" in live
    assert 'class="photo widget"' not in picture
    assert words("en")["photo"] in picture
    for size in (0, 14):
        recorded = html(size, "08", "growing_bar")
        assert 'class="photo widget"' in recorded
        assert "MB" not in recorded.partition("<img")[0]
        assert recorded.count("<img") == 1


def test_the_files_of_each_widget_are_there(tmp_path):
    write_assets(tmp_path)
    for name in widget_classes():
        assert "export default" in (tmp_path / "widgets" / f"{name}.js").read_text(encoding="utf-8")
        assert (tmp_path / "widgets" / f"{name}.css").stat().st_size > 100
