"""The table of results in both READMEs: rows of ``benchmarks/results`` chosen in highlights.toml, filled in by code."""

import re
import tomllib
from pathlib import Path
from typing import Any

from tools.results import number, plain

CHOSEN = Path(__file__).with_suffix(".toml")
READMES = {"en": "README.md", "zh": "README.zh.md"}
WORDS = {
    "en": ("what", "ours", "peer or floor", "goal", "command", "holds", "**falls short**"),
    "zh": ("指标", "我们", "对手或下限", "目标", "命令", "达到", "**未达到**"),
}
_MARKED = re.compile(r"(?<=<!-- results -->\n).*?(?=<!-- /results -->)", re.DOTALL)


def table(results: dict[str, dict[str, Any]], lang: str) -> str:
    """The chosen rows in ``lang``, of the files that are there.

    Raises ``LookupError`` for a row that its file does not have, and for one that it has twice.
    """
    *heads, holds, short = WORDS[lang]
    lines = ["| " + " | ".join([*heads, ""]) + " |", "|---|---|---|---|---|---|"]
    for chosen in tomllib.loads(CHOSEN.read_text(encoding="utf-8"))["row"]:
        if chosen["file"] not in results:
            continue
        found = [
            row
            for row in results[chosen["file"]]["rows"]
            if (row["claim"], row["peer_name"]) == (chosen["claim"], chosen["peer_name"])
        ]
        if len(found) != 1:
            raise LookupError(f"{len(found)} rows of {chosen['file']} are '{chosen['claim']}'")
        row = found[0]
        unit, goal = (chosen.get(f"{lang}_{key}", row[key]) for key in ("unit", "goal"))
        ours, peer = (f"{number(row[key])} {plain(unit)}" for key in ("ours", "peer"))
        command = f"`python -m benchmarks.{chosen['file']}`"
        cells = (chosen[lang], ours, peer, plain(goal), command, holds if row["holds"] else short)
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def filled(readme: str, results: dict[str, dict[str, Any]], lang: str) -> str:
    """``readme`` with the table between its two marks. Raises ``LookupError`` where they are not there once."""
    new, count = _MARKED.subn(lambda _: table(results, lang), readme)
    if count != 1:
        raise LookupError(f"{count} places for results, and one is needed")
    return new
