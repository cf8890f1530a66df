"""A real Chromium, and pages that may talk to one server only."""

import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

import pytest

from tests.browser.lab import Lab, running_lab

REPOSITORY = Path(__file__).parents[2]
SCREENSHOTS = REPOSITORY / "build" / "screenshots"
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
VIEWPORT = {"width": 1280, "height": 1400}
# Nothing but this machine can be reached: no name has an address, and no proxy knows better. Routes of playwright
# would do it too, but switch the browser's cache off: every notebook would load all of JupyterLab again.
ALONE = ["--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1", "--no-proxy-server"]


@dataclass
class Watched:
    """A page, and what must stay empty while it is used."""

    page: object
    outside_requests: list[str] = field(default_factory=list)
    console_errors: list[str] = field(default_factory=list)

    def assert_clean(self) -> None:
        """No request left for another host, and the console has no error."""
        assert self.outside_requests == []
        assert self.console_errors == []


# JupyterLab says so where a notebook joins a running kernel, and a widget comes before the kernel has told what it can;
# the widget's messages then take the kernel's main shell.
NOT_OURS = ("Kernel subshells are not supported",)


def _find_chromium(playwright) -> str | None:
    for name in NAMES:
        if found := shutil.which(name):
            return found
    bundled = playwright.chromium.executable_path  # what `playwright install chromium` fetched, if anything
    return bundled if bundled and Path(bundled).exists() else None


def _skip(reason: str) -> NoReturn:
    """Without a browser these tests say why and step aside; in CI they must run."""
    if os.environ.get("CI", "").lower() in ("1", "true"):
        pytest.fail(f"{reason}; in CI the browser tests must run")
    pytest.skip(reason)


# For this folder and no longer: playwright's event loop must not be running while other tests start theirs.
@pytest.fixture(scope="package")
def chromium() -> Iterator[object]:
    """A headless Chromium. Where there is none: skipped with the reason, but a failure in CI."""
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        _skip("playwright is not installed: pip install 'minikv[dev]'")
    with sync_playwright() as playwright:
        executable = _find_chromium(playwright)
        if executable is None:
            _skip(
                f"no Chromium here: none of {', '.join(NAMES)} is on PATH, and playwright has none of its own"
            )
        # The sandbox of Chromium does not start for root, which containers are.
        sandbox = not (hasattr(os, "geteuid") and os.geteuid() == 0)
        browser = playwright.chromium.launch(executable_path=executable, chromium_sandbox=sandbox, args=ALONE)
        yield browser
        browser.close()


@pytest.fixture(scope="package")
def context(chromium) -> Iterator[object]:
    """One context for the pages of all tests: what a page loads from a server, the next one has."""
    made = chromium.new_context(viewport=VIEWPORT)
    yield made
    made.close()


def watch(page, origin: str) -> Watched:
    """``page``, which should reach ``origin`` alone ("" for a page without a server)."""
    watched = Watched(page)
    sockets = origin.replace("http", "ws", 1)

    def seen(url: str) -> None:
        allowed = origin and url.startswith((f"{origin}/", f"{sockets}/"))
        if not allowed and not url.startswith(("data:", "blob:")):
            watched.outside_requests.append(url)

    def hear(message):
        if message.type == "error":
            watched.console_errors.append(f"{message.text} ({message.location.get('url', '')})")

    def raised(error):
        if str(error) not in NOT_OURS:
            watched.console_errors.append(f"uncaught: {error}")

    page.on("request", lambda request: seen(request.url))
    page.on("websocket", lambda socket: seen(socket.url))
    page.on("console", hear)
    page.on("pageerror", raised)
    return watched


@pytest.fixture
def watched_page(chromium, context) -> Iterator[Callable[[str], Watched]]:
    """``watched_page(origin)``: a new page that should reach ``origin`` alone ("" for a page without a server).

    With options of a context (``color_scheme="dark"``) it has a context of its own.
    """
    closing = []

    def open_page(origin: str, **options) -> Watched:
        own = chromium.new_context(**{"viewport": VIEWPORT} | options) if options else None
        page = (own or context).new_page()
        closing.append(own or page)
        return watch(page, origin)

    yield open_page
    for one in closing:
        one.close()


@pytest.fixture(scope="package")
def lab(chromium, tmp_path_factory) -> Iterator[Lab]:
    """One JupyterLab for all tests, with one kernel; it asks for ``chromium`` first, to be skipped with it."""
    with running_lab(tmp_path_factory.mktemp("lab")) as running:
        yield running


@pytest.fixture(scope="package")
def lab_page(context, lab) -> Iterator[Watched]:
    """One page for the notebooks of all tests: JupyterLab is loaded once, which takes longer than a notebook."""
    page = context.new_page()
    yield watch(page, lab.origin)
    page.close()


@pytest.fixture
def readers_page(lab_page, lab) -> Iterator[Watched]:
    """The page of a reader who opens one notebook after the other, with nothing seen yet.

    The notebooks share a kernel, which imports torch once: it is emptied after each, or ended where a cell still runs.
    """
    lab_page.outside_requests.clear()
    lab_page.console_errors.clear()
    yield lab_page
    emptied = lab.forget(lab_page.page)
    # Before its kernel ends, which the page would report.
    lab_page.page.evaluate("() => window.jupyterapp?.shell.currentWidget?.dispose()")
    if not emptied:
        lab.shut_kernels_down()


@pytest.fixture
def screenshot(pytestconfig) -> Callable[[object, str], None]:
    """``screenshot(page_or_locator, name)`` saves ``build/screenshots/name.png``, for people to look at.

    Where the long tests are left out, as by ``make test``, it saves none: no test looks at them.
    """

    def save(shot, name: str) -> None:
        if "not long" in pytestconfig.option.markexpr:
            return
        SCREENSHOTS.mkdir(parents=True, exist_ok=True)
        shot.screenshot(path=SCREENSHOTS / f"{name}.png")

    return save
