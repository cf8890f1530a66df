"""The nbgrader course: what is written follows nbgrader's schema, and nbgrader itself takes it.

The last tests need nbgrader, which is no dependency: they run with the Python that ``MINIKV_NBGRADER`` names (of an
environment with nbgrader, of the same Python version), else with this one, and are skipped where it has none.
"""

import ast
import json
import os
import re
import site
import subprocess
import sys
from functools import cache
from itertools import pairwise
from pathlib import Path

import nbformat
import pytest

from minikv.course import find_exercise, run_check, start
from minikv.course.lessons import find_lesson, lesson_numbers
from minikv.i18n import LANGUAGES
from tests.in_turn import in_turn
from tests.longer import usual_if
from tools.nbgrader import GRADING_SEED, POINTS, assignment, checks, main, write_course
from tools.notebooks.codecells import with_solution
from tools.notebooks.course import open_course

ROOT = Path(__file__).parents[2]
COURSE = open_course(ROOT)
TARGETS = [target for target in COURSE.targets() if target.kind == "exercise"]
every_assignment = in_turn("target", TARGETS)
# nbgrader's cell metadata, schema version 3: the keys, their types, and which must be there.
KEYS = {
    "schema_version": int,
    "grade": bool,
    "locked": bool,
    "solution": bool,
    "task": bool,
    "grade_id": str,
    "points": int,
}
REQUIRED = {"schema_version", "grade", "locked", "solution"}


@cache
def made(target):
    return assignment(COURSE, target)


def graders_cells(notebook):
    return [(cell, cell.metadata["nbgrader"]) for cell in notebook.cells if "nbgrader" in cell.metadata]


@every_assignment
def test_the_metadata_follow_the_schema(target):
    nbformat.validate(made(target))
    ids = []
    for cell, meta in graders_cells(made(target)):
        assert set(meta) >= REQUIRED
        assert all(type(value) is KEYS[key] for key, value in meta.items())
        assert meta["schema_version"] == 3
        assert cell.cell_type == "code"  # a Markdown cell would be graded by hand
        assert re.fullmatch(r"[a-zA-Z0-9_\-]+", meta["grade_id"])
        assert ("points" in meta) == meta["grade"]
        assert meta["locked"] == (not meta["solution"])
        ids.append(meta["grade_id"])
    assert len(set(ids)) == len(ids)


@every_assignment
def test_every_exercise_has_a_solution_cell_and_behind_it_its_graded_test(target):
    exercises = [exercise.id for exercise in find_lesson(target.stem.split("_")[0]).exercises]
    cells = [(cell, meta) for cell, meta in graders_cells(made(target)) if meta["grade_id"] != "minikv-setup"]
    graded = [meta["grade_id"] for _, meta in cells if meta["grade"]]
    assert graded == [f"test-{id.replace('.', '-')}" for id in exercises]
    assert sum(meta["points"] for _, meta in cells if meta["grade"]) == POINTS * len(exercises)
    for (cell, meta), (behind, grades) in pairwise(cells):
        if meta["solution"]:
            assert grades["grade"]
            [done] = checks(cell.source)
            assert f'find_exercise("{done.id}")' in behind.source
            assert f"exercise.limit_s), {done.answer}, seed={GRADING_SEED})" in behind.source
            compile(behind.source, "test", "exec")


@every_assignment
def test_markers_stand_in_solution_cells_alone_and_pair_up(target):
    for cell in made(target).cells:
        begins, ends = (cell.source.count(f"### {word} SOLUTION") for word in ("BEGIN", "END"))
        assert begins == ends
        assert bool(begins) == cell.metadata.get("nbgrader", {}).get("solution", False)
        assert cell.cell_type != "code" or (cell.outputs, cell.execution_count) == ([], None)


@every_assignment
def test_no_link_leads_out_of_the_assignment(target):
    for cell in made(target).cells:
        if cell.cell_type == "markdown":
            assert not re.findall(r"\]\((?!https?:|#)[^)]+\)", cell.source), cell.source


def test_both_languages_grade_the_same():
    for stem in {target.stem for target in TARGETS}:
        english, chinese = (
            next(made(t) for t in TARGETS if (t.stem, t.lang) == (stem, lang)) for lang in LANGUAGES
        )
        found = [
            [
                (meta, ast.dump(ast.parse(cell.source)))
                for cell, meta in graders_cells(notebook)
                if meta["grade"]
            ]
            for notebook in (english, chinese)
        ]
        assert found[0] == found[1]


def test_every_exercise_of_the_course_is_graded_once():
    graded = [
        meta["grade_id"]
        for target in TARGETS
        if target.lang == "en"
        for _, meta in graders_cells(made(target))
        if meta["grade"]
    ]
    wanted = [exercise.id for number in lesson_numbers() for exercise in find_lesson(number).exercises]
    assert sorted(graded) == sorted(f"test-{id.replace('.', '-')}" for id in wanted)


def test_the_cases_of_the_grade_are_not_those_that_the_notebook_shows():
    for number in ("00", "02", "09"):
        for exercise in find_lesson(number).exercises:
            assert exercise.draw(GRADING_SEED) != exercise.draw(0)


