"""A class's progress: many exported records, where each learner is, and which exercises stop people."""

import os
import stat
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from minikv.course.kept_file import read_bytes
from minikv.course.progress import Progress, parse_progress
from minikv.course.progress_table import LessonProgress, by_lesson
from minikv.errors import ConfigError, MiniKVError
from minikv.i18n import escape_controls

MOST_FILES = 500
MOST_BYTES = 2**20  # of one of them: the whole course solved takes 20 KiB
MOST_NAME = 60  # letters of a learner's name


@dataclass(frozen=True)
class Learner:
    """One record under the name of its file, lesson by lesson."""

    name: str
    lessons: Sequence[LessonProgress]

    @property
    def solved(self) -> int:
        return sum(lesson.num_solved for lesson in self.lessons)

    @property
    def at(self) -> LessonProgress | None:
        """The last lesson in which something was tried."""
        tried = [lesson for lesson in self.lessons if set(lesson.states) != {"open"}]
        return tried[-1] if tried else None


@dataclass(frozen=True)
class Hurdle:
    """An exercise in numbers of learners; ``attempts`` is the median of the solved ones (None: there is none)."""

    task: str
    solved: int
    stuck: int
    attempts: float | None


@dataclass(frozen=True)
class ClassProgress:
    """``learners``, the furthest first; ``refused`` files with the reason."""

    learners: Sequence[Learner]
    refused: Mapping[str, MiniKVError]

    @property
    def hurdles(self) -> list[Hurdle]:
        """The tried exercises: those at which most learners are stuck first, then those with the most attempts."""
        solved: dict[str, list[int]] = {}
        stuck: Counter[str] = Counter()
        for learner in self.learners:
            for lesson in learner.lessons:
                for task, tried in lesson.tasks.items():
                    if tried is not None and tried.passed:
                        solved.setdefault(task, []).append(tried.attempts)
                    elif tried is not None:
                        stuck[task] += 1
        found = [
            Hurdle(
                task, len(solved.get(task, ())), stuck[task], median(solved[task]) if task in solved else None
            )
            for task in solved.keys() | stuck.keys()
        ]
        return sorted(found, key=lambda one: (-one.stuck, -(one.attempts or 0), one.task))


def read_class(folder: Path, lang: str) -> ClassProgress:
    """Read every ``*.json`` of ``folder``: what ``minikv progress --export`` wrote. Files of another kind are refused.

    Links are refused too: a class's files come from many hands. Raises ``ConfigError`` where the folder cannot be read,
    has no such file, or more than ``MOST_FILES``.
    """
    learners, refused = [], {}
    for path in _files(folder):
        name = escape_controls(path.stem)[:MOST_NAME]
        try:
            learners.append(Learner(name, by_lesson(_read(path), lang)))
        except MiniKVError as error:
            refused[escape_controls(path.name)[:MOST_NAME]] = error
    return ClassProgress(sorted(learners, key=lambda one: (-one.solved, one.name)), refused)


def _files(folder: Path) -> list[Path]:
    try:
        found = sorted(entry.name for entry in os.scandir(folder) if entry.name.endswith(".json"))
    except (OSError, ValueError) as error:  # a path with a null character is a ValueError
        reason = getattr(error, "strerror", None) or str(error)
        raise ConfigError("unreadable_file", path=str(folder), reason=reason) from error
    if not found:
        raise ConfigError("class_no_files", path=str(folder))
    if len(found) > MOST_FILES:
        raise ConfigError("class_too_many", path=str(folder), found=len(found), most=MOST_FILES)
    return [folder / name for name in found]


def _read(path: Path) -> Progress:
    try:
        linked = stat.S_ISLNK(path.lstat().st_mode)
    except OSError as error:
        raise ConfigError("unreadable_file", path=path.name, reason=error.strerror) from error
    content = None if linked else read_bytes(path, MOST_BYTES)
    if content is None:
        raise ConfigError("class_link", path=path.name)
    return parse_progress(content, path.name)
