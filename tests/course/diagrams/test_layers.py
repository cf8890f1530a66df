"""Layers of several kinds, KV heads on ranks, a token in all layers: figures are the spec's; others draw others."""

import re

import pytest

from minikv.course.diagrams import head_ranks, layer_kinds, token_boxes
from minikv.errors import ConfigError
from minikv.i18n import LANGUAGES
from minikv.plan import CacheSpec, LayerSpec
from minikv.units import format_bytes
from tests.course.diagrams.test_diagrams import said

NUMBERS = re.compile(r"\d+(?:[,.]\d+)*")
FULL = LayerSpec("full", kv_heads=2, k_dim=8, v_dim=8)
KINDS = {"a": FULL, "b": LayerSpec("sliding", kv_heads=2, k_dim=8, v_dim=8, window=15)}
KINDS["c"] = LayerSpec("linear", state_bytes=3000)
LAYERS = {
    "kinds": lambda lang: layer_kinds(KINDS, [10, 1000], lang),
    "ranks": lambda lang: head_ranks("Llama-3.1-8B", [1, 4, 16], lang),
    "boxes": lambda lang: token_boxes({"one": "Llama-3.1-8B"}, lang),
    "boxes of many": lambda lang: token_boxes(
        {name: name for name in ("Llama-2-7B", "Llama-2-70B", "GLM-5")}, lang
    ),
}


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
        (
            lambda lang: token_boxes({"one": "Llama-3.1-8B"}, lang),
            lambda lang: token_boxes({"one": "Qwen3-0.6B"}, lang),
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


@pytest.mark.parametrize(
    "name", ["Llama-2-7B", "Llama-2-70B", "Gemma-2-9B", "Qwen3-Next-80B-A3B", "DeepSeek-V3", "GLM-5"]
)
def test_a_token_has_the_bytes_of_each_product(name):
    spec, diagram = CacheSpec.from_config(name), token_boxes({"one": name})
    layer = max(spec.layers, key=lambda one: one.token_bytes)
    for size in (layer.token_bytes, sum(one.token_bytes for one in spec.layers)):
        for words in (diagram.text(), diagram.alt, diagram.svg):
            assert f"{size:,} B" in words


@pytest.mark.parametrize("heads", [1, 4, 32])
def test_the_layers_and_heads_of_a_token_are_numbered(heads):
    words = said(token_boxes({"one": _llama(heads)}))
    assert {"layer 0", "layer 2", "K", "V"} <= set(words)
    if heads < 32:
        assert [one for one in words if one.isdigit()] == [str(head) for head in range(heads)]
        assert words.count("K") == heads + 1, "and one in the legend"
    else:
        assert "KV heads 0 to 31" in words


def test_a_model_of_twice_the_bytes_has_boxes_twice_as_wide():
    narrow, wide = (LayerSpec("full", kv_heads=heads, k_dim=8, v_dim=8).token_bytes for heads in (2, 4))
    both = token_boxes({"MQA": _llama(2), "MHA": _llama(4)}).svg
    frames = [float(one) for one in re.findall(r'<rect[^>]*width="([\d.]+)"[^>]*stroke-width="1.5"', both)]
    assert frames[1] / frames[0] == pytest.approx(wide / narrow, rel=0.01)


def _llama(kv_heads):
    sizes = {"hidden_size": 256, "num_attention_heads": 32, "num_hidden_layers": 3, "torch_dtype": "bfloat16"}
    return {"model_type": "llama", **sizes, "num_key_value_heads": kv_heads}
