"""A source and a language make a notebook without outputs: header, setup cell, the lesson, footer."""

import os.path
import re
from dataclasses import replace
from typing import cast

import nbformat
from nbformat import NotebookNode

from tools.notebooks.codecells import SolutionError, with_solution, without_solution
from tools.notebooks.course import Course, Target
from tools.notebooks.minutes import lesson_minutes
from tools.notebooks.prose import join_chinese_lines
from tools.notebooks.source import MEASURED_TAGS, RESERVED_PREFIX, Cell, Meta, Source, SourceError
from tools.notebooks.stamps import source_stamp
from tools.notebooks.texts import TEXTS
from tools.project import ROOT, Project, read_project

# pip's own pages are kept away (-qqq): where it fails, the reader gets one sentence and the way out.
_SETUP = """\
try:
    import minikv
except ImportError:{note}
    %pip install -qqq "{requirement}"
try:
    from minikv.course import start
except ModuleNotFoundError as error:
    raise SystemExit({unreachable!r}) if error.name == "minikv" else error
check, predict, explain, show, t = start("{number}", lang="{lang}")"""


REPOSITORY_LINK = re.compile(r"(?<=\]\()repo:([^)\s]+)(?=\))")  # [the runbook](repo:docs/runbook.md)


def compose(course: Course, target: Target, source: Source) -> NotebookNode:
    """The notebook before it runs. Raises ``SourceError`` for solution markers that cannot be used."""
    meta = course.meta(target, source)
    setup = setup_cell(read_project(), meta.number, target.lang)
    cells = [
        _markdown(f"{RESERVED_PREFIX}header", header(course, target, meta)),
        _code(f"{RESERVED_PREFIX}setup", setup),
    ]
    for cell in source.in_language(target.lang):
        cell = _for_kind(source, cell, target.kind)
        if cell.kind == "code":
            cells.append(_code(cell.key, cell.text, cell.tags))
        elif cell.text.strip():
            text = join_chinese_lines(cell.text) if cell.lang == "zh" else cell.text
            cells.append(_markdown(cell.key, for_repository(text)))
    cells.append(_markdown(f"{RESERVED_PREFIX}footer", footer(course, target)))
    metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python", "file_extension": ".py", "mimetype": "text/x-python"},
        "minikv": {"kind": target.kind, "lang": target.lang, "source": source_stamp(source.text)},
    }
    return _node({"cells": cells, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5})


def setup_cell(project: Project, number: str, lang: str) -> str:
    """The first cell of every notebook: the course's words, and minikv itself where it is not installed."""
    words = TEXTS[lang]
    return _SETUP.format(
        note="" if project.on_index else words["not_on_index"],
        requirement=project.requirement,
        unreachable=words["unreachable"].format(repository=project.repository),
        number=number,
        lang=lang,
    )


def to_text(notebook: NotebookNode) -> str:
    """The file's content: sorted keys, Chinese as it is, one newline at the end."""
    return nbformat.writes(notebook).rstrip("\n") + "\n"


def colab_link(target: Target) -> str:
    return read_project().colab(target.path.as_posix())


def switch_link(target: Target) -> str:
    """The same notebook in the other language, as a relative link."""
    return _link(target, replace(target, lang="en" if target.lang == "zh" else "zh"))


def header(course: Course, target: Target, meta: Meta) -> str:
    """Title, two lines of links with the time and the place in the course, and the rest folded.

    The badge is a text link: a picture would be a request to Google from every reader's browser.
    """
    words = TEXTS[target.lang]
    first = [f"[**{words['badge']}**]({colab_link(target)})", f"[{words['switch']}]({switch_link(target)})"]
    rows = []
    if target.kind == "lesson":
        minutes = words["minutes_in_all" if target.stem in course.with_exercises else "minutes"]
        first.append(minutes.format(minutes=lesson_minutes(course, meta)))
        needed = [_lesson_link(course, target, number) for number in meta.needs]
        rows.append((words["needs"], words["comma"].join(needed) or words["nothing"]))
    first += [f"[{words[kind]}]({_link(target, other)})" for kind, other in _companions(course, target)]
    if meta.rooms:
        rows.append((words["rooms"], words["comma"].join(map(_room_link, meta.rooms))))
    rows.append((words["t4"], meta.t4[target.lang]))
    if "no_colab" in words:  # where networks often do not reach Colab
        start = course.lessons[0]
        link = _link(target, Target("lesson", target.lang, start.stem))
        rows.append((words["no_colab"], words["no_colab_way"].format(number=start.number, link=link)))
    if meta.paper:
        rows.append((words["paper"], meta.paper[target.lang]))
    lines = [
        f"# {words[f'{target.kind}_title'].format(number=meta.number, title=meta.title[target.lang])}",
        "",
        " · ".join(first),
        "",
        _place(course, target),
        "",
        f"<details><summary>{words['before']}</summary>",
        "",  # what follows an empty line is Markdown again
        "| | |",
        "|---|---|",
        *(f"| {name} | {_cell_text(text)} |" for name, text in rows),
        "",
        "</details>",
    ]
    return "\n".join(lines)


