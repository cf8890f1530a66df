"""RESULTS.md: every figure that was measured, as tables made from ``benchmarks/results``. Nobody types a number there.

python -m tools.results            write RESULTS.md, and the tables of the READMEs
python -m tools.results --check    fail where one of them is not what the files say
"""

import argparse
import json
import math
import re
from pathlib import Path
from typing import Any

from tools.gpu.parts import RESULTS

ROOT = Path(__file__).parent.parent
RATES, SHARES = "tokens/s", "share of the floor"  # in a row's details: {engine: its figure at the row's load}
HEAD = """# Results

Made from `{folder}/*.json` by `python -m tools.results`; `make bench`
measures a short form of all of them on your machine.
`ratio` is ours / peer. What falls short of its goal says so; `docs/internal/roadmap.md` says why, and what is owed.
"""


def load(folder: Path) -> dict[str, dict[str, Any]]:
    """The files of figures in ``folder`` that have rows of claims, by name."""
    found = {
        path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json"))
    }
    return {name: told for name, told in found.items() if told["rows"] and "claim" in told["rows"][0]}


def text_of(results: dict[str, dict[str, Any]]) -> str:
    """The whole file: a line for each benchmark, then its rows."""
    lines = [HEAD.format(folder=RESULTS), "| benchmark | hold | fall short | device |", "|---|---|---|---|"]
    for name, told in results.items():
        held = sum(row["holds"] for row in told["rows"])
        lines.append(
            f"| [{name}](#{anchor(name)}) | {held} | {len(told['rows']) - held} | {told['device']} |"
        )
    for name, told in results.items():
        lines += ["", *section(name, told)]
    return "\n".join(lines) + "\n"


def anchor(name: str) -> str:
    """Where GitHub puts the heading of that name: without dots."""
    return name.replace(".", "").lower()


def section(name: str, told: dict[str, Any]) -> list[str]:
    """One benchmark: how to repeat it, on what it ran, and its rows."""
    versions = ", ".join(f"{library} {version}" for library, version in told["versions"].items())
    stem = name.removesuffix(".cuda")
    command = f"benchmarks.{name}" if stem == name else f"tools.gpu --part {stem}"
    lines = [f"## {name}", "", f"`python -m {command}` on {told['device']}. {versions}."]
    if not told.get("complete", True):
        lines.append("Not every section of it has run.")
    lines += ["", "| claim | ours | peer | ratio | goal | |", "|---|---|---|---|---|---|"]
    for row in told["rows"]:
        numbers = (number(row[key]) for key in ("ours", "peer"))
        ours, peer = (f"{figure} {row['unit']}" for figure in numbers)
        mark = "holds" if row["holds"] else "**falls short**"
        cells = (row["claim"], ours, f"{peer} ({row['peer_name']})", number(row["ratio"]), row["goal"])
        lines.append("| " + " | ".join([*map(plain, cells), mark]) + " |")
    by_load = {row["claim"]: row["details"] for row in told["rows"] if RATES in row.get("details", {})}
    return [*lines, *side_by_side(by_load)]


def side_by_side(by_load: dict[str, dict[str, Any]]) -> list[str]:
    """A table of tokens a second and shares of the floor, a line a load, a column an engine; nothing without loads."""
    if not by_load:
        return []
    engines = list(dict.fromkeys(engine for details in by_load.values() for engine in details[RATES]))
    lines = ["", f"Tokens a second, and the {SHARES}:", "", "| | " + " | ".join(map(plain, engines)) + " |"]
    lines.append("|---" * (len(engines) + 1) + "|")
    for load, details in by_load.items():
        rates, shares = details[RATES], details[SHARES]
        figures = (f"{number(rates[each])} ({shares[each]:.1%})" if each in rates else "" for each in engines)
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
    """What RESULTS.md and the tables of both READMEs have to say."""
    from tools.highlights import READMES, filled

    texts = {ROOT / "RESULTS.md": text_of(results)}
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
