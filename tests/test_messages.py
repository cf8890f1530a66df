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
SENTENCES = [
    pytest.param(entry, id=f"{file.stem}.{key}")
    for file in FILES
    for key, entry in tomllib.loads(file.read_text(encoding="utf-8")).items()
]


def placeholders(sentence):
    """The names and conversions in braces; the format after the colon may differ between languages."""
    parts = string.Formatter().parse(sentence)
    return sorted({f"{name}!{conversion}" for _, name, _, conversion in parts if name is not None})


def test_the_course_has_sentences():
    assert {"course", "errors"} <= {file.stem for file in FILES}


@pytest.mark.parametrize("entry", SENTENCES)
def test_both_languages_say_the_same(entry):
    assert set(entry) == {"en", "zh"}
    assert all(isinstance(sentence, str) and sentence.strip() for sentence in entry.values())
    assert placeholders(entry["en"]) == placeholders(entry["zh"])
    assert "{}" not in re.sub(r"\{\{|\}\}", "", entry["en"]), "placeholders have names"


@pytest.mark.parametrize("entry", [entry for entry in SENTENCES if entry.id.startswith("widgets")])
def test_a_drawing_speaks_ascii_in_english(entry):
    """Its text is compared on every machine, whatever fonts and code page that has."""
    assert entry["en"].isascii()


@pytest.mark.parametrize("entry", SENTENCES)
def test_no_sentence_in_the_wrong_language(entry):
    assert not re.search(r"[\u4e00-\u9fff\u3000-\u303f\uff01-\uff5e]", entry["en"])
    assert not re.search(r"[\u4e00-\u9fff][,;:?!]", entry["zh"]), "full-width punctuation after Chinese"


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