def footer(course: Course, target: Target) -> str:
    """A rule, then the links that a reader needs at the end: exercises or solutions, and what comes next."""
    words = TEXTS[target.lang]
    meta = next(m for m in course.lessons if m.stem == target.stem)
    colon = words["colon"]
    parts = [
        f"{words[k]}{colon}{_titled_link(target, other, meta)}" for k, other in _companions(course, target)
    ]
    _, following = course.neighbours("lesson", target.stem)
    goal = following or course.lessons[0]
    if goal is not meta:
        link = _titled_link(target, Target("lesson", target.lang, goal.stem), goal)
        parts.append(f"**{words['next'] if following else words['last']}{colon}{link}**")
    return "---\n\n" + " · ".join(parts)


def for_repository(text: str) -> str:
    """``text`` with its repo: links as a reader of the notebook alone can open them."""
    return REPOSITORY_LINK.sub(lambda link: read_project().file(link[1]), text)


def _companions(course: Course, target: Target) -> list[tuple[str, Target]]:
    """The other notebooks of the same lesson that this one leads to. A lesson does not show its solutions."""
    if target.stem not in course.with_exercises:
        return []
    kinds = {"lesson": ("exercise",), "exercise": ("lesson", "solution"), "solution": ("lesson", "exercise")}
    return [(kind, replace(target, kind=kind)) for kind in kinds[target.kind]]


def _place(course: Course, target: Target) -> str:
    before, after = course.neighbours(target.kind, target.stem)
    meta = next(m for m in course.lessons if m.stem == target.stem)
    parts = [f"**{meta.number}**"]
    if before:
        parts.insert(0, "← " + _titled_link(target, replace(target, stem=before.stem), before))
    if after:
        parts.append(_titled_link(target, replace(target, stem=after.stem), after) + " →")
    return " · ".join(parts)


def _lesson_link(course: Course, target: Target, number: str) -> str:
    needed = course.by_number(number)
    return (
        number if needed is None else _titled_link(target, Target("lesson", target.lang, needed.stem), needed)
    )


def _room_link(room: str) -> str:
    """The file or the folder of "nano.scheduler", "blocks"."""
    path = f"minikv/{room.replace('.', '/')}"
    path += "" if (ROOT / path).is_dir() else ".py"
    return f"[`{path}`]({read_project().file(path)})"


def _titled_link(here: Target, there: Target, meta: Meta) -> str:
    title = TEXTS[there.lang][f"{there.kind}_title"].format(number=meta.number, title=meta.title[there.lang])
    return f"[{title}]({_link(here, there)})"


def _link(here: Target, there: Target) -> str:
    return os.path.relpath(there.path, here.path.parent).replace(os.sep, "/")


def _cell_text(text: str) -> str:
    """``text`` in one cell of a Markdown table."""
    return " ".join(text.split()).replace("|", "\\|")


def _for_kind(source: Source, cell: Cell, kind: str) -> Cell:
    try:
        if kind == "exercise":
            stub = "raise NotImplementedError" if cell.kind == "code" else ""
            return replace(cell, text=without_solution(cell.text, stub))
        if kind == "solution":
            return replace(cell, text=with_solution(cell.text))
    except (SolutionError, SyntaxError) as error:
        raise SourceError(
            source.path, cell.line, f'cell "{cell.key}": {error}', "See docs/lessons.md"
        ) from error
    return cell


# nbformat's own new_*_cell validate each cell; the build validates the notebook once, when it writes it.


def _node(fields: dict) -> NotebookNode:
    return cast(NotebookNode, nbformat.from_dict(fields))


def _markdown(key: str, text: str) -> NotebookNode:
    return _node({"cell_type": "markdown", "id": key, "metadata": {}, "source": text})


def _code(key: str, text: str, tags: tuple[str, ...] = ()) -> NotebookNode:
    metadata = {"tags": [*tags, "nbval-ignore-output"]} if any(tag in MEASURED_TAGS for tag in tags) else {}
    empty: dict = {"cell_type": "code", "execution_count": None, "outputs": []}
    return _node({**empty, "id": key, "metadata": metadata, "source": text})
