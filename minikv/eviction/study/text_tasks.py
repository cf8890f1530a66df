"""The same five kinds of task as English text, for models that read it. No torch. Lesson 14.

    >>> text = make_text("niah", length=200, count_tokens=lambda text: len(text.split()))
    >>> text.question.endswith("is"), text.share(f"It is {text.answers[0]}.")
    (True, 1.0)

The kinds are RULER's (Hsieh et al., 2024, arXiv 2404.06654), and so is the score: the share of right words that stand
in the answer. The sentences are ours, and repeated sentences fill the text between the needles, so figures are close to
RULER's and not the same. A text is made from a seed, as long as a number of tokens of any tokenizer allows.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import cycle, islice

import numpy as np

from minikv.errors import ArgumentError, check_count

HAY = (
    "The road follows the river.",
    "Rain fell during the night.",
    "A train leaves every hour.",
    "The market opens in the morning.",
    "Nobody had closed the gate.",
)
WORDS = tuple(
    """amber anchor apple arrow barley basket beacon birch blanket bottle bridge bucket butter button cabin candle
    canyon carpet castle cedar cellar chapel cherry circle clover cobalt copper coral cotton cradle crystal curtain
    daisy desert dolphin engine falcon feather fiddle forest fountain garlic ginger glacier granite hammer harbor
    hazel helmet honey island ivory jacket jasmine kettle ladder lantern lemon linen lizard magnet maple marble
    meadow mirror needle nutmeg olive onion orchid oyster paddle paper pearl pebble pepper pillow pocket pumpkin
    quartz rabbit ribbon rocket saddle salmon sandal shadow silver spider spoon sugar table temple thimble ticket
    timber tulip tunnel turtle valley velvet violin walnut willow window winter zipper""".split()
)
_KEYS, _VALUES, _CHAIN, _OFTEN, _TIMES = 24, 4, 4, 5, 8


@dataclass(frozen=True)
class Text:
    """``context`` is read before an eviction, ``question`` after it (or before it too, if an eviction may see it).

    ``answers``: the words that the answer should contain; empty for a text of unknown answers.
    """

    context: str
    question: str
    answers: tuple[str, ...]

    def share(self, said: str) -> float:
        """The share of ``answers`` that stand in ``said``, of 1; capital letters make no difference."""
        check_count("answers", len(self.answers))
        return sum(answer.lower() in said.lower() for answer in self.answers) / len(self.answers)


@dataclass(frozen=True)
class _TextQuestion:
    """The needles of a task and its question. ``needles`` are sentences, told in their order."""

    needles: tuple[str, ...]
    question: str
    answers: tuple[str, ...]
    before: str = "Read this text; questions about it will follow.\n\n"
    between: tuple[str, ...] = HAY


def make_text(
    task: str,
    *,
    length: int,
    count_tokens: Callable[[str], int],
    seed: int = 0,
    number: int = 0,
    depth: float | None = None,
) -> Text:
    """Text ``number`` of ``task``, one of ``TEXT_TASKS``: context and question have at most ``length`` tokens.

    ``count_tokens`` counts the tokens of a text. ``depth``: where the needles stand, 0 the beginning and 1 the end;
    None: anywhere. Raises ``ArgumentError`` for an unknown task, for a bad count, a depth outside 0 to 1, and for a
    ``length`` that does not hold the needles and the question.
    """
    if task not in TEXT_TASKS:
        raise ArgumentError("unknown_choice", what="task", value=task, known=", ".join(TEXT_TASKS))
    for what, value, least in (("length", length, 1), ("seed", seed, 0), ("number", number, 0)):
        check_count(what, value, least)
    random = np.random.default_rng([seed, number])
    asked = TEXT_TASKS[task](random)
    places = np.sort(random.random(len(asked.needles)))
    if depth is not None:
        if not 0 <= depth <= 1:
            raise ArgumentError("out_of_range", what="depth", value=depth, low=0, high=1)
        places[:] = depth

    def context(sentences: int) -> str:
        return asked.before + " ".join(_hidden(asked, places, sentences)) + "\n\n"

    def tokens(sentences: int) -> int:
        return count_tokens(context(sentences) + asked.question)

    if tokens(0) > length:
        raise ArgumentError("out_of_range", what="length", value=length, low=tokens(0) - 1, high=2**31)
    return Text(context(_most(tokens, length)), asked.question, asked.answers)


def _most(tokens: Callable[[int], int], length: int) -> int:
    """The largest count with ``tokens(count) <= length``, by bisection: ``tokens`` never falls."""
    low, high = 0, 1
    while high <= length and tokens(high) <= length:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if tokens(middle) <= length else (low, middle)
    return low


def _hidden(asked: _TextQuestion, places: np.ndarray, sentences: int) -> list[str]:
    """``sentences`` of filler, with the needles among them at their ``places`` (of 1)."""
    told = list(islice(cycle(asked.between), sentences))
    for needle, place in reversed(list(zip(asked.needles, places.tolist(), strict=True))):
        told.insert(round(place * sentences), needle)
    return told


def _needle(key: str, value: str) -> str:
    return f'The number for the word "{key}" is {value}.'


def _drawn(random: np.random.Generator, words: int, numbers: int) -> tuple[list[str], list[str]]:
    """Different words, and different numbers of five digits."""
    values = 10_000 + random.permutation(90_000)[:numbers]
    return [WORDS[place] for place in random.permutation(len(WORDS))[:words]], [
        str(value) for value in values
    ]


def _niah(random: np.random.Generator, keys: int = 1, values: int = 1) -> _TextQuestion:
    words, numbers = _drawn(random, keys, keys - 1 + values)
    needles = [
        _needle(word, number) for word, number in zip([words[0]] * values + words[1:], numbers, strict=True)
    ]
    key = words[0]
    are = "is the number" if values == 1 else f"are the {values} numbers"
    again = "number" if values == 1 else f"{values} numbers"
    question = f'What {are} for the word "{key}" in the text above? The {again} for "{key}" {are.split()[0]}'
    told = tuple(needles[place] for place in random.permutation(len(needles)))
    return _TextQuestion(told, question, tuple(numbers[:values]))


def _multikey(random: np.random.Generator) -> _TextQuestion:
    return _niah(random, keys=_KEYS)


def _multivalue(random: np.random.Generator) -> _TextQuestion:
    return _niah(random, values=_VALUES)


def _tracking(random: np.random.Generator) -> _TextQuestion:
    words, (number, other) = _drawn(random, 2 * _CHAIN, 2)
    chains = words[:_CHAIN], words[_CHAIN:]
    told = [
        [
            f"The value of {word} is {value}."
            if place == 0
            else f"The value of {word} is the value of {chain[place - 1]}."
            for place, word in enumerate(chain)
        ]
        for chain, value in zip(chains, (number, other), strict=True)
    ]
    needles = tuple(sentence for pair in zip(*told, strict=True) for sentence in pair)
    question = (
        f"Which {_CHAIN} words have the value {number} in the text above, directly or through another word? "
        f"The {_CHAIN} words with the value {number} are"
    )
    return _TextQuestion(needles, question, tuple(chains[0]))


def _aggregation(random: np.random.Generator) -> _TextQuestion:
    words, _ = _drawn(random, len(WORDS), 0)
    often, others = words[:_OFTEN], words[_OFTEN:]
    rare = [f"{one}{two}" for one in others for two in others if one != two]
    needles = [often[place] for place in random.permutation(_OFTEN * _TIMES) % _OFTEN]
    question = (
        f"Which {_OFTEN} words are the most frequent in the list above? "
        f"The {_OFTEN} most frequent words of the list are"
    )
    before = "Here is a list of words. Some are in it more often than others.\n\n"
    return _TextQuestion(
        tuple(needles), question, tuple(often), before, tuple(random.permutation(rare).tolist())
    )


TEXT_TASKS: dict[str, Callable[[np.random.Generator], _TextQuestion]] = {
    "niah": _niah,
    "multikey": _multikey,
    "multivalue": _multivalue,
    "tracking": _tracking,
    "aggregation": _aggregation,
}
"""The tasks by name; "niah", a needle in a haystack, is what ``tasks`` calls "single"."""
