"""``minikv progress``: the solved exercises, from the file that ``check`` writes on this machine."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from minikv.cli.options import Lang
from minikv.cli.progress_class import show_class
from minikv.cli.terminal import can_print, make_console
from minikv.course.kept_file import read_bytes, write_whole
from minikv.course.lesson_parts import part_title
from minikv.course.progress import Progress, parse_progress
from minikv.course.progress_file import VARIABLE, ProgressFile, progress_path
from minikv.course.progress_table import LessonProgress, by_lesson, part_counts, unknown_tasks
from minikv.course.your_engine.kept import PartsFile, kept_parts, parts_path
from minikv.course.your_engine.parts import PARTS
from minikv.errors import ArgumentError, ConfigError, user_path
from minikv.i18n import pick_language, text

MOST_NAMED = 10  # tasks that this version does not have
FINE = {"solved": "✓", "tried": "~", "open": "·"}
PLAIN = {"solved": "+", "tried": "~", "open": "-"}
FINE_BAR, PLAIN_BAR = ("▰", "▱"), ("#", "-")  # a part by the learner, and one of nano's own


def progress(
    export: Annotated[str | None, typer.Option("--export")] = None,
    import_: Annotated[
        str | None,
        typer.Option("--import"),
    ] = None,
    class_: Annotated[str | None, typer.Option("--class")] = None,
    html: Annotated[str | None, typer.Option("--html")] = None,
    badges: Annotated[bool, typer.Option("--badges")] = False,
    reset: Annotated[bool, typer.Option("--reset")] = False,
    yes: Annotated[bool, typer.Option("--yes")] = False,
    as_json: Annotated[bool, typer.Option("--json")] = False,
    lang: Lang = "en",
) -> None:
    """Show which exercises are solved. Everything stays on this machine."""
    lang = pick_language(lang)
    chosen = sum((export is not None, import_ is not None, reset, badges, class_ is not None))
    if chosen > 1 or (yes and not reset) or (html is not None and class_ is None):
        raise ArgumentError("progress_one_of")
    if class_ is not None:
        return show_class(user_path(class_), html, as_json, lang)
    path = progress_path()
    if path is None:
        raise ConfigError("progress_off", variable=VARIABLE)
    file = ProgressFile(path)
    if export is not None:
        told = _export(file, user_path(export), lang)
    elif import_ is not None:
        told = _import(file, user_path(import_), lang)
    elif reset:
        told = _reset(file, yes, lang)
    elif badges:
        told = _badges(file.read(), lang)
    else:
        told = ""
    now = file.read()
    if as_json:
        print(json.dumps(_as_dict(path, now, lang), indent=2))
    elif told:
        print(told)
    else:
        _show(path, now, lang)


def _export(file: ProgressFile, target: Path, lang: str) -> str:
    """Write the export to ``target``, unless that is a file other than an export."""
    now = file.read()
    there = read_bytes(target)
    if there is not None:
        try:
            parse_progress(there, str(target))
        except ConfigError:
            raise ConfigError("progress_not_export", path=str(target)) from None
    write_whole(target, now.as_json())
    return _say("exported", lang, path=target, solved=len(now.solved), tried=len(now.tasks))


def _import(file: ProgressFile, source: Path, lang: str) -> str:
    content = read_bytes(source)
    if content is None:
        raise ConfigError("progress_no_file", path=str(source))
    theirs = parse_progress(content, str(source))
    strangers = unknown_tasks(theirs, by_lesson(theirs, lang))
    theirs = Progress({task: theirs.tasks[task] for task in theirs.tasks.keys() - set(strangers)})
    before: set[str] = set()

    def step(mine: Progress) -> Progress:
        before.update(mine.solved)
        return mine.merged(theirs)

    after, aside = file.change(step)
    counts = {"new": len(after.solved - before), "solved": len(after.solved)}
    lines = [_say("imported", lang, path=source, **counts)]
    if strangers:
        lines.append(_say("left_out", lang, count=len(strangers), tasks=_some(strangers)))
    if aside is not None:
        lines.insert(0, text("progress.set_aside", lang, path=file.path, aside=aside))
    return "\n".join(lines)


def _reset(file: ProgressFile, yes: bool, lang: str) -> str:
    place = parts_path()
    assert place is not None  # progress is not off
    parts = PartsFile(place)
    there, kept = _recorded(file), _recorded(parts)
    if not there and not kept:
        return _say("nothing", lang, path=file.path)
    if not yes:
        typer.confirm(_say("sure", lang, path=file.path, parts=kept), abort=True, err=True)
    file.forget()
    if kept:
        parts.forget()
    return _say("forgotten", lang, path=file.path)


def _badges(now: Progress, lang: str) -> str:
    """A line for each part that is done, for a profile; else how far the furthest part is."""
    parts = list(part_counts(now, lang))
    said = [
        _say("badge", lang, number=number, parts=len(parts), title=part_title(key, lang), total=total)
        for number, (key, solved, total) in enumerate(parts, start=1)
        if solved == total
    ]
    if not said:
        key, solved, total = max(parts, key=lambda part: part[1] / part[2])
        return _say("no_badge", lang, title=part_title(key, lang), solved=solved, total=total)
    return "\n".join([*said, "", _say("badge_means", lang)])


def _recorded(file: ProgressFile | PartsFile) -> int | str:
    """The number of exercises or parts in the file; "?" where it is damaged or a newer minikv's."""
    try:
        now = file.read()
    except ConfigError:
        return "?"
    return len(now.tasks if isinstance(now, Progress) else now.parts)


