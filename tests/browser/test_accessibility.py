"""Every drawing of the course through axe-core, in every theme of JupyterLab."""

import pytest

from tests.browser.accessibility import faint_words, pictures, violations
from tests.browser.drawing import SKINS, open_drawing
from tests.browser.languages import in_turns
from tests.course.widget_cases import CASES, REFUSED, WIDGETS, made

pytestmark = [pytest.mark.browser, pytest.mark.slow]

STATES = [(kind, None) for kind in CASES] + [(kind, state) for kind, state in REFUSED.items()]
IDS = [f"{kind.__name__}{'-refused' if state else ''}" for kind, state in STATES]
SILENT = {"ReportBar"}  # it never changes


@pytest.mark.parametrize(("case", "lang"), in_turns(STATES, IDS))
def test_nothing_is_nameless_or_faint(case, lang, watched_page, screenshot):
    kind, state = case
    with made(kind, lang) as view:
        if state:
            view.state = state
            assert view.view["error"]
        watched, drawing = open_drawing(watched_page, view, lang)
        for skin in ("light", "dark") if state else SKINS:
            drawing.put_on(skin)
            assert violations(watched.page) == [], skin
            assert faint_words(drawing.root) == [], skin
            if not state or skin == "dark":
                screenshot(
                    drawing.root, f"{kind.__name__}_{lang}_{'refused' if state else skin}".replace(" ", "_")
                )
        for role, name in pictures(drawing.root):
            assert role in ("img", "listbox")
            assert len(name) > 10
            assert name.isascii() == (lang == "en")
        if kind in WIDGETS and kind.__name__ not in SILENT:
            status = drawing.root.get_by_role("status")
            assert status.count() == 1
            assert status.get_attribute("aria-live") == "polite"
            assert status.inner_text()
        watched.assert_clean()
