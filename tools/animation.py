"""docs/images/paging*.webp: the moving picture of the READMEs, the paging scene played by a real generate.

    python -m tools.animation       write them; needs a Chromium

A tiny model that ships answers three prompts, one of them twice; ``record_generate`` records the block manager in every
step. Chromium draws the scene of lesson 09 at fixed moments, so a picture is the same each time on one machine. Each
file holds the digest of its states: a test tells when the engine or the words have gone on without the picture.
"""

import argparse
import hashlib
import io
import json
import os
from collections.abc import Iterator, Mapping
from typing import Any

from minikv.course.motion import PagingMotion, record_generate, scene_page
from tools.notebooks.photos import find_chromium
from tools.project import ROOT

FOLDER = ROOT / "docs" / "images"
THEMES = {"": False, ".dark": True}
LANGUAGES = {"": "en", ".zh": "zh"}
CHANGE_MS, FRAMES, REST_MS, END_MS = 350, 7, 1150, 2500
SCENE = "#scene .minikv-motion"
_HIDE = ".minikv-steps { display: none !important; } .minikv-motion { padding: 12px !important; }"


def pictures() -> dict[str, tuple[str, bool]]:
    """Return the language and the theme of each file."""
    return {
        f"paging{theme}{lang}.webp": (LANGUAGES[lang], dark)
        for lang in LANGUAGES
        for theme, dark in THEMES.items()
    }


def scene(lang: str) -> Mapping[str, Any]:
    """Return what a real generate has done with twelve blocks."""
    from minikv import LLM, SamplingParams

    prompts = [[5, 6, 7, 8, 9, 10], [5, 6, 7, 8, 20, 21], [5, 6, 7, 8, 30]]
    params = [
        SamplingParams(temperature=0, max_tokens=4, ignore_eos=True),
        SamplingParams(temperature=1, seed=1, max_tokens=5, n=2, ignore_eos=True),
        SamplingParams(temperature=0, max_tokens=3, ignore_eos=True),
    ]
    with LLM("tiny-gqa", num_blocks=12, block_size=4, max_num_seqs=3, max_model_len=32, device="cpu") as llm:
        return PagingMotion(lang, record_generate(llm, prompts, params)).scene


def digest(data: Mapping[str, Any]) -> str:
    """Return what stands in a picture of ``data``."""
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()[:16]


def moments(states: int) -> Iterator[tuple[float, int]]:
    """Yield each frame's place among the states, and for how many milliseconds it stands."""
    yield 0, REST_MS
    for state in range(1, states):
        for frame in range(1, FRAMES):
            yield state - 1 + frame / FRAMES, CHANGE_MS // FRAMES
        yield state, END_MS if state == states - 1 else REST_MS


def drawn(data: Mapping[str, Any], dark: bool) -> bytes:
    """Return the animated picture."""
    from PIL import Image
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        sandbox = not (hasattr(os, "geteuid") and os.geteuid() == 0)  # it does not start for root
        browser = playwright.chromium.launch(executable_path=find_chromium(), chromium_sandbox=sandbox)
        page = browser.new_page(viewport={"width": 960, "height": 700})
        page.set_content(scene_page("paging", data, dark=dark))
        page.add_style_tag(content=_HIDE)
        box = page.locator(SCENE)
        frames, times = [], []
        for place, stands in moments(len(data["states"])):
            page.evaluate("place => window.mounted.seek(place)", place)
            frames.append(Image.open(io.BytesIO(box.screenshot())).convert("RGB"))
            times.append(stands)
        browser.close()
    whole = io.BytesIO()
    frames[0].save(
        whole, "WEBP", save_all=True, append_images=frames[1:], duration=times, loop=0,
        lossless=True, method=4, xmp=digest(data).encode(),
    )  # fmt: skip
    return whole.getvalue()


def main() -> int:
    argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0]).parse_args()
    for name, (lang, dark) in pictures().items():
        picture = drawn(scene(lang), dark)
        (FOLDER / name).write_bytes(picture)
        print(f"{name}: {len(picture) / 1024:,.0f} KiB")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
