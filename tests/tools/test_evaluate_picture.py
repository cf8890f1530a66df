"""The guide's pictures of ``minikv evaluate``: every way has its row and its curve, with the figures that are kept."""

import json
from xml.etree import ElementTree

import pytest

from tools import evaluate_picture

SVG = "{http://www.w3.org/2000/svg}"
FIGURES = json.loads(evaluate_picture.FIGURES.read_text(encoding="utf-8"))


def test_they_are_drawn_for_both_themes_and_languages():
    names = {
        f"{name}{end}.svg" for name in ("needles", "perplexity") for end in ("", ".dark", ".zh", ".dark.zh")
    }
    found = evaluate_picture.svgs()
    assert set(found) == names
    assert len(set(found.values())) == len(names)


@pytest.mark.parametrize("name", ["needles", "needles.zh", "perplexity.dark", "perplexity.dark.zh"])
def test_every_way_and_figure_is_there_and_within_the_picture(name):
    picture = ElementTree.fromstring(evaluate_picture.svgs()[f"{name}.svg"])
    said = [each.text for each in picture.iter(f"{SVG}text")]
    for way in FIGURES["ways"]:
        assert (way["policy"] or way["kv_dtype"] or "") in " ".join(said)
    width, height = int(picture.get("width")), int(picture.get("height"))
    if name.startswith("needles"):
        assert said.count("20/20") == sum(
            each == [20.0, 20] for way in FIGURES["ways"] for each in way["found"].values()
        )
        assert all(0 <= float(box.get("x")) < width - 80 for box in picture.iter(f"{SVG}rect"))
    else:
        lines = list(picture.iter(f"{SVG}polyline"))
        assert len(lines) == len(FIGURES["ways"])
        points = [point.split(",") for line in lines for point in line.get("points").split()]
        assert all(0 < float(x) < width and 0 < float(y) < height for x, y in points)


def test_figures_are_taken_from_what_the_command_prints():
    row = {
        "length": 193,
        "policy": "keydiff",
        "kept": 0.25,
        "kv_dtype": None,
        "depth": 0.5,
        "right": 3.0,
        "asked": 4,
    }
    curve = {"pieces": 2, "ways": [{"by_position": {"0": 5.0}}]}
    told = evaluate_picture.kept_figures({"model": "tiny-gqa", "rows": [row], "perplexity": [curve]})
    assert (told["tokens"], told["ways"][0]["found"]) == (193, {"50": [3.0, 4]})
    assert told["ways"][0]["by_position"] == {"0": 5.0}
    assert "<bos>" not in evaluate_picture.words()
