"""An nbgrader course from the sources in solutions/src: one assignment a lesson, each exercise graded by its check.

    python -m tools.nbgrader COURSE [--lang zh] [02 09 ...]      write COURSE/source/... and its nbgrader_config.py
    cd COURSE && nbgrader generate_assignment 02_how_many_bytes  nbgrader's own; release/... is for the students

How graders read a notebook (nbgrader's cell metadata, schema version 3): a cell with a solution is "solution", and
nbgrader puts its stub in place of what stands between the markers. Behind it comes a locked cell that is "grade" and
has points: it asserts that ``run_check`` passes, with more time than a learner has and cases drawn anew. The texts that
explain a solution are left out; nobody types a grade.
"""

import argparse
import ast
import re
import sys
from dataclasses import dataclass
from pathlib import Path

import nbformat
from nbformat import NotebookNode

from minikv.i18n import LANGUAGES
from tools.notebooks.codecells import SolutionError, without_solution
from tools.notebooks.compose import for_repository, setup_cell
from tools.notebooks.course import Course, Target, open_course
from tools.notebooks.prose import join_chinese_lines
from tools.notebooks.source import SourceError
from tools.notebooks.texts import TEXTS
from tools.project import read_project

ROOT = Path(__file__).parent.parent
LESSON_LINK = re.compile(r"\]\(\.\./\.\./(notebooks/[^)]+)\)")  # no lessons lie beside an assignment
POINTS = 1  # of an exercise
GRADING_SEED = 1000  # the cases are drawn anew: not those that ``check`` shows
PATIENCE = 10  # times the limit of an exercise: a machine that grades a class may be slow

CONFIG = """\
# Made by python -m tools.nbgrader. The stub is the one of the course's own exercises.
import os

os.environ.setdefault("MINIKV_PROGRESS", "off")  # what is graded here is nobody's progress
c = get_config()  # noqa: F821
c.CourseDirectory.course_id = "minikv"
c.ClearSolutions.code_stub = {"python": "raise NotImplementedError"}
c.Execute.timeout = 900
"""

TEST = """\
from dataclasses import replace

from minikv.course import find_exercise, run_check

exercise = find_exercise("{id}")
verdict = run_check(replace(exercise, limit_s={patience} * exercise.limit_s), {answer}, seed={seed})
assert verdict.passed, f"{id}: {{verdict.kind}}, {{verdict.num_failed}} of {{verdict.num_cases}} cases\""""


@dataclass(frozen=True)
class Checked:
    """One ``check("02.1", token_bytes)`` of a cell: the exercise, and the expression that is handed in."""

    id: str
    answer: str


def checks(code: str) -> list[Checked]:
    """The exercises that a cell hands in, in order."""
    found = []
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "check":
            id, answer = node.args[:2]
            if isinstance(id, ast.Constant):
                found.append(Checked(str(id.value), ast.unparse(answer)))
    return found


def assignment(course: Course, target: Target) -> NotebookNode:
    """The instructor's version of the exercises of ``target``, without outputs.

    Raises ``SourceError`` for markers that cannot be used.
    """
    source, meta = course.read(target), next(m for m in course.lessons if m.stem == target.stem)
    title = TEXTS[target.lang]["exercise_title"].format(number=meta.number, title=meta.title[target.lang])
    setup = setup_cell(read_project(), meta.number, target.lang)
    cells = [
        _markdown("minikv-header", f"# {title}"),
        _code("minikv-setup", setup, grade=False, locked=True, solution=False),
    ]
    for cell in source.in_language(target.lang):
        try:
            stub = without_solution(cell.text, "" if cell.kind == "markdown" else "raise NotImplementedError")
        except (SolutionError, SyntaxError) as error:
            way_out = "See docs/lessons.md"
            raise SourceError(source.path, cell.line, f'cell "{cell.key}": {error}', way_out) from error
        if cell.kind == "markdown":
            text = join_chinese_lines(stub) if target.lang == "zh" else stub
            text = LESSON_LINK.sub(r"](repo:\1)", text)
            cells += [_markdown(cell.key, for_repository(text))] if text.strip() else []
            continue
        if stub == cell.text:
            cells.append(_code(cell.key, cell.text))
            continue
        cells.append(_code(cell.key, cell.text, grade=False, locked=False, solution=True))
        for done in checks(cell.text):
            test = TEST.format(id=done.id, answer=done.answer, seed=GRADING_SEED, patience=PATIENCE)
            grade_id = f"test-{done.id.replace('.', '-')}"
            cells.append(_code(grade_id, test, grade=True, locked=True, solution=False, points=POINTS))
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    metadata = {"kernelspec": kernel, "language_info": {"name": "python", "file_extension": ".py"}}
    whole = {"cells": cells, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}
    notebook = nbformat.from_dict(whole)
    nbformat.validate(notebook)
    return notebook


def write_course(course: Course, out: Path, lang: str, names: tuple[str, ...] = ()) -> list[Path]:
    """Write the assignments of the lessons ``names`` (all that have exercises) below ``out``; returns their files.

    Raises ``LookupError`` for a name that fits no lesson, or one without exercises, and writes nothing then.
    """
    targets = [t for t in course.targets(names) if t.kind == "exercise" and t.lang == lang]
    without = set(names) - {name for name in names for t in targets if name in (t.stem, t.stem.split("_")[0])}
    if without:
        raise LookupError(f"Lesson {min(without)} has no exercises.")
    made = [(out / "source" / t.stem / f"{t.stem}.ipynb", assignment(course, t)) for t in targets]
    out.mkdir(parents=True, exist_ok=True)
    config = out / "nbgrader_config.py"
    if not config.exists():
        config.write_text(CONFIG, encoding="utf-8")
    for path, notebook in made:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(nbformat.writes(notebook).rstrip("\n") + "\n", encoding="utf-8")
    return [path for path, _ in made]


def _markdown(id: str, text: str) -> dict:
    return {"cell_type": "markdown", "id": id, "metadata": {}, "source": text}


def _code(id: str, text: str, **roles: bool | int) -> dict:
    """A code cell; with ``roles`` it is one of nbgrader's, under ``id``."""
    metadata = {"nbgrader": {"schema_version": 3, "grade_id": id, "task": False, **roles}} if roles else {}
    empty: dict = {"cell_type": "code", "execution_count": None, "outputs": []}
    return {**empty, "id": id, "metadata": metadata, "source": text}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.nbgrader", description=__doc__.splitlines()[0])
    parser.add_argument("course", type=Path, help="the folder of the nbgrader course")
    parser.add_argument("lessons", nargs="*", help="lessons, as 02; all with exercises where none is named")
    parser.add_argument("--lang", choices=LANGUAGES, default="en", help="language of the assignments")
    options = parser.parse_args(arguments)
    try:
        written = write_course(open_course(ROOT), options.course, options.lang, tuple(options.lessons))
    except (SourceError, LookupError) as error:
        print(error.args[0], file=sys.stderr)
        return 1
    for path in written:
        print(f"written   {path}")
    print(f"{len(written)} assignments. Next: cd {options.course} && nbgrader generate_assignment NAME")
    return 0


if __name__ == "__main__":
    sys.exit(main())
