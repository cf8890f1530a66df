"""Leaderboard: the runs of this machine, in a file beside the progress. Lesson 18.

    >>> from minikv.course.capstone import Leaderboard
    >>> board = Leaderboard()                  # in the user's data directory; MINIKV_LEADERBOARD=FILE or off
    >>> board.path is None or board.path.name
    True

A run of the same plan has the same score, so it is kept once. Nothing of it leaves this machine.
"""

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import minikv
from minikv.course.capstone.entries import Entry, entries_as_json, parse_entries
from minikv.course.kept_file import KeptFile, kept_path
from minikv.errors import ArgumentError, user_path
from minikv.i18n import pick_language, text
from minikv.shown import Shown
from minikv.units import format_bytes

if TYPE_CHECKING:  # both import torch
    from minikv.course.capstone.run import Run
    from minikv.course.capstone.task import Task

VARIABLE = "MINIKV_LEADERBOARD"  # another file, or "off": builds and tests of notebooks record nothing

Entries = tuple[Entry, ...]


def board_path(environment: Mapping[str, str] = os.environ, platform: str = sys.platform) -> Path | None:
    """The path of the leaderboard: beside the progress, or MINIKV_LEADERBOARD; None where that is "off".

    Raises ``ConfigError`` where the user has no home.
    """
    return kept_path(VARIABLE, "leaderboard.json", "board_no_home", environment, platform)


class BoardFile(KeptFile[Entries]):
    """The runs at ``path``, in the order in which they were added."""

    damaged, busy = "board_damaged", "board_busy"

    def parse(self, content: bytes) -> Entries:
        return parse_entries(content, str(self.path))

    def nothing(self) -> Entries:
        return ()

    def written(self, value: Entries) -> str:
        return entries_as_json(value)


@dataclass(frozen=True)
class Standing:
    """The place of a run among the ``count`` kept runs of its task; ``rank`` 1 has the highest score.

    ``aside``: the path under which a damaged leaderboard is kept.
    """

    entry: Entry
    rank: int
    count: int
    aside: Path | None = None

    def text(self, lang: str = "en") -> str:
        """A sentence, and another one where the file was damaged."""
        lang = pick_language(lang)
        values = {"rank": self.rank, "count": self.count, "score": self.entry.score, "task": self.entry.task}
        said = [text("capstone.board_rank", lang, **values)]
        if self.aside is not None:
            said.append(text("capstone.board_set_aside", lang, aside=self.aside))
        return "\n".join(said)


class Leaderboard:
    """The runs at ``path``; None: at ``board_path()``. Where that is "off", this object keeps its runs in memory."""

    def __init__(self, path: str | Path | None = None):
        self.path = board_path() if path is None else user_path(path)
        self._here: Entries = ()

    def entries(self, task: "Task | None" = None) -> Entries:
        """The runs of ``task`` (None: of all), the highest score first; of equal scores the earlier run first.

        Raises ``ConfigError`` for a file that cannot be read, is damaged or was written by a newer minikv.
        """
        found = self._here if self.path is None else BoardFile(self.path).read()
        return _ranked(found, None if task is None else task.id)

    def add(self, task: "Task", run: "Run") -> Standing:
        """Keep ``run`` of ``task``, unless an equal one is there.

        A damaged file is kept aside. Raises ``ArgumentError`` for the run of another task, ``ConfigError`` where the
        file cannot be written or was written by a newer minikv.
        """
        if run.task_id != task.id:
            raise ArgumentError("capstone_other_task", run=run.task_id, task=task.id)
        entry, aside = entry_of(run), None

        def step(entries: Entries) -> Entries:
            return entries if entry in entries else (*entries, entry)

        if self.path is None:
            self._here = now = step(self._here)
        else:
            now, aside = BoardFile(self.path).change(step)
        ranked = _ranked(now, task.id)
        return Standing(entry, ranked.index(entry) + 1, len(ranked), aside)

    def table(self, lang: str = "en", task: "Task | None" = None, most: int = 20) -> str:
        """The same as ``shown``, as text."""
        return self.shown(lang, task, most).text()

    def shown(self, lang: str = "en", task: "Task | None" = None, most: int = 20) -> Shown:
        """The first ``most`` runs of ``task`` (None: of all). Raises what ``entries`` raises."""
        lang = pick_language(lang)
        entries = self.entries(task)
        if not entries:
            return Shown("", lines=[text("capstone.board_empty", lang)])
        names = ("score", "seconds", "quality", "held", "preemptions", "task", "plan")
        head, rows, lines = ["", *(text(f"capstone.board_{name}", lang) for name in names)], [], []
        for place, entry in enumerate(entries[:most], 1):
            figures = (f"{entry.score:.1f}", f"{entry.seconds:.4f}", f"{entry.quality:.1%}")
            memory = (format_bytes(entry.held_bytes), f"{entry.preemptions}")
            rows.append([f"{place}", *figures, *memory, entry.task, entry.described])
        if len(entries) > most:
            lines.append(text("capstone.board_more", lang, count=len(entries) - most))
        if self.path is None:
            lines.append(text("capstone.board_off", lang, variable=VARIABLE))
        return Shown("", head, rows, range(6), lines)


def entry_of(run: "Run") -> Entry:
    """The entry that is kept of a run."""
    import torch
    import transformers

    return Entry(
        task=run.task_id,
        model=run.model,
        device=run.device,
        label=run.plan.label,
        plan=run.plan.settings,
        score=run.score,
        seconds=run.seconds,
        floor_seconds=run.floor_seconds,
        quality=run.quality,
        bar=run.bar,
        held_bytes=run.held_bytes,
        kv_bytes=run.kv_bytes,
        steps=run.steps,
        preemptions=run.preemptions,
        versions={
            "minikv": minikv.__version__,
            "torch": torch.__version__,
            "transformers": transformers.__version__,
        },
    )


def _ranked(entries: Entries, task: str | None) -> Entries:
    mine = [entry for entry in entries if task in (None, entry.task)]
    return tuple(sorted(mine, key=lambda entry: (-entry.score, entry.seconds if entry.score else 0.0)))
