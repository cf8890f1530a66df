"""How long a lesson takes: its words at reading speed, in the slower language, and the minutes of its exercises.

Headers, the README's table, the routes of lesson 00 and the site say this number; no source does.
"""

import ast
import math
from pathlib import Path

from tools.notebooks.counts import words_of
from tools.notebooks.course import Course, Target
from tools.notebooks.source import Meta

WORDS_A_MINUTE = {"en": 200, "zh": 350}  # a Chinese character is a word
MOST = 60
STEP = 5  # reading speeds differ by more
LESSONS = Path("minikv/course/lessons")

# The lessons of each route, in order; an evening is a route of its own.
ROUTES = {
    "two_hours": ("00", "02", "08"),
    "weekend": ("00", "01", "02", "03", "04", "07", "08", "09", "11a", "11b", "16", "17"),
    "evening_1": ("00", "01", "02", "02b"),
    "evening_2": ("03", "04", "06"),
    "evening_3": ("07", "08", "16"),
    "evening_4": ("09", "10"),
    "evening_5": ("11a", "11b", "11c", "13b"),
    "evening_6": ("13", "14", "17"),
}


def lesson_minutes(course: Course, meta: Meta) -> int:
    """The minutes of a lesson with its exercises, rounded up to five."""
    source = course.read(Target("lesson", "en", meta.stem))
    reading = max(
        sum(words_of(cell.text) for cell in source.in_language(lang) if cell.kind == "markdown") / speed
        for lang, speed in WORDS_A_MINUTE.items()
    )
    return math.ceil((reading + exercise_minutes(course.root, meta.number)) / STEP) * STEP


def exercise_minutes(root: Path, number: str) -> int:
    """What a lesson's exercises say that they take, read without importing them."""
    trees = (
        ast.parse(path.read_text(encoding="utf-8"))
        for path in (root / LESSONS / f"l{number.lower()}").glob("*.py")
    )
    calls = (node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Call))
    return sum(
        ast.literal_eval(keyword.value)
        for call in calls
        if isinstance(call.func, ast.Name) and call.func.id == "Exercise"
        for keyword in call.keywords
        if keyword.arg == "minutes"
    )


def route_minutes(course: Course, route: str) -> int:
    """The sum of what the headers of a route's lessons say."""
    lessons = (meta for meta in course.lessons if meta.number in ROUTES[route])
    return sum(lesson_minutes(course, meta) for meta in lessons)
