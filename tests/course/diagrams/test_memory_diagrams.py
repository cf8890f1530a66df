"""Diagrams of lesson 16: the parts of a memory add up, and every kept storage has an arrow from its variable."""

import re
from types import SimpleNamespace

import pytest
import torch

from minikv.course.diagrams import held_by, memory_ledger
from minikv.i18n import LANGUAGES
from minikv.memory import retention_report
from tests.course.diagrams.test_diagrams import NUMBERS, said

CARD = {"total": 1000, "free": 100, "allocated": 500, "reserved": 700, "pinned": 50}


def ledger(lang="en", **other):
    return memory_ledger(**{**CARD, **other}, lang=lang)


def report(count=2):
    def keep():
        global kept
        kept = SimpleNamespace(parts=[torch.ones(3, 5 + number) for number in range(count)])

    return retention_report(keep)


DRAWN = {"ledger": ledger, "held": lambda lang: held_by(report(), lang)}


@pytest.mark.parametrize("draw", DRAWN.values(), ids=DRAWN)
def test_it_says_the_same_figures_in_both_languages_and_in_its_picture(draw):
    english, chinese = (draw(lang) for lang in LANGUAGES)
    for say in (lambda one: one.text(), lambda one: one.alt, lambda one: " ".join(said(one))):
        assert sorted(NUMBERS.findall(say(english))) == sorted(NUMBERS.findall(say(chinese)))
        assert not re.search("[\u4e00-\u9fff]", say(english))
        assert re.search("[\u4e00-\u9fff]", say(chinese))
    assert set(NUMBERS.findall(english.text())) <= set(NUMBERS.findall(" ".join(said(english))))


def exact(diagram):
    """{name of a part: its bytes} by the diagram's text."""
    lines = diagram.text().splitlines()[1:]
    return {line.split()[0]: int(line.split()[-2].replace(",", "")) for line in lines}


@pytest.mark.parametrize("allocated", [0, 123, 500])
@pytest.mark.parametrize("pinned", [0, 50, 200])
def test_the_parts_of_a_card_add_up(allocated, pinned):
    parts = exact(ledger(allocated=allocated, pinned=pinned))
    assert list(parts) == ["live", "pinned", "returnable", "outside", "free"]
    assert parts["live"] == allocated
    assert parts["pinned"] == pinned
    assert parts["returnable"] == 700 - allocated - pinned
    assert parts["outside"] == 200
    assert sum(parts.values()) == 1000


def test_a_cpu_has_nothing_pinned_and_nothing_to_return():
    parts = exact(memory_ledger(total=1000, free=100, allocated=300))
    assert parts == {"live": 300, "outside": 600, "free": 100}


@pytest.mark.parametrize("count", [1, 3, 8])
def test_storages_are_those_of_the_report(count):
    found = report(count)
    diagram = held_by(found)
    words, (title, *lines) = said(diagram), diagram.text().splitlines()
    assert f"({found.kept_bytes:,} B) in {count} storages" in title
    assert "kept" in words
    assert lines[-1].startswith("To let go: ")
    for storage, line in zip(found.kept[:6], lines, strict=False):
        assert line.startswith(
            f"{'x'.join(map(str, storage.shape))} float32, {storage.nbytes:,} B: kept.parts["
        )
    assert any("smaller storages" in line for line in lines) == (count > 6)
    arrows = re.findall(r'<path d="M[^"]*C', diagram.svg)
    assert len(arrows) == min(count, 6)


def test_nothing_kept_is_said_too():
    assert held_by(retention_report(lambda: None)).text() == "Left alive by the call: 0 B (0 B) in 0 storages"
