"""Appendix G is what index.toml says, and each of its calls is there."""

from pathlib import Path

import pytest

from minikv.course.ask import entries
from tests.notebooks.test_glossary_page import found
from tools import index_page
from tools.index_page import PAGE, main, page_of
from tools.notebooks.course import open_course

COURSE = open_course(Path(__file__).resolve().parents[2])


def test_the_page_is_what_the_index_says():
    assert main(["--check"]) == 0
    assert PAGE.read_text(encoding="utf-8") == page_of(entries(), COURSE)


def test_a_page_that_lags_behind_is_seen(tmp_path, monkeypatch, capsys):
    old = tmp_path / "G_index.py"
    monkeypatch.setattr(index_page, "PAGE", old)
    assert main(["--check"]) == 1, "not there"
    assert main([]) == 0
    assert main(["--check"]) == 0
    old.write_text(old.read_text(encoding="utf-8").replace("DynamicCache", "x", 1), encoding="utf-8")
    assert main(["--check"]) == 1
    assert "python -m tools.index_page" in capsys.readouterr().out


def test_every_call_exists_and_says_what_it_does():
    for entry in entries():
        assert entry.call.startswith("minikv.")
        assert found(entry.call).__doc__, entry.call


def test_every_question_and_name_stands_on_the_page():
    page = PAGE.read_text(encoding="utf-8")
    for entry in entries():
        assert all(question in page for question in entry.asked.values())
        assert all(name in page for name in entry.words)


def test_an_entry_of_no_lesson_is_refused():
    with pytest.raises(LookupError, match="no lesson"):
        page_of(entries(), type(COURSE)(COURSE.root, COURSE.lessons[:3], COURSE.with_exercises))
