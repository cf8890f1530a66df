"""Progress: the exercises that were tried and solved, as plain data, without the learner's code.

``progress_file.py`` keeps one on this machine; ``minikv progress`` shows it, and carries it to another.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import minikv
from minikv.course.moved import EXERCISES as MOVED
from minikv.errors import LARGEST_COUNT, ConfigError

FORMAT = 1  # since the first minikv: "11a.1" is an id that each of them reads, keeps and writes again
_TASK = re.compile(r"[0-9A-Za-z]{1,4}\.[0-9]{1,3}")
_VERSION = re.compile(r"[0-9A-Za-z.+!_-]{1,40}")


@dataclass(frozen=True)
class Attempts:
    """The attempts at an exercise: ``attempts`` up to the one that passed, or so far.

    ``seed`` drew the cases of the last attempt, and ``version`` is the minikv that judged it. ``seed`` is None where it
    was no whole number of this machine's size.
    """

    attempts: int
    passed: bool
    seed: int | None
    version: str


@dataclass(frozen=True)
class Progress:
    """``tasks``: the id of an exercise ("02.1") -> ``Attempts``, without untried exercises."""

    tasks: Mapping[str, Attempts] = field(default_factory=dict)

    @property
    def solved(self) -> frozenset[str]:
        """The ids of the exercises that are solved."""
        return frozenset(task for task, tried in self.tasks.items() if tried.passed)

    def after(self, task: str, passed: bool, seed: object) -> "Progress":
        """The progress after one more attempt at ``task``; ``self`` if that is solved already."""
        before = self.tasks.get(task)
        if before is not None and before.passed:
            return self
        count = 1 if before is None else min(before.attempts + 1, LARGEST_COUNT)
        tried = Attempts(count, passed, seed if _is_seed(seed) else None, minikv.__version__)  # type: ignore[arg-type]
        return Progress({**self.tasks, task: tried})

    def merged(self, other: "Progress") -> "Progress":
        """Both together: an exercise is solved if it is in either. Merging the same again changes nothing."""
        tasks = dict(self.tasks)
        for task, theirs in other.tasks.items():
            mine = tasks.get(task)
            if mine is None:
                tasks[task] = theirs
            elif not mine.passed:
                kept = theirs if theirs.passed else mine
                tasks[task] = replace(kept, attempts=max(mine.attempts, theirs.attempts))
        return Progress(tasks)

    def as_json(self) -> str:
        """The text that ``parse_progress`` reads."""
        tasks = {task: asdict(self.tasks[task]) for task in sorted(self.tasks)}
        return json.dumps({"format": FORMAT, "tasks": tasks}, indent=1) + "\n"


def parse_progress(content: bytes, path: str) -> Progress:
    """The progress that ``as_json`` wrote; ``path`` is for the error's sentence.

    Attempts under an id that has moved ("11.1") count for the new one ("11a.1").

    Raises ``ConfigError``: "progress_newer" for the format of a newer minikv, "progress_damaged" for any other content.
    """
    try:
        data = json.loads(content.decode("utf-8"))
    except (ValueError, RecursionError):
        raise _damaged(path, "JSON") from None
    if not isinstance(data, dict) or not _is_count(data.get("format")):
        raise _damaged(path, "format")
    if data["format"] > FORMAT:
        raise ConfigError("progress_newer", path=path, found=data["format"], known=FORMAT)
    tasks = data.get("tasks")
    if not isinstance(tasks, dict):
        raise _damaged(path, "tasks")
    read = {task: _attempts(task, value, path) for task, value in tasks.items()}
    now = Progress({task: tried for task, tried in read.items() if task not in MOVED})
    return now.merged(Progress({MOVED[task]: tried for task, tried in read.items() if task in MOVED}))


def _attempts(task: str, value: Any, path: str) -> Attempts:
    names = set(Attempts.__dataclass_fields__)
    whole = isinstance(value, dict) and names <= set(value)
    if not _TASK.fullmatch(task) or not whole:
        raise _damaged(path, f"tasks[{task[:20]!a}]")
    checks = {
        "attempts": _is_count(value["attempts"]),
        "passed": isinstance(value["passed"], bool),
        "seed": value["seed"] is None or _is_seed(value["seed"]),
        "version": isinstance(value["version"], str) and bool(_VERSION.fullmatch(value["version"])),
    }
    wrong = next((name for name, good in checks.items() if not good), None)
    if wrong is not None:
        raise _damaged(path, f"tasks[{task!r}].{wrong}")
    return Attempts(**{name: value[name] for name in names})


def _damaged(path: str, where: str) -> ConfigError:
    return ConfigError("progress_damaged", path=path, where=where)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= LARGEST_COUNT


def _is_seed(value: object) -> bool:
    """Whether ``value`` is an int that any JSON can carry: a learner's seed may have 5,000 digits."""
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) <= LARGEST_COUNT
