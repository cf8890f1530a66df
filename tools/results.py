"""RESULTS.md and RESULTS.zh.md: every figure that was measured, as tables made from ``benchmarks/results``.

No number is typed there. The Chinese page has the same rows; units and goals are said by results_zh.toml, claims and
peers keep the names under which a benchmark knows them.

python -m tools.results            write both, and the tables of the READMEs
python -m tools.results --check    fail where one of them is not what the files say
"""

import argparse
import json
import math
import re
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

from tools.gpu.parts import RESULTS

ROOT = Path(__file__).parent.parent
RATES, SHARES = "tokens/s", "share of the floor"  # in a row's details: {engine: its figure at the row's load}
PAGES = {"en": "RESULTS.md", "zh": "RESULTS.zh.md"}
CHINESE = Path(__file__).with_name("results_zh.toml")
HEAD = """# Results

Made from `{folder}/*.json` by `python -m tools.results`; `make bench`
measures a short form of all of them on your machine.
`ratio` is ours / peer. What falls short of its goal says so; `docs/internal/roadmap.md` says why, and what is owed.
"""
HEAD_ZH = """# 测量结果

本页由 `python -m tools.results` 根据 `{folder}/*.json` 生成，与英文版 [RESULTS.md](RESULTS.md) 逐行相同。
`make bench` 会在你的机器上把全部项目简短地测一遍。
“比值”是我们 / 对手。没有达到目标的如实写明，原因和欠缺见 `docs/internal/roadmap.md`（英文）。
“测试项”和对手的名称保持英文，与 `benchmarks/` 里的写法一致，便于查找。
"""
WORDS: dict[str, dict[str, Any]] = {
    "en": {
        "head": HEAD,
        "index": ("benchmark", "hold", "fall short", "device"),
        "row": ("claim", "ours", "peer", "ratio", "goal", ""),
        "holds": "holds",
        "short": "**falls short**",
        "part": "Not every section of it has run.",
        "loads": f"Tokens a second, and the {SHARES}:",
        "ran": "`python -m {command}` on {device}. {versions}.",
    },
    "zh": {
        "head": HEAD_ZH,
        "index": ("项目", "达到", "未达到", "设备"),
        "row": ("测试项", "我们", "对手", "比值", "目标", ""),
        "holds": "达到",
        "short": "**未达到**",
        "part": "其中有些部分还没有运行。",
        "loads": "每秒 token 数，以及达到下限的比例：",
        "ran": "`python -m {command}`，{device}。{versions}。",
    },
}


def load(folder: Path) -> dict[str, dict[str, Any]]:
    """The files of figures in ``folder`` that have rows of claims, by name."""
    found = {
        path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json"))
    }
    return {name: told for name, told in found.items() if told["rows"] and "claim" in told["rows"][0]}


@cache
def chinese() -> dict[str, dict[str, str]]:
    """results_zh.toml."""
    return tomllib.loads(CHINESE.read_text(encoding="utf-8"))


def unit_in(lang: str, unit: str) -> str:
    return chinese()["units"].get(unit, unit) if lang == "zh" else unit


def goal_in(lang: str, goal: str) -> str:
    """The goal in ``lang``; English where no pattern is the whole of it."""
    for pattern, said in chinese()["goals"].items() if lang == "zh" else ():
        found = re.fullmatch(pattern, goal)
        for place, value in enumerate(found.groups() if found else (), 1):
            said = said.replace(f"${place}", value)
        if found:
            return said
    return goal


def text_of(results: dict[str, dict[str, Any]], lang: str = "en") -> str:
    """The whole file: a line for each benchmark, then its rows."""
    words = WORDS[lang]
    lines = [
        words["head"].format(folder=RESULTS),
        "| " + " | ".join(words["index"]) + " |",
        "|---|---|---|---|",
    ]
    for name, told in results.items():
        held = sum(row["holds"] for row in told["rows"])
        lines.append(
            f"| [{name}](#{anchor(name)}) | {held} | {len(told['rows']) - held} | {told['device']} |"
        )
    for name, told in results.items():
        lines += ["", *section(name, told, lang)]
    return "\n".join(lines) + "\n"


