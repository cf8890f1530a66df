"""The index of the search: every section of every page as text. One file a language, loaded at the first question.

The script looks for the words as they are written, an English one where a word begins: that finds a Chinese phrase, an
identifier and the beginning of a word alike, with neither a dictionary nor a stemmer.
"""

import json
import re
from html import unescape

from minikv.course.ask import entries

_HEADING = re.compile(r'<h[1-4][^>]*\bid="([^"]*)"[^>]*>(.*?)</h[1-4]>', re.DOTALL)
_LEFT_OUT = re.compile(
    r"<(script|style|svg|math)\b.*?</\1>|<details class=\"setup\">.*?</details>", re.DOTALL
)
_SOURCE = re.compile(r'<a class="source".*?</a>', re.DOTALL)
_INSIDE_A_WORD = re.compile(r"</?(?:span|wbr)\b[^>]*>")  # colours of code
_TAG = re.compile(r"<[^>]+>")


def sections(title: str, address: str, html: str) -> list[list[str]]:
    """[title, heading, address, text] of each part of a page, from one heading to the next."""
    found, begin, heading, place = [], 0, "", address
    for match in _HEADING.finditer(html):
        found.append([title, heading, place, _text(html[begin : match.start()])])
        begin, heading, place = match.end(), _text(match[2]), f"{address}#{unescape(match[1])}"
    found.append([title, heading, place, _text(html[begin:])])
    return [each for each in found if each[1] or each[3]]


def asked(lessons: dict[str, tuple[str, str]], lang: str) -> list[list[str]]:
    """The questions of ``minikv ask`` in ``lang``, with all of their wordings: entries that lead to their lesson.

    ``lessons``: {number: (title, address)} of those that have a page.
    """
    return [
        [title, entry.asked[lang], address, " · ".join([*entry.words, entry.call]), "asked"]
        for entry in entries()
        if entry.lesson in lessons
        for title, address in [lessons[entry.lesson]]
    ]


def index_script(entries: list[list[str]]) -> str:
    """A script, since a page that is opened as a file may load no JSON."""
    return f"window.minikvIndex = {json.dumps(entries, ensure_ascii=False, separators=(',', ':'))};\n"


def _text(html: str) -> str:
    words = _INSIDE_A_WORD.sub("", _SOURCE.sub("", _LEFT_OUT.sub(" ", html)))
    return " ".join(unescape(_TAG.sub(" ", words)).split())
