"""What a moving drawing costs the page: script time of each frame, 64 sequences on 1,024 blocks.

    python -m benchmarks.drawing [--quick] [--json FILE]

The states are recorded from a real ``BlockManager``: every sequence appends a token in each, so 64 tokens fly at a
time. Chromium, headless, plays them; the callback of every animation frame in which something moves or begins to move
is timed. The peer is the same drawing made from nothing, as a page that keeps no elements would do in each frame.
"""

import os
import statistics
from collections.abc import Iterator

from benchmarks.report import Row, arguments, publish
from minikv.blocks import BlockManager
from minikv.course.motion import PagingMotion, PagingRecorder, scene_page
from tools.notebooks.photos import find_chromium

SEQUENCES, BLOCKS, BLOCK_SIZE, PROMPT = 64, 1024, 16, 150
MEDIAN_GOAL_MS, P95_GOAL_MS = 8.0, 16.0
# Before the drawing's own script. [milliseconds, whether the frame began a change]
_WATCH = """
window.frames_ms = [];
const moves = () => document.querySelector(".minikv-motion").dataset.moving === "true";
const request = window.requestAnimationFrame.bind(window);
window.requestAnimationFrame = (callback) => request((now) => {
  const before = moves(), began = performance.now();
  callback(now);
  const spent = performance.now() - began;
  if (before || moves()) window.frames_ms.push([spent, !before]);
});
"""
# Elements are made anew: how long the page's script takes for one state.
_ANEW = """async (times) => {
  const found = [], host = document.getElementById("scene");
  for (let time = 0; time < times; time++) {
    host.replaceChildren();
    await new Promise((after) => setTimeout(after));
    const began = performance.now();
    window.draw();
    found.push(performance.now() - began);
  }
  return found;
}"""
# From the slider's input to the painted picture: the frame after the next one begins once that has been painted.
_SLIDE = """async (places) => {
  const slider = document.querySelector("[name=step]"), found = [];
  for (const place of places) {
    slider.value = place;
    const began = performance.now();
    slider.dispatchEvent(new Event("input"));
    await new Promise((after) => requestAnimationFrame(() => requestAnimationFrame(after)));
    found.push(performance.now() - began);
  }
  return found;
}"""


def crowded(steps: int) -> PagingMotion:
    """``steps`` decode steps of all sequences."""
    manager = BlockManager(BLOCKS, BLOCK_SIZE)
    names = [f"S{number}" for number in range(SEQUENCES)]
    for number, name in enumerate(names):
        manager.allocate(name, range(1000 * number, 1000 * number + PROMPT + number))
        manager.commit(name)
    recorder = PagingRecorder(manager)
    for step in range(steps):
        for name in names:
            manager.append(name, step)
            manager.commit(name)
        recorder.take(())
    return PagingMotion("en", recorder)


def measured(steps: int) -> tuple[list[tuple[float, bool]], list[float], list[float]]:
    """Return milliseconds: of the frames that move, of drawings from nothing, from the slider to the picture."""
    from playwright.sync_api import sync_playwright

    motion = crowded(steps)
    html = scene_page("paging", motion.scene).replace("<main", f"<script>{_WATCH}</script><main", 1)
    with sync_playwright() as playwright:
        sandbox = not (hasattr(os, "geteuid") and os.geteuid() == 0)  # it does not start for root
        browser = playwright.chromium.launch(executable_path=find_chromium(), chromium_sandbox=sandbox)
        page = browser.new_page(viewport={"width": 1000, "height": 720})
        page.set_content(html)
        page.locator("[name=speed]").select_option("2")
        page.locator("[name=play]").click()
        page.wait_for_function(
            f"document.querySelector('.minikv-motion').dataset.place >= {steps}", timeout=120_000
        )
        frames = page.evaluate("window.frames_ms")
        slides = page.evaluate(_SLIDE, [(7 * number) % steps for number in range(1, 21)])
        anew = page.evaluate(_ANEW, 10)
        browser.close()
    return frames, anew, slides


def rows(quick: bool) -> Iterator[Row]:
    frames, anew, slides = measured(12 if quick else 60)
    peer = statistics.median(anew)
    what, name = f"{SEQUENCES} sequences, {BLOCKS:,} blocks", "the drawing made from nothing"
    spent = [milliseconds for milliseconds, _ in frames]
    median, p95 = statistics.median(spent), statistics.quantiles(spent, n=20)[-1]
    goal = f"at most {MEDIAN_GOAL_MS:g} ms"
    yield Row(f"script a frame, median ({what})", median, peer, name, "ms", goal, median <= MEDIAN_GOAL_MS)
    goal = f"at most {P95_GOAL_MS:g} ms"
    yield Row(
        f"script a frame, p95 ({len(frames):,} frames)", p95, peer, name, "ms", goal, p95 <= P95_GOAL_MS
    )
    begins = statistics.median(milliseconds for milliseconds, begun in frames if begun)
    yield Row(
        "script of a frame that begins a change, median",
        begins,
        peer,
        name,
        "ms",
        goal,
        begins <= P95_GOAL_MS,
    )
    slide = statistics.median(slides)
    yield Row("slider to picture, median", slide, peer, name, "ms", "at most 100 ms", slide <= 100)


def main() -> None:
    options = arguments(__doc__.splitlines()[0])
    publish(rows(options.quick), options.json)


if __name__ == "__main__":
    main()
