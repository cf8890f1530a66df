"""Five kinds of task that ask what an eviction has kept, in the words of the tiny models. No torch. Lesson 14.

    single        one fact among other words, one question
    multikey      many facts, questions about some of them: the others distract
    multivalue    names that were given two cities each: both are right, the two likeliest words count
    tracking      ada was given ben, and ben oslo: two questions in a row, right if both are answered
    aggregation   names that were given one city three times and another once: the frequent one is right

The kinds are RULER's (Hsieh et al., 2024, arXiv 2404.06654). A case is a document of ``minikv.models.recall`` with
other facts, so the places of facts, questions and other words are those that the models were trained on. Of the tasks
the models have learned only the second. Measure the full cache first: a task that fails with it says nothing about
eviction.

    context                            span
    <bos> ... ada paris ... ben oslo   ... ? ben oslo the cat ... ? ada paris
    read before the eviction           read after it, given, whatever the model would have said
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from minikv.errors import ArgumentError, check_count
from minikv.models.recall import (
    FIRST_CITY,
    FIRST_FILLER,
    FIRST_NAME,
    NAMES,
    Document,
    recall_documents,
)

SHORTEST = 33  # tokens of a context: room for four facts
_TOKENS_A_FACT = 8  # as in the training's longest documents: 24 facts in 192 tokens
_QUESTIONS, _TOKENS_A_QUESTION = 16, 4  # likewise, a filler for each question
_CHAIN, _VALUES, _TIMES = 2, 2, 3


@dataclass(frozen=True)
class GradedQuestion:
    """One question, of one step or of several in a row.

    The logits at ``positions[i]`` should name ``answers[i]``, token ids: with k of them, the k likeliest words count.
    ``sources`` are the places in the context of the tokens that hold the answer, those of all steps.
    """

    positions: tuple[int, ...]
    answers: tuple[tuple[int, ...], ...]
    sources: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Case:
    """``tokens`` [n] int64, of which the first ``context`` are read before the eviction, and the questions behind."""

    tokens: np.ndarray
    context: int
    asked: tuple[GradedQuestion, ...]

    @property
    def plain(self) -> np.ndarray:
        """[m] int64: the positions of the span between a filler or a city and a filler, for the perplexity beside.

        A filler behind a name, as in "tracking", is left out: no model expects it, whatever its cache has kept.
        """
        before, after = self.tokens[self.context : -1], self.tokens[self.context + 1 :]
        return self.context + np.flatnonzero((before >= FIRST_CITY) & (after >= FIRST_FILLER))


@dataclass(frozen=True, eq=False)
class _Sheet:
    """A document being rewritten. ``told``: [facts] the places of the names. ``slots``: [questions] their places."""

    tokens: np.ndarray
    told: np.ndarray
    slots: np.ndarray
    random: np.random.Generator

    def groups(self, size: int) -> np.ndarray:
        """[facts / size, size]: the places of names in random groups, each group in the order of the text."""
        return np.sort(self.random.permutation(self.told).reshape(-1, size))

    def ask(self, slot: int, name: int, answer: int) -> int:
        """Write "? name answer" at ``slot``; returns the position of the question's last token."""
        position = int(self.slots[slot])
        self.tokens[position : position + 2] = name, answer
        return position


