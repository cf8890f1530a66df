"""Diagrams of memory: its parts add up, kept storages have arrows, segments are those of the allocator over time."""

import re
from types import SimpleNamespace

import pytest
import torch

from minikv.course.diagrams import held_by, memory_ledger, segment_moments, start_moments
from minikv.course.lessons.l07.stories import batch_steps
from minikv.course.lessons.l08.engine_memory import start_up
from minikv.i18n import LANGUAGES
from minikv.memory import retention_report
from minikv.units import GIB, format_bytes
from tests.course.diagrams.test_diagrams import NUMBERS, said

CARD = {"total": 1000, "free": 100, "allocated": 500, "reserved": 700, "pinned": 50}


def ledger(lang="en", **other):
    return memory_ledger(**{**CARD, **other}, lang=lang)


def report(count=2):
    def keep():
        global kept
        kept = SimpleNamespace(parts=[torch.ones(3, 5 + number) for number in range(count)])

    return retention_report(keep)


def orders(lang="en", kept=GIB // 40, capacity=24 * GIB):
    asked = ("free, keep, empty", "keep, free, empty")
    stories = {
        f"{number}. {'ab' if lang == 'en' else '甲'}": batch_steps(15 * GIB, 6 * GIB, kept, order, lang)
        for number, order in enumerate(asked)
    }
    return segment_moments(stories, capacity, lang)


def started(lang="en", **options):
    return start_moments(start_up(warmup_tokens=4096, staging=GIB, **options), lang)


DRAWN = {"ledger": ledger, "held": lambda lang: held_by(report(), lang), "orders": orders, "start": started}


@pytest.mark.parametrize("draw", DRAWN.values(), ids=DRAWN)
def test_it_says_the_same_figures_in_both_languages_and_in_its_picture(draw):
    english, chinese = (draw(lang) for lang in LANGUAGES)
    for say in (lambda one: one.text(), lambda one: one.alt, lambda one: " ".join(said(one))):
        assert sorted(NUMBERS.findall(say(english))) == sorted(NUMBERS.findall(say(chinese)))
        assert not re.search("[\u4e00-\u9fff]", say(english))
        assert re.search("[\u4e00-\u9fff]", say(chinese))
        assert not re.search("[\u4e00-\u9fff][,:;]|[,:;] ?[\u4e00-\u9fff]", say(chinese)), "Chinese marks"
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


@pytest.mark.parametrize("capacity", [22 * GIB, 24 * GIB, 40 * GIB])
def test_a_request_that_finds_no_memory_is_said_and_drawn_beyond_the_edge(capacity):
    diagram = orders(capacity=capacity)
    refused = [line for line in diagram.text().splitlines() if "out of memory" in line]
    assert len(refused) == (capacity < 40 * GIB)
    beyond = re.findall(r'<rect x="([\d.]+)"[^>]*width="([\d.]+)"[^>]*stroke-width="2"', diagram.svg)
    assert len(beyond) == len(refused)
    assert "6.00 GiB asked for" in "".join(refused) or not refused


def test_what_is_stuck_follows_the_order_of_the_calls():
    stuck = [line.rpartition("stuck ")[2] for line in orders().text().splitlines() if "empty_cache" in line]
    assert stuck == ["5.97 GiB", "0 B"]


@pytest.mark.parametrize(
    "options", [{}, {"utilization": 0.5}, {"non_torch": 9 * GIB}, {"empty_cache": False}]
)
def test_the_moments_and_the_sum_are_those_of_the_start(options):
    start = start_up(warmup_tokens=4096, staging=GIB, **options)
    diagram = started(**options)
    _, head, *rows, terms, blocks = diagram.text().splitlines()
    assert head.split() == ["used", "reserved", "current", "peak"]
    for moment, row in zip(start.moments, rows, strict=True):
        sizes = (moment.used, moment.reserved, moment.current, moment.peak)
        assert row.startswith(moment.name)
        assert all(format_bytes(size) in row for size in sizes)
    assert f"= {format_bytes(start.terms.available)}" in terms
    assert blocks == f"{start.terms.available:,} B // {start.block_bytes:,} B = {start.num_blocks:,} blocks"


def test_the_peak_is_marked_where_torch_has_counted_one():
    counted = sum(moment.peak > 0 for moment in start_up(warmup_tokens=4096).moments)
    marks = re.findall(r'<rect [^>]*width="2" height="36"', started().svg)
    assert len(marks) == counted == 5
