"""Appendix F is what glossary.toml says; every word has a meaning, and its lesson and its call are there."""

import importlib
import re
from dataclasses import is_dataclass, replace
from pathlib import Path

import pytest

from minikv.i18n import LANGUAGES
from tests.in_turn import in_turn
from tools import glossary_page
from tools.glossary_page import HEADS, PAGE, main, page_of, read_words
from tools.notebooks.course import open_course

COURSE = open_course(Path(__file__).resolve().parents[2])
WORDS = read_words()


def found(dotted: str) -> object:
    """What a dotted name leads to; a field of a dataclass counts, though no class has it as an attribute."""
    parts = dotted.split(".")
    for cut in range(len(parts), 0, -1):
        try:
            value = importlib.import_module(".".join(parts[:cut]))
        except ModuleNotFoundError:
            continue
        for part in parts[cut:]:
            fields = value.__dataclass_fields__ if is_dataclass(value) else {}
            value = fields[part] if part in fields and not hasattr(value, part) else getattr(value, part)
        return value
    raise LookupError(dotted)


def test_the_page_is_what_the_glossary_says():
    assert main(["--check"]) == 0
    assert PAGE.read_text(encoding="utf-8") == page_of(WORDS, COURSE)


def test_a_page_that_lags_behind_is_seen(tmp_path, monkeypatch, capsys):
    old = tmp_path / "F_glossary.py"
    monkeypatch.setattr(glossary_page, "PAGE", old)
    assert main(["--check"]) == 1, "not there"
    assert main([]) == 0
    assert main(["--check"]) == 0
    old.write_text(old.read_text(encoding="utf-8").replace("tokens", "words", 1), encoding="utf-8")
    assert main(["--check"]) == 1
    assert "python -m tools.glossary_page" in capsys.readouterr().out


@in_turn("call", sorted({word.call for word in WORDS if word.call}))
def test_the_call_exists_and_says_what_it_does(call):
    value = found(call)
    assert call.startswith("minikv.")
    assert value.__doc__, call


def test_a_call_that_is_gone_would_be_seen():
    with pytest.raises((AttributeError, LookupError)):
        found("minikv.plan.CacheSpec.bytes_of_nothing")


@in_turn("word", WORDS)
def test_a_meaning_is_a_sentence_of_its_language(word):
    assert word.means["en"].endswith((".", ".)"))
    assert word.means["zh"].endswith(("。", "。）"))
    assert re.search(r"[\u4e00-\u9fff]", word.means["zh"])
    assert not re.search(r"[\u4e00-\u9fff]", word.means["en"].replace("块", ""))
    assert "|" not in "".join([*word.name.values(), *word.means.values()])


def test_no_word_stands_twice():
    names = [word.name["en"] for word in WORDS]
    assert len(names) == len(set(names))


def test_a_word_of_a_lesson_that_is_not_there_is_refused():
    with pytest.raises(LookupError, match="no lesson 77"):
        page_of([replace(WORDS[0], lesson="77")], COURSE)


@pytest.mark.parametrize("broken", ['means_zh = "模型', 'lesson = "00"', '"tokens" = "token"'])
def test_a_word_without_meaning_lesson_or_known_unit_is_refused(tmp_path, broken):
    text = glossary_page.GLOSSARY.read_text(encoding="utf-8")
    place = text.index(broken)
    path = tmp_path / "glossary.toml"
    path.write_text(text[:place] + text[text.index("\n", place) + 1 :], encoding="utf-8")
    with pytest.raises(KeyError):
        read_words(path)


@pytest.mark.parametrize("lang", LANGUAGES)
def test_every_word_has_its_row_with_five_cells(lang):
    text = PAGE.read_text(encoding="utf-8")
    own = "".join(
        re.findall(rf'^# %% \[markdown\][^\n]* lang="{lang}".*?(?=^# %%|\Z)', text, re.MULTILINE | re.DOTALL)
    )
    rows = [line for line in own.splitlines() if line.startswith("# | **")]
    assert len(rows) == len(WORDS)
    assert {row.count("|") for row in rows} == {len(HEADS[lang]) + 1}
    for word in WORDS:
        assert sum(f"| **{word.name[lang]}** |" in row for row in rows) == 1, word.name[lang]
