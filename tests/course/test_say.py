"""Sentences keep their words and lines; English fits a narrow page."""

import pytest

from minikv.course.say import WIDTH, say

LONG = "  [ ] " + "every word of this sentence is kept, " * 6
CODE = "x" * 200


@pytest.mark.parametrize("line", [LONG, f"short\n\n{LONG}\n{CODE}", "", " "])
def test_english_is_wrapped_and_loses_no_word(line, capsys):
    say(line, "en", rest="    ")
    printed = capsys.readouterr().out.removesuffix("\n")
    assert printed.split() == line.split()
    assert printed.count("\n\n") == line.count("\n\n")
    assert all(len(part) <= WIDTH or part == CODE for part in printed.split("\n"))


def test_the_added_lines_are_indented_as_the_first(capsys):
    say(LONG, "en", rest="    ")
    first, *others = capsys.readouterr().out.rstrip("\n").split("\n")
    assert first.startswith("  [ ] every")
    assert len(others) >= 2
    assert all(line.startswith("      ") and line[6] != " " for line in others)


def test_a_call_stays_in_one_line(capsys):
    call = 'explain("why_two", reveal=True)'
    for before in range(60, 110):
        say("w " * (before // 2) + call + " and more words", "en")
        assert call in capsys.readouterr().out


def test_chinese_is_left_as_it_is(capsys):
    line = "块表里的每一项都是一个块号，" * 20 + " token " + "槽位" * 80
    say(line, "zh")
    assert capsys.readouterr().out == line + "\n"
