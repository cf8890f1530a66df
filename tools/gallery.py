"""Everything that the course draws, side by side: both themes, both languages, one page that needs no network.

python -m tools.gallery [--out FILE]      write build/gallery.html
python -m tools.gallery --pictures        docs/images/gallery*.webp: one of each kind, in each theme; needs a Chromium

Widgets and drawings are those of ``tests/course/widget_cases.py``, which has every one; diagrams, plots and tables are
outputs of the committed notebooks. The themes are JupyterLab's own style sheets, each kept to its column.
``tests/browser`` looks at the page: nothing wider than its column, nothing faint, nothing taller than a screen.
"""

import argparse
import base64
import io
import json
import os
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any

import nbformat

from minikv.i18n import LANGUAGES
from minikv.look import MEANINGS, PLOT_STYLE, SEQUENCES, Look, look
from minikv.look.vision import KINDS_OF_SIGHT, seen
from tools.project import ROOT

PLOTLY = "application/vnd.plotly.v1+json"
THEMES = {"light": "theme-light-extension", "dark": "theme-dark-extension"}
THEME_FILES = Path(sys.prefix) / "share" / "jupyter" / "lab" / "themes" / "@jupyterlab"
TABLES = 2  # of each lesson
_DIAGRAM = re.compile(r'<img\b[^>]*src="data:image/svg\+xml;base64,([^"]*)"')
_ID = re.compile(r'(?<=\bid=")[^"]+(?=")')
# What the pictures have beside one widget of each kind: diagrams and plots of the English lessons.
PICTURED = (
    "00 slots", "03 heads_picture", "03 mla_picture", "04 pyramid_drawn", "05 arena_borrow", "07 answer", "08 moments",
    "09 tree_picture", "10 online_picture", "12 first", "13b rollback", "14 choice", "15 turned", "16 output_kept",
    "17 hot", "11b preempted",
)  # fmt: skip
FOLDER = ROOT / "docs" / "images"
COLUMNS, COLUMN_WIDTH, GAP, SCALE, TALLEST = 4, 940, 40, 0.5, 800  # of the pictures; pixels of the page
_SHOWN = '<div class="minikv-shown">'

