"""The monitors' scripts on a plain page: every figure as Python says, a name for everything, wide and narrow."""

import random

import pytest
import torch

from minikv import LLM, SamplingParams
from minikv.course.widgets.monitor_cache import CacheMonitor
from minikv.course.widgets.monitor_eviction import EvictionMonitor
from minikv.course.widgets.monitor_memory import MemoryMonitor
from minikv.eviction import install_kv_eviction
from tests.course.engine_widget_world import PROMPTS, bare_model
from tests.course.monitor_world import Parked
from tests.course.test_monitor_memory import Fake, cuda
from tests.eviction.hf.masking import small

pytestmark = [pytest.mark.browser, pytest.mark.slow]


@pytest.fixture
def memory():
    made = MemoryMonitor(None, Fake(cuda, random.Random(5)), "zh", 5, Parked())
    for _ in range(30):
        made.tick()
    yield made
    made.close()


@pytest.fixture
def cache():
    with LLM(bare_model(), num_blocks=40, block_size=4, max_num_seqs=3, max_model_len=64, seed=1) as llm:
        made = CacheMonitor(llm, "zh", 5, Parked())
        llm.generate(PROMPTS[:2], SamplingParams(temperature=0, max_tokens=3))
        for prompt in PROMPTS:
            llm.add_request(prompt, SamplingParams(temperature=0, max_tokens=9))
        llm.step()
        made.stop()
        yield made
        made.close()


@pytest.fixture
def eviction():
    model = small("llama", number=3)
    with torch.no_grad(), install_kv_eviction(model, policy="h2o", budget=8, n_sink=2, n_recent=4) as handle:
        made = EvictionMonitor(model, "zh", 5, Parked())
        ids = torch.randint(1, 90, (1, 90), generator=torch.Generator().manual_seed(0))
        past = handle.new_cache()
        for start, end in ((0, 20), *((at, at + 1) for at in range(20, 90))):
            model(ids[:, start:end], past_key_values=past)
            made.tick()
        made.stop()
        yield made
        made.close()


def open_photo(watched_page, made):
    watched = watched_page("")
    watched.page.set_content(made.photo_html())
    return watched, watched.page.locator(".minikv-widget")


def test_the_memory_of_now_and_over_time(watched_page, memory, screenshot):
    watched, root = open_photo(watched_page, memory)
    view = memory.view
    last = root.locator(".minikv-area").evaluate_all(
        "all => all.map((a) => [a.dataset.key, Number(a.dataset.last)])"
    )
    assert last == [[one["key"], view["chart"]["values"][one["key"]][-1]] for one in view["chart"]["kinds"]]
    told = root.locator("tbody td[data-key]").evaluate_all(
        "all => all.map((a) => [a.dataset.key, a.textContent])"
    )
    assert told == [[row["key"], row["exact"]] for row in view["rows"]]
    # The areas lie on one another, and the highest of them reaches the top once.
    boxes = root.locator(".minikv-area").evaluate_all(
        "all => all.map((a) => { const b = a.getBBox(); return [b.y, b.height]; })"
    )
    assert min(y for y, _ in boxes) == pytest.approx(18, abs=0.1)
    assert max(y + height for y, height in boxes) == pytest.approx(148, abs=0.1)
    screenshot(watched.page.locator("#photo"), "monitor_memory")
    watched.assert_clean()


def test_the_cache_is_the_engines_drawing(watched_page, cache, screenshot):
    watched, root = open_photo(watched_page, cache)
    drawn = root.locator("g.minikv-owned").evaluate_all(
        "all => all.map((one) => [one.dataset.kind, one.querySelector('text').textContent, one.dataset.owners])"
    )
    assert drawn == [[kind, mark, owners] for kind, _, mark, owners in cache.view["pools"][0]["cells"]]
    assert {kind for kind, *_ in drawn} >= {"own", "shared", "empty"}
    assert root.locator("dd").all_inner_texts() == cache.view["figures"]
    assert int(root.locator("dd[data-key=hits]").inner_text()) > 0
    screenshot(watched.page.locator("#photo"), "monitor_cache")
    watched.assert_clean()


def test_where_in_the_text_the_tokens_are(watched_page, eviction, screenshot):
    watched, root = open_photo(watched_page, eviction)
    strips = root.locator("g[data-shades]")
    assert [one.get_attribute("data-shades") for one in strips.all()] == [
        row["shades"] for row in eviction.view["map"]
    ]
    for one in strips.all():
        shades = one.get_attribute("data-shades")
        assert one.locator("rect").count() == len(shades) - shades.count(".")
        assert one.locator("rect.minikv-gone[fill^='url(#']").count() == shades.count("-") > 0
    rows = root.locator("tbody tr").evaluate_all(
        "all => all.map((r) => [...r.querySelectorAll('td')].map((d) => d.textContent))"
    )
    assert rows == [row["values"] for row in eviction.view["rows"]]
    screenshot(watched.page.locator("#photo"), "monitor_eviction")
    watched.assert_clean()


@pytest.mark.parametrize("which", ["memory", "cache", "eviction"])
def test_everything_has_a_name_and_a_narrow_page_cuts_nothing_off(which, request, watched_page, screenshot):
    made = request.getfixturevalue(which)
    watched, root = open_photo(watched_page, made)
    assert root.get_by_role("button").all_inner_texts() == [words for _, words in made.form["buttons"]]
    assert not root.get_by_role("status").inner_text().isascii(), "in the reader's language"
    pictures = root.locator("svg:visible:not([aria-hidden=true])")
    assert pictures.count()
    for picture in pictures.all():
        assert picture.get_attribute("role") == "img"
        assert len(picture.get_attribute("aria-label")) > 10
    assert root.get_attribute("lang") == "zh-CN"
    watched.page.set_viewport_size({"width": 400, "height": 1400})
    watched.page.add_style_tag(content="#photo { width: auto !important; }")
    watched.page.wait_for_function(
        "document.documentElement.scrollWidth <= document.documentElement.clientWidth"
    )
    screenshot(watched.page, f"monitor_{which}_narrow")
    watched.assert_clean()
