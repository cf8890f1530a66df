"""What an arena says of its loans: who borrowed which bytes, and whether anything still refers to them."""

from dataclasses import dataclass

import torch

from minikv.i18n import pick_language, text
from minikv.shown import Shown, html_of, one_line, text_of
from minikv.units import exact_bytes, format_bytes


@dataclass(frozen=True)
class Borrower:
    """One loan: ``nbytes`` at ``offset`` of the arena, and whether anything still refers to them."""

    name: str
    offset: int
    nbytes: int
    shape: tuple[int, ...]
    dtype: torch.dtype
    alive: bool


@dataclass(frozen=True)
class ArenaReport:
    """What an arena has lent out, in order; all sizes in bytes. used + padding + free == capacity.

    ``used`` are the bytes of every loan, ``padding`` those lost to alignment between loans. A loan that is no
    longer alive is still counted: an arena is carved once, in order, and lends no byte twice.
    """

    name: str
    device: torch.device
    capacity: int
    used: int
    padding: int
    borrowers: tuple[Borrower, ...]
    closed: bool

    @property
    def free(self) -> int:
        """Bytes behind the last loan; 0 once the arena is closed."""
        return 0 if self.closed else self.capacity - self.used - self.padding

    @property
    def alive(self) -> tuple[Borrower, ...]:
        """The loans that something still refers to."""
        return tuple(borrower for borrower in self.borrowers if borrower.alive)

    def shown(self, lang: str = "en") -> Shown:
        """The sums, and a line a loan."""
        lang = pick_language(lang)
        head = "memory.arena_closed" if self.closed else "memory.arena_head"
        sizes = {"used": self.used, "padding": self.padding, "free": self.free}
        written = {name: f"{size:,}" for name, size in sizes.items()}
        title = text(head, lang, name=self.name, capacity=exact_bytes(self.capacity), **written)
        lines = []
        for loan in self.borrowers:
            lines.append(
                text(
                    "memory.arena_alive" if loan.alive else "memory.arena_gone",
                    lang,
                    name=loan.name,
                    offset=f"{loan.offset:,}",
                    nbytes=f"{loan.nbytes:,}",
                    shape=list(loan.shape),
                    dtype=str(loan.dtype).removeprefix("torch."),
                )
            )
        return Shown(title, lines=lines)

    text = text_of
    _repr_html_ = html_of

    def __repr__(self) -> str:
        lent = f"{format_bytes(self.used)} lent to {len(self.borrowers):,}, {len(self.alive):,} alive"
        left = "closed" if self.closed else f"{format_bytes(self.free)} free"
        return one_line(
            "ArenaReport", self.name, f"{format_bytes(self.capacity)} on {self.device}", lent, left
        )
