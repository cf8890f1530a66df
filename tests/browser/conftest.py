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


# One module at a time: playwright's event loop must not be running while other tests start theirs.
@pytest.fixture(scope="module")
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
        browser = playwright.chromium.launch(executable_path=executable, chromium_sandbox=sandbox)
        yield browser
        browser.close()


@pytest.fixture
def watched_page(chromium) -> Iterator[Callable[[str], Watched]]:
    """``watched_page(origin)``: a new page that reaches ``origin`` alone ("" for a page without a server)."""
    contexts = []

    def open_page(origin: str, **options) -> Watched:
        context = chromium.new_context(viewport={"width": 1280, "height": 1400}, **options)
        contexts.append(context)
        watched = Watched(context.new_page())

        def gate(route):
            url = route.request.url
            if (origin and url.startswith(origin + "/")) or url.startswith(("data:", "blob:")):
                return route.continue_()
            watched.outside_requests.append(url)
            return route.abort()

        def gate_socket(socket):
            if origin and socket.url.startswith(origin.replace("http", "ws", 1) + "/"):
                socket.connect_to_server()
            else:
                watched.outside_requests.append(socket.url)

        def hear(message):
            if message.type == "error":
                watched.console_errors.append(f"{message.text} ({message.location.get('url', '')})")

        context.route("**/*", gate)
        context.route_web_socket("**/*", gate_socket)
        watched.page.on("console", hear)
        watched.page.on("pageerror", lambda error: watched.console_errors.append(f"uncaught: {error}"))
        return watched

    yield open_page
    for context in contexts:
        context.close()


@pytest.fixture(scope="module")
def lab_server(chromium, tmp_path_factory) -> Iterator[Lab]:
    """One JupyterLab for the tests of a module; it asks for ``chromium`` first, to be skipped with it."""
    with running_lab(tmp_path_factory.mktemp("lab")) as lab:
        yield lab


@pytest.fixture
def lab(lab_server) -> Iterator[Lab]:
    """The JupyterLab; the kernels that a test started end with it."""
    yield lab_server
    lab_server.shut_kernels_down()


@pytest.fixture
def screenshot() -> Callable[[object, str], None]:
    """``screenshot(page_or_locator, name)`` saves ``build/screenshots/name.png``."""

    def save(shot, name: str) -> None:
        SCREENSHOTS.mkdir(parents=True, exist_ok=True)
        shot.screenshot(path=SCREENSHOTS / f"{name}.png")

    return save
