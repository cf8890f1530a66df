"""The cache monitor: the engine's state between two steps, whoever computes them, and nothing that grows."""

import gc
import random
import threading
import tracemalloc
import weakref

import pytest

from minikv import SamplingParams
from minikv.course import monitor
from minikv.course.widgets.monitor_cache import CacheMonitor
from minikv.engine.serve.view import EngineView
from minikv.errors import ArgumentError
from tests.course.engine_widget_world import PROMPTS, STEM, bare_model, llms
from tests.course.monitor_world import SECONDS, Parked, no_thread_is_left, ours
from tests.models.running import World


@pytest.fixture(autouse=True)
def _ends():
    with no_thread_is_left():
        yield


@pytest.fixture(scope="module")
def model():
    return bare_model()


@pytest.fixture
def make(model):
    with llms(model) as one:
        yield one


def watch(llm, lang="en") -> CacheMonitor:
    clock = Parked()
    made = CacheMonitor(llm, lang, 5, clock)
    clock.settle()
    return made


def figures(made: CacheMonitor) -> dict[str, str]:
    return dict(zip([key for key, _ in made.form["figures"]], made.view["figures"], strict=True))


def add_some(llm, rng: random.Random) -> None:
    prompt = STEM[: rng.randint(1, 10)] + [rng.randint(30, 40) for _ in range(rng.randint(1, 12))]
    llm.add_request(prompt, SamplingParams(max_tokens=rng.randint(1, 9), n=rng.choice([1, 1, 2]), seed=3))


def test_after_every_step_the_picture_is_the_engines_state(make):
    rng = random.Random(0)
    for size in (2, 4):
        llm = make(num_blocks=rng.randint(32, 60), block_size=size)
        made, names = watch(llm), {}
        for turn in range(60):
            if turn < 40 and rng.random() < 0.4:
                add_some(llm, rng)
            llm.step()
            made.tick()
            view, pool = llm.snapshot(), llm.manager.pools[0]
            rows = {row["name"]: row for row in made.view["rows"]}
            live = (*view.running, *view.waiting)
            assert len(rows) == len(live)
            for seq, row in zip(live, made.view["rows"], strict=True):
                cached, computed, left, generated = row["parts"]
                assert cached + computed + left == seq.num_prompt
                assert cached + computed == min(seq.num_computed, seq.num_prompt)
                assert generated == seq.num_output
                letter = row["name"].rstrip("0123456789")
                assert names.setdefault(seq.id.request, letter) == letter, "a request keeps its name"
            assert len(set(names.values())) == len(names)
            cells = made.view["pools"][0]["cells"]
            assert len(cells) == pool.num_blocks
            for block, (kind, look, mark, owners) in enumerate(cells):
                holders = owners.split("+") if owners else []
                assert len(holders) == pool.ref_count(block)
                unheld = "cached" if pool.is_published(block) else "empty"
                assert kind == {0: unheld, 1: "own"}.get(len(holders), "shared")
                assert set(holders) <= set(rows)
                assert mark
                assert look >= 0
            told, stats = figures(made), pool.stats()
            assert told == {
                "steps": f"{view.steps}",
                "running": f"{len(view.running)}",
                "waiting": f"{len(view.waiting)}",
                "finished": f"{view.finished}",
                "generated": f"{view.generated}",
                "used": f"{stats.used}",
                "cached": f"{stats.cached}",
                "empty": f"{pool.num_blocks - stats.used - stats.cached}",
                "hits": f"{stats.hits}",
                "evictions": f"{stats.evictions}",
            }
        assert stats.hits
        assert len(names) > 5
        made.close()


def test_it_says_the_same_again_and_in_both_languages(make):
    said = []
    for _ in range(2):
        llm = make()
        made = watch(llm)
        llm.generate(PROMPTS, SamplingParams(temperature=0, max_tokens=5))
        made.stop()
        said.append((made.text(), made.text("zh"), made.photo_html()))
        made.close()
    assert said[0] == said[1]
    english, chinese, page = said[0]
    assert "requests ended: 6" in english
    assert "已结束的请求 6 个" in chinese
    assert english.isascii()
    assert page.isascii()


def test_a_run_is_seen_from_another_thread(make):
    llm, seen = make(), set()
    made, over = watch(llm), threading.Event()

    def look():
        while not over.is_set():
            assert made.tick()
            seen.add(made.view["figures"][0])

    watcher = threading.Thread(target=look)
    watcher.start()
    outputs = llm.generate(PROMPTS * 4, SamplingParams(temperature=0, max_tokens=8))
    over.set()
    watcher.join(SECONDS)
    assert len(outputs) == 24
    assert len(seen) > 2
    made.stop()
    assert figures(made)["finished"] == "24"
    assert figures(made)["used"] == "0"
    made.close()


def test_layers_of_two_kinds_have_two_grids(make):
    llm = make(model=World.bare("gemma3_text"), num_blocks=None, kv_bytes=200_000)
    made = watch(llm)
    llm.add_request(PROMPTS[0], SamplingParams(max_tokens=4))
    llm.step()
    made.tick()
    assert len(made.view["pools"]) == 2
    assert " + " in figures(made)["used"]
    made.close()


def test_a_closed_llm_ends_it_and_the_last_picture_stays(make):
    llm = make()
    made = watch(llm)
    llm.generate(PROMPTS[:2], SamplingParams(temperature=0, max_tokens=3))
    made.tick()
    cells, text = made.view["pools"], made.text()
    llm.close()
    assert not made.tick()
    assert not made.running
    assert made.view["error"]
    assert "closed" in made.view["status"]
    assert made.view["pools"] == cells
    assert made.text().startswith(text)
    with pytest.raises(ArgumentError):
        monitor.cache(llm)
    made.close()


@pytest.mark.parametrize("nothing", [None, "llm", 3, object()])
def test_what_is_no_llm_is_refused(nothing):
    with pytest.raises(ArgumentError) as refused:
        monitor.cache(nothing)
    assert refused.value.code == "monitor_llm"


def test_stop_inside_of_a_step_does_not_hang(make):
    """``emit`` is called inside of steps."""
    stopped = []

    def emit(event):
        if event.kind == "first" and not stopped:
            made.stop()
            stopped.append(made.running)

    llm = make(emit=emit)
    made = watch(llm)
    llm.generate(PROMPTS[:2], SamplingParams(temperature=0, max_tokens=3))
    assert stopped == [False]
    made.close()


def test_nothing_grows_in_hundreds_of_updates(make):
    llm, rng = make(num_blocks=200), random.Random(1)
    made, views = watch(llm), []
    look = llm.snapshot

    def snapshot() -> EngineView:
        view = look()
        views.append(weakref.ref(view))
        return view

    llm.snapshot = snapshot

    def update(times: int) -> None:
        for turn in range(times):
            if turn % 50 == 0:
                add_some(llm, rng)
            if turn % 40 == 0:
                llm.step()
            assert made.tick()

    tracemalloc.start()
    try:
        update(100)  # what is on display is counted before as after
        gc.collect()
        before = tracemalloc.take_snapshot()
        update(400)
        gc.collect()
        after = tracemalloc.take_snapshot()
    finally:
        tracemalloc.stop()
    grown = sum(
        one.size_diff
        for one in after.compare_to(before, "filename")
        if any(name in one.traceback[0].filename for name in ("minikv/course", "traitlets", "ipywidgets"))
    )
    assert grown < 20_000, f"{grown} B more"
    assert sum(view() is not None for view in views) <= 2, "only what is on display"
    assert len(made._watched._names._numbers) <= 64, "of requests that have ended nothing is kept"
    assert len(ours()) == 1
    made.close()
