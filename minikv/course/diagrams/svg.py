"""A picture as SVG in the course's look, and the output of a notebook that shows it.

The output is an image with an alternative text, and a script that puts the SVG itself in the image's place. A page that
runs no script (GitHub, a notebook that is not trusted) shows the image: its ink is readable on white and on black.
Where the script runs, the words are the page's own and take its ink, so they follow a change of theme.
"""

from base64 import b64encode
from collections.abc import Iterable, Sequence
from hashlib import sha256
from html import escape
from typing import Any

from rich.cells import cell_len

from minikv.i18n import escape_controls, text
from minikv.look import NEUTRAL, Look

WIDTH = 864
_FONT = "system-ui, 'Noto Sans CJK SC', sans-serif"
# Stands for the picture's own name in the ids of its patterns, which must differ from those of other pictures of the
# page. No word of a picture has it, since control characters are escaped.
_OWN = "\0"
_STYLE = (
    ".minikv-diagram{--minikv-ink:var(--jp-ui-font-color1,currentColor);margin:0;padding:8px 0}"
    f".minikv-diagram :is(img,svg){{display:block;width:100%;max-width:{WIDTH}px;height:auto}}"
)
_SCRIPT = """{
const figure = document.currentScript.parentNode, image = figure.querySelector("img");
const bytes = Uint8Array.from(atob(image.src.split(",")[1]), (one) => one.charCodeAt(0));
image.insertAdjacentHTML("afterend", new TextDecoder().decode(bytes));
image.remove();
}"""


def element(name: str, content: str = "", /, **attributes: object) -> str:
    """Return ``<name attribute="value">content</name>``; ``content`` is markup. ``font_size`` becomes ``font-size``."""
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(str(value))}"' for key, value in attributes.items()
    )
    return f"<{name}{written}>{content}</{name}>" if content else f"<{name}{written}/>"


def width_of(said: str, size: int = 13) -> float:
    """Return at most how wide ``said`` is drawn, in pixels: a Chinese letter is as wide as two others."""
    return cell_len(said) * size * 0.6


def alt_of(title: str, table: Iterable[Sequence[str]], lang: str) -> str:
    """Return an alternative text: the title, then each row of ``table`` without its empty cells."""
    colon, comma, joint = (text(f"diagrams.{mark}", lang) for mark in ("colon", "comma", "joint"))
    return title + colon + joint.join(comma.join(filter(None, row)) for row in table)


