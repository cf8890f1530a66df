"""The engine widget's drawing and text: a ``Picture`` in the words of one language."""

from collections.abc import Sequence
from typing import Any

from minikv.course.widgets.engine_picture import Cell, Picture, PoolPicture
from minikv.course.widgets.engine_rows import DECODE, PREFILL, WAITING, SequenceRow
from minikv.errors import MiniKVError
from minikv.i18n import text

MAX_ROWS = 16  # sequences drawn; a sentence counts the others
CELLS_A_LINE = 32  # in plain text
FIGURES = (
    "steps", "running", "waiting", "ended", "generated", "speed", "used", "cached", "empty", "hits", "preemptions",
)  # fmt: skip
BUTTONS = ("start", "pause", "step", "stop")
SPEEDS = (1, 2, 5, 20, 0)  # steps a second; 0: as fast as it goes
LEGEND = ("shared", "cached", "empty")
BAR_LEGEND = ("cached", "computed", "left", "generated")


def draw_form(
    pools: Sequence[PoolPicture], block_size: int, lang: str, *, speed: bool = True
) -> dict[str, Any]:
    """Return the part that does not change. ``speed``: with the tokens a second, which differ between runs."""
    totals = " + ".join(f"{pool.total:,}" for pool in pools)
    return {
        "lang": "zh-CN" if lang == "zh" else "en",
        "title": _say("title", lang),
        "size": _say("size", lang, blocks=totals, block_size=block_size),
        "buttons": [[name, _say(name, lang)] for name in BUTTONS],
        "figures": [[name, _say(f"figure_{name}", lang)] for name in FIGURES if speed or name != "speed"],
        "columns": [_say(f"column_{name}", lang) for name in ("sequence", "state", "tokens")],
        "legend": [[name, _say(f"legend_{name}", lang)] for name in LEGEND],
        "bar_legend": [[name, _say(f"bar_{name}", lang)] for name in BAR_LEGEND],
        "kinds": {name: _say(f"cell_{name}", lang) for name in ("cached", "empty")},
        "moment": _say("moment", lang),
        "moment_value": _say("moment_value", lang, step="{step}", last="{last}"),
        "speed": _say("speed", lang),
        "speeds": [[rate, _say("rate" if rate else "free", lang, rate=rate)] for rate in SPEEDS],
        "cell": _say("cell", lang, block="{block}", what="{what}"),
    }


def draw_view(picture: Picture, lang: str, *, speed: bool = True) -> dict[str, Any]:
    """Return one moment, as engine.js draws it."""
    figures = _figures(picture, lang)
    drawn = drawn_rows(picture.rows)
    return {
        "running": picture.progress == "running",
        "steps": picture.steps,
        "status": status(picture, lang),
        "error": picture.error is not None,
        "figures": [figures[name] for name in FIGURES if speed or name != "speed"],
        "rows": [_row(row, lang) for row in drawn],
        "scale": max((row.longest for row in picture.rows), default=1),
        "more": _more_rows(picture.rows, drawn, lang),
        "pools": [_pool(picture, group, lang) for group in range(len(picture.pools))],
    }


def draw_text(picture: Picture, size: str, lang: str) -> str:
    """Return one moment as plain lines, without figures that differ between runs."""
    drawn = drawn_rows(picture.rows)
    lines = [_say("headline", lang, size=size), status(picture, lang)]
    for row in drawn:
        said = _row(row, lang)
        lines.append(f"  {_say('line', lang, name=row.name, state=said['word'], tokens=said['words'])}")
    more = _more_rows(picture.rows, drawn, lang)
    lines += [f"  {more}"] if more else []
    for group, pool in enumerate(picture.pools):
        lines.append(_pool_name(picture, group, lang))
        marks = [_mark(cell) for cell in pool.cells]
        lines += [
            "  " + " ".join(marks[start : start + CELLS_A_LINE])
            for start in range(0, len(marks), CELLS_A_LINE)
        ]
        hidden = _more_cells(pool, lang)
        lines += [f"  {hidden}"] if hidden else []
    return "\n".join([*lines, _say("marks", lang)])


