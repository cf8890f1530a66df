"""minikv/course/data/glossary.toml: one word per thing. Finds words in prose that the glossary rules out."""

import re
import tomllib
from dataclasses import dataclass
from pathlib import Path

from tools.notebooks.prose import join_chinese_lines, own_words


@dataclass(frozen=True)
class Ban:
    """A word that prose may not use, what to write instead, and when the ban holds.

    ``if_en`` / ``unless_en``: regular expressions over the English sibling cell; the ban holds only where
    the first is found and the second is not. ``lessons``: only in these. ``fine``: longer words that
    contain the banned one and mean something else.
    """

    word: str
    lang: str
    instead: str
    if_en: str = ""
    unless_en: str = ""
    lessons: tuple[str, ...] = ()
    fine: tuple[str, ...] = ()

    def holds(self, lesson: str, english: str) -> bool:
        if self.lessons and lesson not in self.lessons:
            return False
        if self.if_en and not re.search(self.if_en, english, re.IGNORECASE):
            return False
        return not (self.unless_en and re.search(self.unless_en, english, re.IGNORECASE))

    def found_in(self, words: str) -> bool:
        for longer in self.fine:
            words = words.replace(longer, " ")
        if self.lang == "en":
            return bool(re.search(rf"\b{re.escape(self.word)}\b", words, re.IGNORECASE))
        return self.word in words


def read_glossary(path: Path) -> list[Ban]:
    """The bans of ``path``. An unknown field is a ``TypeError``: a misspelt condition must not be ignored."""
    bans = []
    for entry in tomllib.loads(path.read_text(encoding="utf-8"))["word"]:
        for ban in entry.get("never", ()):
            lang = ban.get("lang", "zh")
            lists = {name: tuple(ban[name]) for name in ("lessons", "fine") if name in ban}
            bans.append(Ban(**{**ban, **lists, "lang": lang, "instead": entry[lang]}))
    return bans


def forbidden_words(bans: list[Ban], text: str, lang: str, lesson: str, english: str) -> list[Ban]:
    """The bans that ``text`` breaks. ``english`` is the English sibling, for the conditions."""
    words = own_words(join_chinese_lines(text) if lang == "zh" else text)
    return [ban for ban in bans if ban.lang == lang and ban.holds(lesson, english) and ban.found_in(words)]
