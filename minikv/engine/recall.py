"""The quality of an engine's answers: the recall task of the tiny models, asked through an LLM. Lesson 13.

    >>> from minikv import LLM
    >>> from minikv.models import recall_documents
    >>> with LLM("tiny-gqa", kv_dtype="int8") as llm:
    ...     found = measure_recall(llm, recall_documents(4))
    >>> found.asked, found.share > 0.9
    (64, True)

``minikv.models.fidelity`` compares the logits behind the answers.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING

from minikv.engine.sampling_params import SamplingParams
from minikv.errors import check_count
from minikv.models.recall import Document

if TYPE_CHECKING:
    from minikv.engine.llm import LLM


@dataclass(frozen=True)
class Recall:
    """``right`` of ``asked`` questions were answered with the word in the document."""

    right: int
    asked: int

    @property
    def share(self) -> float:
        """The share of right answers, 0 to 1."""
        return self.right / self.asked


def measure_recall(llm: "LLM", documents: Iterable[Document]) -> Recall:
    """Ask every question of ``documents``, as a prompt of its own, and count the greedy next tokens that are right.

    A prompt is the document up to the question. The first questions of all documents come first, then the second ones.
    So the prefix that a prompt shares with an earlier one of its document is stored by then, and read from the cache.
    Raises ``ArgumentError`` if there is no question, and what ``llm.generate`` raises.
    """
    rounds = zip_longest(*([(each.tokens, asked) for asked in each.questions] for each in documents))
    pairs = [pair for some in rounds for pair in some if pair is not None]
    prompts = [tokens[: asked.position + 1].tolist() for tokens, asked in pairs]
    answers = [asked.answer_id for _, asked in pairs]
    check_count("questions", len(prompts))
    outputs = llm.generate(prompts, SamplingParams(temperature=0, max_tokens=1), progress=False)
    right = sum(out.token_ids[0] == answer for out, answer in zip(outputs, answers, strict=True))
    return Recall(right, len(answers))
