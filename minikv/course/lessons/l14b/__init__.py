"""Lesson 14b: a policy of your own. Exercise: ``own_policy``."""

from minikv.course.exercise import Lesson
from minikv.course.lessons.l14b.own_policy import OWN

LESSON = Lesson(exercises=(OWN,), questions=("why_true_positions",))
