"""The engine widget's script on a plain page: every sequence and block as Python says, wide and narrow."""

import pytest

from minikv import LLM, SamplingParams
from minikv.course.widgets import EngineWidget
from tests.browser.live import open_live
from tests.models.running import World

pytestmark = [pytest.mark.browser, pytest.mark.slow]

STEM = list(range(1, 11))
PROMPTS = [[*STEM, *[20 + number] * (1 + 3 * number)] for number in range(6)]


@pytest.fixture(scope="module")
def model():
    return World.bare("llama", num_hidden_layers=2)


@pytest.fixture
def widget(model):
    """In the middle of a run: shared, cached and empty blocks, and sequences in every state."""
    sizes = dict(num_blocks=44, block_size=4, max_num_seqs=3, max_batched_tokens=8, max_model_len=64)
    params = [SamplingParams(temperature=0, max_tokens=tokens) for tokens in (4, 18, 18, 18, 18, 18)]
    with LLM(model, **sizes, seed=1) as llm:
        made = EngineWidget(llm, PROMPTS, params, arrivals=[0, 0, 0, 0, 0, 60], lang="zh")
        while not {"length", "decode", "prefill", "waiting"} <= {row["state"] for row in made.view["rows"]}:
            assert made.step()
        yield made


def open_photo(watched_page, widget: EngineWidget):
    watched = watched_page("")
    watched.page.set_content(widget.photo_html())
    return watched, watched.page.locator(".minikv-engine")


def test_the_drawing_is_the_picture(watched_page, widget, screenshot):
    watched, root = open_photo(watched_page, widget)
    cells = root.locator("g.minikv-owned")
    drawn = cells.evaluate_all(
        "all => all.map((one) => [one.dataset.kind, one.querySelector('text').textContent, one.dataset.owners])"
    )
    assert drawn == [[kind, mark, owners] for kind, _, mark, owners in widget.view["pools"][0]["cells"]]
    assert {kind for kind, *_ in drawn} == {"own", "shared", "cached", "empty"}
    rows = root.locator("tbody tr").evaluate_all(
        "all => all.map((one) => [one.querySelector('th').textContent.trim(), one.dataset.state,"
        " one.querySelector('[data-parts]').dataset.parts])"
    )
    assert rows == [
        [row["name"], row["state"], " ".join(map(str, row["parts"]))] for row in widget.view["rows"]
    ]
    label = root.get_by_role("img").get_attribute("aria-label")
    assert not label.isascii(), "in the reader's language"
    assert label in root.get_by_role("status").inner_text()
    screenshot(watched.page.locator("#photo"), "engine_photo")
    watched.assert_clean()


def test_a_bar_is_as_long_as_its_tokens(watched_page, widget):
    watched, root = open_photo(watched_page, widget)
    for row, said in zip(root.locator("tbody tr").all(), widget.view["rows"], strict=True):
        whole = row.locator("svg.minikv-tokens").bounding_box()["width"]
        widths = row.locator("svg.minikv-tokens rect").evaluate_all(
            "all => all.map((r) => r.width.baseVal.value)"
        )
        counts = [count for count in said["parts"] if count]
        expected = [count / widget.view["scale"] * whole for count in counts]
        assert widths == pytest.approx(expected, abs=0.5)
    watched.assert_clean()


def test_what_a_block_is_can_be_seen_without_its_colour(watched_page, widget):
    watched, root = open_photo(watched_page, widget)
    edges = {
        kind: root.locator(f"g.minikv-{kind} rect").first.evaluate(
            "r => [getComputedStyle(r).strokeWidth, getComputedStyle(r).strokeDasharray,"
            " r.getAttribute('fill').startsWith('url(#')]"
        )
        for kind in ("own", "shared", "cached", "empty")
    }
    assert len({str(edge) for edge in edges.values()}) == 4, edges
    fills = root.locator("g.minikv-own rect").evaluate_all("all => all.map((r) => r.getAttribute('fill'))")
    assert len(set(fills)) > 1
    watched.assert_clean()


def test_every_control_has_a_name_and_no_seconds_are_shown(watched_page, widget):
    watched, root = open_photo(watched_page, widget)
    assert root.get_by_role("button").all_inner_texts() == [words for _, words in widget.form["buttons"]]
    assert root.locator("dd[data-key=speed]").count() == 0
    assert root.locator("dd").count() == 10
    watched.assert_clean()


def test_a_narrow_page_cuts_nothing_off(watched_page, widget, screenshot):
    watched, root = open_photo(watched_page, widget)
    blocks = root.locator("g.minikv-owned")
    wide = len(set(blocks.evaluate_all("all => all.map((one) => one.getBoundingClientRect().top)")))
    watched.page.set_viewport_size({"width": 400, "height": 1400})
    watched.page.add_style_tag(content="#photo { width: auto !important; }")
    watched.page.wait_for_function(
        "lines => new Set([...document.querySelectorAll('g.minikv-owned')]"
        ".map((one) => one.getBoundingClientRect().top)).size > lines",
        arg=wide,
    )
    rights = blocks.evaluate_all("all => all.map((one) => one.getBoundingClientRect().right)")
    assert max(rights) <= 400, "the blocks flow into more lines"
    assert watched.page.evaluate(
        "document.documentElement.scrollWidth <= document.documentElement.clientWidth"
    )
    screenshot(watched.page, "engine_narrow")
    watched.assert_clean()


def test_a_single_moment_has_no_slider(model, watched_page):
    with LLM(model, num_blocks=44, block_size=4, max_num_seqs=3, seed=1) as llm:
        widget = EngineWidget(llm, PROMPTS, SamplingParams(temperature=0, max_tokens=6), lang="en")
        _, live = open_live(watched_page, widget)
        slider, said = live.root.locator("[name=moment]"), live.root.locator(".minikv-steps .minikv-said")
        assert not slider.is_visible()
        assert not said.is_visible()
        assert live.root.locator("[name=speed]").is_visible()
        widget.step()
        live.refresh()
        assert slider.is_visible()
        assert said.is_visible()


def test_the_slider_goes_back_through_the_steps_and_the_end_follows_the_run(model, watched_page):
    with LLM(model, num_blocks=44, block_size=4, max_num_seqs=3, max_batched_tokens=8, seed=1) as llm:
        widget = EngineWidget(llm, PROMPTS, SamplingParams(temperature=0, max_tokens=6), lang="en")
        for _ in range(5):
            widget.step()
        watched, live = open_live(watched_page, widget)
        live.wait()  # the page asks for the steps before it
        root, slider = live.root.locator(".minikv-engine"), live.root.locator("[name=moment]")
        assert slider.get_attribute("max") == "5"
        seen = [view["status"] for view in widget.recent]
        for step in (4, 0, 3):
            slider.fill(str(step))
            assert root.get_attribute("data-step") == str(step)
            assert root.get_by_role("status").inner_text() == seen[step]
        widget.step()
        live.refresh()
        assert root.get_attribute("data-step") == "3", "a step that is looked at stays"
        slider.fill("6")
        widget.step()
        live.refresh()
        assert root.get_attribute("data-step") == "7"
        root.locator("[name=speed]").select_option("20")
        live.wait()
        assert widget.speed == 20
        watched.assert_clean()