def test_a_stub_is_not_attempted_and_a_table_of_the_shown_cases_gets_no_point():
    exercise = find_exercise("02.1")
    known = {tuple(case.values()): exercise.reference(**case) for case in exercise.draw(0)}

    def stub(num_layers, num_kv_heads, k_dim, v_dim, itemsize):
        raise NotImplementedError

    def looked_up(num_layers, num_kv_heads, k_dim, v_dim, itemsize):
        return known.get((num_layers, num_kv_heads, k_dim, v_dim, itemsize), 0)

    assert run_check(exercise, stub, seed=GRADING_SEED).kind == "not_attempted"
    assert run_check(exercise, looked_up, seed=0).passed
    assert not run_check(exercise, looked_up, seed=GRADING_SEED).passed


def test_the_graded_cell_passes_for_the_solution_and_raises_for_a_wrong_answer():
    target = next(t for t in TARGETS if (t.lang, t.stem[:2]) == ("en", "02"))
    cells = graders_cells(made(target))
    test = next(cell.source for cell, meta in cells if meta["grade_id"] == "test-02-1")
    right = find_exercise("02.1").reference
    exec(test, {"token_bytes": right})
    with pytest.raises(AssertionError, match=r"02\.1: wrong, \d+ of \d+ cases"):
        exec(test, {"token_bytes": lambda num_layers, num_kv_heads, k_dim, v_dim, itemsize: 1})


@pytest.mark.slow
@pytest.mark.parametrize(
    "target",
    # The capstone serves its own plans for seconds; its solution notebook runs in nbval.
    usual_if(lambda target: target.stem != "18_capstone", [t for t in TARGETS if t.lang == "en"]),
    ids=lambda target: target.stem,
)
def test_our_own_solutions_get_every_point(target, tmp_path, monkeypatch):
    """On the cases of the grade, which the notebooks of solutions/ never see. The cells run as in a notebook."""
    monkeypatch.chdir(tmp_path)
    _, predict, explain, show, words = start(target.stem.split("_")[0], lang="en")
    names: dict = {"check": lambda *given, **options: None}
    names |= {"predict": predict, "explain": explain, "show": show, "t": words}
    for cell in made(target).cells:
        if cell.cell_type == "code" and cell.id != "minikv-setup":
            exec(compile(with_solution(cell.source), cell.id, "exec"), names)


def test_what_cannot_be_written_is_refused_and_nothing_is_written(tmp_path, capsys):
    for name in ("C", "77"):
        assert main([str(tmp_path / "out"), "02", name]) == 1
        assert name in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_config_of_the_teachers_own_stays(tmp_path):
    (tmp_path / "nbgrader_config.py").write_text("c = get_config()\n")
    [path] = write_course(COURSE, tmp_path, "zh", ("02",))
    assert (tmp_path / "nbgrader_config.py").read_text() == "c = get_config()\n"
    assert json.loads(path.read_text(encoding="utf-8")) == json.loads(nbformat.writes(made(_zh("02"))))


def _zh(number):
    return next(t for t in TARGETS if t.lang == "zh" and t.stem.startswith(f"{number}_"))


# ---- with nbgrader itself

PYTHON = os.environ.get("MINIKV_NBGRADER", sys.executable)


@cache
def has_nbgrader() -> bool:
    return subprocess.run([PYTHON, "-c", "import nbgrader"], cwd="/", capture_output=True).returncode == 0


@pytest.fixture
def nbgrader(tmp_path):
    """``nbgrader("autograde", ...)`` in a course of lessons 02 and 06, with the packages of this environment."""
    if not has_nbgrader():
        pytest.skip("nbgrader is not installed")
    write_course(COURSE, tmp_path, "en", ("02", "06"))
    packages = [str(ROOT), *site.getsitepackages()]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(packages), "JUPYTER_PLATFORM_DIRS": "1"}
    # It calls alembic by its name
    env["PATH"] = os.pathsep.join((str(Path(PYTHON).parent), os.environ["PATH"]))

    def run(*words):
        command = [PYTHON, "-m", "nbgrader", *words]
        done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[-4000:]

    run.folder = tmp_path
    return run


@pytest.mark.slow
def test_nbgrader_makes_the_release_and_gives_full_points_to_solutions_and_none_to_stubs(nbgrader):
    folder = nbgrader.folder
    for stem in ("02_how_many_bytes", "06_the_linear_cache"):
        nbgrader("generate_assignment", stem)
        source, release = (folder / step / stem / f"{stem}.ipynb" for step in ("source", "release"))
        released = release.read_text(encoding="utf-8")
        assert "SOLUTION" not in released
        assert released.count("raise NotImplementedError") >= 4
        for student, notebook in (("solves", source), ("waits", release)):
            place = folder / "submitted" / student / stem
            place.mkdir(parents=True)
            (place / notebook.name).write_bytes(notebook.read_bytes())
        nbgrader("autograde", stem, "--create")
        lesson = find_lesson(stem[:2])
        assert scores(folder, stem) == {"solves": POINTS * len(lesson.exercises), "waits": 0}


def scores(folder: Path, stem: str) -> dict[str, float]:
    """Points by student, as nbgrader's own gradebook has them."""
    code = (
        "import json, sys\nfrom nbgrader.api import Gradebook\n"
        "with Gradebook('sqlite:///gradebook.db') as book:\n"
        "    print(json.dumps({s.student.id: s.score for s in book.assignment_submissions(sys.argv[1])}))\n"
    )
    done = subprocess.run([PYTHON, "-c", code, stem], cwd=folder, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)
