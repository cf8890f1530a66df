"""Diagrams of what a device reads: a step's times, its memories, a warp's request."""

import re
from xml.etree import ElementTree

import pytest

from minikv.course.diagrams import Tier, memory_pyramid, step_times, warp_sectors
from minikv.i18n import LANGUAGES
from minikv.plan import find_gpu
from minikv.plan.roofline import decode_work, gpu_roof

NUMBERS = re.compile(r"\d+(?:[,.]\d+)*")
SVG = "{http://www.w3.org/2000/svg}"


def times(lang="en", gpu="H200", batch=4):
    return step_times({"A": decode_work("Llama-3.1-8B", batch, 4096)}, gpu_roof(find_gpu(gpu)), lang)


def pyramid(lang="en", size=2**25, rate=100.0):
    here = [Tier("L1", 2**15, 250.0), Tier("L2", size, rate), Tier("RAM", 2**34, 20.0)]
    return memory_pyramid({"A": here, "B": [Tier("L2", 2**26), Tier("HBM", 2**36, 3350.0)]}, lang)


def sectors(lang="en", stride=8):
    return warp_sectors({"A": range(32), "B": range(0, 32 * stride, stride)}, lang)


def said(diagram):
    return [text.text for text in ElementTree.fromstring(diagram.svg).iter(f"{SVG}text")]


def rectangles(diagram):
    return [
        (float(box.get("width")), float(box.get("height")))
        for box in ElementTree.fromstring(diagram.svg).iter(f"{SVG}rect")
    ]


@pytest.mark.parametrize("draw", [times, pyramid, sectors])
def test_both_languages_say_the_same_figures(draw):
    english, chinese = (draw(lang) for lang in LANGUAGES)
    for say in (lambda one: one.text(), lambda one: one.alt, lambda one: " ".join(said(one))):
        assert sorted(NUMBERS.findall(say(english))) == sorted(NUMBERS.findall(say(chinese)))
        assert not re.search("[\u4e00-\u9fff]", say(english))
    assert re.search("[\u4e00-\u9fff]", chinese.text())


@pytest.mark.parametrize(
    ("draw", "other"),
    [(times, {"batch": 8}), (times, {"gpu": "H20"}), (pyramid, {"size": 2**20}), (sectors, {"stride": 2})],
)
def test_other_values_draw_another_picture(draw, other):
    assert draw().svg != draw(**other).svg
    assert draw().text() != draw(**other).text()


def test_a_step_says_its_floor_and_what_it_waits():
    roof, work = gpu_roof(find_gpu("H200")), decode_work("Llama-3.1-8B", 4, 4096)
    floor = roof.seconds(work.flops, work.num_bytes)
    words = " ".join(said(times()))
    assert f"at least {floor * 1e3:.2f} ms" in words
    assert f"waits {1 - work.flops / roof.tflops / 1e12 / floor:.1%}" in words
    assert f"weights {work.weight_bytes / roof.bandwidth_gb_s / 1e6:.2f} ms" in times().text()


def test_reading_is_drawn_to_scale():
    work = decode_work("Llama-3.1-8B", 64, 4096)
    weights, cache = [width for width, height in rectangles(times(batch=64)) if height == 24][:2]
    assert weights / cache == pytest.approx(work.weight_bytes / work.cache_bytes, rel=0.01)


def test_a_larger_memory_is_wider_and_an_unknown_rate_is_a_dash():
    widths = [width for width, _ in rectangles(pyramid())]
    assert widths[:3] == sorted(widths[:3])
    assert {"100 GB/s", "3,350 GB/s", "-"} <= set(said(pyramid()))
    assert "A: L2, 32.00 MiB, 100 GB/s" in pyramid().text()


@pytest.mark.parametrize(("stride", "touched"), [(1, 4), (2, 8), (8, 32), (64, 32)])
def test_sectors_are_counted_by_their_bytes(stride, touched):
    assert (
        f"B: {touched} sectors: {32 * touched:,} bytes moved for 128 asked" in sectors(stride=stride).text()
    )
