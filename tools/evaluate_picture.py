"""The guide's pictures of ``minikv evaluate tiny-gqa``: a grid of needles, and perplexity by position, as SVG.

python -m tools.evaluate_picture --text > words.txt     a text in the tiny model's words
minikv evaluate tiny-gqa --tasks niah --policies random,streaming,h2o,snapkv,keydiff --kept 25 --kv-dtypes int8 \
    --perplexity words.txt --json | python -m tools.evaluate_picture      keep its figures

They stand in ``tools/evaluate.json``; ``tools.pictures`` draws them.
"""

import argparse
import json
import sys
from html import escape
from pathlib import Path
from typing import Any

from minikv.eviction.evaluate.summary import said_way
from minikv.eviction.evaluate.ways import Way
from minikv.i18n import text
from minikv.look import SEQUENCES
from tools.race_picture import ENDINGS

FIGURES = Path(__file__).parent / "evaluate.json"
# (words, lines, what is found)
THEMES = {"": ("#1f2328", "#d0d7de", "#2f6fad"), ".dark": ("#e6edf3", "#3d444d", "#5a9bd8")}
WIDTH, NAME, CELL, STEP, TOP = 720, 190, 86, 30, 56
PLOT = (70, 20, 390, 240)  # left, top, width, height of the curves


def svgs() -> dict[str, bytes]:
    """Pictures by file name."""
    figures = json.loads(FIGURES.read_text(encoding="utf-8"))
    return {
        f"{name}{theme}{ending}.svg": draw(figures, lang, *colours).encode()
        for name, draw in (("needles", needles), ("perplexity", perplexity))
        for theme, colours in THEMES.items()
        for lang, ending in ENDINGS.items()
    }


def kept_figures(told: dict[str, Any]) -> dict[str, Any]:
    """What the pictures need of the JSON of ``minikv evaluate``."""
    ways: dict[str, dict[str, Any]] = {}
    for row in told["rows"]:
        way = {name: row[name] for name in ("policy", "kept", "kv_dtype")}
        found = ways.setdefault(json.dumps(way), way | {"found": {}})
        found["found"][f"{100 * row['depth']:g}"] = [row["right"], row["asked"]]
    (curves,) = told["perplexity"]
    for way, curve in zip(ways.values(), curves["ways"], strict=True):
        way["by_position"] = curve["by_position"]
    tokens = told["rows"][0]["length"]
    return {"model": told["model"], "tokens": tokens, "pieces": curves["pieces"], "ways": list(ways.values())}


def needles(figures: dict[str, Any], lang: str, ink: str, line: str, found: str) -> str:
    """A row a way, a column a depth; the share that was found as opacity, and in numbers."""
    depths = list(figures["ways"][0]["found"])
    parts = [_words(NAME, 16, text("evaluate.axis_depth", lang), ink)]
    parts += [
        _words(NAME + CELL * n + CELL // 2, 42, f"{each} %", ink, "middle") for n, each in enumerate(depths)
    ]
    for row, way in enumerate(figures["ways"]):
        y = TOP + STEP * row
        parts.append(_words(NAME - 12, y + 18, _name(way, lang), ink, "end"))
        for column, (right, asked) in enumerate(way["found"].values()):
            x, share = NAME + CELL * column, right / asked
            box = f'x="{x}" y="{y}" width="{CELL - 4}" height="{STEP - 4}" rx="3"'
            parts.append(f'<rect {box} fill="{found}" fill-opacity="{share * 0.55:g}" stroke="{line}"/>')
            parts.append(_words(x + CELL // 2 - 2, y + 18, f"{right:g}/{asked}", ink, "middle"))
    return _svg(
        parts, TOP + STEP * len(figures["ways"]), f"{figures['model']}: {text('evaluate.axis_depth', lang)}"
    )


def perplexity(figures: dict[str, Any], lang: str, ink: str, line: str, found: str) -> str:
    """A curve a way over the places at which its cache was evicted or rounded."""
    left, top, width, height = PLOT
    ways = figures["ways"]
    places = [int(place) for place in ways[0]["by_position"]]
    values = [value for way in ways for value in way["by_position"].values()]
    low, high, last = int(min(values)), int(max(values)) + 1, max(places)
    parts = [
        f'<line x1="{left}" y1="{top + height}" x2="{left + width}" y2="{top + height}" stroke="{line}"/>',
        _words(left + width // 2, top + height + 42, text("evaluate.axis_token", lang), ink, "middle"),
    ]
    parts += [
        _words(left + width * place // last, top + height + 20, f"{place}", ink, "middle") for place in places
    ]
    for value in (low, (low + high) // 2, high):
        y = top + height - height * (value - low) // (high - low)
        parts.append(f'<line x1="{left}" y1="{y}" x2="{left + width}" y2="{y}" stroke="{line}"/>')
        parts.append(_words(left - 10, y + 4, f"{value}", ink, "end"))
    for number, way in enumerate(ways):
        colour = ink if number == 0 else SEQUENCES[number - 1]
        points = " ".join(
            f"{left + width * int(place) / last:.1f},{top + height * (high - value) / (high - low):.1f}"
            for place, value in way["by_position"].items()
        )
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>')
        x, y = left + width + 30, top + 24 * number + 10
        parts.append(f'<line x1="{x}" y1="{y}" x2="{x + 22}" y2="{y}" stroke="{colour}" stroke-width="3"/>')
        parts.append(_words(x + 30, y + 5, _name(way, lang), ink))
    return _svg(parts, top + height + 56, f"{figures['model']}: {text('evaluate.axis_token', lang)}")


def words() -> str:
    """A text of the recall task in the tiny model's own words, without its questions."""
    from minikv.models import load, recall_documents

    tokenizer = load("tiny-gqa", device="cpu").tokenizer
    told = " ".join(tokenizer.decode(each.tokens) for each in recall_documents(12, seed=2000))
    return told.replace("<bos> ", "").replace(" ?", "")


def _name(way: dict[str, Any], lang: str) -> str:
    return said_way(Way(**{name: way[name] for name in ("policy", "kept", "kv_dtype")}), lang)


def _svg(parts: list[str], height: int, title: str) -> str:
    frame = f'xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" role="img"'
    font = 'font-family="system-ui, \'Noto Sans CJK SC\', sans-serif" font-size="13"'
    return "\n".join([f"<svg {frame} {font}>", f"<title>{escape(title)}</title>", *parts, "</svg>", ""])


def _words(x: int, y: int, said: str, ink: str, anchor: str = "start") -> str:
    return f'<text x="{x}" y="{y}" fill="{ink}" text-anchor="{anchor}">{escape(said)}</text>'


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--text", action="store_true", help="print the text of the curve")
    if parser.parse_args().text:
        print(words())
    else:
        FIGURES.write_text(json.dumps(kept_figures(json.load(sys.stdin)), indent=1) + "\n", encoding="utf-8")
