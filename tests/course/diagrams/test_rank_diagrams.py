"""Diagrams of several GPUs and of CPU memory: what a rank caches, and a swap beside a recompute."""

import re
from xml.etree import ElementTree

import pytest

from minikv.course.diagrams import rank_caches, swap_path
from minikv.i18n import LANGUAGES
from minikv.plan import CacheSpec
from minikv.plan.preemption import TransferRates, recompute_seconds, swap_seconds

NUMBERS = re.compile(r"\d+(?:[,.]\d+)*")
SVG = "{http://www.w3.org/2000/svg}"
RATES = TransferRates(25e9, 20e9, prefill=20_000)


def ranks(lang="en", tp=8):
    return rank_caches({"A": "Llama-3.1-70B", "B": "Qwen3-30B-A3B", "C": "DeepSeek-V3"}, tp, lang)


def swap(lang="en", num_bytes=2**29):
    return swap_path(4096, num_bytes, RATES, lang)


def said(diagram):
    return [text.text for text in ElementTree.fromstring(diagram.svg).iter(f"{SVG}text")]


@pytest.mark.parametrize("draw", [ranks, swap])
def test_both_languages_say_the_same_figures(draw):
    english, chinese = (draw(lang) for lang in LANGUAGES)
    for say in (lambda one: one.text(), lambda one: one.alt, lambda one: " ".join(said(one))):
        assert sorted(NUMBERS.findall(say(english))) == sorted(NUMBERS.findall(say(chinese)))
        assert not re.search("[\u4e00-\u9fff]", say(english))
        assert re.search("[\u4e00-\u9fff]", say(chinese))


@pytest.mark.parametrize(("draw", "other"), [(ranks, {"tp": 4}), (swap, {"num_bytes": 2**33})])
def test_other_values_draw_another_picture(draw, other):
    assert draw().svg != draw(**other).svg
    assert draw().text() != draw(**other).text()


@pytest.mark.parametrize(
    ("tp", "held"), [(2, "[0 1 | 2 3]"), (4, "[0 | 1 | 2 | 3]"), (8, "[0 | 0 | 1 | 1 | 2 | 2 | 3 | 3]")]
)
def test_heads_are_shared_out_and_then_copied(tp, held):
    each = CacheSpec.from_config("Qwen3-30B-A3B", tp=tp).bytes_for(1)
    line = next(line for line in ranks(tp=tp).text().splitlines() if line.startswith("B"))
    assert line.endswith(held)
    assert f"{each:,} B on each of {tp} ranks" in line


@pytest.mark.parametrize("tp", [2, 8])
def test_a_latent_lies_on_every_rank(tp):
    assert said(ranks(tp=tp)).count("latent") == tp
    assert f"copies of the whole: {tp}" in ranks(tp=tp).text()


def test_both_ways_are_those_of_the_plan():
    assert f"{swap_seconds(2**29, RATES) * 1e3:.2f} ms" in swap().text()
    assert f"{recompute_seconds(4096, RATES) * 1e3:.2f} ms" in swap().text()
