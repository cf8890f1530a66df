"""The functions that a lesson imports.

    from minikv.course import start
    check, predict, explain, show, t = start("02", lang="en")

Engineers and tests use the parts below it, which print nothing: ``run_check`` returns a ``Verdict``.
This package imports neither torch, ipywidgets nor plotly; ``tests/test_imports.py`` holds that.
"""

# Not lazy as elsewhere: a function shares its file's name, and a file imported later would hide it.
from minikv.course.ask import ask
from minikv.course.check import Verdict, check, run_check
from minikv.course.exercise import Exercise, Lesson, Misconception, Prediction
from minikv.course.explain import explain
from minikv.course.lessons import find_exercise, find_lesson, lesson_numbers
from minikv.course.predict import predict
from minikv.course.show import show
from minikv.course.show_source import show_source
from minikv.course.start import Course, start, t
from minikv.course.table import Table
from minikv.course.your_engine.engine import my_engine

__all__ = [
    "Course",
    "Exercise",
    "Lesson",
    "Misconception",
    "Prediction",
    "Table",
    "Verdict",
    "ask",
    "check",
    "explain",
    "find_exercise",
    "find_lesson",
    "lesson_numbers",
    "my_engine",
    "predict",
    "run_check",
    "show",
    "show_source",
    "start",
    "t",
]
