"""Every sentence exists in both languages, says the same things, and is punctuated as its language is."""

import re
import string
import tomllib
from pathlib import Path

import pytest

import minikv

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
