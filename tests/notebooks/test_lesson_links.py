"""Links: each leads to a notebook in the reader's language, and a lesson that is named is linked where it is named."""

import os.path
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

from minikv.i18n import LANGUAGES
from tests.in_turn import in_turn
from tools.notebooks.compose import compose, switch_link
from tools.notebooks.course import Target, open_course
from tools.notebooks.prose import own_words
from tools.project import read_project

COURSE = open_course(Path(__file__).resolve().parents[2])
PATHS = {target.path.as_posix(): target for target in COURSE.targets()}
SOURCES = sorted({target.source_path for target in COURSE.targets()})
MARKDOWN = MarkdownIt("commonmark").enable("table")

_NAMES = {
    "en": r"\b(?:lessons? \d\d[a-z]?\b(?:(?:, and |, | and | or | to )\d\d[a-z]?\b)*|appendix [A-Z])\b",
    "zh": r"第 \d\d[a-z]?(?:(?:、|，| 和 | 到 |至)\d\d[a-z]?)* 课|附录 [A-Z]",
}
_LINKED_NAMES = re.compile(r"\[([^\[\]]*)\]\(([^)\s]*)\)")  # numbers inside a link's text are named too


def named(text: str, lang: str) -> set[str]:
    """Numbers of the lessons that prose names, its headings left out: a link would not help there."""
    prose = "\n".join(line for line in text.split("\n") if not line.startswith("#"))
    # [lesson 09](...) and "lessons [07](...) and [16](...)" are names like those without a link
    words = own_words(_LINKED_NAMES.sub(r"\1", prose))
    found = re.finditer(_NAMES[lang], words, re.IGNORECASE)
    return {number for match in found for number in re.findall(r"\d\d[a-z]?|\b[A-Z]$", match[0])}


def links(text: str) -> Iterator[tuple[str, str]]:
    """(text, address) of each link of one Markdown cell; code holds none."""
    if "](" not in text:
        return
    for block in MARKDOWN.parse(text):
        children = block.children or []
        for place, token in enumerate(children):
            if token.type == "link_open":
                yield children[place + 1].content, str(token.attrs["href"])


def reached(here: Target, address: str) -> Target | None:
    """The notebook that a relative address leads to, None where there is no such notebook."""
    place = os.path.join(here.path.parent, address.partition("#")[0])
    return PATHS.get(os.path.normpath(place).replace(os.sep, "/"))


@cache
def cells(target: Target) -> dict[str, str]:
    """Key and text of each Markdown cell, as a reader sees it."""
    notebook = compose(COURSE, target, COURSE.read(target))
    return {cell.id: cell.source for cell in notebook.cells if cell.cell_type == "markdown"}


def number(target: Target) -> str:
    return target.stem.split("_")[0]


def own_notebook(path: Path, lang: str) -> Target:
    """The notebook that shows all of a source: for a solutions file, the solutions."""
    return Target("solution" if path.parts[0] == "solutions" else "lesson", lang, path.stem)


@in_turn("target", COURSE.targets())
def test_each_link_leads_to_a_notebook_in_the_readers_language(target):
    for key, text in cells(target).items():
        for words, address in links(text):
            if "://" in address or address.startswith("#"):
                continue
            where = f"{target.path} [cell {key}] links “{words}” to {address}"
            goal = reached(target, address)
            assert goal, f"{where}: the course has no such notebook"
            switch = key == "minikv-header" and address == switch_link(target)
            assert switch or goal.lang == target.lang, f"{where}: that is the other language"


@in_turn("path", SOURCES)
@pytest.mark.parametrize("lang", LANGUAGES)
def test_a_lesson_that_is_named_is_linked_in_the_same_cell(path, lang):
    """It is enough once a cell. A lesson need not link to itself."""
    target = own_notebook(path, lang)
    for key, text in cells(target).items():
        if key.startswith("minikv-"):
            continue
        linked = set()
        for words, address in links(text):
            goal = None if "://" in address else reached(target, address)
            if goal is not None and goal.kind == "lesson":
                linked.add(number(goal))
                said = named(words, lang) or ({words} & {meta.number for meta in COURSE.lessons})
                assert said <= {number(goal)}, f"{path} [cell {key}, {lang}]: “{words}” leads to {address}"
        missing = named(text, lang) - linked - {number(target)}
        assert not missing, (
            f"{path} [cell {key}, {lang}] names lesson {', '.join(sorted(missing))} without a link. "
            "Write [lesson 09](09_pages_and_blocks.ipynb), [第 09 课](09_pages_and_blocks.ipynb)"
        )


@in_turn("path", SOURCES)
def test_both_languages_link_to_the_same_lessons(path):
    per_language = []
    for lang in LANGUAGES:
        target = own_notebook(path, lang)
        goals = {}
        for key, text in cells(target).items():
            reach = [reached(target, address) for _, address in links(text) if "://" not in address]
            goals[key] = {(goal.kind, goal.stem) for goal in reach if goal is not None}
        per_language.append(goals)
    english, chinese = per_language
    # The Chinese header alone says where to read on where Colab cannot be reached.
    differ = {key for key in english if english[key] != chinese.get(key) and key != "minikv-header"}
    assert not differ, f"{path}: one language links where the other does not, in {', '.join(sorted(differ))}"


def test_a_lesson_needs_only_lessons_before_it():
    order = [meta.number for meta in COURSE.lessons]
    for place, meta in enumerate(COURSE.lessons):
        assert set(meta.needs) <= set(order[:place]), f"{meta.stem} needs {', '.join(meta.needs)}"


@pytest.mark.parametrize(
    ("lang", "text", "numbers"),
    [
        ("en", "Lesson 04 measures that one.", {"04"}),
        ("en", "([lesson 09](09_pages.ipynb)), lessons [07](07_x.ipynb) and 16", {"07", "09", "16"}),
        ("en", "as lessons 02, 04 and 12 say; see appendix A.", {"02", "04", "12", "A"}),
        (
            "en",
            "This lesson asks: `lesson 05`?\n> lesson 06\n## Lesson 07\nA lesson a day, exercise 04.5",
            set(),
        ),
        ("en", "three lessons 2026 brought", set()),
        ("en", "Lesson 11b asks; see lessons 09, 11a and 12.", {"11b", "09", "11a", "12"}),
        ("zh", "[第 11a 课](11a_x.ipynb)，以及第 09、11b 课", {"11a", "09", "11b"}),
        ("zh", "[第 09 课](09_pages.ipynb)和第 02、04、12 课，另见附录 B。", {"09", "02", "04", "12", "B"}),
        ("zh", "第 [07](07_x.ipynb)、[16](16_x.ipynb) 课", {"07", "16"}),
        ("zh", "## 第 03 课\n第 3 节，第 12 行", set()),
    ],
)
def test_names_are_found(lang, text, numbers):
    assert named(text, lang) == numbers


def test_links_are_found_in_tables_and_not_in_code():
    text = "| a |\n|---|\n| [x](one.ipynb) |\n\n`[y](two.ipynb)` and **[z](three.ipynb#part)**"
    assert list(links(text)) == [("x", "one.ipynb"), ("z", "three.ipynb#part")]


def test_the_header_names_files_of_the_package():
    """Every lesson names some, and they are there; the two lists of words name none."""
    folder = read_project().file("minikv/")
    for target in COURSE.targets():
        header = cells(target)["minikv-header"]
        named = [address.removeprefix(folder) for _, address in links(header) if address.startswith(folder)]
        assert named or target.stem in ("F_glossary", "G_index"), target
        assert [name for name in named if not (COURSE.root / "minikv" / name).exists()] == [], target
