"""Appendix F: the glossary. It asks nothing."""

from minikv.course.exercise import Lesson

LESSON = Lesson()
