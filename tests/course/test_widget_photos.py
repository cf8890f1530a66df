"""The page of each widget's picture: in the reader's language, complete in itself, the same every time."""

import re
from pathlib import Path

import pytest

import minikv.look
from minikv.course.widgets.base import photo_page
from minikv.i18n import LANGUAGES
from tests.course.engine_widget_world import WIDGETS as FOLDER
from tests.course.photo import photo_traits
from tests.course.widget_cases import CASES, WIDGETS, drawings, made, name

# The class of each widget's outermost element.
ROOTS = {
    *("minikv-allocation", "minikv-blocks", "minikv-budget", "minikv-engine", "minikv-eviction-monitor"),
    *(
        "minikv-fleet",
        "minikv-growth",
        "minikv-heat-map",
        "minikv-roofline",
        "minikv-segments",
        "minikv-walk",
        "minikv-motion",
        "minikv-paging",
        "minikv-batching",
        "minikv-memory-bar",
    ),
}


SOURCE = "minikv.course.show_source._Excerpts"  # lines of code, which read as text where nothing runs


def test_every_drawing_of_the_package_has_a_case():
    assert drawings() - {SOURCE} == {name(kind) for kind in CASES}


@pytest.mark.parametrize("lang", LANGUAGES)
@pytest.mark.parametrize("kind", WIDGETS, ids=lambda kind: kind.__name__)
def test_a_picture_is_in_the_readers_language_and_complete_in_itself(kind, lang):
    with made(kind, lang) as widget:
        page, traits = widget.photo_html(), photo_traits(widget)
        assert page == widget.photo_html()
        assert page.isascii(), "whatever script it is in, a file of ASCII"
        assert 'id="photo"' in page
        assert "http" not in page.replace("http://www.w3.org/2000/svg", ""), "a name, not an address to fetch"
        assert f'<html lang="{ {"en": "en", "zh": "zh-CN"}[lang] }">' in page
        assert traits["form"]["title"] == widget.form["title"]
        assert _said(traits).isascii() == (lang == "en")


def _said(traits: dict) -> str:
    """The sentence below the picture, wherever this widget keeps it."""
    if "scene" in traits:
        return traits["scene"]["states"][traits["step"]]["status"]
    if "frames" in traits:
        return traits["frames"][-1]["status"]
    if "map" in traits:
        return traits["map"]["frames"][traits["setting"]][traits["step"]]["status"]
    view = traits["view"]
    if "maps" in view:
        return view["maps"][str(traits["state"]["layer"])]["all"]["status"][traits["state"]["step"]]
    return view["status"]


MOTION = FOLDER.parent / "motion"
LOOK = Path(minikv.look.__file__).parent / "style.css"  # what they share


@pytest.mark.parametrize(
    "path", [*sorted(FOLDER.glob("*.css")), *sorted(MOTION.glob("*.css")), LOOK], ids=lambda path: path.stem
)
def test_a_style_stays_inside_its_widgets(path):
    """A notebook has the styles of all its widgets at once, and JupyterLab those of all open notebooks."""
    css = re.sub(r"/\*.*?\*/", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
    blocks = re.findall(r"([^{}]+)\{[^{}]*\}", re.sub(r"@(?:media|container)[^{]*\{", "", css))
    assert blocks
    for block in blocks:
        # Not in brackets
        for selector in re.split(r",(?=[^()]*(?:\([^()]*(?:\([^()]*\)[^()]*)*\)[^()]*)*$)", block):
            inside = re.match(
                r"(?::is\([^()]*\) )?\.minikv-widget(?:\.(minikv-[a-z-]+))?", selector.strip(" \n}")
            )
            assert inside, selector
            assert (inside[1] is None) if path == LOOK else (inside[1] in ROOTS), selector


def test_a_title_is_text_and_never_markup():
    page = photo_page('<b>"显存"&', "const render = () => {};", "", {"form": {"lang": "zh-CN"}})
    assert "<title>&lt;b&gt;&quot;&#26174;&#23384;&quot;&amp;</title>" in page
    assert page.isascii()
