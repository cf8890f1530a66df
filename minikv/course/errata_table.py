"""The errata as a table: HTML where a notebook shows it, plain text everywhere else, the same in every run."""

from dataclasses import dataclass
from html import escape

from minikv.course.errata import Erratum, errata
from minikv.i18n import pick_language, text
from minikv.shown import shown_html


@dataclass(frozen=True)
class ErrataTable:
    """Some entries, in ``lang``. ``show`` displays it."""

    entries: tuple[Erratum, ...]
    lang: str

    def text(self) -> str:
        """Four lines an entry."""
        return "\n".join(entry.text(self.lang) for entry in self.entries)

    def html(self) -> str:
        """One row an entry: its id, its place, the claim, the right value, the reason, and the proof."""
        heads = "".join(f'<th scope="col">{escape(head)}</th>' for head in self._heads())
        rows = "\n".join(f"<tr>{self._row(entry)}</tr>" for entry in self.entries)
        return shown_html(f"<table>\n<thead><tr>{heads}</tr></thead>\n<tbody>\n{rows}\n</tbody>\n</table>")

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        return {"text/html": self.html(), "text/plain": self.text()}

    def _heads(self) -> list[str]:
        columns = ("entry", "claim", "correct", "why", "proof")
        return [text(f"errata.{column}", self.lang) for column in columns]

    def _row(self, entry: Erratum) -> str:
        where = f"<b>{entry.id}</b><br>{escape(entry.section)}"
        said = [escape(both.in_(self.lang)) for both in (entry.claim, entry.correct, entry.why)]
        return "".join(f"<td>{cell}</td>" for cell in (where, *said, self._proof(entry)))

    def _proof(self, entry: Erratum) -> str:
        """The proof of an entry: its value, a cell of the appendix, a page."""
        proofs = []
        if entry.right:
            proofs.append("<code>value()</code>")
        if entry.shown:
            proofs.append(escape(text("errata.cell", self.lang, key=entry.shown)))
        if entry.cite:
            proofs.append(f'<a href="{escape(entry.cite)}">{escape(text("errata.page", self.lang))}</a>')
        return "<br>".join(proofs)


def errata_table(
    lang: str = "en", *, document: str | None = None, kind: str | None = None, slip: str | None = None
) -> ErrataTable:
    """The entries that ``errata(document, kind, slip)`` finds, as a table in ``lang``."""
    return ErrataTable(errata(document, kind, slip), pick_language(lang))