class Picture:
    """Shapes and words in the order in which they are painted; a length is a pixel. Ink is the page's."""

    def __init__(self) -> None:
        self._shapes: list[str] = []
        self._tiles: dict[Look, str] = {}

    def box(
        self,
        x: float,
        y: float,
        width: float,
        height: float,
        look: Look | None = None,
        *,
        radius: int = 0,
        edge: float = 0,
        dashed: bool = False,
    ) -> None:
        """Draw a rectangle: filled with ``look``, framed in ink ``edge`` wide."""
        more: dict[str, object] = {"rx": radius} if radius else {}
        if edge:
            more |= {"stroke": "currentColor", "stroke_width": edge}
        if dashed:
            more |= {"stroke_dasharray": "4 3"}
        place = {"x": _px(x), "y": _px(y), "width": _px(width), "height": _px(height)}
        self._shapes.append(element("rect", **place, fill=self._fill(look), **more))

    def columns(
        self,
        lefts: Iterable[float],
        y: float,
        width: float,
        height: float,
        look: Look,
        *,
        row: float,
        gap: float,
    ) -> None:
        """Draw columns of boxes, ``row`` from one to the next and ``gap`` between: one shape for any number of them."""
        path = "".join(f"M{_px(left + width / 2)} {_px(y)}v{_px(height)}" for left in lefts)
        dashes = f"{row - gap:.3f} {gap:.3f}"
        self._path(path, stroke=look.fill, stroke_width=_px(width), stroke_dasharray=dashes)

    def frames(self, boxes: Iterable[tuple[float, float, float, float]]) -> None:
        """Draw dashed rectangles in ink, each (x, y, width, height): one shape for any number of them."""
        path = "".join(f"M{_px(x)} {_px(y)}h{_px(w)}v{_px(h)}h{_px(-w)}z" for x, y, w, h in boxes)
        self._path(path, stroke_dasharray="4 3")

    def dots(self, centres: Iterable[tuple[float, float]], radius: float) -> None:
        """Draw filled circles in ink."""
        path = "".join(f"M{_px(x)} {_px(y)}h0" for x, y in centres)
        self._path(path, stroke_width=_px(2 * radius), stroke_linecap="round")

    def curve(self, start: tuple[float, float], end: tuple[float, float], *, down: bool = False) -> None:
        """Draw an arrow from ``start`` to ``end``, which leaves and arrives sideways, or ``down``."""
        (x, y), (to_x, to_y) = start, end
        if down:
            bend = (to_y - y) / 2
            middle = f"{_px(x)} {_px(y + bend)} {_px(to_x)} {_px(to_y - bend)}"
            tip = f"M{_px(to_x - 4)} {_px(to_y - 7)}l4 7 4 -7"
        else:
            bend = (to_x - x) / 2
            middle = f"{_px(x + bend)} {_px(y)} {_px(to_x - bend)} {_px(to_y)}"
            back = 7 if to_x > x else -7
            tip = f"M{_px(to_x - back)} {_px(to_y - 4)}l{back} 4 {-back} 4"
        path = f"M{_px(x)} {_px(y)}C{middle} {_px(to_x)} {_px(to_y)}{tip}"
        self._path(path, stroke_width=1.5)

    def lines(self, ends: Iterable[tuple[float, float, float, float]]) -> None:
        """Draw faint straight lines, each from (x, y) to (x, y)."""
        path = "".join(f"M{_px(x)} {_px(y)}L{_px(to_x)} {_px(to_y)}" for x, y, to_x, to_y in ends)
        self._path(path, stroke_opacity=0.3)

    def words(
        self,
        x: float,
        y: float,
        said: str,
        *,
        anchor: str = "start",
        size: int = 13,
        bold: bool = False,
        on: Look | None = None,
        halo: int = 4,
    ) -> None:
        """Write ``said`` on the line ``y``. ``on`` is the look of the shape below; a ``halo`` keeps its pattern off."""
        more: dict[str, object] = {"font_weight": 600} if bold else {}
        if on is not None:
            more |= {
                "stroke": on.fill,
                "stroke_width": halo,
                "stroke_linejoin": "round",
                "paint_order": "stroke",
            }
        ink = "currentColor" if on is None else on.ink
        letters = escape(escape_controls(said))
        self._shapes.append(
            element("text", letters, x=_px(x), y=_px(y), fill=ink, font_size=size, text_anchor=anchor, **more)
        )

    def markup(self, width: float, height: float, alt: str, lang: str) -> str:
        """Return the whole as an ``<svg>`` with the name ``alt``."""
        shapes = "".join(self._shapes)
        name = sha256(shapes.encode()).hexdigest()[:8]
        tiles = "".join(_tile(f"{_OWN}{place}", look) for place, look in enumerate(self._tiles))
        inner = (element("defs", tiles) if tiles else "") + shapes
        return element(
            "svg",
            inner.replace(_OWN, f"minikv-{name}-"),
            xmlns="http://www.w3.org/2000/svg",
            viewBox=f"0 0 {_px(width)} {_px(height)}",
            width=_px(width),
            height=_px(height),
            role="img",
            lang="zh-CN" if lang == "zh" else "en",
            aria_label=escape_controls(alt),
            font_family=_FONT,
            style=f"color:var(--minikv-ink,{NEUTRAL});font-variant-numeric:tabular-nums",
        )

    def _path(self, path: str, **more: object) -> None:
        self._shapes.append(element("path", d=path, fill="none", **{"stroke": "currentColor", **more}))

    def _fill(self, look: Look | None) -> str:
        if look is None:
            return "none"
        if not look.tile:
            return look.fill
        return f"url(#{self._tiles.setdefault(look, f'{_OWN}{len(self._tiles)}')})"


class Diagram:
    """A picture for ``show``: ``svg``, the same as an alternative text, and ``lines`` with all of its figures."""

    def __init__(
        self, picture: Picture, alt: str, lines: Sequence[str], lang: str, *, width: float, height: float
    ):
        self.alt = alt
        self.svg = picture.markup(width, height, alt, lang)
        self._lines = lines

    def text(self) -> str:
        """Return the figures of the picture as lines."""
        return "\n".join(self._lines)

    def __repr__(self) -> str:
        return self.text()

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        source = "data:image/svg+xml;base64," + b64encode(self.svg.encode()).decode()
        image = f'<img width="{WIDTH}" alt="{escape(escape_controls(self.alt))}" src="{source}">'
        parts = f"<style>{_STYLE}</style>{image}<script>{_SCRIPT}</script>"
        return {"text/html": f'<figure class="minikv-diagram">{parts}</figure>', "text/plain": self.text()}


def _tile(name: str, look: Look) -> str:
    lines = element(
        "path",
        d=look.tile,
        fill="none",
        stroke=look.ink,
        stroke_width=1.5,
        stroke_linecap="round",
        stroke_opacity=0.75,
    )
    ground = element("rect", width=8, height=8, fill=look.fill)
    return element("pattern", ground + lines, id=name, width=8, height=8, patternUnits="userSpaceOnUse")


def _px(length: float) -> str:
    return f"{length:.1f}".removesuffix(".0")
