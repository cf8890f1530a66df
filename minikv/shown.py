"""Shown: an object's own report, made once for a terminal and for a notebook. Nothing heavy is imported.

A report has a method ``shown(lang)`` that returns a ``Shown``; ``text = text_of`` and ``_repr_html_ = html_of`` in its
class derive the two forms from it, and ``one_line`` makes its ``repr``. A notebook asks for HTML without a language,
and there is no global language: a cell that ends in ``report`` shows the table in English, under the API's own names;
one that ends in ``report.shown("zh")`` shows it in Chinese.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Protocol

from rich.cells import cell_len

from minikv.i18n import escape_controls
from minikv.look import report_style

LONGEST_LINE = 120  # characters of a ``repr``
SHORTEST_NAME = 12  # characters of a model's name in it, with any number of figures


@dataclass(frozen=True, repr=False)
class Shown:
    """A ``title`` ("": none), a table and sentences below it; a notebook shows it as HTML, ``print`` as text.

    ``rows`` are as long as ``head`` (no head: ""-filled), and the first cell of each names it. The columns ``right``
    hold figures and are right-aligned. ``notes`` are the basis of the rest, in a lighter style. ``shares``: each row's
    share of the whole, from 0 to 1, drawn as bars in HTML; () draws none.
    """

    title: str
    head: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()
    right: Sequence[int] = ()
    lines: Sequence[str] = ()
    notes: Sequence[str] = ()
    shares: Sequence[float] = ()

    def text(self) -> str:
        """Return lines for a terminal: the title, the table with aligned columns, the sentences."""
        rows = [[escape_controls(cell) for cell in row] for row in self.rows]
        table = [columns([self.head, *rows] if self.head else rows, self.right)] if rows else []
        title = [self.title] if self.title else []
        return "\n".join([*title, *table, *self.lines, *self.notes])

    def __repr__(self) -> str:
        return self.text()

    def _repr_html_(self) -> str:
        """Return a table in the course's look: no script, no request; values escaped, headers of rows and columns."""
        parts = (
            [self._table()]
            if self.rows
            else [f'<div class="minikv-line minikv-title">{escape(self.title)}</div>']
        )
        parts += [f'<div class="minikv-line">{escape(line)}</div>' for line in self.lines]
        parts += [f'<div class="minikv-line minikv-note">{escape(line)}</div>' for line in self.notes]
        return shown_html("".join(parts))

    def _table(self) -> str:
        caption = f"<caption>{escape(self.title)}</caption>" if self.title else ""
        parts = [f"<table>{caption}"]
        if self.head:
            # A column without a name has no header: a screen reader would announce an empty one.
            cells = [
                self._cell("th", ' scope="col"', column, name) if name else "<td></td>"
                for column, name in enumerate(self.head)
            ]
            parts.append(f"<thead><tr>{''.join(cells)}{'<td></td>' if self.shares else ''}</tr></thead>")
        return f"{''.join(parts)}<tbody>{''.join(map(self._row, range(len(self.rows))))}</tbody></table>"

    def _row(self, number: int) -> str:
        name, *values = self.rows[number]
        # The only cell of a row is its value, and names nothing.
        names = ("th", ' scope="row"') if values or self.shares else ("td", "")
        cells = [self._cell(*names, 0, name)]
        cells += [self._cell("td", "", column, value) for column, value in enumerate(values, 1)]
        if self.shares:
            percent = 100 * min(1.0, max(0.0, self.shares[number]))
            bar = f'<span style="--share:{percent:.1f}%"></span>' if percent else ""
            cells.append(f'<td aria-hidden="true">{bar}</td>')
        return f"<tr>{''.join(cells)}</tr>"

    def _cell(self, tag: str, attributes: str, column: int, value: str) -> str:
        # An attribute and no rule, so that figures are aligned where a host drops the style, too.
        side = ' align="right"' if column in self.right else ""
        return f"<{tag}{attributes}{side}>{escape(escape_controls(value))}</{tag}>"


def shown_html(body: str, kind: str = "") -> str:
    """Return ``body``, markup, as an output in the course's look; ``kind``, "source" or "flow", is more of it."""
    more = f" minikv-{kind}" if kind else ""
    return f'{report_style(body, kind)}<div class="minikv-shown{more}">{body}</div>'


class Reports(Protocol):
    """An object with a report: ``shown("en" | "zh")``."""

    def shown(self, lang: str = "en") -> Shown: ...


def text_of(report: Reports, lang: str = "en") -> str:
    """Return the whole report as lines in ``lang``, "en" or "zh": a title, a table, then sentences.

    Raises ``ArgumentError`` for another language.
    """
    return report.shown(lang).text()


def html_of(report: Reports) -> str:
    """Return the report's table in English, for a notebook cell that ends in it."""
    return report.shown()._repr_html_()


def one_line(kind: str, name: str, *facts: str) -> str:
    """Return a ``repr``: ``<kind name: fact, fact>`` of at most 120 characters. A long name is cut in its middle.

    >>> one_line("CacheSpec", "Llama-3.1-8B", "32 layers", "128.00 KiB a token")
    '<CacheSpec Llama-3.1-8B: 32 layers, 128.00 KiB a token>'
    """
    name, told = escape_controls(name), escape_controls(", ".join(facts))
    frame = len(f"<{kind} : {told}>")
    name = _cut(name, max(SHORTEST_NAME, LONGEST_LINE - frame))
    head = f"{kind} {name}" if name else kind
    line = f"{head}: {told}" if told else head
    return f"<{_cut(line, LONGEST_LINE - 2)}>"


def rounded(value: float) -> str:
    """Return a whole number with commas, another one with three digits that count: 131,072, 0.0625, 12.3, 1,000."""
    if isinstance(value, int):
        return f"{value:,}"
    if value.is_integer() or abs(value) >= 999.5:  # below that three digits need no exponent
        return f"{value:,.0f}"
    return f"{value:.3g}"


def columns(rows: Sequence[Sequence[str]], right: Sequence[int] = ()) -> str:
    """Return ``rows`` (all equally long) as lines; the columns in ``right`` are right-aligned, the others left-aligned.

    This holds in a terminal and in a notebook: a Chinese letter is as wide as two others.
    """
    widths = [max(map(cell_len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [
            " " * (width - cell_len(cell)) + cell if index in right else cell + " " * (width - cell_len(cell))
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def _cut(words: str, most: int) -> str:
    if len(words) <= most:
        return words
    tail = (most - 1) // 2
    return f"{words[: most - 1 - tail]}…{words[-tail:]}"
