"""Appendix F: the glossary. Nothing is asked there."""

from minikv.course.exercise import Lesson

LESSON = Lesson()
