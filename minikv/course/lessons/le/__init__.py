"""Appendix E: every formula of the course, with its value. It asks nothing."""

from minikv.course.exercise import Lesson

LESSON = Lesson()
