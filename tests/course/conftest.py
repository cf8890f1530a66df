"""The sample lesson "99" in the place of a lesson, and how many seeds an exercise is tried with."""

import sys
import types

import pytest

import minikv.i18n
from tests.course import mutants
from tests.course.sample import LESSON, SENTENCES


@pytest.fixture(scope="session", autouse=True)
def seeds(pytestconfig):
    """Where the long tests are left out, as by ``make test``, answers are checked with one."""
    mutants.first_seed_only = "not long" in pytestconfig.option.markexpr


@pytest.fixture
def lesson_99(monkeypatch):
    module = types.ModuleType("minikv.course.lessons.l99")
    module.LESSON = LESSON
    monkeypatch.setitem(sys.modules, module.__name__, module)
    real = minikv.i18n._table
    monkeypatch.setattr(minikv.i18n, "_table", lambda name: SENTENCES if name == "lesson_99" else real(name))
