"""Puts the sample lesson "99" where the course looks for lessons and sentences."""

import sys
import types

import pytest

import minikv.i18n
from tests.course.sample import LESSON, SENTENCES


@pytest.fixture
def lesson_99(monkeypatch):
    module = types.ModuleType("minikv.course.lessons.l99")
    module.LESSON = LESSON
    monkeypatch.setitem(sys.modules, module.__name__, module)
    real = minikv.i18n._table
    monkeypatch.setattr(minikv.i18n, "_table", lambda name: SENTENCES if name == "lesson_99" else real(name))
