"""Settings of an evaluation: what is asked, how often, and in which ways the cache is kept. Lesson 14."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import product
from typing import Any

from minikv.errors import ArgumentError, check_choice, check_count
from minikv.eviction.evaluate.ways import Way
from minikv.eviction.policies.choices import PolicyName
from minikv.eviction.policies.literature import POLICIES
from minikv.eviction.study.text_tasks import TEXT_TASKS
from minikv.plan.dtypes import find_kv_dtype

NEEDLE = "niah"
"""The task of one needle, which is asked at every depth."""


@dataclass(frozen=True)
class Question:
    """A task at a length in tokens; of the needle a depth too, 0 the beginning of the context and 1 its end."""

    task: str
    length: int
    depth: float | None = None


@dataclass(frozen=True)
class Settings:
    """``tasks`` of ``TEXT_TASKS`` at ``lengths`` in tokens, ``texts`` of each; ``ways`` beside the full cache.

    ``depths``: of the needle. ``new``: tokens of an answer at most, where answers are generated. ``seed``: of the
    texts. Raises ``ArgumentError`` for names that are not known, shares outside 0 to 1, and bad counts.
    """

    tasks: tuple[str, ...] = tuple(TEXT_TASKS)
    lengths: tuple[int, ...] = (4096,)
    depths: tuple[float, ...] = (0.0, 0.25, 0.5, 0.75, 1.0)
    policies: tuple[PolicyName, ...] = ("streaming", "h2o", "snapkv", "keydiff")
    kept: tuple[float, ...] = (0.5, 0.25, 0.1)
    kv_dtypes: tuple[str, ...] = ("fp8", "int8")
    texts: int = 20
    new: int = 48
    seed: int = 0
    ways: tuple[Way, ...] = field(init=False)

    def __post_init__(self) -> None:
        for task in self.tasks:
            check_choice("task", task, TEXT_TASKS)
        for policy in self.policies:
            check_choice("policy", policy, POLICIES)
        for name, values in (("kept", self.kept), ("depth", self.depths)):
            for value in values:
                if not 0 <= value <= 1 or (name == "kept" and not value):
                    raise ArgumentError("out_of_range", what=name, value=value, low=0, high=1)
        for length in self.lengths:
            check_count("length", length)
        check_count("texts", self.texts)
        check_count("new", self.new)
        check_count("seed", self.seed, 0)
        dtypes = dict.fromkeys(find_kv_dtype(name).name for name in self.kv_dtypes)
        evicted = (Way(policy, kept) for kept, policy in product(self.kept, self.policies))
        ways = (Way(), *evicted, *(Way(kv_dtype=name) for name in dtypes))
        object.__setattr__(self, "ways", tuple(dict.fromkeys(ways)))

    def questions(self) -> Iterator[Question]:
        """Every task at every length, and the needle at every depth."""
        for task, length in product(dict.fromkeys(self.tasks), dict.fromkeys(self.lengths)):
            depths = dict.fromkeys(self.depths) if task == NEEDLE else (None,)
            yield from (Question(task, length, depth) for depth in depths)

    def as_dict(self) -> dict[str, Any]:
        """What rows of one file share, as plain JSON values; tasks, lengths, depths and ways may differ among them."""
        return {"texts": self.texts, "new": self.new, "seed": self.seed}
