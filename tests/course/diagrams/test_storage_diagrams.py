"""Diagrams of whose memory it is: tensors over their storages, and addresses in a small memory."""

import re
from xml.etree import ElementTree

import pytest
import torch

from minikv.course.diagrams import Heap, addresses, storage_views
from minikv.i18n import LANGUAGES
from minikv.look import look
from minikv.memory import ownership

NUMBERS = re.compile(r"\d+(?:[,.]\d+)*")
SVG = "{http://www.w3.org/2000/svg}"


def views(lang="en", rows=10):
    whole = torch.zeros(100, 100)
    return storage_views({"w": whole, "w[:n]": whole[:rows], "copy": whole[:rows].clone()}, lang)


def memory(lang="en", value=9.0):
    before = Heap("1", [1.0] * 4 + [0.0] * 4, {"a": (0, 4, "a"), "b": (0, 4, "a")})
    after = Heap("2", [value] * 4 + [0.0] * 4, {"b": (0, 4, "a"), "c": (0, 4, "c")})
    return addresses([before, after], lang)


def said(diagram):
    return [text.text for text in ElementTree.fromstring(diagram.svg).iter(f"{SVG}text")]


def touched_pixels(diagram):
    """Of the filled parts, without the one in the legend."""
    boxes = [
        box
        for box in ElementTree.fromstring(diagram.svg).iter(f"{SVG}rect")
        if box.get("fill") == look("k").fill
    ]
    return sum(float(box.get("width")) for box in boxes if box.get("height") == "22")


@pytest.mark.parametrize("draw", [views, memory])
def test_both_languages_say_the_same_figures(draw):
    english, chinese = (draw(lang) for lang in LANGUAGES)
    for say in (lambda one: one.text(), lambda one: one.alt, lambda one: " ".join(said(one))):
        assert sorted(NUMBERS.findall(say(english))) == sorted(NUMBERS.findall(say(chinese)))
        assert not re.search("[\u4e00-\u9fff]", say(english))
        assert re.search("[\u4e00-\u9fff]", say(chinese))


@pytest.mark.parametrize(("draw", "other"), [(views, {"rows": 30}), (memory, {"value": 5.0})])
def test_other_values_draw_another_picture(draw, other):
    assert draw().svg != draw(**other).svg
    assert draw().text() != draw(**other).text()


@pytest.mark.parametrize("rows", [1, 10, 100])
def test_a_tensor_says_what_it_touches_and_keeps(rows):
    whole = torch.zeros(100, 100)
    fact = ownership(whole[:rows])
    line = f"touches {fact.touched_bytes:,} B, keeps {fact.keeps_alive_bytes:,} B beside them"
    assert line in views(rows=rows).text()
    assert line in said(views(rows=rows))


def test_tensors_over_one_storage_stand_together():
    assert views().text().splitlines()[0] == "storage: 40,000 B"
    assert [line for line in views().text().splitlines() if line.startswith("storage")] == [
        "storage: 40,000 B",
        "storage: 4,000 B",
    ]


def test_touched_parts_are_to_scale():
    whole = torch.zeros(100, 100)
    tenth, all_of_it = (touched_pixels(storage_views({"one": part})) for part in (whole[::10], whole))
    assert tenth == pytest.approx(all_of_it / 10, rel=0.01)


def test_an_address_without_its_owner_dangles():
    first, second = memory().text().splitlines()[:2]
    assert first == "1: a owns 0-3 and reads 1, 1, 1, 1; b: the same address 0-3 and reads 1, 1, 1, 1"
    assert second == "2: b dangles 0-3 and reads 9, 9, 9, 9; c owns 0-3 and reads 9, 9, 9, 9"
    assert "b dangles" in said(memory())