def anchor(name: str) -> str:
    """Where GitHub puts the heading of that name: without dots."""
    return name.replace(".", "").lower()


def section(name: str, told: dict[str, Any], lang: str = "en") -> list[str]:
    """One benchmark: how to repeat it, on what it ran, and its rows."""
    words = WORDS[lang]
    versions = ", ".join(f"{library} {version}" for library, version in told["versions"].items())
    stem = name.removesuffix(".cuda")
    command = f"benchmarks.{name}" if stem == name else f"tools.gpu --part {stem}"
    lines = [f"## {name}", ""]
    if lang == "zh" and stem in chinese()["benchmarks"]:
        lines += [f"{chinese()['benchmarks'][stem]}。", ""]
    lines.append(words["ran"].format(command=command, device=told["device"], versions=versions))
    if not told.get("complete", True):
        lines.append(words["part"])
    lines += ["", "| " + " | ".join(words["row"]).rstrip() + " |", "|---|---|---|---|---|---|"]
    for row in told["rows"]:
        numbers = (number(row[key]) for key in ("ours", "peer"))
        ours, peer = (f"{figure} {unit_in(lang, row['unit'])}" for figure in numbers)
        mark = words["holds"] if row["holds"] else words["short"]
        goal = goal_in(lang, row["goal"])
        cells = (row["claim"], ours, f"{peer} ({row['peer_name']})", number(row["ratio"]), goal)
        lines.append("| " + " | ".join([*map(plain, cells), mark]) + " |")
    return [*lines, *side_by_side(told["rows"], lang)]


def side_by_side(rows: list[dict[str, Any]], lang: str = "en") -> list[str]:
    """Tables of tokens a second and shares of the floor: a line a load, a column an engine.

    There is a table for each set of engines that ran side by side; none for rows without such figures.
    """
    races: dict[tuple[str, ...], dict[str, dict[str, Any]]] = {}
    for row in rows:
        if RATES in (details := row.get("details", {})):
            races.setdefault(tuple(details[RATES]), {})[row["claim"]] = details
    lines: list[str] = []
    for engines, by_load in races.items():
        lines += ["", WORDS[lang]["loads"], "", "| | " + " | ".join(map(plain, engines)) + " |"]
        lines.append("|---" * (len(engines) + 1) + "|")
        for load, details in by_load.items():
            rates, shares = details[RATES], details[SHARES]
            figures = (f"{number(rates[each])} ({shares[each]:.1%})" for each in engines)
            lines.append("| " + " | ".join([plain(load), *figures]) + " |")
    return lines


def plain(text: str) -> str:
    """A cell that Markdown shows as it stands."""
    return re.sub(r"([|*_<])", r"\\\1", text)


def number(value: float) -> str:
    """Four digits that count; nothing where there is no number."""
    if not math.isfinite(value):
        return ""
    return f"{value:,.0f}" if abs(value) >= 1e4 else f"{value:.4g}"


def pages(results: dict[str, dict[str, Any]]) -> dict[Path, str]:
    """What both pages of results and the tables of both READMEs have to say."""
    from tools.highlights import READMES, filled

    texts = {ROOT / name: text_of(results, lang) for lang, name in PAGES.items()}
    for lang, name in READMES.items():
        texts[ROOT / name] = filled((ROOT / name).read_text(encoding="utf-8"), results, lang)
    return texts


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 where the file is stale")
    options = parser.parse_args()
    code = 0
    for path, text in pages(load(ROOT / RESULTS)).items():
        if not options.check:
            path.write_text(text, encoding="utf-8")
        elif not path.is_file() or path.read_text(encoding="utf-8") != text:
            print(f"{path.name} is not what {RESULTS} says: run python -m tools.results")
            code = 1
    return code


if __name__ == "__main__":
    raise SystemExit(main())
