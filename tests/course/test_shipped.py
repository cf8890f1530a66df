"""Copying the course: a newer version arrives, and nothing that the reader wrote is ever lost."""

import json
import random

import pytest

from minikv.course import shipped
from minikv.course.shipped import LEDGER, Yours, copy_course
from tests.longer import usual_if

NAME = "notebooks/en/00_start.ipynb"


def beside(number: int = 1) -> str:
    return f"notebooks/en/00_start.new{'' if number == 1 else number}.ipynb"


class Course:
    """Two shipped notebooks whose version can be raised, and a reader's folder."""

    def __init__(self, root, target):
        self.root, self.target = root, target

    def copy(self, version: str) -> shipped.CopyReport:
        for name in (NAME, "exercises/zh/01_sum.ipynb"):
            (self.root / name).parent.mkdir(parents=True, exist_ok=True)
            (self.root / name).write_text(f"{name} {version}")
        return copy_course(self.target)

    def write(self, name: str, words: str) -> None:
        (self.target / name).write_text(words)

    def read(self, name: str) -> str:
        return (self.target / name).read_text()

    def contents(self) -> dict[str, str]:
        return {p.relative_to(self.target).as_posix(): p.read_text() for p in self.target.rglob("*.ipynb")}


@pytest.fixture
def course(tmp_path, monkeypatch):
    monkeypatch.setattr(shipped, "course_root", lambda: tmp_path / "package")
    return Course(tmp_path / "package", tmp_path / "reader")


def test_untouched_notebooks_follow_the_versions(course):
    assert course.copy("v1") == shipped.CopyReport(2, 0, ())
    assert course.copy("v1") == shipped.CopyReport(0, 2, ())
    assert course.copy("v2") == shipped.CopyReport(2, 0, ())
    assert course.read(NAME) == f"{NAME} v2"


def test_changed_at_the_same_version_is_left_and_nothing_is_written_beside(course):
    course.copy("v1")
    course.write(NAME, "mine")
    assert course.copy("v1").yours == (Yours(NAME, None),)
    assert set(course.contents()) == {NAME, "exercises/zh/01_sum.ipynb"}


def test_a_newer_one_is_written_beside_once(course):
    course.copy("v1")
    course.write(NAME, "mine")
    assert course.copy("v2").yours == (Yours(NAME, beside()),)
    assert course.copy("v2").yours == (Yours(NAME, None),)
    assert course.read(NAME) == "mine"
    assert course.read(beside()) == f"{NAME} v2"
    # Nobody touched the one beside it, so the next version takes its place.
    assert course.copy("v3").yours == (Yours(NAME, beside()),)
    assert course.read(beside()) == f"{NAME} v3"


def test_work_in_the_one_beside_is_kept_too(course):
    course.copy("v1")
    course.write(NAME, "mine")
    course.copy("v2")
    course.write(beside(), "mine, second")
    assert course.copy("v3").yours == (Yours(NAME, beside(2)),)
    assert course.read(beside()) == "mine, second"
    assert course.read(beside(2)) == f"{NAME} v3"


LEDGERS = ["", "{", "[]", "null", "7", "\x00", "[" * 100_000, json.dumps({NAME: 5, beside(): None})]


@pytest.mark.parametrize("ledger", LEDGERS, ids=lambda words: repr(words[:8]))
def test_a_damaged_ledger_costs_no_work(course, ledger):
    course.copy("v1")
    course.write(NAME, "mine")
    course.copy("v2")
    course.write(beside(), "mine, second")
    course.write(LEDGER, ledger)
    assert course.copy("v2").yours == (Yours(NAME, beside(2)),)
    assert course.read(NAME) == "mine"
    assert course.read(beside()) == "mine, second"
    assert set(json.loads(course.read(LEDGER))) >= {NAME, beside(2)}


@pytest.mark.parametrize("seed", usual_if(range(12).__contains__, range(40)))
def test_whatever_happens_all_work_is_still_there(course, seed):
    chance = random.Random(seed)
    work: dict[str, str] = {}
    old_ledgers = ["{", "{}"]
    for step in range(25):
        course.copy(f"v{chance.randrange(step + 1)}")
        contents = course.contents()
        assert work.items() <= contents.items()
        old_ledgers.append(course.read(LEDGER))
        if chance.random() < 0.4:
            name = chance.choice(sorted(contents))
            work[name] = f"mine {seed} {step}"
            course.write(name, work[name])
        if chance.random() < 0.3:
            course.write(LEDGER, chance.choice(old_ledgers))


def test_an_interruption_leaves_the_old_file_and_no_half_one(course, monkeypatch):
    course.copy("v1")
    ledger = course.read(LEDGER)

    def stopped(source, target):
        raise OSError("no space left")

    monkeypatch.setattr(shipped.os, "replace", stopped)
    with pytest.raises(OSError, match="no space"):
        course.copy("v2")
    assert course.read(NAME) == f"{NAME} v1"
    assert course.read(LEDGER) == ledger
    assert not list(course.target.rglob("*.tmp"))


def test_the_ledger_is_written_last(course, monkeypatch):
    written = []
    real = shipped.os.replace
    monkeypatch.setattr(shipped.os, "replace", lambda a, b: (written.append(b.name), real(a, b)))
    course.copy("v1")
    assert written[-1] == LEDGER
    assert len(written) == 3


