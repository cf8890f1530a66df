"""A committed notebook as HTML: its text, its code, and the outputs that it has saved. Nothing is run.

The notebook's own lines of links and its setup cell become parts of the page. Plots keep the data that plotly draws
from, beside the picture that stands where no script runs; diagrams are put into the page as SVG, where they follow the
theme; of a widget the page has its picture and its text, and of some the widget itself (widgets.py).
"""

import json
import re
from base64 import b64decode
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from html import escape
from pathlib import Path
from struct import unpack
from typing import Any

from tools.site.markdown import Prose, code_html
from tools.site.widgets import Offered

PLOTLY = "application/vnd.plotly.v1+json"
WIDGET = "application/vnd.jupyter.widget-view+json"
_SCRIPT = re.compile(r"<script\b.*?</script>", re.DOTALL)
_DIAGRAM = re.compile(r'<img\b[^>]*src="data:image/svg\+xml;base64,([^"]*)"[^>]*>')
_LONGEST_ALT = 300  # characters; the whole text stands below the picture
_COLUMNS = re.compile(r"\S {2,}\S")
_ANSI = re.compile(r"\x1b\[[0-9;]*m")


@dataclass
class Pictures:
    """Pictures that pages show, written once under a name made of their content."""

    folder: Path

    def add(self, data: bytes, ending: str) -> str:
        """Write ``data``; return its file name."""
        name = f"{sha256(data).hexdigest()[:16]}{ending}"
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / name
        if not path.is_file():
            path.write_bytes(data)
        return name


@dataclass
class NotebookPage:
    """One notebook's cells as HTML. ``at`` is the address of the folder of pictures, seen from the page.

    ``words`` are the page's own words in its language. ``offers(key)`` is the widget that a cell shows, None
    where there is but a picture; ``size`` is the megabytes of Python in the browser, 0 where the site has none, so that
    live ones are pictures.
    """

    prose: Prose
    pictures: Pictures
    at: str
    words: dict[str, str]
    offers: Callable[[str], Offered | None] | None = None
    size: int = 0

    def html(self, cells: list[dict[str, Any]]) -> str:
        return "\n".join(filter(None, map(self._cell, cells)))

    def _cell(self, cell: dict[str, Any]) -> str:
        key, text = cell["id"], "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            return self.prose.html(_without_links(text) if key == "minikv-header" else text)
        if key == "minikv-setup":
            return (
                f'<details class="setup"><summary>{self.words["setup"]}</summary>{code_html(text)}</details>'
            )
        outputs = "".join(self._output(output, key) for output in cell.get("outputs", ()))
        shown = f'<div class="output">{outputs}</div>' if outputs else ""
        return f'<div class="cell" id="cell-{escape(key)}">{code_html(text)}{shown}</div>'

    def _output(self, output: dict[str, Any], key: str) -> str:
        if output["output_type"] == "stream":
            return _plain("".join(output["text"]))
        if output["output_type"] == "error":
            return _plain("\n".join(output["traceback"]))
        data: dict[str, Any] = {
            kind: "".join(value) if isinstance(value, list) else value
            for kind, value in output["data"].items()
        }
        text = data.get("text/plain", "")
        if PLOTLY in data:
            return self._plot(data[PLOTLY], data.get("image/png"), text)
        if "image/png" in data:
            offered = self.offers(key) if WIDGET in data and self.offers else None
            if offered and (self.size or not offered.live):
                return self._widget(data["image/png"], text, offered)
            return self._photo(data["image/png"], text, widget=WIDGET in data)
        if "text/html" in data:
            return f'<div class="rich" tabindex="0">{_as_markup(data["text/html"])}</div>'
        if "text/markdown" in data:
            return self.prose.html(data["text/markdown"])
        return _plain(text)

    def _plot(self, figure: dict[str, Any], png: str | None, text: str) -> str:
        drawn = json.dumps({part: figure[part] for part in ("data", "layout")}).replace("<", "\\u003c")
        picture = self._image(png, text) if png else ""
        return (
            f'<figure class="plot"><div>{picture}</div><script type="application/json">{drawn}</script>'
            f"<figcaption>{self._said(text)}</figcaption></figure>"
        )

    def _photo(self, png: str, text: str, *, widget: bool) -> str:
        caption = f"<figcaption>{self.words['photo']}{self._said(text)}</figcaption>" if widget else ""
        return f'<figure class="photo">{self._wide(png, text)}{caption}</figure>'

    def _widget(self, png: str, text: str, offered: Offered) -> str:
        """The picture of a widget, with what widgets.js needs to put the widget there."""
        data = json.dumps(offered.as_dict()).replace("<", "\\u003c")
        note = self.words["calculator_size"].format(size=self.size) if offered.live else ""
        if offered.recorded:
            note = self.words["widget_recorded"]
        names = ("loading", "failed", "moment", "start")
        said = {name: escape(self.words[f"widget_{name}"]) for name in names}
        data_words = " ".join(f'data-{name}="{said[name]}"' for name in names[:-1])
        return (
            f'<figure class="photo widget" {data_words}>'
            f'<p hidden><button type="button" class="start">{said["start"]}</button> {note}</p>'
            f'{self._wide(png, text)}<p class="state" role="status"></p>'
            f'<script type="application/json">{data}</script>'
            f"<figcaption>{self._said(text)}</figcaption></figure>"
        )

    def _said(self, text: str) -> str:
        """What a picture says, as text, folded."""
        return f"<details><summary>{self.words['as_text']}</summary>{_plain(text)}</details>"

    def _wide(self, png: str, text: str) -> str:
        """A picture that a phone shows larger than its screen."""
        return f'<div class="scroll" tabindex="0">{self._image(png, text)}</div>'

    def _image(self, png: str, text: str) -> str:
        data = b64decode(png)
        width, height = unpack(">II", data[16:24])  # of a PNG's first chunk
        said = escape(" ".join(text.split())[:_LONGEST_ALT])
        source = f"{self.at}/{self.pictures.add(data, '.png')}"
        return f'<img src="{source}" alt="{said}" width="{width}" height="{height}" loading="lazy">'


def _without_links(header: str) -> str:
    """Drop the title, the line of links and the way on: the page has its own. What is folded stays."""
    return header[header.index("<details>") :]


def _plain(text: str) -> str:
    plain = _ANSI.sub("", text).rstrip()
    sentences = "" if _COLUMNS.search(plain) else " sentences"  # wrapping would take columns apart
    return f'<pre class="said{sentences}" tabindex="0">{escape(plain)}</pre>'


def _as_markup(html: str) -> str:
    """Return a saved output without its scripts, and with each diagram as the SVG that its script would put there."""
    return _DIAGRAM.sub(lambda found: b64decode(found[1]).decode(), _SCRIPT.sub("", html))
