"""Diagrams of stored bytes: levels on a number line, and the bytes of a row with its scale."""

import re
from xml.etree import ElementTree

import pytest
import torch

from minikv.cache import find_codec
from minikv.course.diagrams import number_lines, row_bytes
from minikv.course.lessons.l13.levels import key_row, levels_of
from minikv.look import look
from minikv.plan import CacheSpec

SVG = "{http://www.w3.org/2000/svg}"
CODECS = ("int8", "fp8_scaled", "fp8_e5m2", "fp8")


def row(largest=3.0, size=16):
    made = torch.randn(size, generator=torch.Generator().manual_seed(1)).clamp(-2, 2)
    made[0] = largest
    return made


def lines_drawn(lang):
    return number_lines([levels_of(codec, row()) for codec in CODECS[:2]], lang)


def rows_drawn(lang):
    return row_bytes(("gpt-oss-20b", "Llama-3.1-8B"), ("bf16", "int8"), lang)


BYTES = {"number lines": lines_drawn, "row bytes": rows_drawn}


@pytest.mark.parametrize("codec", CODECS)
def test_a_stored_number_is_a_level_and_the_nearest_one(codec):
    seen = levels_of(codec, row())
    for exact, stored in zip(seen.exact, seen.stored, strict=True):
        assert stored in seen.levels
        assert abs(exact - stored) <= min(abs(exact - level) for level in seen.levels) * 1.001 + 1e-9


@pytest.mark.parametrize("codec", CODECS)
def test_errors_are_those_of_the_codec_and_within_its_bound(codec):
    exact = row()
    seen = levels_of(codec, exact)
    found = find_codec(codec)
    assert torch.equal(torch.tensor(seen.stored), found.decode(*found.encode(exact[None]), torch.float32)[0])
    off = torch.tensor(seen.stored).double() - exact.double()
    assert (off.abs() <= found.error_bound(exact)).all()


@pytest.mark.parametrize(("largest", "left"), [(2.0, 255), (200.0, 3)])
def test_one_large_number_takes_the_levels_of_the_others(largest, left):
    text = number_lines([levels_of("int8", row(largest))], most=2.0).text()
    assert f"int8: {left} levels in the picture" in text


def test_each_number_is_drawn_exact_and_stored():
    tree = ElementTree.fromstring(number_lines([levels_of("int8", row())]).svg)
    dots = [one.get("fill") for one in tree.iter(SVG + "rect") if one.get("height") == "10"]
    assert dots.count(look("k").fill) == 16
    assert len(dots) == 32


def test_a_key_is_the_one_that_the_model_caches():
    from transformers import DynamicCache

    from minikv.models import load, recall_prompt

    tiny = load("tiny-gqa", device="cpu")
    tokens = tiny.tokenizer(recall_prompt(seed=0).text)["input_ids"]
    cache = DynamicCache(config=tiny.model.config)
    with torch.no_grad():
        tiny.model(torch.tensor([tokens]), past_key_values=cache)
    found = key_row(tiny.model, tokens, layer=1, head=1, position=3)
    assert torch.equal(found, cache.layers[1].keys[0, 1, 3])


@pytest.mark.parametrize("name", ["gpt-oss-20b", "Gemma-3-27B"])
@pytest.mark.parametrize("kv_dtype", ["fp8", "int8"])
def test_a_rows_parts_add_up_to_the_token_of_the_spec(name, kv_dtype):
    text = row_bytes((name,), ("bf16", kv_dtype)).text()
    plain, spec = (CacheSpec.from_config(name, kv_dtype=one) for one in ("bf16", kv_dtype))
    layer = spec.layers[0]
    assert f"a token {spec.slope():,} B, {plain.slope() / spec.slope():.2f}x" in text
    total, scale = map(int, re.search(rf"{kv_dtype}: (\d+) B, (\d+) of scale", text).groups())
    assert total * layer.kv_heads == layer.token_bytes
    assert scale == (8 if kv_dtype == "int8" else 0)


def test_bars_are_to_scale():
    tree = ElementTree.fromstring(row_bytes(("Llama-3.1-8B",), ("bf16", "fp8")).svg)
    widths = [
        float(one.get("width"))
        for one in tree.iter(SVG + "rect")
        if one.get("fill") == look("k").fill and one.get("height") == "20"
    ]
    assert widths[0] == pytest.approx(2 * widths[1])
