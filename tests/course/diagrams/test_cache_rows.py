"""Diagrams of one row's tokens: how it grows, in which order K and V lie, which places hold a token."""

import re
from xml.etree import ElementTree

import pytest
import torch

from minikv.cache import LinearKVCache, PagedKVCache
from minikv.course.diagrams import Growth, growing, kv_layouts, places
from minikv.i18n import LANGUAGES
from minikv.look import look
from minikv.plan import CacheSpec, LayerSpec

SPEC = CacheSpec(layers=(LayerSpec("full", kv_heads=2, k_dim=16, v_dim=16),) * 3)
NUMBERS = re.compile(r"\d+(?:[,.]\d+)*")
SVG = "{http://www.w3.org/2000/svg}"


def growth(lang="en", added=(3, 1, 1), max_seq=8):
    cache, joined, steps = LinearKVCache(SPEC, 1, max_seq), torch.empty(3, 1, 2, 2, 0, 16), []
    for more in added:
        old, joined = joined, torch.cat([joined, torch.ones(3, 1, 2, 2, more, 16)], dim=4)
        cache.commit([more])
        steps.append(Growth(cache.host_lengths[0], old.nbytes, joined.nbytes, cache.nbytes))
    return growing(steps, max_seq, lang)


def layouts(lang="en", tokens=4):
    k, v = LinearKVCache(SPEC, 1, tokens).layer(0)
    block = PagedKVCache(SPEC, 2, tokens).layer(0)
    return kv_layouts(
        {"linear": (k[0], v[0]), "paged": (block.k[1].transpose(0, 1), block.v[1].transpose(0, 1))}, lang
    )


def rows(lang="en", length=6):
    held = [place < 4 or place == 7 for place in range(10)]
    return places({"A": (held, length), "B": ([True] * 10, 10)}, lang)


def said(diagram):
    return [text.text for text in ElementTree.fromstring(diagram.svg).iter(f"{SVG}text")]


def boxes(diagram, meaning):
    return sum(
        box.get("fill") == look(meaning).fill
        for box in ElementTree.fromstring(diagram.svg).iter(f"{SVG}rect")
    )


@pytest.mark.parametrize("draw", [growth, layouts, rows])
def test_both_languages_say_the_same_figures(draw):
    english, chinese = (draw(lang) for lang in LANGUAGES)
    for say in (lambda one: one.text(), lambda one: one.alt, lambda one: " ".join(said(one))):
        assert sorted(NUMBERS.findall(say(english))) == sorted(NUMBERS.findall(say(chinese)))
        assert not re.search("[\u4e00-\u9fff]", say(english))
    assert re.search("[\u4e00-\u9fff]", chinese.text() + " ".join(said(chinese)))


@pytest.mark.parametrize(
    ("draw", "other"), [(growth, {"added": (2, 3)}), (layouts, {"tokens": 3}), (rows, {"length": 3})]
)
def test_other_values_draw_another_picture(draw, other):
    assert draw().svg != draw(**other).svg
    assert draw().text() != draw(**other).text()


def test_joining_copies_all_earlier_tokens_in_every_step():
    token = SPEC.bytes_for(1) * 2  # the tensors of the test are float32
    text = growth().text()
    assert f"copies 0 B and writes {3 * token:,} B" in text
    assert f"{(3 + 4) * token:,} B copied to hold {5 * token:,} B" in text
    assert f"{LinearKVCache(SPEC, 1, 8).nbytes:,} B reserved" in text
    assert {f"copies {3 * token:,} B", f"writes {token:,} B"} <= set(said(growth()))


def test_a_linear_row_has_the_keys_of_a_head_in_one_piece_and_a_block_has_not():
    linear, paged = layouts().text().splitlines()[1:3]
    assert "1 to read the keys of head 0, 4 to write one token" in linear
    assert "K0.0 K0.1 K0.2 K0.3 K1.0" in linear
    assert "4 to read the keys of head 0, 2 to write one token" in paged
    assert "K0.0 K1.0 K0.1" in paged


def test_holes_and_lost_tokens_are_named_and_drawn():
    diagram = rows()
    first, second = diagram.text().splitlines()
    assert first == "A: length 6; tokens at 0-3: 4; read but never written, 4-5: 2; tokens never read, 7: 1"
    assert second == "B: length 10; tokens at 0-9: 10"
    assert boxes(diagram, "k") == 4 + 10 + 1  # and one in the legend
