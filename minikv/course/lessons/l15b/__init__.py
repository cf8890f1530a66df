"""Lesson 15b: eviction in an attention class of your own. Exercise: ``latent_attention``."""

from minikv.course.exercise import Lesson
from minikv.course.lessons.l15b.latent_attention import LATENT

LESSON = Lesson(exercises=(LATENT,), questions=("what_a_port_needs", "why_the_tests_passed"))