def _yours() -> list[str]:
    """The exercises of the kept parts of nano, in the course's order."""
    kept = kept_parts().parts
    return [part.task for part in PARTS if part.task in kept]


def _as_dict(path: Path, now: Progress, lang: str) -> dict[str, Any]:
    lessons = by_lesson(now, lang)
    return {
        "path": str(path),
        "solved": sum(lesson.num_solved for lesson in lessons),
        "total": sum(len(lesson.tasks) for lesson in lessons),
        "lessons": [lesson.as_dict() for lesson in lessons],
        "engine": {"yours": _yours(), "parts": len(PARTS)},
        "unknown": unknown_tasks(now, lessons),
    }


def _show(path: Path, now: Progress, lang: str) -> None:
    """Print a line a lesson with a mark for each exercise, and the sum."""
    console = make_console()
    marks = FINE if can_print("".join(FINE.values()), console) else PLAIN
    lessons = by_lesson(now, lang)
    yours, total = len(_yours()), len(PARTS)
    table = Table(box=None, padding=(0, 1), show_edge=False)
    for name in ("lesson", "title", "marks"):
        table.add_column(_say(f"column_{name}", lang), no_wrap=name != "title")
    for name in ("solved", "attempts"):
        table.add_column(_say(f"column_{name}", lang), no_wrap=True, justify="right")
    for lesson in lessons:
        table.add_row(*_row(lesson, marks, lang))
    console.print(table)
    console.print()
    done = {"solved": sum(one.num_solved for one in lessons), "total": sum(len(one.tasks) for one in lessons)}
    console.print(_say("sum", lang, **done), soft_wrap=True)
    console.print(_say("legend", lang, **marks), soft_wrap=True)
    mine, ours = FINE_BAR if can_print("".join(FINE_BAR), console) else PLAIN_BAR
    bar = mine * yours + ours * (total - yours)
    console.print(_say("engine", lang, bar=bar, yours=yours, parts=total), soft_wrap=True)
    unknown = unknown_tasks(now, lessons)
    if unknown:
        console.print(_say("unknown", lang, count=len(unknown), tasks=_some(unknown)), soft_wrap=True)
    console.print(_say("kept", lang, path=path, variable=VARIABLE), soft_wrap=True)


def _some(tasks: list[str]) -> str:
    """The first ``MOST_NAMED`` tasks as text."""
    return ", ".join(tasks[:MOST_NAMED]) + (", …" if len(tasks) > MOST_NAMED else "")


def _row(lesson: LessonProgress, marks: dict[str, str], lang: str) -> list[str]:
    solved = _say("of", lang, solved=lesson.num_solved, total=len(lesson.tasks))
    drawn = " ".join(marks[state] for state in lesson.states)
    return [lesson.number, lesson.title, drawn, solved, str(lesson.attempts)]


def _say(key: str, lang: str, **values: object) -> str:
    return text(f"progress.{key}", lang, **values)
