"""Appendix G: the index. It asks nothing."""

from minikv.course.exercise import Lesson

LESSON = Lesson()
