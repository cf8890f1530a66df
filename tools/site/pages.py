"""Which pages the site has, and from which file of the repository each is made.

A page's path begins with its language, and is the same behind it in both: the switch of a page leads to its sibling.
A document that is written in English alone is a page in both languages, so that the rest of the page is the reader's.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from minikv.course.lesson_parts import lesson_parts, part_title
from minikv.i18n import LANGUAGES
from tools.notebooks.course import KINDS, Course, Target, open_course
from tools.notebooks.minutes import ROUTES, lesson_minutes, route_minutes
from tools.notebooks.source import Meta

# Markdown of the repository: its name on the site -> its file; "zh" may be missing.
DOCUMENTS = {
    "path_of_a_token": "minikv/nano/README.md",
    "runbook": "docs/runbook.md",
    "results": "RESULTS.md",
    "names": "docs/names.md",
    "t4": "docs/t4.md",
    "gpu": "docs/gpu.md",
    "architecture": "docs/architecture.md",
    "contributing": "docs/contributing.md",
    "site": "docs/site.md",
}


@dataclass(frozen=True)
class Page:
    """One page to be made. ``path`` is below the site's root, ``source`` below the repository's ("": none)."""

    kind: str  # lesson, exercise, document, api, calculator, playground, model, home
    lang: str
    path: str
    source: str = ""
    key: str = ""  # a stem, a document's name, a room

    @property
    def written_in(self) -> str:
        """The language of its text."""
        return "en" if self.kind in ("document", "api") and ".zh." not in self.source else self.lang

    @property
    def up(self) -> str:
        """The way from its folder to the site's root: "../.."."""
        return "/".join([".."] * self.path.count("/"))

    @property
    def other(self) -> str:
        """The language that its switch leads to."""
        return "zh" if self.lang == "en" else "en"

    def sibling(self, lang: str) -> str:
        """The path of the same page in ``lang``."""
        return lang + self.path[2:]


@dataclass(frozen=True)
class Entry:
    """A lesson in a list: its number, title and minutes, and the path of its page."""

    number: str
    stem: str
    title: str
    minutes: int
    path: str


@dataclass(frozen=True)
class Part:
    """Some lessons of the course, one after the other, under a title."""

    title: str
    lessons: list[Entry]


@dataclass(frozen=True)
class Plan:
    """All pages of a site made from ``root``; ``only`` keeps those lessons (by stem), and leaves out the documents."""

    root: Path
    rooms: tuple[str, ...] = ()
    only: frozenset[str] = frozenset()

    @cached_property
    def course(self) -> Course:
        return open_course(self.root)

    @cached_property
    def pages(self) -> list[Page]:
        return [page for lang in LANGUAGES for page in self._in(lang)]

    @cached_property
    def minutes(self) -> dict[str, int]:
        """{number of a lesson: its minutes}."""
        return {lesson.number: lesson_minutes(self.course, lesson) for lesson in self.course.lessons}

    @cached_property
    def by_source(self) -> dict[str, dict[str, Page]]:
        """{a file of the repository: {language of the reader: its page}}."""
        found: dict[str, dict[str, Page]] = {}
        for page in self.pages:
            if page.source:
                found.setdefault(page.source, {})[page.lang] = page
        return found

    def page_of(self, source: str, lang: str) -> Page | None:
        """The page of a file for a reader of ``lang``, if the site has one."""
        pages = self.by_source.get(source, {})
        return pages.get(lang) or next(iter(pages.values()), None)

    def parts(self, lang: str) -> list[Part]:
        """The lessons that have a page in ``lang``, part by part."""
        by_number = {lesson.number: lesson for lesson in self.course.lessons}
        parts = [
            Part(
                part_title(key, lang),
                [entry for number in numbers if (entry := self._entry("lesson", lang, by_number[number]))],
            )
            for key, numbers in lesson_parts(by_number).items()
        ]
        return [part for part in parts if part.lessons]

    def routes(self, lang: str) -> list[tuple[str, list[Entry], int]]:
        """(key, lessons, minutes) of each route whose lessons all have a page in ``lang``."""
        entries = {entry.number: entry for part in self.parts(lang) for entry in part.lessons}
        return [
            (key, [entries[number] for number in numbers], route_minutes(self.course, key))
            for key, numbers in ROUTES.items()
            if entries.keys() >= set(numbers)
        ]

    def way_on(self, page: Page) -> list[tuple[str, Entry]]:
        """("prev", ...) and ("next", ...): the notebooks of the same kind before and after this one."""
        if page.kind not in KINDS:
            return []
        around = zip(("prev", "next"), self.course.neighbours(page.kind, page.key), strict=True)
        return [
            (rel, entry)
            for rel, lesson in around
            if lesson and (entry := self._entry(page.kind, page.lang, lesson))
        ]

    def _entry(self, kind: str, lang: str, lesson: Meta) -> Entry | None:
        page = self.page_of(Target(kind, lang, lesson.stem).path.as_posix(), lang)
        if page is None:
            return None
        minutes = self.minutes[lesson.number]
        return Entry(lesson.number, lesson.stem, lesson.title[lang], minutes, page.path)

    def _in(self, lang: str) -> Iterable[Page]:
        yield Page("home", lang, f"{lang}/index.html")
        yield Page("calculator", lang, f"{lang}/calculator.html")
        yield Page("playground", lang, f"{lang}/playground.html")
        yield Page("model", lang, f"{lang}/model.html")
        for lesson in self.course.lessons:
            if self.only and lesson.stem not in self.only:
                continue
            target = Target("lesson", lang, lesson.stem)
            path = f"{lang}/lessons/{lesson.stem}.html"
            yield Page("lesson", lang, path, target.path.as_posix(), lesson.stem)
            if lesson.stem in self.course.with_exercises:
                target = Target("exercise", lang, lesson.stem)
                path = f"{lang}/exercises/{lesson.stem}.html"
                yield Page("exercise", lang, path, target.path.as_posix(), lesson.stem)
        if self.only:
            return
        for name, english in DOCUMENTS.items():
            own = english.removesuffix(".md") + ".zh.md"
            source = own if lang == "zh" and (self.root / own).is_file() else english
            yield Page("document", lang, f"{lang}/{name}.html", source, name)
        if self.rooms:
            yield Page("api", lang, f"{lang}/api/index.html")
        for room in self.rooms:
            yield Page("api", lang, f"{lang}/api/{room}.html", key=room)
