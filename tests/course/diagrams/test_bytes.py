"""Diagrams of stored bytes: levels on a number line, the bytes of a row with its scale, and which numbers share one."""

import re
from xml.etree import ElementTree

import pytest
import torch

from minikv.cache import find_codec
from minikv.course.diagrams import number_lines, row_bytes, scale_shapes
from minikv.course.lessons.l13.levels import key_row, levels_of
from minikv.course.lessons.l13.scales import WAYS, scale_groups, shared_scale
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


def keys(heads=2, tokens=5, channels=8, large=1.0):
    made = torch.randn(heads, tokens, channels, generator=torch.Generator().manual_seed(2))
    made[..., 3] *= large
    return made


def shapes_drawn(lang):
    found = {
        name: [shared_scale(each, way) for way in WAYS]
        for name, each in (("a", keys()), ("b", keys(large=64)))
    }
    return scale_shapes(found, lang)


BYTES = {"number lines": lines_drawn, "row bytes": rows_drawn, "scale shapes": shapes_drawn}


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


@pytest.mark.parametrize(
    ("way", "scales"), [("tensor", 1), ("channel", 16), ("head", 2), ("token", 5), ("row", 10)]
)
def test_scales_are_as_many_as_the_groups_and_stand_in_the_picture(way, scales):
    found = shared_scale(keys(), way)
    assert found.scales == scales
    assert sorted(scale_groups(way, 2, 5, 8).unique().tolist()) == list(range(scales))
    assert f"Scales: {scales}, {4 * scales} B" in shapes_drawn("en").text()


@pytest.mark.parametrize("way", WAYS)
def test_an_error_is_that_of_each_group_stored_by_itself(way):
    exact, own = keys(), scale_groups(way, 2, 5, 8)
    codec, off = find_codec("int8"), torch.zeros(2, 5, 8)
    for number in own.unique():
        group = exact[own == number][None]
        off[own == number] = (codec.decode(*codec.encode(group), torch.float32) - group)[0].abs()
    assert shared_scale(exact, way).error == pytest.approx(float(off.mean()))
    assert shared_scale(exact, way, [0, 5]).error == pytest.approx(float(off[..., [0, 5]].mean()))


def test_a_large_channel_costs_the_others_nothing_where_it_has_its_own_scale():
    others = [0, 1, 2, 4, 5, 6, 7]
    plain, large = ({way: shared_scale(keys(large=by), way, others).error for way in WAYS} for by in (1, 64))
    assert large["channel"] == pytest.approx(plain["channel"])
    assert all(large[way] > 5 * plain[way] for way in WAYS if way != "channel")
