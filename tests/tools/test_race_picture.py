"""The race as SVG: every way that ran has its bars, whole and within the picture, in both themes and languages."""

import json
from xml.etree import ElementTree

import pytest

from minikv.course.your_engine.race import Lane, Race
from tools import race_picture

SVG = "{http://www.w3.org/2000/svg}"
RACE = Race(
    (
        Lane("static", 2.0, 3 * 2**20),
        Lane("generate_batch", absent={"code": "race_raised", "values": {"kind": "E", "message": "m"}}),
        Lane("nano", 0.5, 2**20),
        Lane("yours", 0.4, 2**20),
        Lane("minikv", 0.25, 2**19),
    ),
    32, 1000, 3, 0, ("09.1",), "cpu", 21.4,
)  # fmt: skip


@pytest.fixture
def kept(tmp_path, monkeypatch):
    path = tmp_path / "race.json"
    monkeypatch.setattr(race_picture, "FIGURES", path)
    return path


def test_a_kept_race_is_drawn_for_both_themes_and_languages(kept):
    assert race_picture.svgs() == {}
    kept.write_text(json.dumps(RACE.as_dict()))
    assert race_picture.race_of(json.loads(kept.read_text())) == RACE
    found = race_picture.svgs()
    assert set(found) == {"race.svg", "race.dark.svg", "race.zh.svg", "race.dark.zh.svg"}
    assert len(set(found.values())) == 4


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_the_bars_are_the_figures(lang):
    root = ElementTree.fromstring(race_picture.draw(RACE, lang, "#000", "#00f", "#f80"))
    bars = [(int(bar.get("x")), int(bar.get("width")), bar.get("fill")) for bar in root.iter(f"{SVG}rect")]
    assert len(bars) == 2 * 4, "the way that did not run has none"
    first = min(x for x, _, _ in bars)
    assert [width for x, width, _ in bars if x == first] == [24, 95, 119, 190]
    assert [width for x, width, _ in bars if x != first] == [190, 63, 63, 32]
    assert [fill for _, _, fill in bars].count("#f80") == 2
    assert all(x + width + 80 <= int(root.get("width")) for x, width, _ in bars)
    said = [each.text for each in root.iter(f"{SVG}text")]
    assert "4,000" in said
    assert "3.00 MiB" in said