_PAGE = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>minikv: gallery</title><link rel="icon" href="data:,">
<style>
body {{ margin: 0; font: 14px/1.45 system-ui, sans-serif; }}
main {{ display: grid; grid-template-columns: 1fr 1fr; }}
h1 {{ grid-column: 1 / -1; padding: 8px 24px; font: 600 16px system-ui, sans-serif; }}
.column {{ min-width: 0; padding: 8px 24px 24px; }}
.column {{ background: var(--jp-layout-color0); color: var(--jp-ui-font-color1); }}
.item {{ margin: 0 0 40px; }}
.item > h3 {{ margin: 16px 0; font: 600 12px system-ui, sans-serif; }}
.jp-OutputArea {{ min-width: 0; overflow-x: auto; }}
.swatches {{ display: flex; flex-wrap: wrap; gap: 8px; margin: 0 0 8px; }}
.swatches > * {{ padding: 8px; border-radius: 6px; }}
{css}
</style></head>
<body><main><h1>minikv: everything that the course draws</h1>{columns}</main>
<script>{plotly}</script>
{scripts}
<script type="module">
const config = {{ staticPlot: true, responsive: true }};
const drawn = {plots}.map(([id, figure]) => Plotly.newPlot(id, figure.data, figure.layout, config));
Promise.all(drawn).then(() => {{ document.body.dataset.ready = "true"; }});
</script>
</body></html>
"""


@dataclass
class Gallery:
    """What the page is made of; an item has one body, drawn in each theme."""

    styles: dict[str, None] = field(default_factory=dict)
    scripts: list[str] = field(default_factory=list)
    plots: list[tuple[str, dict]] = field(default_factory=list)
    drawn: dict[str, str] = field(default_factory=dict)  # by the id of its element
    columns: dict[str, list[str]] = field(default_factory=lambda: {theme: [] for theme in THEMES})

    def add(self, name: str, body: str, lang: str) -> list[str]:
        """Add ``body`` to each column, and return the ids of its elements there."""
        keys = []
        for theme, items in self.columns.items():
            key = f"item-{len(items)}-{theme}"
            lang_code = "zh-CN" if lang == "zh" else "en"
            items.append(
                f'<section class="item" data-item="{escape(name)}" data-theme="{theme}" lang="{lang_code}">'
                f'<h3>{escape(name)}</h3><div class="jp-OutputArea" id="{key}">{body}</div></section>'
            )
            keys.append(key)
        return keys

    def add_widget(self, name: str, page: str, lang: str) -> None:
        """Add a drawing from the page of its picture: its style once, its script for each column."""
        [style] = re.findall(r"<style>(.*?)</style>", page, re.DOTALL)
        [script] = re.findall(r'<script type="module">(.*)</script>', page, re.DOTALL)
        self.styles.setdefault(style.split("}", 2)[2])  # without the rules of the picture's own page
        for key in self.add(name, "", lang):
            drawn = script.replace('getElementById("photo")', f'getElementById("{key}")')
            self.scripts.append(f'<script type="module">{drawn}</script>')

    def add_diagram(self, name: str, svg: str, lang: str) -> None:
        """Add an SVG, its ids in each column its own: a pattern has the colours of the theme that it stands in."""
        body = '<figure class="minikv-diagram" style="--minikv-ink: var(--jp-ui-font-color1); margin: 0">{}</figure>'
        for key in self.add(name, "", lang):
            drawn = svg
            for name_of in set(_ID.findall(svg)):
                drawn = re.sub(rf"(?<=[\"#]){re.escape(name_of)}(?=[\")])", f"{key}-{name_of}", drawn)
            self.drawn[key] = body.format(drawn)

    def add_plot(self, name: str, figure: dict, lang: str) -> None:
        for key in self.add(name, "", lang):
            self.plots.append((key, {part: figure[part] for part in ("data", "layout")}))

    def page(self) -> str:
        from plotly.offline import get_plotlyjs

        columns = "".join(
            f'<div class="column theme-{theme}" data-jp-theme-light="{json.dumps(theme == "light")}">'
            f"<h2>{theme}</h2>"
            f"{''.join(items)}</div>"
            for theme, items in self.columns.items()
        )
        place = re.compile(r'(?<=id=")(item-[\w-]+)"[^>]*>')
        columns = place.sub(lambda found: found[0] + self.drawn.get(found[1], ""), columns)
        css = [_theme(theme) for theme in THEMES] + [PLOT_STYLE, *self.styles]
        plots = json.dumps(self.plots).replace("<", "\\u003c")
        scripts = "\n".join(self.scripts)
        return _PAGE.format(
            css="\n".join(css), columns=columns, plotly=get_plotlyjs(), plots=plots, scripts=scripts
        )


def _theme(theme: str) -> str:
    """The variables of JupyterLab's theme, for one column of the page."""
    css = (THEME_FILES / THEMES[theme] / "index.css").read_text(encoding="utf-8")
    variables = re.findall(r":root\s*\{(.*?)\}", css, re.DOTALL)
    return "".join(f".theme-{theme} {{ color-scheme: {theme}; {rules} }}" for rules in variables)


def palette() -> str:
    """Swatches of every look, and the sequences as each kind of sight has them."""
    meanings = "".join(_swatch(meant, name) for name, meant in MEANINGS.items())
    rows = [f'<div class="swatches">{meanings}</div>']
    for sight in KINDS_OF_SIGHT:
        letters = (
            _swatch(Look(seen(look(number).fill, sight), "", look(number).ink), chr(ord("A") + number))
            for number in range(len(SEQUENCES))
        )
        rows.append(f'{escape(sight)}<div class="swatches" aria-hidden="true">{"".join(letters)}</div>')
    return "".join(rows)


def _swatch(shown: Look, name: str) -> str:
    return f'<span style="background:{shown.fill};color:{shown.ink}">{escape(name)}</span>'


def gallery() -> Gallery:
    from tests.course.widget_cases import CASES, made

    made_of = Gallery()
    made_of.add("palette", palette(), "en")
    for lang in LANGUAGES:
        for kind in CASES:
            with made(kind, lang) as view:
                name = f"{kind.__name__} {lang}"
                if hasattr(view, "photo_html"):
                    made_of.add_widget(name, view.photo_html(), lang)
                else:
                    made_of.add(name, view._repr_mimebundle_()["text/html"], lang)
        for path in sorted((ROOT / "notebooks" / lang).glob("*.ipynb")):
            _add_outputs(made_of, path, lang)
    return made_of


