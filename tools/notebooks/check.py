"""The rules that every source and every committed notebook keeps. Fast: nothing is executed."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from minikv.i18n import LANGUAGES
from tools.notebooks.compose import compose
from tools.notebooks.course import KINDS, Course, Target, open_course
from tools.notebooks.glossary import Ban, read_glossary
from tools.notebooks.source import Source, SourceError
from tools.notebooks.structure import Voice, read_voice

GLOSSARY = Path("minikv/course/data/glossary.toml")


@dataclass(frozen=True)
class Problem:
    """One broken rule. Printed, it is one line: file, cell, what is wrong, the way out."""

    path: Path
    cell: str
    what: str
    way_out: str

    def __str__(self) -> str:
        place = f" [{self.cell}]" if self.cell else ""
        return f"{self.path.as_posix()}{place}: {self.what}. {self.way_out}."


def check(root: Path) -> list[str]:
    """Every problem of the repository at ``root``, one line each."""
    from tools.notebooks.check_notebook import Sayings, notebook_problems, pair_problems

    try:
        course = open_course(root)
    except SourceError as error:
        return [str(error)]
    bans, voice = read_glossary(root / GLOSSARY), read_voice(root)
    lines: list[str] = []
    sources: dict[Path, Source | None] = {}
    right: set[Target] = set()
    sayings = Sayings(root)
    for target in course.targets():
        path = target.source_path
        if path not in sources:
            sources[path] = _read(course, target, bans, voice, lines)
        source = sources[path]
        if source is None:
            continue
        found = [str(problem) for problem in notebook_problems(course, target, source)]
        if not found:
            right.add(target)
        english = replace(target, lang="en")
        if target.lang == "zh" and {target, english} <= right:
            one, other = (json.loads((root / t.path).read_text(encoding="utf-8")) for t in (english, target))
            found = [str(problem) for problem in pair_problems(target, one, other, sayings)]
        lines += found
    return lines + [str(problem) for problem in _strays(course)]


def _read(course: Course, target: Target, bans: list[Ban], voice: Voice, lines: list[str]) -> Source | None:
    """The source, after its own rules; None, with a line, where it cannot be read or composed."""
    from tools.notebooks.check_source import source_problems

    try:
        source = course.read(target)
        compose(course, target, source)
        if target.kind != "lesson":  # both notebooks come from this source; either may be impossible
            compose(course, Target("exercise", target.lang, target.stem), source)
    except SourceError as error:
        lines.append(str(error))
        return None
    lines += [str(problem) for problem in source_problems(course, target, source, bans, voice)]
    return source


def _strays(course: Course) -> Iterator[Problem]:
    """Notebooks that no source gives: left behind by a renaming."""
    expected = {target.path for target in course.targets()}
    for _, folder in KINDS.values():
        for lang in LANGUAGES:
            for path in sorted((course.root / folder / lang).glob("*.ipynb")):
                relative = path.relative_to(course.root)
                if relative not in expected:
                    yield Problem(
                        relative, "", "no source gives this notebook", "Delete it, or restore its source"
                    )
