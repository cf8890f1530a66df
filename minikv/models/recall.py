"""The task of the tiny models: facts among other words, then questions about them. No torch.

    <bos> the old cat ada paris sleeps near ben oslo a red door ... ? ben oslo behind ? ada paris
                      fact              fact                        question        question, answer

A fact is a name and a city. A question is the mark "?" and a name, and the next word is the answer: the city that the
context gave that name. No other word reveals it, so the share of right answers shows what a cache, a precision or an
eviction policy has kept. Documents are made from a seed, so lessons, benchmarks, tests and the training read the same
ones, and there is no file of them.
"""

from bisect import bisect
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from minikv.errors import ArgumentError, check_count

SPECIALS = ("<pad>", "<unk>", "<bos>", "?")
NAMES = tuple(
    """ada alan alice amir amy anna ben carl chen clara dan dora ella emil emma eric eva finn fred gina
    grace hana hugo ian ines iris ivan jack jane jin joe john kai karl kate lara leo lily lin lucy
    luis mark mary max mei mia mike nina noah nora oscar otto paul petra rosa ruth sam sara sofia tom
    uma vera yuki zoe""".split()
)
CITIES = tuple(
    """accra amman athens austin berlin bern bogota boston busan cairo chicago dakar dallas delhi denver
    dubai dublin geneva hanoi harbin havana jakarta kigali kobe kyiv kyoto lagos lima lisbon london lyon
    madrid manila miami milan minsk montreal moscow mumbai nairobi naples odessa osaka oslo ottawa paris
    perth prague quito riga rome santiago seoul shanghai stockholm sydney taipei tokyo toronto tunis
    turin venice vienna warsaw""".split()
)
# The other words follow each other as in "the old cat sleeps near a red door ...": each kind has a next kind.
_KINDS = (
    "the a my your our every one some".split(),
    "old young small big red blue green white black quiet warm cold soft bright happy round".split(),
    "cat dog bird horse fox tree house door table chair river garden boat book lamp stone".split(),
    "sleeps stands sits waits rests lies plays sings falls turns hides stays".split(),
    "near under behind over above below beside with without before after on".split(),
)
FILLERS = tuple(word for kind in _KINDS for word in kind)
WORDS = (*SPECIALS, *NAMES, *CITIES, *FILLERS)
"""The vocabulary: a word's token id is its index."""

BOS, MARK = SPECIALS.index("<bos>"), SPECIALS.index("?")
FIRST_NAME = len(SPECIALS)
FIRST_CITY = FIRST_NAME + len(NAMES)
FIRST_FILLER = FIRST_CITY + len(CITIES)

TRAINING_SEEDS = 2**32
"""The training used documents of this seed and above, so documents of smaller seeds are new to the models."""

# Every filler has four successors, so a model can learn the text between the facts, but not by heart.
_CHANCES = list(accumulate((0.4, 0.3, 0.2)))


@dataclass(frozen=True)
class Question:
    """One question of a document. The logits at ``position``, the place of the name, should name the answer.

    ``source`` is the place of the answer among the facts: the token that a cache has to keep.
    ``answer_id`` is the token id of ``answer``.
    """

    position: int
    source: int
    name: str
    answer: str
    answer_id: int


@dataclass(frozen=True, eq=False)
class Document:
    """A context and questions about it: ``tokens`` [n] int64, <bos> first, and the questions in their order."""

    tokens: np.ndarray
    questions: tuple[Question, ...]

    @property
    def positions(self) -> np.ndarray:
        """[questions] int64: the positions of the questions; ``tokens[positions + 1]`` are the right answers."""
        return np.array([question.position for question in self.questions])

    @property
    def words(self) -> list[str]:
        """The tokens as words."""
        return [WORDS[token] for token in self.tokens]

    @property
    def text(self) -> str:
        """The words behind <bos>; a tokenizer of the tiny models turns it into ``tokens``."""
        return " ".join(self.words[1:])


@dataclass(frozen=True)
class Prompt:
    """A text that ends with a question, and the word that answers it."""

    text: str
    answer: str


