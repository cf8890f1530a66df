"""Rules for a committed notebook: it is what its source gives, it ran, it names no machine; and for a pair.

The code of the two is the same up to comments (check_source.py), and the language chooses sentences of the package and
nothing else. So their outputs differ in words alone: the numbers are the same, and the Chinese words are those that the
package has now. With these rules nbval may run the English one for both.
"""

import html
import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

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
# Two digits or more: Chinese writes a 1 where English says "one" or "a".
_NUMBER = re.compile(r"\d+(?:,\d{3})*\.\d+|\d{1,3}(?:,\d{3})+|\d{2,}")
# A picture within a page, by its bytes: their digits are no figures. What it says stands in its alternative text.
_PICTURE = re.compile(r"data:image/[\w+.-]+;base64,[\w+/=]+")
_WORDS = re.compile(r"[\u4e00-\u9fff]+")


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


@dataclass(frozen=True)
class Sayings:
    """The Chinese that the package of the repository at ``root`` can say, read from its messages and its code."""

    root: Path

    @cached_property
    def _text(self) -> str:
        files = (p for p in sorted((self.root / "minikv").rglob("*")) if p.suffix in (".toml", ".py"))
        return "\n".join(path.read_text(encoding="utf-8") for path in files)

    @cached_property
    def _runs(self) -> set[str]:
        return set(_WORDS.findall(self._text))

    @cached_property
    def _before_a_value(self) -> set[str]:
        return set(re.findall(_WORDS.pattern + r"(?=\{)", self._text))

    @cached_property
    def _after_a_value(self) -> set[str]:
        return set(re.findall(r"(?<=\})" + _WORDS.pattern, self._text))

    def unknown(self, said: str) -> list[str]:
        """The runs of Chinese characters in ``said`` that no sentence holds, nor one with another filled in."""
        return [run for run in _WORDS.findall(said) if run not in self._runs and not self._is_filled_in(run)]

    def _is_filled_in(self, run: str) -> bool:
        cuts = ((run[:cut], run[cut:]) for cut in range(1, len(run)))
        return any(
            (one in self._before_a_value and other in self._runs)
            or (one in self._runs and other in self._after_a_value)
            for one, other in cuts
        )


def pair_problems(target: Target, english: dict, chinese: dict, sayings: Sayings) -> Iterator[Problem]:
    """``target`` is the Chinese notebook. Both have the cells that their source gives, and ran."""
    build = f"Run: python -m tools.notebooks build {target.stem.split('_')[0]}"
    en_cells = {cell["id"]: cell for cell in english["cells"]}
    foreign = "\n".join(_shown(cell) for cell in english["cells"])  # what a model wrote, in both notebooks
    code = ""  # of this cell and of those above, whose labels it may show
    for cell in chinese["cells"]:
        if cell["cell_type"] != "code":
            continue
        key, sibling = cell["id"], en_cells[cell["id"]]
        ours, theirs = _shown(cell), _shown(sibling)
        code += _text(cell["source"]) + "\n"
        for run in sayings.unknown(ours):
            if run not in code and run not in foreign:
                what = f'its output says "{run}", which no message of the package does'
                yield Problem(target.path, key, what, build)
                break
        if set(cell["metadata"].get("tags", ())) & set(MEASURED_TAGS):
            continue
        if _kinds(cell) != _kinds(sibling):
            what = f"its outputs are {_kinds(cell)}, those of the en notebook {_kinds(sibling)}"
            yield Problem(target.path, key, what, build)
        elif odd := _numbers(ours) - _numbers(theirs) + (_numbers(theirs) - _numbers(ours)):
            what = f"its output has other numbers than the en notebook's: {', '.join(sorted(odd)[:8])}"
            way_out = f"Write the same numbers in both languages of the message. {build}"
            yield Problem(target.path, key, what, way_out)


def _shown(cell: dict) -> str:
    """Everything that a code cell shows as text; not standard error, which names versions."""
    shown = (output for output in cell.get("outputs", ()) if output.get("name") != "stderr")
    return html.unescape(_PICTURE.sub("", "\n".join(map(_output_text, shown))))


def _kinds(cell: dict) -> list[str]:
    """What each output is: a stream's name, or the types of the data. Pictures need a Chromium and fonts."""
    outputs = [output for output in cell["outputs"] if output.get("name") != "stderr"]
    return [
        output.get("name") or " ".join(sorted(set(output.get("data", ())) - {"image/png"}))
        for output in outputs
    ]


def _numbers(said: str) -> Counter[str]:
    return Counter(_NUMBER.findall(said))


def _output_text(output: dict) -> str:
    parts = [output.get("text", ""), output.get("traceback", "")]
    parts += [body for mime, body in output.get("data", {}).items() if not mime.startswith("image/png")]
    return "\n".join(
        _text(part) if isinstance(part, str | list) else json.dumps(part, ensure_ascii=False)
        for part in parts
    )


def _text(lines: str | list[str]) -> str:
    return lines if isinstance(lines, str) else "".join(lines)