def _add_outputs(made_of: Gallery, path: Path, lang: str) -> None:
    """Add the plots and diagrams of a lesson, and its first tables."""
    lesson, tables = path.stem.split("_")[0], 0
    for cell in nbformat.read(path, as_version=4).cells:
        for output in cell.get("outputs", ()):
            data = output.get("data", {})
            if PLOTLY in data:
                made_of.add_plot(f"plot {lesson} {lang} {cell.id}", data[PLOTLY], lang)
            elif svg := _DIAGRAM.search(data.get("text/html", "")):
                drawn = base64.b64decode(svg[1]).decode("utf-8")
                made_of.add_diagram(f"diagram {lesson} {lang} {cell.id}", drawn, lang)
            elif _SHOWN in data.get("text/html", "") and tables < TABLES:
                tables += 1
                made_of.add(f"table {lesson} {lang} {cell.id}", data["text/html"], lang)


def write_pictures(page_file: Path) -> Iterator[Path]:
    """Write a picture for each theme: one widget of each kind and ``PICTURED``, in columns."""
    from PIL import Image
    from playwright.sync_api import sync_playwright

    from tools.notebooks.photos import find_chromium

    os.environ.setdefault("PLAYWRIGHT_SKIP_BROWSER_DOWNLOAD", "1")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=find_chromium(), args=["--no-sandbox"])
        page = browser.new_page(
            viewport={"width": 2 * COLUMN_WIDTH + 96, "height": 900}, reduced_motion="reduce"
        )
        page.goto(page_file.resolve().as_uri(), wait_until="commit")
        page.wait_for_function("document.body?.dataset.ready", timeout=120_000)
        names = page.locator(".theme-light .item").evaluate_all(
            "items => items.map((one) => one.dataset.item)"
        )
        kinds = {
            name.split()[0]: name for name in reversed(names) if name.endswith(" en") and name != "palette"
        }
        of_lessons = {
            " ".join((name.split()[1], *name.split()[3:])): name for name in names if " en " in name
        }
        chosen = [*kinds.values(), *(of_lessons[each] for each in PICTURED)]
        for theme in THEMES:
            ground = page.locator(f".theme-{theme}").evaluate(
                "(column) => getComputedStyle(column).backgroundColor"
            )
            colour = tuple(int(part) for part in re.findall(r"\d+", ground)[:3])
            columns: list[list[Image.Image]] = [[] for _ in range(COLUMNS)]
            for name in chosen:
                area = page.locator(f'.theme-{theme} .item[data-item="{name}"] .jp-OutputArea').first
                taken = Image.open(io.BytesIO(area.screenshot()))
                if taken.height > TALLEST:  # a text to scroll through
                    continue
                size = round(taken.width * SCALE), round(taken.height * SCALE)
                min(columns, key=_height).append(taken.resize(size, Image.Resampling.LANCZOS))
            width = round((COLUMN_WIDTH + GAP) * SCALE)
            whole = Image.new("RGB", (COLUMNS * width + GAP, max(map(_height, columns)) + GAP), colour)
            for place, column in enumerate(columns):
                top = GAP
                for image in column:
                    whole.paste(image, (GAP // 2 + place * width, top))
                    top += image.height + GAP
            path = FOLDER / ("gallery.webp" if theme == "light" else f"gallery.{theme}.webp")
            whole.save(path, quality=82, method=6)
            yield path
        browser.close()


def _height(column: list[Any]) -> int:
    return sum(image.height + GAP for image in column)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="tools.gallery", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "gallery.html")
    parser.add_argument("--pictures", action="store_true", help="write docs/images/gallery*.webp, too")
    options = parser.parse_args(argv)
    path = options.out
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(gallery().page(), encoding="utf-8")
    print(path)
    if options.pictures:
        for written in write_pictures(path):
            print(written)
    return 0


if __name__ == "__main__":
    sys.exit(main())
