"""``minikv progress --class FOLDER``: a class's exported records, in the terminal, as JSON, or as a page."""

import json
from html import escape
from pathlib import Path
from typing import Any

from rich.table import Table

from minikv.cli.files import ReportFile
from minikv.cli.terminal import make_console
from minikv.course.class_progress import ClassProgress, Hurdle, Learner, read_class
from minikv.course.progress_table import LessonProgress
from minikv.i18n import text
from minikv.look import look

MOST_SHOWN = 10  # exercises in the terminal
_COLUMNS = ("exercise", "stuck", "solved", "attempts")
# Nothing is loaded, from anywhere, and no script runs.
_PAGE = """<!DOCTYPE html>
<html lang="{html_lang}"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>{title}</title><style>
:root {{ color-scheme: light dark; }}
body {{ margin: 24px; font: 16px/1.5 system-ui, "Noto Sans CJK SC", "PingFang SC", "Microsoft YaHei", sans-serif; }}
.scroll {{ overflow-x: auto; }}
table {{ border-collapse: collapse; font-size: 14px; font-variant-numeric: tabular-nums; }}
:is(td, th) {{ padding: 4px 8px; text-align: left; border-bottom: 1px solid gray; }}
td.lesson {{ min-width: 3em; text-align: center; background: color-mix(in srgb, {fill} var(--share), transparent); }}
td.stuck {{ outline: 2px solid; outline-offset: -2px; }}
</style></head><body><main>
<h1>{title}</h1><p>{lead}</p>
{body}</main></body></html>
"""


def show_class(folder: Path, html: str | None, as_json: bool, lang: str) -> None:
    """Print the class of ``folder``, or write it to ``html``."""
    if html is None:
        found = read_class(folder, lang)
    else:
        with ReportFile(html) as file:
            found = read_class(folder, lang)
            file.write(class_page(found, lang))
    if as_json:
        print(json.dumps(_as_dict(found), indent=2))
        return
    _show(found, lang)
    if html is not None:
        make_console().print(_say("written", lang, path=html), soft_wrap=True)


def class_page(found: ClassProgress, lang: str) -> str:
    """Return the page: it is complete in itself."""
    lessons = found.learners[0].lessons if found.learners else []
    head = [_say("learner", lang), _say("at", lang), _say("solved", lang), *(one.number for one in lessons)]
    body = _section("learners", lang, _table(head, (_learner_row(one) for one in found.learners)))
    hurdles = found.hurdles
    rows = _table([_say(name, lang) for name in _COLUMNS], (_cells(_hurdle_row(one)) for one in hurdles))
    lead = f"<p>{escape(_say('hurdles_lead' if hurdles else 'no_hurdles', lang))}</p>"
    body += _section("hurdles", lang, lead + (rows if hurdles else ""))
    if found.refused:
        reasons = (_cells([name, error.text(lang)]) for name, error in found.refused.items())
        body += _section("refused", lang, _table([_say("file", lang), _say("reason", lang)], reasons))
    return _PAGE.format(
        html_lang="zh-CN" if lang == "zh" else "en",
        title=escape(_say("title", lang)),
        lead=escape(_lead(found, lang)),
        fill=look("cached").fill,
        body=body,
    )


def _show(found: ClassProgress, lang: str) -> None:
    console = make_console()
    console.print(_lead(found, lang), soft_wrap=True)
    learners = Table(box=None, padding=(0, 1), show_edge=False)
    for name in ("learner", "at", "solved"):
        learners.add_column(_say(name, lang))
    for one in found.learners:
        learners.add_row(one.name, _at(one), str(one.solved))
    console.print(learners)
    hurdles = Table(
        box=None, padding=(0, 1), show_edge=False, title=_say("hurdles", lang), title_justify="left"
    )
    for name in _COLUMNS:
        hurdles.add_column(_say(name, lang))
    for hurdle in found.hurdles[:MOST_SHOWN]:
        hurdles.add_row(*_hurdle_row(hurdle))
    console.print(hurdles)
    if found.refused:
        console.print(_say("refused_count", lang, count=len(found.refused)), soft_wrap=True)
        for error in found.refused.values():
            console.print(error.text(lang), soft_wrap=True)


def _as_dict(found: ClassProgress) -> dict[str, Any]:
    return {
        "learners": [
            {"name": one.name, "solved": one.solved, "at": _at(one), "lessons": _solved_in(one)}
            for one in found.learners
        ],
        "exercises": [
            {"task": one.task, "stuck": one.stuck, "solved": one.solved, "attempts": one.attempts}
            for one in found.hurdles
        ],
        "refused": list(found.refused),
    }


def _solved_in(learner: Learner) -> dict[str, int]:
    return {lesson.number: lesson.num_solved for lesson in learner.lessons}


def _lead(found: ClassProgress, lang: str) -> str:
    total = sum(len(lesson.tasks) for lesson in found.learners[0].lessons) if found.learners else 0
    return _say("lead", lang, learners=len(found.learners), total=total)


def _at(learner: Learner) -> str:
    return learner.at.number if learner.at else "-"


def _learner_row(learner: Learner) -> str:
    own = _cells([learner.name, _at(learner), str(learner.solved)])
    return own + "".join(_lesson_cell(lesson) for lesson in learner.lessons)


def _lesson_cell(lesson: LessonProgress) -> str:
    share = round(60 * lesson.num_solved / len(lesson.tasks))
    look = "lesson stuck" if "tried" in lesson.states else "lesson"
    said = f"{lesson.num_solved}/{len(lesson.tasks)}" if set(lesson.states) != {"open"} else ""
    return f'<td class="{look}" style="--share: {share}%">{said}</td>'


def _hurdle_row(hurdle: Hurdle) -> list[str]:
    attempts = "-" if hurdle.attempts is None else f"{hurdle.attempts:g}"
    return [hurdle.task, str(hurdle.stuck), str(hurdle.solved), attempts]


def _cells(values: list[str]) -> str:
    first, *rest = map(escape, values)
    return f'<th scope="row">{first}</th>' + "".join(f"<td>{value}</td>" for value in rest)


def _table(head: list[str], rows: Any) -> str:
    named = "".join(f'<th scope="col">{escape(name)}</th>' for name in head)
    lines = "".join(f"<tr>{row}</tr>\n" for row in rows)
    table = f"<table><thead><tr>{named}</tr></thead><tbody>\n{lines}</tbody></table>"
    return f'<div class="scroll" tabindex="0">{table}</div>\n'


def _section(key: str, lang: str, content: str) -> str:
    return f"<h2>{escape(_say(key, lang))}</h2>\n{content}"


def _say(key: str, lang: str, **values: object) -> str:
    return text(f"class_progress.{key}", lang, **values)
