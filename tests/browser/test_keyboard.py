"""Every control of every widget by keyboard alone: reached in order, seen to have the focus, and heard by Python."""

import pytest

from tests.browser.languages import in_turns
from tests.browser.live import open_live
from tests.course.widget_cases import WIDGETS, made

pytestmark = [pytest.mark.browser, pytest.mark.slow]

# What the Tab key stops at, in the order of the document.
_STOPS = """() => [...document.querySelectorAll('#photo :is(select, input, button, summary, [tabindex="0"])')]
  .filter((one) => one.tabIndex >= 0 && one.getClientRects().length)"""
_NAME = """(one) => one.getAttribute("aria-label") || one.labels?.[0]?.textContent || one.textContent"""
_RING = """(one) => {
  const style = getComputedStyle(one), shape = one.querySelector(".minikv-outline, .minikv-reach") ?? one;
  return { seen: one.matches(":focus-visible"), stroke: getComputedStyle(shape).stroke,
    outline: style.outlineStyle === "solid" ? parseFloat(style.outlineWidth) : 0 };
}"""
FORWARD = {
    "range": ("ArrowRight", "ArrowLeft"),
    "number": ("ArrowUp", "ArrowDown"),
    "select": ("ArrowDown", "ArrowUp"),
}
CONTROLLESS = {"ReportBar"}
# Whom the buttons beside it are for, which Python hears with the press; how fast states follow, and which
# of the steps that were seen is on display: both are the page's.
LOCAL = {"target", "speed", "moment"}


def kind_of(control) -> str:
    return control.evaluate(
        "(one) => one.type === 'select-one' ? 'select' : one.type ?? one.getAttribute('role') ?? one.localName"
    )


def stops(live) -> list:
    found = live.page.evaluate_handle(_STOPS)
    return [one.as_element() for one in found.get_properties().values()]


def use(live, control) -> None:
    """Turn or press ``control``, which has the focus, with each key that is its own; Python hears of it."""
    kind = kind_of(control)
    if kind in FORWARD:
        turn(live, control, FORWARD[kind])
    elif kind == "option":
        walk(live)
    elif kind == "summary":
        for _ in ("opened", "closed"):
            before = control.evaluate("(one) => one.parentNode.open")
            live.page.keyboard.press("Enter")
            assert control.evaluate("(one) => one.parentNode.open") != before
    else:
        assert kind == "button"
        for key in ("Enter", "Space"):
            before, pressed = len(live.heard), control.get_attribute("aria-pressed")
            disabled = control.get_attribute("aria-disabled") == "true"
            live.page.keyboard.press(key)
            live.wait()
            did = len(live.heard) > before or control.get_attribute("aria-pressed") != pressed
            assert did != disabled
            if hasattr(live.widget, "stop"):
                live.widget.stop()  # whatever the button began
            live.refresh()
    assert live.page.evaluate("document.querySelector('#photo').contains(document.activeElement)"), (
        "focus is lost"
    )


def turn(live, control, keys) -> None:
    """A slider, a list or a box of numbers: at its end it goes the other way."""
    before, state, value = len(live.heard), live.traits(), control.input_value()
    for key in keys:
        live.page.keyboard.press(key)
        live.wait()
        if control.input_value() != value:
            break
    assert control.input_value() != value
    if control.get_attribute("name") not in LOCAL:
        assert len(live.heard) > before
        assert live.traits() != state


def walk(live) -> None:
    """The options of a list that is drawn: one of them is a stop of the Tab key, the arrows lead on from it."""
    for key, place in (("End", -1), ("Home", 0), ("ArrowRight", 1), ("ArrowLeft", 0)):
        live.page.keyboard.press(key)
        chosen = live.root.locator("[role=option]").nth(place)  # not those of a <select>
        assert chosen.evaluate("(one) => one === document.activeElement")
        assert chosen.get_attribute("aria-selected") == "true"
        assert chosen.get_attribute("tabindex") == "0"


@pytest.mark.parametrize(("kind", "lang"), in_turns(WIDGETS, [kind.__name__ for kind in WIDGETS]))
def test_every_control_is_reached_in_order_and_shows_the_focus(kind, lang, watched_page):
    with made(kind, lang) as widget:
        watched, live = open_live(watched_page, widget)
        page, controls = watched.page, stops(live)
        assert bool(controls) == (kind.__name__ not in CONTROLLESS)
        names = [one.evaluate(_NAME) for one in controls]
        assert all(name and name.strip() for name in names)
        assert len(set(names)) == len(names), names
        plain = [one.evaluate(_RING)["stroke"] for one in controls]
        for place, control in enumerate(controls):
            page.keyboard.press("Tab")
            assert control.evaluate("(one) => one === document.activeElement"), (
                f"{names[place]} is not the next stop"
            )
            ring = control.evaluate(_RING)
            assert ring["seen"]
            assert ring["outline"] >= 2 or ring["stroke"] != plain[place], (
                f"{names[place]} does not show the focus"
            )
            assert control.get_attribute("data-lm-suppress-shortcuts") == "true", (
                "JupyterLab would take its keys"
            )
        page.keyboard.press("Tab")
        assert page.evaluate("!document.querySelector('#photo').contains(document.activeElement)"), "no trap"
        watched.assert_clean()


@pytest.mark.parametrize(
    "kind", [one for one in WIDGETS if one.__name__ not in CONTROLLESS], ids=lambda kind: kind.__name__
)
def test_every_control_is_used_by_keys_alone(kind, watched_page):
    count, place = 1, 0
    while place < count:
        with made(kind, "zh" if place % 2 else "en") as widget:
            watched, live = open_live(watched_page, widget)
            page = watched.page
            page.evaluate("window.said = document.querySelector('#photo [role=status]')")
            count = len(stops(live))
            again = hasattr(widget, "state")  # a form: each control from where the widget starts
            while place < count:
                control = stops(live)[place]
                control.focus()
                use(live, control)
                place += 1
                if not again:
                    break
                widget.state = widget.form["defaults"]
                live.refresh()
            said = "window.said === document.querySelector('#photo [role=status]') && window.said.textContent"
            assert page.evaluate(said), "a live region that is replaced is not read out"
            watched.assert_clean()