class Lesson:
    """A notebook of one lesson: what the course ships in each version, and what Jupyter and a reader do to a copy."""

    def __init__(self, course):
        self.course, self.path = course, course.target / NAME

    def ship(self, version: str, output: str = "out") -> shipped.CopyReport:
        cells = [
            {"cell_type": "markdown", "id": "a", "metadata": {}, "source": [f"# {version}\n", "words"]},
            {"cell_type": "code", "id": "b", "metadata": {}, "execution_count": 1, "source": ["1 + 1"]},
        ]
        cells[1]["outputs"] = [{"output_type": "stream", "name": "stdout", "text": [output]}]
        (self.course.root / NAME).parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps({"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5})
        (self.course.root / NAME).write_text(text)
        return copy_course(self.course.target)

    @property
    def notebook(self):
        return json.loads(self.path.read_text())

    def change(self, step):
        notebook = self.notebook
        step(notebook)
        self.path.write_text(json.dumps(notebook, indent=1))

    def open(self):
        def saved(notebook):
            notebook["metadata"]["language_info"] = {"name": "python", "version": "3.12.1"}
            for cell in notebook["cells"]:
                cell["source"] = "".join(cell["source"])

        self.change(saved)

    def run(self):
        def ran(notebook):
            notebook["cells"][1] |= {"execution_count": 7, "outputs": []}
            empty = {"cell_type": "code", "id": "c", "metadata": {}, "outputs": [], "source": []}
            notebook["cells"].append(empty | {"execution_count": None})

        self.change(ran)

    def edit(self):
        self.change(lambda notebook: notebook["cells"][1].update(source="1 + 2"))

    def age(self):
        """The ledger as the first versions wrote it."""
        ledger = json.loads(self.course.read(LEDGER))
        self.course.write(LEDGER, json.dumps({name: words.split()[0] for name, words in ledger.items()}))


@pytest.fixture
def lesson(course):
    return Lesson(course)


@pytest.mark.parametrize("steps", [["open"], ["run"], ["open", "run"]], ids="+".join)
def test_a_lesson_that_was_only_opened_or_run_is_no_work(lesson, steps):
    lesson.ship("v1")
    for step in steps:
        getattr(lesson, step)()
    before = lesson.path.read_text()
    assert lesson.ship("v1") == shipped.CopyReport(0, 1, ())
    assert lesson.path.read_text() == before, "its outputs stay"
    assert lesson.ship("v1", output="a rebuilt one") == shipped.CopyReport(0, 1, ())
    assert lesson.path.read_text() == before
    assert lesson.ship("v2") == shipped.CopyReport(1, 0, ())
    assert lesson.notebook["cells"][0]["source"][0] == "# v2\n"
    assert set(lesson.course.contents()) == {NAME}


def test_a_lesson_that_nobody_has_opened_follows_its_outputs_too(lesson):
    lesson.ship("v1")
    assert lesson.ship("v1", output="a rebuilt one") == shipped.CopyReport(1, 0, ())
    assert lesson.notebook["cells"][1]["outputs"][0]["text"] == ["a rebuilt one"]


def test_a_lesson_that_asks_for_predictions_comes_without_its_outputs(tmp_path):
    copy_course(tmp_path)
    outputs = {}
    for name in shipped.shipped_notebooks():
        cells = [
            each for each in json.loads((tmp_path / name).read_text())["cells"] if each["cell_type"] == "code"
        ]
        there = json.loads((shipped.course_root() / name).read_text())["cells"]
        assert [each["source"] for each in cells] == [
            each["source"] for each in there if each["cell_type"] == "code"
        ]
        asks = any("predict(" in line for each in cells for line in each["source"])
        outputs.setdefault(asks, []).append(sum(len(each["outputs"]) for each in cells))
    assert set(outputs[True]) == {0}
    assert len(outputs[True]) >= 2 * 20
    assert sum(outputs[False]) > 0, "an appendix is read without being run"


@pytest.mark.parametrize("aged", [False, True])
@pytest.mark.parametrize(
    "step",
    [
        Lesson.edit,
        lambda lesson: lesson.change(lambda notebook: notebook["cells"].reverse()),
        lambda lesson: lesson.change(lambda notebook: notebook["cells"].pop()),
        lambda lesson: lesson.change(lambda notebook: notebook["cells"][1].update(cell_type="raw")),
        lambda lesson: lesson.change(lambda notebook: notebook["cells"].append(notebook["cells"][0])),
        lambda lesson: lesson.path.write_text(""),
        lambda lesson: lesson.path.write_text("[" * 100_000),
        lambda lesson: lesson.path.write_bytes(b"\xff"),
        lambda lesson: lesson.path.write_text('{"cells": 7}'),
    ],
)
def test_every_change_of_a_cell_is_work(lesson, step, aged):
    lesson.ship("v1")
    lesson.open()
    step(lesson)
    before = lesson.path.read_bytes()
    if aged:
        lesson.age()
    assert lesson.ship("v1").yours == (Yours(NAME, None),)
    assert lesson.ship("v2").yours == (Yours(NAME, beside()),)
    assert lesson.path.read_bytes() == before


def test_the_record_of_an_older_version_is_understood(lesson):
    lesson.ship("v1")
    lesson.age()
    assert lesson.ship("v2") == shipped.CopyReport(1, 0, ()), "nobody touched it"
    lesson.open()
    lesson.age()
    assert lesson.ship("v2") == shipped.CopyReport(0, 1, ()), "the cells are those that are shipped now"
    assert lesson.ship("v3") == shipped.CopyReport(1, 0, ()), "and that is remembered"
    lesson.open()
    lesson.age()
    assert lesson.ship("v4").yours == (Yours(NAME, beside()),), "nothing says which cells v3 had: better kept"