def recall_documents(
    count: int, *, seed: int = 0, facts: int = 24, context: int = 192, queries: int = 16, span: int = 64
) -> list[Document]:
    """Return ``count`` documents of 1 + ``context`` + ``span`` tokens each, by default as long as the training's last
    ones.

    ``context`` tokens hold ``facts`` facts of 2 tokens, ``span`` tokens hold ``queries`` questions of 3 (the answer
    included); fillers take the rest. No name and no city is in two facts; every fact is asked for once before any
    is asked for twice. Document i depends on ``seed`` and i alone, so a longer list begins with the same documents.

    Raises ``ArgumentError`` for an invalid count, more facts than names, and facts or questions without room.
    """
    for what, value, least in (("count", count, 1), ("seed", seed, 0), ("facts", facts, 1)):
        check_count(what, value, least)
    for what, value in (("context", context), ("queries", queries), ("span", span)):
        check_count(what, value)
    if facts > len(NAMES):
        raise ArgumentError("out_of_range", what="facts", value=facts, low=0, high=len(NAMES))
    for what, value, most, room, tokens in (
        ("facts", facts, context // 2, "context", context),
        ("queries", queries, span // 3, "span", span),
    ):
        if value > most:
            raise ArgumentError("recall_room", what=what, value=value, most=most, room=room, tokens=tokens)
    return [
        _document(np.random.default_rng([seed, number]), facts, context, queries, span)
        for number in range(count)
    ]


def recall_prompt(seed: int = 0, *, facts: int = 4, context: int = 24) -> Prompt:
    """Return a short text with one question at its end, for a lesson. Raises as ``recall_documents`` does."""
    document = recall_documents(1, seed=seed, facts=facts, context=context, queries=1, span=3)[0]
    return Prompt(document.text.rpartition(" ")[0], document.questions[0].answer)


def _document(random: np.random.Generator, facts: int, context: int, queries: int, span: int) -> Document:
    names = random.permutation(len(NAMES))[:facts] + FIRST_NAME
    cities = random.permutation(len(CITIES))[:facts] + FIRST_CITY
    rounds = [random.permutation(facts) for _ in range(-(-queries // facts))]
    asked = np.concatenate(rounds)[:queries].tolist()
    fillers = iter(_fillers(random, context - 2 * facts + span - 3 * queries))

    tokens, sources, questions = [BOS], [0] * facts, []
    for fact in _places(random, facts, context - 2 * facts):
        if fact is None:
            tokens.append(next(fillers))
        else:
            sources[fact] = len(tokens) + 1
            tokens += [int(names[fact]), int(cities[fact])]
    for place in _places(random, queries, span - 3 * queries):
        if place is None:
            tokens.append(next(fillers))
        else:
            fact = asked[place]
            name, city = int(names[fact]), int(cities[fact])
            questions.append(Question(len(tokens) + 1, sources[fact], WORDS[name], WORDS[city], city))
            tokens += [MARK, name, city]
    return Document(np.array(tokens, np.int64), tuple(questions))


def _places(random: np.random.Generator, units: int, others: int) -> list[int | None]:
    """Return 0 to ``units - 1`` in order, scattered among ``others`` times None."""
    places: list[int | None] = [None] * (units + others)
    for unit, place in enumerate(np.sort(random.permutation(units + others)[:units])):
        places[place] = unit
    return places


def _fillers(random: np.random.Generator, count: int) -> list[int]:
    """Return ``count`` token ids of a Markov chain over the fillers, beginning with any filler of the first kind."""
    if not count:
        return []
    chain = [int(random.integers(len(_KINDS[0])))]
    for chance in random.random(count - 1).tolist():
        chain.append(_SUCCESSORS[chain[-1]][bisect(_CHANCES, chance)])
    return [FIRST_FILLER + filler for filler in chain]


def _successors() -> list[list[int]]:
    """Return four fillers of the next kind for each filler, by a rule that uses no word too rarely."""
    starts = [0, *accumulate(map(len, _KINDS))]
    table = []
    for kind, words in enumerate(_KINDS):
        after = (kind + 1) % len(_KINDS)
        table += [
            [starts[after] + (2 * place + step) % len(_KINDS[after]) for step in (0, 3, 1, 6)]
            for place in range(len(words))
        ]
    return table


_SUCCESSORS = _successors()
