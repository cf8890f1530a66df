"""The READMEs' picture of the race: two columns of bars as SVG, for light and dark pages, in both languages.

python -m tools.race_picture        race with the parts that are kept on this machine, and keep the figures

The figures stand in ``tools/race.json``; ``tools.pictures`` draws them. Race on a machine with nothing else to do, and
with all parts kept: after the solutions of lessons 02 to 11 have run.
"""

import json
from html import escape
from pathlib import Path

from minikv.course.your_engine.kept import kept_parts
from minikv.course.your_engine.race import YOURS, Lane, Race, run_race
from minikv.i18n import text
from minikv.units import format_bytes

FIGURES = Path(__file__).parent / "race.json"
# (words, bars, the learner's bar)
THEMES = {"": ("#1f2328", "#8fb3d9", "#d9822b"), ".dark": ("#e6edf3", "#4f7fb0", "#e69f00")}
ENDINGS = {"en": "", "zh": ".zh"}
# Pixels: all, the names, the longest bar, a row, the head
WIDTH, NAME, BAR, STEP, TOP = 800, 250, 190, 30, 34


def svgs() -> dict[str, bytes]:
    """Pictures by file name; none before a race was kept."""
    if not FIGURES.is_file():
        return {}
    race = race_of(json.loads(FIGURES.read_text(encoding="utf-8")))
    return {
        f"race{theme}{ending}.svg": draw(race, lang, *colours).encode()
        for theme, colours in THEMES.items()
        for lang, ending in ENDINGS.items()
    }


def race_of(figures: dict) -> Race:
    """The race that ``Race.as_dict`` made ``figures`` of."""
    names = Lane.__dataclass_fields__
    lanes = tuple(Lane(**{name: lane[name] for name in names}) for lane in figures["lanes"])
    return Race(**figures | {"lanes": lanes, "yours": tuple(figures["yours"])})


def draw(race: Race, lang: str, ink: str, others: str, yours: str) -> str:
    """A row a way that ran: its name, tokens a second, bytes of K and V at the fullest moment."""
    lanes = [lane for lane in race.lanes if lane.seconds]
    most_rate = max(race.rate(lane) or 0 for lane in lanes)
    most_bytes = max(lane.peak_kv_bytes or 0 for lane in lanes)
    columns = (NAME, NAME + BAR + 90)
    heads = [text(f"race.column_{name}", lang) for name in ("rate", "peak")]
    parts = [_words(x, 18, head, ink, "bold") for x, head in zip(columns, heads, strict=True)]
    for row, lane in enumerate(lanes):
        y, fill = TOP + STEP * row, yours if lane.way == YOURS else others
        parts.append(_words(NAME - 10, y + 16, race.name(lane.way, lang), ink, anchor="end"))
        rate, peak = race.rate(lane) or 0, lane.peak_kv_bytes or 0
        for x, share, said in (
            (columns[0], rate / most_rate, f"{rate:,.0f}"),
            (columns[1], peak / most_bytes, format_bytes(peak)),
        ):
            width = max(1, round(BAR * share))
            parts.append(f'<rect x="{x}" y="{y + 2}" width="{width}" height="20" rx="3" fill="{fill}"/>')
            parts.append(_words(x + width + 6, y + 16, said, ink))
    height = TOP + STEP * len(lanes) + 6
    title = escape(text("race.title", lang, requests=race.requests, tokens=race.new_tokens))
    frame = f'xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" role="img"'
    font = 'font-family="system-ui, \'Noto Sans CJK SC\', sans-serif" font-size="13"'
    return "\n".join([f"<svg {frame} {font}>", f"<title>{title}</title>", *parts, "</svg>", ""])


def _words(x: int, y: int, said: str, ink: str, weight: str = "normal", anchor: str = "start") -> str:
    place = f'x="{x}" y="{y}" fill="{ink}" font-weight="{weight}" text-anchor="{anchor}"'
    return f"<text {place}>{escape(said)}</text>"


if __name__ == "__main__":
    FIGURES.write_text(json.dumps(run_race(kept_parts().parts).as_dict(), indent=1) + "\n", encoding="utf-8")
