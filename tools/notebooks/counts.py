"""What a lesson's notebook holds, in figures: words before its first picture, visuals, labels, numbers compared.

A visual is an output with a picture: a widget, a plot or a diagram; one output is one visual. Words are those of the
prose, without code, formulas, addresses and what is folded; in Chinese a letter counts as a word of its own.
"""

import ast
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tools.notebooks.course import Course, Target
from tools.notebooks.prose import CJK, without_code
from tools.notebooks.source import MEASURED_TAGS, RESERVED_PREFIX

LABELS = ("print", "t")  # calls that a label takes
_FOLDED = re.compile(r"<details.*?</details>", re.DOTALL)
_NUMBER = re.compile(r"\d+(?:[.,]\d+)*")
_WORD = re.compile(r"[^\W_]+(?:[-'’.,][^\W_]+)*")


@dataclass(frozen=True)
class Counts:
    """Of one notebook. ``first``: words before the first visual, None without one."""

    words: int
    first: int | None
    diagrams: int
    visuals: int
    labels: int  # calls of print and t
    longest: int  # lines of the longest code cell
    figures: int  # numbers in outputs that every run repeats

    def row(self) -> str:
        first = "-" if self.first is None else f"{self.first:,}"
        return (
            f"{self.words:>6,} {first:>6} {self.visuals:>8} {self.diagrams:>9} {self.labels:>7} "
            f"{self.longest:>8} {self.figures:>8,}"
        )


HEAD = " words  first  visuals  diagrams  labels  longest  figures"


def count(course: Course, target: Target) -> Counts:
    """Count what the committed notebook of ``target`` holds."""
    notebook = json.loads((course.root / target.path).read_text(encoding="utf-8"))
    words, first, longest, labels, numbers = 0, None, 0, 0, 0
    kinds: list[str] = []
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        if cell["id"].startswith(RESERVED_PREFIX):  # header, set-up and footer are the same everywhere
            continue
        if cell["cell_type"] == "markdown":
            words += words_of(source)
            continue
        lines = [line for line in source.splitlines() if line.strip()]
        longest, labels = max(longest, len(lines)), labels + _labels(source)
        seen = list(_visuals(cell["outputs"]))
        if seen and first is None:
            first = words
        kinds += seen
        if not set(MEASURED_TAGS) & set(cell["metadata"].get("tags", [])):
            numbers += sum(len(_NUMBER.findall(said)) for said in _said(cell["outputs"]))
    return Counts(words, first, kinds.count("diagram"), len(kinds), labels, longest, numbers)


def words_of(markdown: str) -> int:
    """How many words a reader of the cell reads: Latin words and Chinese letters."""
    text = without_code(_FOLDED.sub(" ", markdown))
    return len(CJK.findall(text)) + len(_WORD.findall(CJK.sub(" ", text)))


def _labels(source: str) -> int:
    calls = (node.func for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call))
    return sum(isinstance(name, ast.Name) and name.id in LABELS for name in calls)


def _visuals(outputs: list[dict[str, Any]]) -> Iterator[str]:
    for output in outputs:
        data = output.get("data", {})
        if 'class="minikv-diagram"' in "".join(data.get("text/html", "")):
            yield "diagram"
        elif "image/png" in data or any(kind.startswith("application/vnd.plotly") for kind in data):
            yield "picture"


def _said(outputs: list[dict[str, Any]]) -> Iterator[str]:
    """The texts of the outputs: what was printed, and the text of what is shown."""
    for output in outputs:
        if output.get("name") != "stderr":
            yield "".join(output.get("text", output.get("data", {}).get("text/plain", "")))
