"""The committed notebooks are what their sources give, ran, agree in both languages, and name no machine."""

from pathlib import Path

from tools.notebooks.check import check


def test_the_course_keeps_every_rule():
    problems = check(Path(__file__).resolve().parents[2])
    assert not problems, "\n" + "\n".join(problems)
