"""An MLA layer: the sums are those of the specs, areas are to scale, and another model draws another picture."""

import re
from xml.etree import ElementTree

import pytest

from minikv.course.diagrams import mla_flow
from minikv.i18n import LANGUAGES
from minikv.look import look
from minikv.plan import CacheSpec, find_model

NUMBERS = re.compile(r"\d+(?:[,.]\d+)*")


@pytest.mark.parametrize("name", ["DeepSeek-V3", "DeepSeek-V2-Lite"])
def test_its_sums_are_what_the_specs_cache(name):
    diagram = mla_flow(name)
    for layout in ("hf", "hf-expanded"):
        held = CacheSpec.from_config(name, layout=layout).layers[0].token_bytes
        for words in (diagram.text(), diagram.alt, diagram.svg):
            assert f"= {held:,} B" in words


def test_areas_are_to_scale():
    """Of the rope key to those of all V: DeepSeek-V3 has 64 elements and 128 heads of 128."""
    tree = ElementTree.fromstring(mla_flow("DeepSeek-V3").svg)
    boxes = [
        one for one in tree.iter("{http://www.w3.org/2000/svg}rect") if one.get("fill") == look("k").fill
    ]
    areas = [float(one.get("width")) * float(one.get("height")) for one in boxes]
    assert sum(areas[1:]) / areas[0] == pytest.approx(128 * 192 / 64, rel=0.02)


def test_both_languages_say_the_same_figures_and_another_rank_others():
    config = find_model("DeepSeek-V3").config
    english, chinese = (mla_flow(config, lang) for lang in LANGUAGES)
    assert sorted(NUMBERS.findall(english.text())) == sorted(NUMBERS.findall(chinese.text()))
    other = mla_flow({**config, "kv_lora_rank": 1024})
    assert other.text() != english.text()
    assert other.svg != english.svg