def status(picture: Picture, lang: str) -> str:
    """Return the moment in sentences, for readers without the drawing."""
    said = []
    counts = dict(
        running=picture.running, prefill=picture.count(PREFILL), decode=picture.count(DECODE),
        waiting=picture.count(WAITING), ended=picture.ended, requests=picture.requests, steps=picture.steps,
    )  # fmt: skip
    if picture.error is not None:
        key = "failed" if picture.progress == "failed" else "some_failed"
        said.append(_say(key, lang, error=_error(picture.error, lang), failed=picture.failed))
    if picture.progress in ("fresh", "ended", "stopped"):
        said.append(_say(picture.progress, lang, **counts))
    if picture.progress != "fresh":
        said.append(_say("now", lang, **counts))
        if picture.to_come:
            said.append(_say("to_come", lang, count=picture.to_come))
    said += [_pool_counts(picture, group, lang) for group in range(len(picture.pools))]
    if picture.progress != "fresh":
        totals = dict(generated=picture.generated, hits=picture.hits, preemptions=picture.preemptions)
        said.append(_say("so_far", lang, **totals))
    return ("" if lang == "zh" else " ").join(said)


def drawn_rows(rows: Sequence[SequenceRow]) -> list[SequenceRow]:
    """Return the rows to draw, in the order of arrival. With too many, the first ones to end are left out."""
    surplus = len(rows) - MAX_ROWS
    drawn = []
    for row in rows:
        if row.ended and surplus > 0:
            surplus -= 1
        else:
            drawn.append(row)
    return drawn[:MAX_ROWS]


def _figures(picture: Picture, lang: str) -> dict[str, str]:
    speed = picture.generated / picture.seconds if picture.seconds > 0 else 0.0
    sums = {
        name: " + ".join(f"{getattr(pool, name):,}" for pool in picture.pools)
        for name in ("used", "cached", "empty")
    }
    return {
        **sums,
        "steps": f"{picture.steps:,}",
        "running": _say("running", lang, prefill=picture.count(PREFILL), decode=picture.count(DECODE)),
        "waiting": f"{picture.count(WAITING):,}",
        "ended": _say("ended_of", lang, ended=picture.ended, count=len(picture.rows)),
        "generated": f"{picture.generated:,}",
        "speed": f"{speed:,.1f}",
        "hits": f"{picture.hits:,}",
        "preemptions": f"{picture.preemptions:,}",
    }


def _row(row: SequenceRow, lang: str) -> dict[str, Any]:
    parts = dict(cached=row.cached, computed=row.computed, left=row.left, generated=row.generated)
    said = [_say(f"tokens_{name}", lang, count=count) for name, count in parts.items() if count]
    return {
        "name": row.name,
        "look": row.number,
        "state": row.state,
        "word": _say(f"state_{row.state}", lang),
        "parts": list(parts.values()),
        "words": _say("joint", lang).join(said),
    }


def _more_rows(rows: Sequence[SequenceRow], drawn: Sequence[SequenceRow], lang: str) -> str:
    hidden = [row for row in rows if row not in drawn]
    if not hidden:
        return ""
    ended = sum(row.ended for row in hidden)
    return _say("more_rows", lang, count=len(hidden), ended=ended, left=len(hidden) - ended)


def _pool(picture: Picture, group: int, lang: str) -> dict[str, Any]:
    pool = picture.pools[group]
    return {
        "name": _pool_name(picture, group, lang),
        "counts": _pool_counts(picture, group, lang),
        "more": _more_cells(pool, lang),
        "cells": [[cell.kind, cell.number, _mark(cell), "+".join(cell.owners)] for cell in pool.cells],
    }


def _pool_name(picture: Picture, group: int, lang: str) -> str:
    return _say("pool" if len(picture.pools) == 1 else "pool_group", lang, kv_cache_group=group)


def _pool_counts(picture: Picture, group: int, lang: str) -> str:
    pool = picture.pools[group]
    values = dict(used=pool.used, shared=pool.shared, cached=pool.cached, empty=pool.empty, total=pool.total)
    return _say("blocks" if len(picture.pools) == 1 else "blocks_group", lang, kv_cache_group=group, **values)


def _more_cells(pool: PoolPicture, lang: str) -> str:
    hidden = pool.total - len(pool.cells)
    if not hidden:
        return ""
    drawn = sum(cell.kind in ("own", "shared") for cell in pool.cells)
    return _say("more_cells", lang, count=hidden, used=pool.used - drawn)


def _mark(cell: Cell) -> str:
    if cell.kind == "own":
        return cell.owners[0]
    return {"shared": f"{cell.owners[0]}+" if cell.owners else "", "cached": "#", "empty": "-"}[cell.kind]


def _error(error: BaseException, lang: str) -> str:
    return error.text(lang) if isinstance(error, MiniKVError) else f"{type(error).__name__}: {error}"


def _say(key: str, lang: str, **values: object) -> str:
    return text(f"widgets_engine.{key}", lang, **values)
