"""From an address in a notebook or a document to the page that has it; and every link of the written site, followed."""

import posixpath
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

from tools.project import Project
from tools.site.notebook import Pictures
from tools.site.pages import Page, Plan

_PICTURES = (".png", ".svg", ".gif", ".jpg", ".webp")
_NO_SLUG = re.compile(r"[^\w\- ]")


@dataclass
class Links:
    """Rewrites addresses. A file that is no page leads to the repository, a picture comes along.

    ``broken`` collects "source: address" of what is neither.
    """

    plan: Plan
    project: Project
    pictures: Pictures
    broken: list[str] = field(default_factory=list)

    def of(self, page: Page) -> Callable[[str], str]:
        """Return the function that ``page`` asks for each address of its source."""
        return lambda address: self._rewritten(page, address)

    def _rewritten(self, page: Page, address: str) -> str:
        path = self._of_repository(page, address)
        if path is None:
            return address
        path, _, fragment = path.partition("#")
        there = self.plan.page_of(path, page.lang)
        behind = f"#{slug(fragment)}" if fragment else ""
        if there is not None:
            return between(page.path, there.path) + behind
        file = self.plan.root / path
        if not file.exists():
            self.broken.append(f"{page.source}: {address}")
            return address
        if file.suffix in _PICTURES:
            return f"{page.up}/pictures/{self.pictures.add(file.read_bytes(), file.suffix)}"
        return self.project.file(path) + (f"#{fragment}" if fragment else "")

    def _of_repository(self, page: Page, address: str) -> str | None:
        """The path in the repository that ``address`` means, with its fragment; None: it leads elsewhere."""
        ours = self.project.file("")
        if address.startswith(ours):
            return unquote(address.removeprefix(ours))
        parts = urlsplit(address)
        if parts.scheme or parts.netloc:
            return None
        folder = posixpath.dirname(page.source)
        path = posixpath.normpath(posixpath.join(folder, unquote(parts.path))) if parts.path else page.source
        return f"{path}#{unquote(parts.fragment)}" if parts.fragment else path


def slug(fragment: str) -> str:
    """The id of the heading that a fragment means: Jupyter writes "The-question", GitHub "the-question"."""
    return _NO_SLUG.sub("", fragment.lower())


def between(here: str, there: str) -> str:
    """The relative address of one page of the site on another."""
    return posixpath.relpath(there, posixpath.dirname(here))


class _Addresses(HTMLParser):
    """What a page names: its ids, the addresses that it leads to, and those that a browser loads by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.loaded: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if ("rel", "canonical") in attrs:
            return  # the page's own address: nothing is loaded
        for name, value in attrs:
            if name == "id" and value:
                self.ids.add(value)
            elif name in ("href", "src", "srcset") and value is not None:
                (self.links if (tag, name) == ("a", "href") else self.loaded).append(value)


def problems(folder: Path) -> list[str]:
    """Follow every link of the site in ``folder``: what leads nowhere, and what would be loaded from another host."""
    pages = {path: _read(path) for path in sorted(folder.rglob("*.html"))}
    found = []
    for path, page in pages.items():
        name = path.relative_to(folder).as_posix()
        found += [
            f"{name} loads {address}"
            for address in page.loaded
            if (urlsplit(address).scheme or urlsplit(address).netloc) and not address.startswith("data:")
        ]
        for address in {*page.links, *page.loaded}:
            parts = urlsplit(address)
            if parts.scheme or parts.netloc:
                continue
            there = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if there.is_dir():
                there /= "index.html"
            if not there.is_file():
                found.append(f"{name}: {address} is not there")
            elif parts.fragment and there in pages and unquote(parts.fragment) not in pages[there].ids:
                found.append(f"{name}: {address} has no such place")
    return found


def _read(path: Path) -> _Addresses:
    parser = _Addresses()
    parser.feed(path.read_text(encoding="utf-8"))
    return parser
