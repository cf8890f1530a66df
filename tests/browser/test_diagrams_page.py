"""Every diagram as Chromium draws it: words stay in the picture and apart, and can be read in each theme."""

import pytest

from minikv.i18n import LANGUAGES
from minikv.models import load
from tests.browser.accessibility import faint_words
from tests.browser.drawing import SKINS, WORDS_ASTRAY, open_drawing
from tests.course.diagrams.test_diagrams import DRAWN
from tests.course.diagrams.test_eviction_diagrams import DRAWN as OF_A_MODEL
from tests.course.diagrams.test_layers import LAYERS
from tests.course.diagrams.test_memory_diagrams import DRAWN as MEMORY

pytestmark = [pytest.mark.browser, pytest.mark.slow]


def _of_a_model(draw):
    return lambda lang: draw(load("tiny-gqa", device="cpu").model, lang)


ALL = {**DRAWN, **LAYERS, **MEMORY, **{name: _of_a_model(draw) for name, draw in OF_A_MODEL.items()}}


@pytest.mark.parametrize("lang", LANGUAGES)
@pytest.mark.parametrize("name", ALL)
def test_words_stay_in_the_picture_apart_and_readable(name, lang, watched_page, screenshot):
    watched, drawing = open_drawing(watched_page, ALL[name](lang), lang)
    assert drawing.root.locator(".minikv-diagram").evaluate(WORDS_ASTRAY) == []
    for skin in SKINS:
        drawing.put_on(skin)
        assert faint_words(drawing.root) == [], skin
    screenshot(drawing.root, f"diagram_{name}_{lang}")
    watched.assert_clean()
