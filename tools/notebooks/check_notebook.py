"""Rules for a committed notebook: it is what its source gives, it ran, and it names no machine."""

import json
import re
from collections.abc import Iterator

from minikv.i18n import text
from tools.notebooks.check import Problem
from tools.notebooks.codecells import magic_problem
from tools.notebooks.compose import colab_link, compose, switch_link
from tools.notebooks.course import Course, Target
from tools.notebooks.source import MEASURED_TAGS, RESERVED_PREFIX, Source

MAX_BYTES = 300_000
# A path of the machine that built it. A URL's path has a letter before the slash.
_MACHINE_PATH = re.compile(r"(?<![\w.:/~-])/(?:home|root|tmp|work|Users|var/folders)/")
_CHECKED = re.compile(r"""^check\(["']([^"']+)""", re.MULTILINE)


def notebook_problems(course: Course, target: Target, source: Source) -> Iterator[Problem]:
    """Everything wrong with one notebook file."""
    path = course.root / target.path
    build = f"Run: python -m tools.notebooks build {target.stem.split('_')[0]}"
    if not path.is_file():
        yield Problem(target.path, "", "not built", build)
        return
    written = path.read_text(encoding="utf-8")
    if len(written.encode()) > MAX_BYTES:
        what = f"{len(written.encode()):,} bytes, more than {MAX_BYTES:,}"
        yield Problem(target.path, "", what, "Show less: no FigureWidget output, smaller tables")
    try:
        notebook = json.loads(written)
    except json.JSONDecodeError as error:
        yield Problem(target.path, "", f"not JSON: {error}", build)
        return
    yield from _stale(course, target, source, notebook, build)
    yield from _links(target, notebook, build)
    if "widgets" in notebook["metadata"]:
        yield Problem(target.path, "", "widget state is saved in it", build)
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            yield from _code(target, cell, build)


def _stale(course: Course, target: Target, source: Source, notebook: dict, build: str) -> Iterator[Problem]:
    composed = compose(course, target, source)
    if notebook["metadata"].get("minikv") != composed.metadata["minikv"]:
        yield Problem(target.path, "", f"stale: {target.source_path.as_posix()} or the tool changed", build)
        return
    found = {cell.get("id"): cell for cell in notebook["cells"]}
    if list(found) != [cell.id for cell in composed.cells] or len(found) != len(notebook["cells"]):
        yield Problem(target.path, "", "stale: its cells are not those of its source", build)
        return
    for wanted in composed.cells:
        cell = found[wanted.id]
        here = (cell["cell_type"], _text(cell["source"]), cell["metadata"])
        if here != (wanted.cell_type, wanted.source, wanted.metadata):
            what = "stale: the cell is not what its source gives"
            yield Problem(target.path, wanted.id, what, f"Edit the source, never the notebook. {build}")


def _links(target: Target, notebook: dict, build: str) -> Iterator[Problem]:
    header = _text(notebook["cells"][0]["source"]) if notebook["cells"] else ""
    for name, link in (("Colab badge", colab_link(target)), ("language switch", switch_link(target))):
        if f"]({link})" not in header:
            yield Problem(target.path, f"{RESERVED_PREFIX}header", f"no {name} in the header", build)


def _code(target: Target, cell: dict, build: str) -> Iterator[Problem]:
    key = cell.get("id", "?")
    if cell["execution_count"] is None:
        yield Problem(target.path, key, "the cell never ran, so nothing compares its output", build)
    foreign = set(cell["metadata"].get("tags", ())) - {*MEASURED_TAGS, "nbval-ignore-output"}
    for tag in sorted(foreign):
        yield Problem(
            target.path, key, f"tag {tag} would hide a failure", f"Remove it from the cell. {build}"
        )
    problem = None if key == f"{RESERVED_PREFIX}setup" else magic_problem(_text(cell["source"]))
    if problem:
        yield Problem(target.path, key, problem, "Write plain Python in the source")
    if target.kind == "solution":
        yield from _unsolved(target, cell, build)
    for output in cell["outputs"]:
        if output["output_type"] == "error":
            what = f"its output is an error, {output['ename']}"
            yield Problem(target.path, key, what, f"Catch what the lesson wants to show. {build}")
        match = _MACHINE_PATH.search(_output_text(output))
        if match:
            what = f"its output names a path of this machine ({match[0]}...)"
            yield Problem(
                target.path, key, what, "Print a relative path, or silence the warning at its source"
            )


def _unsolved(target: Target, cell: dict, build: str) -> Iterator[Problem]:
    """A solution that its own check refused: on a busy machine it may have run out of time."""
    said = "".join(_output_text(output) for output in cell["outputs"])
    for exercise in _CHECKED.findall(_text(cell["source"])):
        passed = text("course.passed", target.lang, id=exercise, cases="<cases>", seed=0).partition(
            "<cases>"
        )[0]
        if passed not in said:
            what = f"the check of {exercise} did not pass"
            yield Problem(
                target.path, cell.get("id", "?"), what, f"Mend it, or wait for a quiet machine. {build}"
            )


def _output_text(output: dict) -> str:
    parts = [output.get("text", ""), output.get("traceback", "")]
    parts += [body for mime, body in output.get("data", {}).items() if not mime.startswith("image/png")]
    return "\n".join(_text(part) if isinstance(part, str | list) else json.dumps(part) for part in parts)


def _text(lines: str | list[str]) -> str:
    return lines if isinstance(lines, str) else "".join(lines)
