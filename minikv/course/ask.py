"""ask: from an identifier or a question in plain words to the lesson that answers it and the call that computes it.

    >>> print(ask("num_gpu_blocks").found[0].call)
    minikv.cache.allocate_kv_cache

It searches ``data/index.toml`` and the words of ``data/glossary.toml``. No model and no network is asked.
"""

import math
import re
import tomllib
from collections import Counter
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from importlib.resources import files
from typing import Any

from minikv.errors import ArgumentError
from minikv.i18n import escape_controls, pick_language, text
from minikv.shown import Shown, html_of, one_line, text_of

MOST = 5  # answers
LONGEST = 200  # characters of a question
LEAST = 0.4  # of the weight of the words that are asked for, which an entry must have
BESIDE = 0.6  # of what the best entry has
LONG = 6  # letters of a wording that says more than the words of which it is made
NEAR = 0.8  # how like a word must be to one of the index, where none is the same
_LATIN = re.compile(r"[a-z0-9_]+")
_CHINESE = re.compile(r"[\u4e00-\u9fff]+")
# Words of a question that say nothing of its subject.
_IDLE = frozenset(
    "a after all an and are at can did do does for from get how i if in is it its many me minikv much my need not of "
    "on one or out should so than that the their then there they this to was we what when where which why will with "
    "you your".split()
)
_IDLE_CHINESE = frozenset(
    ("什么", "怎么", "怎样", "如何", "为什", "多少", "哪个", "我的", "一个", "可以", "能不")
)


@dataclass(frozen=True)
class Entry:
    """One question of the index, or one word of the glossary. ``call`` is a dotted name, "" where there is none."""

    asked: dict[str, str]  # by language
    words: tuple[str, ...]
    lesson: str
    call: str


@dataclass(frozen=True, repr=False)
class Answers:
    """What was found for ``asked``, the best first. A notebook shows it as a table; ``shown("zh")`` is Chinese."""

    asked: str
    found: tuple[Entry, ...]

    def shown(self, lang: str = "en") -> Shown:
        """Return the questions, their lessons with the titles, and the calls.

        Raises ``ArgumentError`` for another language.
        """
        lang = pick_language(lang)
        key = "found" if self.found else "nothing"
        title = text(f"ask.{key}", lang, asked=escape_controls(self.asked))
        if not self.found:
            return Shown(title, lines=[text("ask.way_out", lang)])
        head = [text(f"ask.{column}", lang) for column in ("question", "lesson", "call")]
        rows = [[entry.asked[lang], titled(entry.lesson, lang), entry.call] for entry in self.found]
        return Shown(title, head, rows)

    text = text_of
    _repr_html_ = html_of

    def __repr__(self) -> str:
        return one_line("Answers", self.asked, f"{len(self.found)} found")

    def as_dict(self, lang: str = "en") -> dict[str, Any]:
        """Return the same for JSON."""
        lang = pick_language(lang)
        return {
            "asked": self.asked,
            "answers": [
                {"question": one.asked[lang], "lesson": one.lesson, "call": one.call} for one in self.found
            ],
        }


def ask(words: str) -> Answers:
    """Find where the course answers ``words``: identifiers, an error message, or a question in English or Chinese.

    An entry is found that has at least two fifths of the words, each weighted by how few entries have it, and three
    fifths of what the best entry has. Where the index does not know a word, the nearest one counts, since identifiers
    are misspelt. Raises ``ArgumentError`` for what is not a string of 1 to 200 characters.
    """
    if not isinstance(words, str) or not 0 < len(words.strip()) <= LONGEST:
        raise ArgumentError("ask_words", most=LONGEST)
    index = _index()
    asked = {_nearest(word, index.weights) for word in words_of(words)}
    total = sum(index.weight(word) for word in asked)
    whole = words.strip().casefold()
    shares = [
        sum(index.weight(word) for word in asked & own) / total if total else 0.0 for own in index.words
    ]
    least = max(LEAST, BESIDE * max(shares))
    named = [_named(entry, whole) for entry in index.entries]
    places = [place for place, share in enumerate(shares) if named[place] == 2 or share >= least]
    places.sort(key=lambda place: (-named[place], -shares[place]))
    return Answers(words.strip(), tuple(index.entries[place] for place in places[:MOST]))


def entries() -> tuple[Entry, ...]:
    """Return the questions of ``data/index.toml``, in its order."""
    return tuple(
        Entry({"en": one["en"], "zh": one["zh"]}, tuple(one["words"]), one["lesson"], one["call"])
        for one in _read("index.toml")["entry"]
    )


def titled(lesson: str, lang: str) -> str:
    """Return a lesson with its title: "02 · What does one token cost?"; the number alone where no notebook is there."""
    title = _titles(lang).get(lesson.lower())
    return f"{lesson} · {title}" if title else lesson


def words_of(said: str) -> set[str]:
    """Return what is compared: identifiers and their parts, words without a plural's s, pairs of Chinese letters."""
    said = said.casefold()
    found = set()
    for word in _LATIN.findall(said):
        parts = [part for part in word.split("_") if part]
        found |= {_single(part) for part in parts if part not in _IDLE} | (
            {word} if len(parts) > 1 else set()
        )
    for run in _CHINESE.findall(said):
        pairs = {run[at : at + 2] for at in range(max(1, len(run) - 1))}
        found |= pairs - _IDLE_CHINESE
    return found


@dataclass(frozen=True)
class _Index:
    entries: tuple[Entry, ...]
    words: tuple[set[str], ...]  # of each entry
    weights: dict[str, float]

    def weight(self, word: str) -> float:
        """A word that few entries have counts for more; one that none has, as if one had it."""
        return self.weights.get(word, math.log(1 + len(self.entries)))


@cache
def _index() -> _Index:
    found = (*entries(), *_glossary())
    words = tuple(words_of(" ".join((*entry.words, *entry.asked.values()))) for entry in found)
    counts = Counter(word for own in words for word in own)
    weights = {word: math.log(1 + len(found) / count) for word, count in counts.items()}
    return _Index(found, words, weights)


def _glossary() -> list[Entry]:
    words = _read("glossary.toml")["word"]
    return [
        Entry(
            {lang: f"{word[lang]}: {word[f'means_{lang}']}" for lang in ("en", "zh")},
            (*word["en"].split(" / "), *word["zh"].split(" / "), *word.get("seen", ())),
            word["lesson"],
            word.get("call", ""),
        )
        for word in words
    ]


def _named(entry: Entry, whole: str) -> int:
    """2: ``whole`` is a wording of the entry, letter for letter. 1: it contains a longer one. 0: neither."""
    names = [name.casefold() for name in (*entry.words, *entry.asked.values())]
    return 2 if whole in names else int(any(len(name) >= LONG and name in whole for name in names))


def _nearest(word: str, known: dict[str, float]) -> str:
    if word in known or not word.isascii():
        return word
    return next(iter(get_close_matches(word, known, 1, NEAR)), word)


def _single(word: str) -> str:
    return word[:-1] if len(word) > 3 and word.endswith("s") and not word.endswith("ss") else word


@cache
def _titles(lang: str) -> dict[str, str]:
    from minikv.course.progress_table import lesson_titles

    return dict(lesson_titles(lang))


def _read(name: str) -> dict[str, Any]:
    return tomllib.loads((files("minikv.course") / "data" / name).read_text(encoding="utf-8"))
