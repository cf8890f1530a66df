"""Progress by lesson: every exercise of the course, its attempts, and the lesson's title in the reader's language."""

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, Literal

from minikv.course.lesson_parts import lesson_parts
from minikv.course.lessons import find_lesson, lesson_numbers
from minikv.course.progress import Attempts, Progress
from minikv.course.shipped import course_root

State = Literal["solved", "tried", "open"]


@dataclass(frozen=True)
class LessonProgress:
    """A lesson and its exercises in order: {id: ``Attempts``, or None for an untried one}."""

    number: str
    title: str
    tasks: dict[str, Attempts | None]

    @property
    def states(self) -> list[State]:
        """The state of each exercise."""
        return [_state(tried) for tried in self.tasks.values()]

    @property
    def num_solved(self) -> int:
        return self.states.count("solved")

    @property
    def attempts(self) -> int:
        """The attempts at all its exercises."""
        return sum(tried.attempts for tried in self.tasks.values() if tried is not None)

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON values; an untried exercise has 0 attempts and neither seed nor version."""
        nothing = {"attempts": 0, "passed": False, "seed": None, "version": None}
        tasks = [
            {"task": task, **(nothing if tried is None else asdict(tried))}
            for task, tried in self.tasks.items()
        ]
        own = {"lesson": self.number, "title": self.title}
        return {**own, "solved": self.num_solved, "total": len(self.tasks), "tasks": tasks}


def by_lesson(progress: Progress, lang: str) -> list[LessonProgress]:
    """Every lesson that has exercises, in the course's order; titles in ``lang``."""
    titles = dict(lesson_titles(lang))
    found = []
    for number in lesson_numbers():
        tasks = {one.id: progress.tasks.get(one.id) for one in find_lesson(number).exercises}
        if tasks:
            found.append(
                LessonProgress(number.upper() if number.isalpha() else number, titles.get(number, ""), tasks)
            )
    return found


def part_counts(progress: Progress, lang: str) -> Iterator[tuple[str, int, int]]:
    """Yield each part of the course: its key, how many of its exercises are solved, and how many it has."""
    lessons = {lesson.number: lesson for lesson in by_lesson(progress, lang)}
    for key, numbers in lesson_parts(lessons).items():
        there = [lessons[number] for number in numbers]
        yield key, sum(one.num_solved for one in there), sum(len(one.tasks) for one in there)


def unknown_tasks(progress: Progress, lessons: list[LessonProgress]) -> list[str]:
    """The recorded exercises that this minikv does not have: of a newer minikv, or removed ones."""
    known = {task for lesson in lessons for task in lesson.tasks}
    return sorted(set(progress.tasks) - known)


def lesson_titles(lang: str) -> Iterator[tuple[str, str]]:
    """Yield each lesson's number, in small letters, and its title.

    The heading of its notebook has them: "# 02 · What does one token cost?".
    """
    for path in sorted((course_root() / "notebooks" / lang).glob("*.ipynb")):
        try:
            source = json.loads(path.read_text(encoding="utf-8"))["cells"][0]["source"]
        except (OSError, ValueError, LookupError, TypeError):  # the notebook is being written
            continue
        heading = "".join(source).partition("\n")[0]
        yield path.name.partition("_")[0].lower(), heading.partition(" · ")[2].strip()


def _state(tried: Attempts | None) -> State:
    if tried is None:
        return "open"
    return "solved" if tried.passed else "tried"
