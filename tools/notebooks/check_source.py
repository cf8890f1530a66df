"""Rules for a source: the languages agree, the words are the glossary's, the code is plain Python."""

from collections.abc import Iterator

from minikv.i18n import LANGUAGES
from tools.notebooks.check import Problem
from tools.notebooks.codecells import magic_problem, same_code, with_solution
from tools.notebooks.compose import REPOSITORY_LINK
from tools.notebooks.course import Course, Target
from tools.notebooks.glossary import Ban, forbidden_words
from tools.notebooks.minutes import MOST, lesson_minutes
from tools.notebooks.prose import broken_bold, reads_as_prose, text_hash
from tools.notebooks.source import Cell, Source
from tools.notebooks.structure import VOICE, Voice, structure_problems, tics
from tools.project import read_project


def source_problems(
    course: Course, target: Target, source: Source, bans: list[Ban], voice: Voice
) -> Iterator[Problem]:
    """Everything wrong with one source file that can be seen without a notebook."""
    lesson = target.stem.split("_")[0]
    yield from _meta_problems(course, target, bans)
    if target.kind == "lesson":
        for what, way_out in structure_problems(voice, source, lesson):
            yield Problem(target.source_path, "", what, way_out)
    for cell in source.cells:
        english = source.sibling(cell, "en")
        rules = [_sibling_problems(target, source, cell)]
        if cell.kind == "code":
            rules += [_code_problems(target, cell), _pair_problems(target, english, cell)]
        else:
            rules += [
                _translation_problems(target, english, cell),
                _glossary_problems(target, cell, english.text if english else "", bans),
                _tic_problems(target, cell, voice),
                _bold_problems(target, cell),
                _link_problems(course, target, cell),
            ]
        for rule in rules:
            yield from rule


def _problem(target: Target, cell: Cell, what: str, way_out: str) -> Problem:
    name = f"{cell.key} {cell.lang}".strip() + f", line {cell.line}"
    return Problem(target.source_path, name, what, way_out)


def _meta_problems(course: Course, target: Target, bans: list[Ban]) -> Iterator[Problem]:
    if target.kind != "lesson":
        return
    meta = next(m for m in course.lessons if m.stem == target.stem)
    for number in meta.needs:
        if course.by_number(number) is None:
            what = f'needs "{number}", which is no lesson'
            yield Problem(target.source_path, "meta", what, "Name a lesson that exists")
    minutes = lesson_minutes(course, meta)
    if minutes > MOST:
        what = f"takes {minutes} minutes, {minutes - MOST} more than a lesson may"
        yield Problem(target.source_path, "", what, "Shorten it, or split it in two")
    for lang in LANGUAGES:
        texts = [(table.get(lang, ""), table.get("en", "")) for table in (meta.title, meta.t4, meta.paper)]
        for text, english in texts:
            for ban in forbidden_words(bans, text, lang, meta.number, english):
                what = f'the glossary does not allow "{ban.word}"'
                yield Problem(target.source_path, f"meta {lang}", what, f"Write: {ban.instead}")


def _sibling_problems(target: Target, source: Source, cell: Cell) -> Iterator[Problem]:
    for lang in LANGUAGES:
        if cell.lang and cell.lang != lang and source.sibling(cell, lang) is None:
            yield _problem(
                target, cell, f"its {lang} sibling is missing", f'Add key="{cell.key}" lang="{lang}"'
            )
    if not cell.lang and cell.kind == "markdown" and reads_as_prose(cell.text):
        what = "prose without a language would stay untranslated"
        yield _problem(target, cell, what, 'Write it twice, lang="en" and lang="zh"')


def _translation_problems(target: Target, english: Cell | None, cell: Cell) -> Iterator[Problem]:
    if cell.lang != "zh" or english is None:
        return
    expected = text_hash(english.text)
    if cell.src != expected:
        what = f'src is "{cell.src}" but the en text is "{expected}": one changed without the other'
        command = f"python -m tools.notebooks hash {target.source_path.as_posix()} --write"
        yield _problem(target, cell, what, f"Compare the two, then run: {command}")


def _glossary_problems(target: Target, cell: Cell, english: str, bans: list[Ban]) -> Iterator[Problem]:
    lesson = target.stem.split("_")[0]
    for ban in forbidden_words(bans, cell.text, cell.lang, lesson, english):
        what = f'the glossary does not allow "{ban.word}"'
        yield _problem(target, cell, what, f"Write: {ban.instead} (code and quotations are free)")


def _tic_problems(target: Target, cell: Cell, voice: Voice) -> Iterator[Problem]:
    for word, instead in tics(voice, cell, cell.lang, target.stem.split("_")[0]):
        yield _problem(
            target, cell, f'prose does without "{word}"', f"Write {instead}, or except the cell in {VOICE}"
        )


def _bold_problems(target: Target, cell: Cell) -> Iterator[Problem]:
    broken = broken_bold(cell.text)
    if broken:
        way_out = "Put the punctuation behind the closing **, or a space"
        yield _problem(target, cell, f"bold that is not rendered: {broken[:60]}", way_out)


def _link_problems(course: Course, target: Target, cell: Cell) -> Iterator[Problem]:
    """Our own files are linked to as repo:PATH: the repository's address stands in pyproject.toml alone."""
    if read_project().repository in cell.text:
        yield _problem(target, cell, "the repository's address is spelled out", "Write [text](repo:PATH)")
    for path in REPOSITORY_LINK.findall(cell.text):
        if not (course.root / path.partition("#")[0]).exists():
            yield _problem(
                target, cell, f"links to {path}, which is not there", "Name a file of the repository"
            )


def _code_problems(target: Target, cell: Cell) -> Iterator[Problem]:
    problem = magic_problem(with_solution(cell.text))
    if problem:
        way_out = "Write plain Python: a failing magic goes unnoticed, and nbval's markers hide outputs"
        yield _problem(target, cell, problem, way_out)


def _pair_problems(target: Target, english: Cell | None, cell: Cell) -> Iterator[Problem]:
    if cell.lang != "zh" or english is None:
        return
    both = [with_solution(english.text), with_solution(cell.text)]
    if any(magic_problem(code) for code in both):
        return  # reported where it stands
    if not same_code(*both) or english.tags != cell.tags:
        what = "the code differs from the en cell"
        yield _problem(target, cell, what, "The two may differ in comments, docstrings and labels alone")