def make_cases(task: str, count: int, *, seed: int = 0, length: int = 193, seen: bool = False) -> list[Case]:
    """``count`` cases of ``task``, one of ``TASKS``, with contexts of ``length`` tokens, <bos> included.

    ``seen``: the context ends with the question (3 more tokens, its own "?" included), so that an eviction can look at
    it; the span asks it again. Such a case has one question. Case i depends on the other arguments and i alone.

    Raises ``ArgumentError`` for a task that is not known, a bad count, and a ``length`` below ``SHORTEST``.
    """
    if task not in TASKS:
        raise ArgumentError("unknown_choice", what="task", value=task, known=", ".join(TASKS))
    check_count("count", count)
    check_count("length", length, SHORTEST)
    kind = TASKS[task]
    facts = kind.facts(length)
    questions = kind.steps * (1 if seen else min(_QUESTIONS // kind.steps, facts // kind.group))
    documents = recall_documents(
        count,
        seed=seed,
        facts=facts,
        context=length - 1,
        queries=questions,
        span=questions * (3 if seen else _TOKENS_A_QUESTION),
    )
    cases = [
        _case(kind, document, np.random.default_rng([seed, number, 1]), length)
        for number, document in enumerate(documents)
    ]
    return [_shown(case) for case in cases] if seen else cases


def at_depth(case: Case, depth: float) -> Case:
    """``case``, of one fact and one question, with the fact at ``depth`` of the context: 0 its beginning, 1 its end.

    The other words keep their order. Raises ``ArgumentError`` for a depth outside 0 to 1.
    """
    if not 0 <= depth <= 1:
        raise ArgumentError("out_of_range", what="depth", value=depth, low=0, high=1)
    (asked,) = case.asked
    (source,) = asked.sources
    place = 1 + round(depth * (case.context - 3))  # between <bos> and the last two tokens of the context
    fact = case.tokens[source - 1 : source + 1]
    tokens = np.insert(np.delete(case.tokens, [source - 1, source]), [place, place], fact)
    return Case(tokens, case.context, (GradedQuestion(asked.positions, asked.answers, (place + 1,)),))


def stream_cases(count: int, *, seed: int = 0, length: int = 257, facts: int = 8) -> list[Case]:
    """Long texts that ask for their facts again and again, for an eviction that runs while they are read.

    ``facts`` are told in 6 tokens each; then questions fill the ``length`` tokens, a filler with each. Each round asks
    for every fact, in another order. An answer tells its fact anew.

    Raises ``ArgumentError`` for a bad count, and where there is no room for as many questions as facts.
    """
    for what, value in (("count", count), ("length", length), ("facts", facts)):
        check_count(what, value)
    context = 6 * facts
    queries = (length - 1 - context) // _TOKENS_A_QUESTION
    if queries < facts:
        most = (length - 1) // (6 + _TOKENS_A_QUESTION)
        raise ArgumentError("recall_room", what="facts", value=facts, most=most, room="length", tokens=length)
    documents = recall_documents(
        count, seed=seed, facts=facts, context=context, queries=queries, span=length - 1 - context
    )
    return [Case(document.tokens, 1 + context, _as_told(document)) for document in documents]


def _case(kind: "Task", document: Document, random: np.random.Generator, context: int) -> Case:
    told = np.flatnonzero((document.tokens < FIRST_CITY) & (document.tokens >= FIRST_NAME))
    sheet = _Sheet(document.tokens.copy(), told[told < context], document.positions, random)
    asked = _as_told(document) if kind.tell is None else tuple(kind.tell(sheet))
    return Case(sheet.tokens, context, asked)


def _as_told(document: Document) -> tuple[GradedQuestion, ...]:
    return tuple(
        GradedQuestion((question.position,), ((question.answer_id,),), (question.source,))
        for question in document.questions
    )


def _multivalue(sheet: _Sheet) -> Iterator[GradedQuestion]:
    tokens, groups = sheet.tokens, sheet.groups(_VALUES)
    for group in groups:
        tokens[group] = tokens[group[0]]
    for slot, group in enumerate(groups[: len(sheet.slots)]):
        values = tokens[group + 1].tolist()
        position = sheet.ask(slot, tokens[group[0]], values[0])
        yield GradedQuestion((position,), (tuple(values),), tuple((group + 1).tolist()))


def _tracking(sheet: _Sheet) -> Iterator[GradedQuestion]:
    tokens, groups = sheet.tokens, sheet.groups(_CHAIN)
    for group in groups:  # the value of one fact is the name of the next
        tokens[group[:-1] + 1] = tokens[group[1:]]
    for chain, group in enumerate(groups[: len(sheet.slots) // _CHAIN]):
        answers = tokens[group + 1].tolist()
        positions = [
            sheet.ask(chain * _CHAIN + step, tokens[place], answers[step]) for step, place in enumerate(group)
        ]
        yield GradedQuestion(
            tuple(positions), tuple((each,) for each in answers), tuple((group + 1).tolist())
        )


def _aggregation(sheet: _Sheet) -> Iterator[GradedQuestion]:
    tokens, groups = sheet.tokens, sheet.groups(_TIMES + 1)
    for group in groups:
        often = sheet.random.permutation(group)[:_TIMES]
        tokens[group] = tokens[group[0]]
        tokens[often + 1] = tokens[often[0] + 1]
        group[:_TIMES] = np.sort(often)  # the rare one is not asked for
    for slot, group in enumerate(groups[: len(sheet.slots)]):
        answer = int(tokens[group[0] + 1])
        position = sheet.ask(slot, tokens[group[0]], answer)
        yield GradedQuestion((position,), ((answer,),), tuple((group[:_TIMES] + 1).tolist()))


def _shown(case: Case) -> Case:
    """The same case with its question at the end of the context too, and its "?" before the eviction."""
    (asked,) = case.asked
    first = asked.positions[0]
    question = case.tokens[first - 1 : first + 1]
    tokens = np.concatenate([case.tokens[: case.context], question, case.tokens[case.context :]])
    later = tuple(position + len(question) for position in asked.positions)
    return Case(
        tokens, case.context + len(question) + 1, (GradedQuestion(later, asked.answers, asked.sources),)
    )


@dataclass(frozen=True)
class Task:
    """``group`` facts belong together and are asked for in ``steps`` questions; ``tell`` rewrites a document."""

    group: int
    steps: int
    tell: Callable[[_Sheet], Iterator[GradedQuestion]] | None = None
    alone: bool = False

    def facts(self, length: int) -> int:
        """The number of facts in a context of ``length`` tokens: whole groups, and no more than there are names."""
        if self.alone:
            return 1
        return min((length - 1) // _TOKENS_A_FACT, len(NAMES)) // self.group * self.group


TASKS: dict[str, Task] = {
    "single": Task(1, 1, alone=True),
    "multikey": Task(1, 1),
    "multivalue": Task(_VALUES, 1, _multivalue),
    "tracking": Task(_CHAIN, _CHAIN, _tracking),
    "aggregation": Task(_TIMES + 1, 1, _aggregation),
}
"""The tasks by name."""
