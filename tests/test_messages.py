"""Every sentence exists in both languages, says the same things, and is punctuated as its language is."""

import re
import string
import tomllib
from pathlib import Path

import pytest

import minikv
from minikv.errors import ConfigError
from minikv.i18n import Sentence, text

FILES = sorted((Path(minikv.__file__).parent / "messages").glob("*.toml"))
CHINESE = re.compile(r"[\u4e00-\u9fff\u3000-\u303f\uff01-\uff5e]")
HALF_WIDTH = re.compile(r"[\u4e00-\u9fff][,;:?!]")
# 7.4 % and 7.4%, as notebooks/voice.toml
PERCENT = {"en": re.compile(r"\d%"), "zh": re.compile(r"\d %(?! \d)")}


def placeholders(sentence):
    """The names and conversions in braces; the format after the colon may differ between languages."""
    parts = string.Formatter().parse(sentence)
    return sorted({f"{name}!{conversion}" for _, name, _, conversion in parts if name is not None})


def test_the_course_has_sentences():
    assert {"course", "errors"} <= {file.stem for file in FILES}


def problems_of(entry, drawn):
    """What is wrong with one sentence. ``drawn``: it stands in a drawing."""
    if set(entry) != {"en", "zh"} or not all(
        isinstance(said, str) and said.strip() for said in entry.values()
    ):
        yield "it is not said in both languages"
        return
    english, chinese = entry["en"], entry["zh"]
    if placeholders(english) != placeholders(chinese):
        yield "the two have other placeholders"
    if "{}" in re.sub(r"\{\{|\}\}", "", english):
        yield "a placeholder has no name"
    if CHINESE.search(english):
        yield "the English sentence holds Chinese"
    if HALF_WIDTH.search(chinese):
        yield "half-width punctuation stands behind Chinese"
    for lang, wrong in PERCENT.items():
        if wrong.search(re.sub(r"\{[^{}]*\}", "", entry[lang])):
            yield f"the percent sign is not written as {lang} has it"
    if drawn and not english.isascii():  # compared on every machine, whatever fonts and code page that has
        yield "a drawing speaks ASCII in English"


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_every_sentence_says_the_same_in_both_languages_and_nothing_of_the_other(file):
    entries = tomllib.loads(file.read_text(encoding="utf-8"))
    drawn = file.stem.startswith("widgets")
    assert [f"{key}: {what}" for key, entry in entries.items() for what in problems_of(entry, drawn)] == []


@pytest.mark.parametrize(
    ("entry", "wrong"),
    [
        ({"en": "{a} of {b:,}", "zh": "{b} 之 {a:>3}"}, 0),
        ({"en": "a"}, 1),
        ({"en": "a", "zh": " "}, 1),
        ({"en": "{a}", "zh": "{b}"}, 1),
        ({"en": "{}", "zh": "{}"}, 1),
        ({"en": "块", "zh": "块,"}, 3),
        ({"en": "é", "zh": "é"}, 1),
        ({"en": "7%", "zh": "7 %"}, 2),
        ({"en": "7 %", "zh": "7%, 8 % 4"}, 0),
    ],
)
def test_each_problem_is_found(entry, wrong):
    assert len(list(problems_of(entry, drawn=True))) == wrong


CONTROLS = [*map(chr, (*range(32), *range(127, 160))), *"\u2028\u2029\u202a\u202e\u2066\u2069\u200f\udcff"]


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_no_value_of_a_sentence_can_steer_a_terminal(lang):
    for control in CONTROLS:
        hostile = f"a{control}[31mb"
        written = repr(control)[1:-1]
        for value in (
            hostile,
            Path(hostile),
            ValueError(hostile),
            ConfigError("missing_field", name=hostile, field="f"),
        ):
            said = text("errors.unreadable_file", lang, path=value, reason="r")
            assert control not in said
            assert f"a{written}[31mb" in said


def test_what_is_no_control_character_stays_and_so_do_the_breaks_of_our_own():
    plain = "模型 C:\\new\\table 👩‍💻 \u3000é {path}"
    assert plain in text("errors.unreadable_file", "zh", path=plain, reason="r")
    ours = Sentence("one\n  two")
    assert ours in text("errors.unreadable_file", path=ours, reason="r")
    assert text("lesson_02.why_two.rubric").count("\n") > 1
