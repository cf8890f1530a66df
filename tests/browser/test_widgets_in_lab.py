"""Every widget in JupyterLab, on one kernel: the keys are the widget's, the kernel answers, both themes can be read."""

import pytest

from tests.browser.conftest import REPOSITORY
from tests.browser.lab import ACTIVE_CELL, change_theme
from tests.browser.languages import one_language
from tests.course.widget_cases import WIDGETS

pytestmark = [pytest.mark.browser, pytest.mark.slow]

SETUP = """
import sys
from contextlib import ExitStack
sys.path.insert(0, {root!r})
from tests.course.widget_cases import CASES
after, made = ExitStack(), {{kind.__name__: make for kind, make in CASES.items()}}"""
SHOW = "widget = made[{name!r}]({lang!r}, after)\ndisplay(widget)"
# What the keyboard turns or presses in a widget: its first control that does something, by the first of these keys that
# changes it.
CONTROL = "select, input[type=range], button:not([aria-disabled=true])"
KEYS = {"select-one": ("ArrowDown", "ArrowUp"), "range": ("ArrowRight", "ArrowLeft"), "button": ("Enter",)}
SHOWN = """(root) => [root.dataset.running, ...[...root.querySelectorAll("[role=status], svg, td, dd")]
  .map((one) => one.outerHTML)].join()"""


# A pattern that the script chose and the style of another widget on the page took away.
UNPAINTED = """() => [...document.querySelectorAll('.minikv-widget [fill^="url(#"]')]
  .filter((one) => !getComputedStyle(one).fill.includes(one.getAttribute("fill").slice(5, -1))).length"""


@pytest.mark.parametrize("lang", one_language("zh"))
def test_the_keys_are_the_widgets_and_the_kernel_answers(lang, lab, readers_page, screenshot):
    sources = [SETUP.format(root=str(REPOSITORY))]
    sources += [SHOW.format(name=kind.__name__, lang=lang) for kind in WIDGETS]
    page = readers_page.page
    lab.open_cells(page, *sources)
    assert lab.run_all(page) == []
    page.wait_for_function(
        f"document.querySelectorAll('.minikv-widget').length === {len(WIDGETS)}", timeout=60_000
    )
    roots = page.locator(".minikv-widget").all()
    for kind, root in zip(WIDGETS, roots, strict=True):
        if root.locator(CONTROL).count() == 0:
            assert kind.__name__ == "ReportBar"
            continue
        control = root.locator(CONTROL).first.element_handle()  # the same one, whatever becomes of the others
        control.focus()
        cell, shown = page.evaluate(ACTIVE_CELL), root.evaluate(SHOWN)
        read = "(one) => one.tagName === 'BUTTON' ? '' : one.value"
        value = control.evaluate(read)
        for key in KEYS[control.evaluate("(one) => one.type")]:
            page.keyboard.press(key)
            if control.evaluate(read) != value:
                break
        page.wait_for_function(
            f"([root, shown]) => ({SHOWN})(root) !== shown",
            arg=[root.element_handle(), shown],
            timeout=30_000,
        )
        assert page.evaluate(ACTIVE_CELL) == cell, f"{kind.__name__}: the keys belong to the widget"
        assert control.evaluate("(one) => one === document.activeElement")
    assert page.evaluate(UNPAINTED) == 0
    for theme in ("Dark", "Light"):
        change_theme(page, theme)
        for kind, root in zip(WIDGETS, roots, strict=True):
            screenshot(root, f"lab_{kind.__name__}_{lang}_{theme.lower()}")
    lab.execute(page, "after.close()")  # what a widget switched in torch, as it was for the next notebook
    readers_page.assert_clean()
