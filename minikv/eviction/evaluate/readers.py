"""How a model is asked: the tiny models in the words that they know, any other in English. Lesson 14.

A word reader gives the model the right answers and looks at its likeliest words, many questions a document. A text
reader lets it generate its answer, one question a text. Both read the context first, evict, and ask then.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol

from minikv.errors import ArgumentError
from minikv.eviction.evaluate.settings import NEEDLE, Question, Settings
from minikv.eviction.evaluate.ways import Way
from minikv.eviction.study.suite import scored, span_logs
from minikv.eviction.study.tasks import Case, at_depth, make_cases
from minikv.eviction.study.text_suite import make_texts, say
from minikv.eviction.study.text_tasks import Text
from minikv.models.recall import WORDS

WORD_TASK = {NEEDLE: "single"}  # what ``tasks`` calls it, where that differs


@dataclass(frozen=True)
class Answers:
    """``right`` of ``asked``; one of several words counts for a part. ``said``: the greedy token ids of each text."""

    right: float
    asked: int
    said: tuple[tuple[int, ...], ...]


class Reader(Protocol):
    """Asks a model. Both calls raise ``ArgumentError`` for a length that does not hold the question's facts."""

    def check(self, question: Question) -> None: ...

    def ask(self, question: Question, way: Way) -> Answers: ...


def reader_of(model: Any, tokenizer: Any, settings: Settings) -> Reader:
    """The reader for this tokenizer. Raises ``ArgumentError`` where there is none."""
    if tokenizer is None:
        raise ArgumentError("evaluate_no_tokenizer")
    words = tokenizer.get_vocab()
    kind = WordReader if all(words.get(word) == place for place, word in enumerate(WORDS)) else TextReader
    return kind(model, tokenizer, settings)


class WordReader:
    """For models of the vocabulary of ``minikv.models.recall``."""

    def __init__(self, model: Any, tokenizer: Any, settings: Settings):
        self.model, self.settings = model, settings

    def check(self, question: Question) -> None:
        """Make one document, and see whether the model has positions for it."""
        (case,) = self._cases(question, 1)
        check_positions(self.model, len(case.tokens))

    def ask(self, question: Question, way: Way) -> Answers:
        """The likeliest words behind every token of the span are what counts as said."""
        cases = self._cases(question, self.settings.texts)
        evicting = way.evicting(self.model, cases[0].context)
        right, asked, said = 0.0, 0, []
        for logs, some in span_logs(self.model, cases, evicting=evicting):
            for score in scored(logs, some):
                right, asked = right + score.right, asked + score.asked
            said += [tuple(row) for row in logs.argmax(-1).tolist()]
        return Answers(right, asked, tuple(said))

    def _cases(self, question: Question, count: int) -> list[Case]:
        task = WORD_TASK.get(question.task, question.task)
        cases = make_cases(task, count, seed=self.settings.seed, length=question.length)
        return cases if question.depth is None else [at_depth(case, question.depth) for case in cases]


class TextReader:
    """For models that read English."""

    def __init__(self, model: Any, tokenizer: Any, settings: Settings):
        self.model, self.tokenizer, self.settings = model, tokenizer, settings
        self._texts = lru_cache(1)(self._make)  # all ways are asked the same question in turn

    def check(self, question: Question) -> None:
        """Make one text, and see whether the model has positions for it and its answer."""
        self._make(question, 1)
        check_positions(self.model, question.length + self.settings.new)

    def ask(self, question: Question, way: Way) -> Answers:
        """Generate an answer to each text."""
        right, said = 0.0, []
        for text in self._texts(question, self.settings.texts):
            told = say(
                self.model,
                self.tokenizer,
                text,
                new=self.settings.new,
                evicting=lambda tokens: way.evicting(self.model, tokens),
            )
            right += text.share(self.tokenizer.decode(told, skip_special_tokens=True))
            said.append(tuple(told))
        return Answers(right, len(said), tuple(said))

    def _make(self, question: Question, count: int) -> list[Text]:
        return make_texts(
            question.task,
            question.length,
            count,
            self.tokenizer,
            seed=self.settings.seed,
            depth=question.depth,
        )


def check_positions(model: Any, tokens: int) -> None:
    """Raise ``ArgumentError`` for more tokens than the model has positions for."""
    field = "max_position_embeddings"
    most = getattr(model.config.get_text_config(decoder=True), field, None)
    if most is not None and tokens > most:
        name = model.config.name_or_path
        raise ArgumentError("context_too_long", context=tokens, name=name, field=field, most=most)
