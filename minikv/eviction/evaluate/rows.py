"""An evaluation, row by row: a question asked in one way. A row that is known already is not measured again. Lesson 14.

>>> from minikv.models import load
>>> settings = Settings(("multikey",), (97,), policies=("streaming",), kept=(0.5,), kv_dtypes=("int8",), texts=2)
>>> model, tokenizer = load("tiny-gqa", device="cpu")
>>> rows = list(evaluate(model, tokenizer, settings))
>>> [str(row.way) for row in rows], rows[0].right > rows[1].right
(['full cache', 'streaming, 50 % kept', 'int8'], True)
"""

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from hashlib import sha256
from typing import Any

import torch

from minikv.errors import DoesNotFitError
from minikv.eviction.evaluate.readers import reader_of
from minikv.eviction.evaluate.settings import Question, Settings
from minikv.eviction.evaluate.ways import Way


@dataclass(frozen=True)
class Row:
    """``question`` asked in ``way``: ``right`` of ``asked`` answers, and the greedy token ids of each text."""

    question: Question
    way: Way
    right: float
    asked: int
    said: tuple[tuple[int, ...], ...]

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON values, which ``from_dict`` takes."""
        measured = {"right": self.right, "asked": self.asked, "said": [list(each) for each in self.said]}
        return asdict(self.question) | asdict(self.way) | measured

    @classmethod
    def from_dict(cls, told: dict[str, Any]) -> "Row":
        """Raises ``LookupError``, ``TypeError`` or ``ValueError`` for what ``as_dict`` has not made."""
        question = Question(str(told["task"]), int(told["length"]), told["depth"])
        way = Way(told["policy"], float(told["kept"]), told["kv_dtype"])
        said = tuple(tuple(int(token) for token in each) for each in told["said"])
        right, asked = float(told["right"]), int(told["asked"])
        if not 0 <= right <= asked or not asked:
            raise ValueError(right)
        return cls(question, way, right, asked, said)


def evaluate(model: Any, tokenizer: Any, settings: Settings, known: Collection[Row] = ()) -> Iterator[Row]:
    """Yield the row of every question and way, the full cache's first; those of ``known`` as they are.

    Before the first row every task, length and way is tried, so what cannot be asked raises before the long run:
    ``ArgumentError`` for a model without a tokenizer, a length that does not hold a task's facts or exceeds the model's
    positions, and what ``install_kv_eviction`` raises. ``DoesNotFitError`` where the device has no room for a text.
    """
    reader = reader_of(model, tokenizer, settings)
    for question in settings.questions():
        reader.check(question)
    for way in settings.ways:
        with way.evicting(model, 64)(model):
            pass
    found = {(row.question, row.way): row for row in known}
    for question in settings.questions():
        for way in settings.ways:
            row = found.get((question, way))
            if row is None:
                with room_for(question.length):
                    answers = reader.ask(question, way)
                row = Row(question, way, answers.right, answers.asked, answers.said)
            yield row


@contextmanager
def room_for(tokens: int) -> Iterator[None]:
    """Turn the error of a full device into ``DoesNotFitError`` with the length of the text."""
    try:
        yield
    except Exception as error:
        if isinstance(error, torch.OutOfMemoryError | MemoryError) or "DefaultCPUAllocator" in str(error):
            raise DoesNotFitError("evaluate_no_memory", tokens=tokens) from error
        raise


def fingerprint(model: Any) -> str:
    """A digest of the first elements of every weight: rows of other weights are not mixed."""
    digest = sha256()
    for name, weight in model.named_parameters():
        first = weight.detach().flatten()[:64].float().cpu().numpy()
        digest.update(f"{name} {tuple(weight.shape)} {weight.dtype}".encode() + first.tobytes())
    return digest.hexdigest()[:16]
