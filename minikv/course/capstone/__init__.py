"""Serve this load within this budget: a task, a plan, a real run on a made-up clock, and a score. Lesson 18.

    >>> from minikv.course.capstone import Plan, serve, tiny_task
    >>> task = tiny_task()
    >>> run = serve(task, Plan(kv_dtype="int8"))
    >>> run.passed, run.quality >= task.quality, 0 < run.score < 100
    (True, True, True)

``task.py`` holds the task, ``plan.py`` the learner's decisions, ``serving.py`` the run, ``bound.py`` the bound that no
plan can beat, ``board.py`` the leaderboard of this machine.
"""

from typing import TYPE_CHECKING

from minikv.course.capstone.plan import MOST_DRAFTS, Plan
from minikv.extras import on_first_use

if TYPE_CHECKING:
    from minikv.course.capstone.board import Leaderboard, Standing
    from minikv.course.capstone.bound import Floor, floor
    from minikv.course.capstone.model_load import model_task
    from minikv.course.capstone.run import Run
    from minikv.course.capstone.serving import serve
    from minikv.course.capstone.task import Task, TaskRequest
    from minikv.course.capstone.tiny_load import tiny_task

_HOME = {
    "Leaderboard": "board",
    "Standing": "board",
    "Floor": "bound",
    "floor": "bound",
    "model_task": "model_load",
    "Run": "run",
    "serve": "serving",
    "TaskRequest": "task",
    "Task": "task",
    "tiny_task": "tiny_load",
}

__all__ = [
    "MOST_DRAFTS",
    "Floor",
    "Leaderboard",
    "Plan",
    "Run",
    "Standing",
    "Task",
    "TaskRequest",
    "floor",
    "model_task",
    "serve",
    "tiny_task",
]

if not TYPE_CHECKING:
    __getattr__ = on_first_use(__name__, _HOME)
