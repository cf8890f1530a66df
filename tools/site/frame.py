"""What every page has around its text: the bar with its switches, the list of lessons, and the way on.

``templates/`` has the HTML. Every page can be read without a script; with one it has a theme, search and plots.
"""

from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from tools.site.links import between
from tools.site.markdown import Heading
from tools.site.pages import Page, Plan
from tools.site.words import words

_HTML_LANG = {"en": "en", "zh": "zh-CN"}
# The bar's places: a word, and the page below the language's folder.
_PLACES = {
    "home": "index.html",
    "calculator": "calculator.html",
    "playground": "playground.html",
    "model": "model.html",
    "runbook": "runbook.html",
    "api": "api/index.html",
    "results": "results.html",
}


@dataclass
class Text:
    """What stands on a page: its title, its HTML, its headings; ``actions`` are buttons that lead on (words, address).

    ``styles`` and ``modules`` are names of files in assets/ that this page loads beside the site's own.
    """

    title: str
    html: str
    headings: list[Heading] = field(default_factory=list)
    actions: list[tuple[str, str]] = field(default_factory=list)
    lead: str = ""
    styles: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()


def framed(plan: Plan, page: Page, text: Text, site: str = "") -> str:
    """Return the whole page. ``site`` is the site's own address, "" while it is online nowhere."""
    there = {each.path for each in plan.pages}
    places = {name: f"{page.lang}/{path}" for name, path in _PLACES.items()}
    return filled(
        "page.html",
        page,
        text=text,
        address=f"{site}/{page.path}" if site else "",
        places=[(name, path) for name, path in places.items() if path in there],
        parts=plan.parts(page.lang),
        way=plan.way_on(page),
        contents=[heading for heading in text.headings if heading.level == 2],
    )


def filled(template: str, page: Page | None = None, **values: Any) -> str:
    """Fill in a template. Of ``page`` it knows the language, its words, and the way to another path of the site."""
    if page is not None:
        values |= {
            "page": page,
            "said": words(page.lang),
            "other": page.other,
            "up": page.up,
            "to": partial(between, page.path),
        }
    return _templates().get_template(template).render(html_lang=_HTML_LANG, **values)


@cache
def _templates() -> Environment:
    return Environment(
        loader=FileSystemLoader(Path(__file__).with_name("templates")),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
