"""The entries of the leaderboard as plain data, and their parser. No torch. Lesson 18."""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from minikv.errors import LARGEST_COUNT, ConfigError

FORMAT = 1
LONGEST = 200  # characters of a text in the file
_SETTINGS = 40  # of a plan, at most


@dataclass(frozen=True)
class Entry:
    """One run. ``plan``: its differences from ``Plan()``, as JSON values; ``versions`` of the packages that ran it."""

    task: str
    model: str
    device: str
    label: str
    plan: Mapping[str, Any]
    score: float
    seconds: float
    floor_seconds: float
    quality: float
    bar: float
    held_bytes: int
    kv_bytes: int
    steps: int
    preemptions: int
    versions: Mapping[str, str]

    @property
    def described(self) -> str:
        """The label and the plan's settings: "mine: block_size=8, eviction(policy=keydiff, budget=48)"."""
        said = ", ".join(_described(name, value) for name, value in self.plan.items())
        return ": ".join(part for part in (self.label, said) if part) or "Plan()"


def entries_as_json(entries: tuple[Entry, ...]) -> str:
    """The text that ``parse_entries`` reads."""
    return json.dumps({"format": FORMAT, "runs": [asdict(entry) for entry in entries]}, indent=1) + "\n"


def parse_entries(content: bytes, path: str) -> tuple[Entry, ...]:
    """The entries that ``entries_as_json`` wrote; ``path`` is for the error's sentence.

    Raises ``ConfigError``: "board_newer" for the format of a newer minikv, "board_damaged" for any other content.
    """
    try:
        data = json.loads(content.decode("utf-8"))
    except (ValueError, RecursionError):
        raise _damaged(path, "JSON") from None
    if not isinstance(data, dict) or not _is_count(data.get("format"), 1):
        raise _damaged(path, "format")
    if data["format"] > FORMAT:
        raise ConfigError("board_newer", path=path, found=data["format"], known=FORMAT)
    if not isinstance(data.get("runs"), list):
        raise _damaged(path, "runs")
    return tuple(_entry(place, value, path) for place, value in enumerate(data["runs"]))


def _entry(place: int, value: Any, path: str) -> Entry:
    names = [field.name for field in fields(Entry)]
    if not isinstance(value, dict) or not set(names) <= set(value):
        raise _damaged(path, f"runs[{place}]")
    wrong = next((name for name in names if not _is_good(name, value[name])), None)
    if wrong is not None:
        raise _damaged(path, f"runs[{place}].{wrong}")
    return Entry(**{name: value[name] for name in names})


def _is_good(name: str, value: Any) -> bool:
    if name in ("task", "model", "device", "label"):
        return _is_text(value)
    if name == "plan":
        return _is_plain(value, depth=2) and isinstance(value, dict)
    if name == "versions":
        return isinstance(value, dict) and len(value) <= _SETTINGS and all(map(_is_text, value.values()))
    if name in ("held_bytes", "kv_bytes", "steps", "preemptions"):
        return _is_count(value, 0)
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and 0 <= value < math.inf


def _is_plain(value: Any, depth: int) -> bool:
    """Whether ``value`` can be in a plan: text, a number, null, or up to ``depth`` layers of objects of such values."""
    if isinstance(value, dict):
        return (
            depth > 0 and len(value) <= _SETTINGS and all(_is_plain(one, depth - 1) for one in value.values())
        )
    if isinstance(value, float):
        return math.isfinite(value)
    return value is None or isinstance(value, bool) or _is_text(value) or _is_count(value, 0)


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and len(value) <= LONGEST and value.isprintable()


def _is_count(value: Any, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= LARGEST_COUNT


def _described(name: str, value: Any) -> str:
    if isinstance(value, Mapping):
        return f"{name}({', '.join(_described(*pair) for pair in value.items())})"
    return f"{name}={value}"


def _damaged(path: str, where: str) -> ConfigError:
    return ConfigError("board_damaged", path=path, where=where)
