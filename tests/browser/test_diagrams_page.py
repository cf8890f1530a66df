"""Every diagram as Chromium draws it: words stay in the picture and apart, and can be read in each theme."""

import pytest

from minikv.i18n import LANGUAGES
from tests.browser.accessibility import faint_words
from tests.browser.drawing import SKINS, open_drawing
from tests.course.diagrams.test_diagrams import DRAWN

pytestmark = [pytest.mark.browser, pytest.mark.slow]

# A line of text is taller than its letters: three pixels above and below may overlap.
_FAULTS = """(figure) => {
  const svg = figure.querySelector("svg"), whole = svg.getBoundingClientRect(), faults = [];
  const words = [...svg.querySelectorAll("text")].map((one) => [one.textContent, one.getBoundingClientRect()]);
  for (const [place, [said, box]] of words.entries()) {
    const sideways = box.left < whole.left - 1 || box.right > whole.right + 1;
    if (sideways || box.bottom > whole.bottom) faults.push(`${said}: outside`);
    for (const [other, near] of words.slice(place + 1)) {
      const beside = box.left < near.right - 1 && near.left < box.right - 1;
      const level = box.top + 3 < near.bottom - 3 && near.top + 3 < box.bottom - 3;
      if (beside && level) faults.push(`${said} touches ${other}`);
    }
  }
  return faults;
}"""


@pytest.mark.parametrize("lang", LANGUAGES)
@pytest.mark.parametrize("name", DRAWN)
def test_words_stay_in_the_picture_apart_and_readable(name, lang, watched_page, screenshot):
    watched, drawing = open_drawing(watched_page, DRAWN[name](lang), lang)
    assert drawing.root.locator(".minikv-diagram").evaluate(_FAULTS) == []
    for skin in SKINS:
        drawing.put_on(skin)
        assert faint_words(drawing.root) == [], skin
    screenshot(drawing.root, f"diagram_{name}_{lang}")
    watched.assert_clean()
