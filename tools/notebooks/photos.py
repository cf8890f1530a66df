"""A picture of each widget, for readers of a notebook that is not running (GitHub, a printed page).

During the build ``minikv.course.show`` writes one self-contained page per widget, ``<sha>.html``, and notes
the sha in the output's metadata. Here one Chromium opens the pages, with every request blocked, and
photographs the element with id "photo". The sha stays in the metadata: while the page is the same, the
committed picture is kept, so a picture changes only when the widget does.
"""

import base64
import io
import os
import re
import shutil
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

CHROMIUM_NAMES = ("chromium", "chromium-browser", "google-chrome")
PAGE_SECONDS = 10
# Whether this machine draws Chinese: without such a font all its characters are the same empty box.
_HAS_CHINESE = """() => {
  const drawn = ["\u7f13", "\u5b58"].map((letter) => {
    const canvas = Object.assign(document.createElement("canvas"), { width: 40, height: 40 });
    const pen = canvas.getContext("2d");
    pen.font = "30px sans-serif";
    pen.fillText(letter, 2, 32);
    return canvas.toDataURL();
  });
  return drawn[0] !== drawn[1];
}"""
_CHINESE = re.compile(r'<html lang="zh')
_ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
]


def find_chromium() -> str | None:
    """Path of a Chromium: environment variable CHROMIUM, else the first known name on PATH, else None."""
    named = os.environ.get("CHROMIUM")
    return named or next((path for name in CHROMIUM_NAMES if (path := shutil.which(name))), None)


def wanted_photos(notebook: dict) -> Iterator[tuple[str, dict]]:
    """(sha, output) for each output of a notebook that names a photo."""
    for cell in notebook["cells"]:
        for output in cell.get("outputs", ()):
            sha = output.get("metadata", {}).get("minikv", {}).get("photo", "")
            if re.fullmatch(r"[0-9a-f]{8,64}", sha):
                yield sha, output


def known_pictures(notebooks: Iterable[dict]) -> dict[str, str]:
    """sha -> PNG (base64) of the pictures that these notebooks already hold."""
    pictures = {}
    for notebook in notebooks:
        for sha, output in wanted_photos(notebook):
            if "image/png" in output["data"]:
                picture = output["data"]["image/png"]
                pictures[sha] = picture if isinstance(picture, str) else "".join(picture)
    return pictures


def take_photos(shas: set[str], pages: Path, chromium: str) -> dict[str, str]:
    """sha -> PNG (base64) of ``pages/<sha>.html``, for those that exist and have an element "photo".

    A page whose script raised has none: half of its drawing would be missing. Nor has a Chinese page where Chromium
    finds no Chinese font.
    """
    from playwright.sync_api import sync_playwright

    pictures = {}
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=chromium, args=_ARGUMENTS)
        context = browser.new_context(
            device_scale_factor=1, offline=True, viewport={"width": 900, "height": 600}
        )
        context.route("**/*", lambda route: route.abort())
        has_chinese = context.new_page().evaluate(_HAS_CHINESE)
        for sha in sorted(shas):
            path = pages / f"{sha}.html"
            if not path.is_file():
                continue
            html = path.read_text(encoding="utf-8")
            if _CHINESE.search(html) and not has_chinese:
                continue
            if png := _photo(context.new_page(), html):
                pictures[sha] = base64.b64encode(small(png)).decode() + "\n"  # as IPython ends them
        browser.close()
    return pictures


def _photo(page: Any, html: str) -> bytes:
    """A PNG, or nothing: the build says which photo is missing."""
    from playwright.sync_api import Error

    raised: list[Error] = []
    page.on("pageerror", lambda error: raised.append(error))
    png = b""
    with suppress(Error):
        page.set_content(html, timeout=PAGE_SECONDS * 1000)
        png = page.locator("#photo").screenshot(
            animations="disabled", omit_background=True, timeout=PAGE_SECONDS * 1000
        )
    page.close()
    return b"" if raised else png


def small(png: bytes) -> bytes:
    """The same picture in at most 128 colours: a widget has few, and a notebook carries several pictures.

    The colours chosen cover those that are there: a small patch keeps its own, beside a thousand greys of text. What
    stands on nothing, as a plot does, stays so: there Pillow has one way to choose colours, and not this one.
    """
    from PIL import Image

    picture: Image.Image = Image.open(io.BytesIO(png))
    if picture.mode == "RGBA" and picture.getchannel("A").getextrema() != (255, 255):
        picture = picture.quantize(128, Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE)
    else:
        picture = picture.convert("RGB")
        picture = picture.quantize(128, Image.Quantize.MAXCOVERAGE, kmeans=3, dither=Image.Dither.NONE)
    written = io.BytesIO()
    picture.save(written, "PNG", optimize=True)
    return min(png, written.getvalue(), key=len)


def insert_pictures(notebook: dict, pictures: dict[str, str]) -> list[str]:
    """In place: each output that names a photo gets its PNG. Returns the shas that have none."""
    missing = []
    for sha, output in wanted_photos(notebook):
        output["data"].pop("image/png", None)
        if sha in pictures:
            output["data"]["image/png"] = pictures[sha]
        else:
            missing.append(sha)
    return missing
