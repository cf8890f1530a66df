"""Which lessons exist, in which order, and which notebooks come from which source."""

from dataclasses import dataclass
from pathlib import Path

from minikv.i18n import LANGUAGES
from tools.notebooks.source import Meta, Source, SourceError, read_meta, read_source, with_overrides

# kind of notebook -> (folder of its source, folder of the notebook), below the repository's root
KINDS = {
    "lesson": ("notebooks/src", "notebooks"),
    "solution": ("solutions/src", "solutions"),
    "exercise": ("solutions/src", "exercises"),
}


@dataclass(frozen=True)
class Target:
    """One notebook to be made."""

    kind: str  # a key of KINDS
    lang: str
    stem: str

    @property
    def path(self) -> Path:
        """Below the repository's root: ``notebooks/en/02_how_many_bytes.ipynb``."""
        return Path(KINDS[self.kind][1]) / self.lang / f"{self.stem}.ipynb"

    @property
    def source_path(self) -> Path:
        return Path(KINDS[self.kind][0]) / f"{self.stem}.py"


@dataclass(frozen=True)
class Course:
    """All lessons in reading order (00, 01, ..., 11a, 11b, ..., then A, B, ...), and which of them have exercises."""

    root: Path
    lessons: tuple[Meta, ...]
    with_exercises: frozenset[str]  # stems

    def by_number(self, number: str) -> Meta | None:
        return next((lesson for lesson in self.lessons if lesson.number == number), None)

    def neighbours(self, kind: str, stem: str) -> tuple[Meta | None, Meta | None]:
        """The lesson before and the lesson after, of those that have a notebook of this kind."""
        row = [m for m in self.lessons if kind == "lesson" or m.stem in self.with_exercises]
        place = [m.stem for m in row].index(stem)
        return (row[place - 1] if place else None, row[place + 1] if place + 1 < len(row) else None)

    def meta(self, target: Target, source: Source) -> Meta:
        """The lesson's meta; its solutions file may say other t4, rooms or paper."""
        lesson = next(m for m in self.lessons if m.stem == target.stem)
        return lesson if target.kind == "lesson" else with_overrides(lesson, source.meta_table)

    def targets(self, names: tuple[str, ...] = ()) -> list[Target]:
        """Every notebook of the course, or those of the lessons named by number or stem.

        Raises ``LookupError`` for a name that fits no lesson.
        """
        stems = [m.stem for m in self.lessons]
        for name in names:
            if not any(_fits(name, stem) for stem in stems):
                raise LookupError(f"No lesson is called {name}. There are: {', '.join(stems) or 'none'}.")
        chosen = [stem for stem in stems if not names or any(_fits(name, stem) for name in names)]
        return [
            Target(kind, lang, stem)
            for stem in chosen
            for kind in KINDS
            if kind == "lesson" or stem in self.with_exercises
            for lang in LANGUAGES
        ]

    def read(self, target: Target) -> Source:
        return read_source(self.root / target.source_path)


def open_course(root: Path) -> Course:
    """Read every lesson's [meta]. Raises ``SourceError`` (also for exercises that belong to no lesson)."""
    lessons = [read_meta(path) for path in (root / "notebooks/src").glob("*.py")]
    lessons.sort(key=lambda m: (not m.number[0].isdigit(), m.number))
    stems = {m.stem for m in lessons}
    solutions = list((root / "solutions/src").glob("*.py"))
    for path in solutions:
        if path.stem not in stems:
            raise SourceError(
                path, 1, "these exercises have no lesson", f"Write notebooks/src/{path.name} first"
            )
    return Course(root, tuple(lessons), frozenset(path.stem for path in solutions))


def _fits(name: str, stem: str) -> bool:
    return name in (stem, stem.split("_")[0])
