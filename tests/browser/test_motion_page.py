"""The moving drawings on a page of their own: a change ends where it should, and at once where nothing may move."""

from itertools import pairwise

import pytest

from minikv.course.motion import scene_page
from minikv.i18n import LANGUAGES
from tests.browser.drawing import WORDS_ASTRAY
from tests.course.widget_cases import MOTIONS, made

pytestmark = [pytest.mark.browser, pytest.mark.slow]

CHANGE_MS, TALLEST = 350, 720
# What is seen: shapes and words, in place and in paint; the ids of patterns differ between pages.
_SEEN = """() => [...document.querySelectorAll(".minikv-motion > svg :is(rect, path, text)")]
  .filter((one) => !one.closest("defs, [display=none]") && one.getAttribute("d") !== "")
  .map((one) => [one.tagName, one.closest("[transform]") === null, one.parentElement.getAttribute("class"),
    ...["x", "y", "width", "height", "d", "fill"].map((name) => one.getAttribute(name)), one.textContent].join("|"))
  .map((one) => one.replace(/url\\(#[a-z0-9-]+?-([^-]+)\\)/, "$1")).sort()"""
# How far each arrow begins from the nearest entry of a table that is seen.
_FROM_ENTRIES = """() => {
  const entries = [...document.querySelectorAll(".minikv-entry rect")].filter((one) => !one.closest("[display=none]"));
  const ends = entries.map((one) => one.getBBox()).map((box) => [box.x + box.width, box.y + box.height / 2]);
  return [...document.querySelectorAll(".minikv-arrow")].filter((one) => one.getAttribute("d")).map((arrow) => {
    const from = arrow.getPointAtLength(0);
    return Math.min(...ends.map(([x, y]) => Math.hypot(from.x - x, from.y - y)));
  });
}"""
_PLACE = """() => {
  const { place, moving } = document.querySelector(".minikv-motion").dataset;
  return [Number(place), moving];
}"""


def opened(watched_page, kind, reduced_motion="no-preference"):
    """The scene in a context of its own, since it is a context that has a clock: the test winds it."""
    watched = watched_page("", reduced_motion=reduced_motion)
    watched.page.clock.install(time=0)
    with made(kind, "en") as motion:
        watched.page.set_content(scene_page(motion.form["name"], motion.scene))
        watched.page.clock.pause_at(1_000_000)
        return watched, watched.page, motion


@pytest.mark.parametrize("kind", MOTIONS, ids=lambda kind: kind.__name__)
def test_a_change_moves_and_ends_as_where_nothing_may_move(kind, watched_page):
    moving, page, motion = opened(watched_page, kind)
    calm, still, _ = opened(watched_page, kind, reduced_motion="reduce")
    for step in range(1, len(motion.states)):
        for one in (page, still):
            one.locator("[name=forward]").click()
        assert still.evaluate(_PLACE) == [step, "false"], "the end state appears at once"
        assert page.evaluate(_PLACE) == [step, "true"]
        page.clock.run_for(CHANGE_MS // 2)
        assert page.evaluate(_PLACE) == [step, "true"]
        page.clock.run_for(CHANGE_MS)
        assert page.evaluate(_PLACE) == [step, "false"]
        assert page.evaluate(_SEEN) == still.evaluate(_SEEN)
        assert page.get_by_role("status").inner_text() == motion.states[step]["status"]
    for step in reversed(range(len(motion.states) - 1)):
        page.locator("[name=back]").click()
        page.clock.run_for(2 * CHANGE_MS)
        still.locator("[name=step]").fill(str(step))
        assert page.evaluate(_PLACE) == still.evaluate(_PLACE) == [step, "false"]
        assert page.evaluate(_SEEN) == still.evaluate(_SEEN), "a step back ends where the state was"
    moving.assert_clean()
    calm.assert_clean()


@pytest.mark.parametrize("kind", MOTIONS, ids=lambda kind: kind.__name__)
def test_it_plays_at_its_speed_and_fits_on_a_screen(kind, watched_page):
    watched, page, motion = opened(watched_page, kind)
    last, play = len(motion.states) - 1, page.locator("[name=play]")
    page.locator("[name=speed]").select_option("2")
    play.click()
    page.clock.run_for(1100)
    assert page.evaluate(_PLACE)[0] == 3
    assert page.get_by_role("status").get_attribute("aria-live") == "off"
    play.click()
    page.clock.run_for(5000)
    assert page.evaluate(_PLACE) == [3, "false"], "a pause holds, and what moved has ended"
    page.locator("[name=speed]").select_option("20")
    play.click()
    page.clock.run_for(200 * last)
    assert page.evaluate(_PLACE) == [last, "false"]
    assert play.get_attribute("aria-pressed") == "false"
    assert page.locator(".minikv-motion").bounding_box()["height"] <= TALLEST
    watched.assert_clean()


@pytest.mark.parametrize("lang", LANGUAGES)
@pytest.mark.parametrize("kind", MOTIONS, ids=lambda kind: kind.__name__)
def test_its_words_stay_in_the_picture_and_apart(kind, lang, watched_page):
    watched = watched_page("")
    with made(kind, lang) as motion:
        watched.page.set_content(scene_page(motion.form["name"], motion.scene))
        for step in range(len(motion.states)):
            watched.page.locator("[name=step]").fill(str(step))
            watched.page.wait_for_function(
                "document.querySelector('.minikv-motion').dataset.moving === 'false'"
            )
            assert watched.page.locator(".minikv-motion").evaluate(WORDS_ASTRAY) == []
    watched.assert_clean()


def test_a_token_is_seen_between_its_two_places(watched_page):
    [kind] = [one for one in MOTIONS if one.__name__ == "PagingMotion"]
    watched, page, motion = opened(watched_page, kind)
    chips = page.locator(".minikv-flying g:visible")
    page.evaluate("mounted.seek(0.5)")
    assert chips.count() == len(motion.states[1]["writes"])
    assert chips.first.text_content() == "KV"
    boxes = [page.evaluate("(one) => one.getBoundingClientRect().x", one) for one in chips.element_handles()]
    logical = page.locator(".minikv-box").first.bounding_box()["x"]
    physical = page.locator(".minikv-physical").first.bounding_box()["x"]
    assert all(logical < x < physical for x in boxes)
    page.evaluate("mounted.seek(1)")
    assert chips.count() == 0
    watched.assert_clean()


def test_an_arrow_begins_at_an_entry_even_while_its_sequence_leaves(watched_page):
    [kind] = [one for one in MOTIONS if one.__name__ == "PagingMotion"]
    watched, page, motion = opened(watched_page, kind)
    held = [{name for name, *_ in state["sequences"]} for state in motion.states]
    assert any(before - after for before, after in pairwise(held)), "one leaves"
    for place in range(1, len(motion.states)):
        page.evaluate("place => { mounted.seek(place - 1); mounted.seek(place - 0.5); }", place)
        far = page.evaluate(_FROM_ENTRIES)
        assert far
        assert max(far) <= 4
    watched.assert_clean()
