"""The parts of the course: some lessons, one after the other, under a title."""

from collections.abc import Iterable

from minikv.i18n import text

# The first lesson of each part, and the key of its title.
FIRST = {
    "00": "bytes",
    "05": "memory",
    "09": "blocks",
    "12": "cheaper",
    "14": "forget",
    "16": "practice",
    "a": "appendices",
}


def lesson_parts(numbers: Iterable[str]) -> dict[str, list[str]]:
    """Return {the key of a part: its lessons}, of ``numbers`` in the course's order; letters are of either size."""
    parts: dict[str, list[str]] = {}
    key = ""
    for number in numbers:
        key = FIRST.get(number.lower(), key)
        parts.setdefault(key, []).append(number)
    return parts


def part_title(key: str, lang: str) -> str:
    """Return the title of a part."""
    return text(f"lesson_parts.{key}", lang)
