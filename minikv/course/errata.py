"""Wrong numbers in five public documents, each with the right one and the way to it.

The course grew from these documents, and checked them line by line. A claim is quoted as briefly as possible. Each
entry has at least one of: a value that this package computes again (``Erratum.value``), a page that says it (``cite``),
or a cell of appendix A that shows it (``shown``).

The entries stand in ``data/errata_*.toml``, one file a document:

    [003-01]
    section = "3, block_bytes"     where in the document, in its own headings or numbers
    kind = "arithmetic"            the sort of error: one of KINDS
    slip = "factor"                its cause: one of SLIPS, the sections of appendix A
    right = 229376                 the right value, or several; errata_values.py computes the same
    claim = { en = "...", zh = "..." }, and so correct and why
"""

import tomllib
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import NamedTuple

from minikv.errors import ArgumentError, UnknownNameError
from minikv.i18n import pick_language

KINDS = ("arithmetic", "unit", "conceptual", "fact", "stale", "unsupported")
SLIPS = ("factor", "unit", "neighbour", "scope", "definition", "stale", "source")

Number = int | float


class Both(NamedTuple):
    """One sentence in both languages."""

    en: str
    zh: str

    def in_(self, lang: str) -> str:
        return self.zh if pick_language(lang) == "zh" else self.en


@dataclass(frozen=True)
class Erratum:
    """One wrong claim. ``document`` is the title; ``right`` are the stated right values, () where there are none.

    ``cite`` is the address of a page that says it, ``shown`` the key of the cell of appendix A that shows it;
    "" where there is none.
    """

    id: str
    document: str
    section: str
    kind: str
    slip: str
    claim: Both = field(repr=False)
    correct: Both = field(repr=False)
    why: Both = field(repr=False)
    right: tuple[Number, ...] = ()
    cite: str = ""
    shown: str = ""

    def value(self) -> Number | tuple[Number, ...]:
        """The right value, computed now; a tuple where the claim holds several numbers.

        Raises ``ArgumentError`` where the claim is not about a number.
        """
        if not self.right:
            raise ArgumentError("erratum_without_value", id=self.id)
        from minikv.course.errata_values import VALUES  # imports the planner, needed only here

        return VALUES[self.id]()

    def text(self, lang: str = "en") -> str:
        """Four lines of plain text: the place, the claim, the right value, and the reason."""
        lines = [f"{self.id}  {self.document}, {self.section}"]
        lines += [f"  {mark} {both.in_(lang)}" for mark, both in zip("-+=", self._sentences(), strict=True)]
        return "\n".join(lines)

    def _sentences(self) -> tuple[Both, Both, Both]:
        return self.claim, self.correct, self.why


def errata(
    document: str | None = None, kind: str | None = None, slip: str | None = None
) -> tuple[Erratum, ...]:
    """The entries in order, those of a document (its number "003" or its title), a kind, a slip, or all.

    Raises ``ArgumentError`` for a document, kind or slip that does not exist.
    """
    found = _all()
    documents = {entry.id[:3] for entry in found} | {entry.document for entry in found}
    choices = (("document", document, sorted(documents)), ("kind", kind, KINDS), ("slip", slip, SLIPS))
    for what, value, known in choices:
        if value is not None and value not in known:
            raise ArgumentError("unknown_choice", what=what, value=value, known=", ".join(known))
    return tuple(
        entry
        for entry in found
        if (document is None or document in (entry.id[:3], entry.document))
        and kind in (None, entry.kind)
        and slip in (None, entry.slip)
    )


def erratum(id: str) -> Erratum:
    """The entry ``id`` ("003-01"). Raises ``UnknownNameError`` where there is none."""
    for entry in _all():
        if entry.id == id:
            return entry
    raise UnknownNameError(
        "unknown_erratum", id=id, count=len(_all()), first=_all()[0].id, last=_all()[-1].id
    )


@cache
def _all() -> tuple[Erratum, ...]:
    folder = files("minikv.course") / "data"
    names = sorted(file.name for file in folder.iterdir() if file.name.startswith("errata_"))
    return tuple(entry for name in names for entry in _read((folder / name).read_text(encoding="utf-8")))


def _read(text: str) -> list[Erratum]:
    table = tomllib.loads(text)
    title = table.pop("title")
    return [_entry(id, title, fields) for id, fields in table.items()]


def _entry(id: str, title: str, fields: dict) -> Erratum:
    right = fields.get("right", [])
    own = {
        "right": tuple(right) if isinstance(right, list) else (right,),
        **{name: Both(**fields[name]) for name in ("claim", "correct", "why")},
    }
    return Erratum(**{"id": id, "document": title, **fields, **own})
