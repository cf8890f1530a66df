"""Layers of different kinds, and KV heads on ranks: every figure is that of the spec; other values, another picture."""

import re

import pytest

from minikv.course.diagrams import head_ranks, layer_kinds
from minikv.errors import ConfigError
from minikv.i18n import LANGUAGES
from minikv.plan import LayerSpec
from minikv.units import format_bytes

NUMBERS = re.compile(r"\d+(?:[,.]\d+)*")
FULL = LayerSpec("full", kv_heads=2, k_dim=8, v_dim=8)
KINDS = {"a": FULL, "b": LayerSpec("sliding", kv_heads=2, k_dim=8, v_dim=8, window=15)}
KINDS["c"] = LayerSpec("linear", state_bytes=3000)


@pytest.mark.parametrize("lang", LANGUAGES)
def test_each_kind_says_the_bytes_of_its_spec(lang):
    diagram = layer_kinds(KINDS, [10, 100, 1000], lang)
    for layer in KINDS.values():
        for length in (10, 100, 1000):
            for words in (diagram.text(), diagram.alt, diagram.svg):
                assert format_bytes(layer.bytes_for(length)) in words


def test_a_window_that_is_not_full_looks_like_a_full_layer():
    few, many = ([layer_kinds({"one": KINDS[name]}, [n]).svg for name in "ab"] for n in (10, 1000))
    assert few[0].count("stroke-dasharray") == few[1].count("stroke-dasharray") == 0
    assert (many[0].count("stroke-dasharray"), many[1].count("stroke-dasharray")) == (0, 1)


@pytest.mark.parametrize(
    ("draw", "other"),
    [
        (lambda lang: layer_kinds(KINDS, [5, 50], lang), lambda lang: layer_kinds(KINDS, [5, 51], lang)),
        (
            lambda lang: head_ranks("Llama-3.1-8B", [1, 2], lang),
            lambda lang: head_ranks("Qwen3-0.6B", [1, 2], lang),
        ),
    ],
)
def test_both_languages_say_the_same_figures_and_other_values_others(draw, other):
    english, chinese = (draw(lang) for lang in LANGUAGES)
    assert sorted(NUMBERS.findall(english.text())) == sorted(NUMBERS.findall(chinese.text()))
    assert english.text() != other("en").text()
    assert english.svg != other("en").svg


@pytest.mark.parametrize(
    ("tp", "heads"),
    [(1, "0 1 2 3 4 5 6 7"), (4, "0 1 | 2 3 | 4 5 | 6 7"), (16, "0 | 0 | 1 | 1 | 2 | 2 | 3 | 3")],
)
def test_every_rank_has_its_heads(tp, heads):
    assert heads in head_ranks("Llama-3.1-8B", [tp]).text()


def test_a_group_that_would_cut_a_head_is_refused():
    with pytest.raises(ConfigError):
        head_ranks("Llama-3.1-8B", [3])
