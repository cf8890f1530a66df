"""The pool widget in JupyterLab: every button by keyboard, with a real manager behind it."""

import pytest

from minikv.i18n import LANGUAGES, text
from tests.browser.test_budget_in_lab import ACTIVE_CELL, open_cells

pytestmark = [pytest.mark.browser, pytest.mark.slow]

SETUP = """
from minikv.course.widgets import PoolWidget
widget = PoolWidget({lang!r}, num_blocks=8, block_size=4)
display(widget)"""


class PoolOnPage:
    """The widget as a reader without a mouse meets it."""

    def __init__(self, page):
        self.page = page
        self.root = page.locator(".minikv-blocks")

    def owners(self) -> list[str]:
        """Who holds each block, and "cached" or "free" where nobody does."""
        return self.root.locator("g.minikv-block").evaluate_all(
            "all => all.map((one) => one.dataset.owners || one.dataset.kind)"
        )

    def said(self) -> str:
        return self.root.get_by_role("status").inner_text()

    def press(self, action: str, key: str = "Enter") -> str:
        """Press a button by keyboard; returns what the readout says once Python has answered."""
        before = self.said()
        self.root.locator(f"button[name={action}]").focus()
        self.page.keyboard.press(key)
        self.page.wait_for_function(
            "said => document.querySelector('.minikv-blocks [role=status]').textContent !== said",
            arg=before,
            timeout=30_000,
        )
        return self.said()

    def choose(self, name: str) -> None:
        """Choose a sequence by its first letter, as a keyboard does in a list."""
        self.root.locator("select[name=target]").focus()
        self.page.keyboard.press(name)
        assert self.root.locator("select[name=target]").input_value() == name


@pytest.mark.parametrize("lang", LANGUAGES)
def test_every_button_answers_the_keyboard(lang, lab, watched_page, screenshot):
    watched = watched_page(lab.origin)
    page = watched.page
    open_cells(lab, page, SETUP.format(lang=lang), "1 + 1")
    assert lab.run_all(page) == []
    pool = PoolOnPage(page)
    assert pool.owners() == ["free"] * 8

    pool.press("new")
    cell = page.evaluate(ACTIVE_CELL)
    assert pool.owners() == ["A", "A"] + ["free"] * 6
    pool.press("fork", key="Space")
    assert pool.owners()[:2] == ["A+B", "A+B"]
    pool.press("step")
    assert pool.owners()[:3] == ["A+B", "B", "A"], "A wrote into a copy"
    pool.press("step")
    pool.choose("B")
    pool.press("share")
    assert pool.owners()[:4] == ["A+B+C", "B+C", "A", "C"], "C found two blocks of B"

    pool.choose("A")
    pool.press("free")
    assert pool.owners()[:4] == ["B+C", "B+C", "cached", "C"]
    refused = pool.press("free")
    assert "'A'" in refused
    assert pool.owners()[:4] == ["B+C", "B+C", "cached", "C"]
    pool.press("new")
    pool.press("new")
    full = pool.press("new")
    assert "free" not in pool.owners()
    assert text("errors.out_of_blocks", lang, asked=3, free=0, total=8, fits=0) in full

    assert page.evaluate(ACTIVE_CELL) == cell, "the keys belong to the widget"
    shared = pool.root.locator("g[data-block='0'] rect").first.get_attribute("fill")
    alone = pool.root.locator("g[data-block='3'] rect").first.get_attribute("fill")
    assert shared != alone
    assert "url(#" in shared, "a pattern, not a colour alone"
    for theme, light in (("JupyterLab Light", "true"), ("JupyterLab Dark", "false")):
        page.evaluate("theme => window.jupyterapp.commands.execute('apputils:change-theme', {theme})", theme)
        page.wait_for_selector(f"body[data-jp-theme-light={light}]", state="attached")
        page.wait_for_selector("#jupyterlab-splash", state="detached")
        screenshot(pool.root, f"pool_{lang}_{theme.split()[1].lower()}")

    pool.root.locator("[name=step][type=range]").focus()
    page.keyboard.press("Home")
    assert pool.owners() == ["free"] * 8, "the slider leads back to the empty pool"
    pool.press("reset")
    assert pool.owners() == ["free"] * 8
    watched.assert_clean()


def test_every_control_has_a_name(lab, watched_page):
    watched = watched_page(lab.origin)
    page = watched.page
    open_cells(lab, page, SETUP.format(lang="en"), "1 + 1")
    assert lab.run_all(page) == []
    names = page.locator(".minikv-blocks :is(button, select)").evaluate_all(
        "controls => controls.map((c) => c.getAttribute('aria-label') || c.labels?.[0]?.textContent || c.textContent)"
    )
    assert len(names) == 8
    assert all(names)
    assert len(set(names)) == len(names)
    watched.assert_clean()
