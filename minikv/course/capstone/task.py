"""Task: the requests, the budget in bytes, the bar, and the clock. Lesson 18."""

import math
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import sha256
from typing import Any

from minikv.cache.allocator import kv_dtype_of
from minikv.engine.sampling_params import SamplingParams
from minikv.errors import ArgumentError, check_count
from minikv.plan import CacheSpec
from minikv.plan.roofline import Roof
from minikv.shown import Shown, html_of, one_line, text_of
from minikv.simulate.assumptions import Assumptions
from minikv.simulate.step_time import StepTime
from minikv.units import format_bytes


@dataclass(frozen=True)
class TaskRequest:
    """A prompt of ``tokens`` arrives ``arrival_s`` seconds after the task's zero, for exactly ``max_tokens`` tokens.

    ``answer``: the tokens that its output has to begin with; () where none are expected. ``group``: requests of one
    group begin with the same document. ``temperature`` 0 is greedy; else the draws follow from its place among the
    task's requests.
    """

    arrival_s: float
    tokens: tuple[int, ...]
    max_tokens: int
    answer: tuple[int, ...] = ()
    group: int = 0
    temperature: float = 0.0

    @property
    def answer_id(self) -> int | None:
        """The first expected token, None where none is expected."""
        return self.answer[0] if self.answer else None

    @property
    def longest(self) -> int:
        """Tokens of prompt and output together."""
        return len(self.tokens) + self.max_tokens

    def params(self, number: int) -> SamplingParams:
        """Its parameters as the ``number``-th of a task. No token ends it early, so every plan generates as many."""
        return SamplingParams(
            temperature=self.temperature, max_tokens=self.max_tokens, seed=number, ignore_eos=True
        )


@dataclass(frozen=True, eq=False)
class Task:
    """``requests``, in the order of their arrival, for ``model`` of transformers, in ``kv_bytes`` of device memory.

    ``kv_bytes`` bounds all memory of a plan for K and V: the blocks, and eviction's records beside them. ``quality``,
    of 1: the share of the expected answer tokens that have to be right. The clock is that of ``roof`` under
    ``assumptions``; ``machine`` names the sentence that says where they come from, and its values.

    Raises ``ArgumentError`` for no requests, an arrival that is no time or earlier than the one before it, a prompt
    without tokens, an answer longer than the output, and for a bad count or share.
    """

    name: str
    seed: int
    model: Any
    requests: tuple[TaskRequest, ...]
    kv_bytes: int
    quality: float
    roof: Roof
    assumptions: Assumptions = field(default_factory=Assumptions)
    tokenizer: Any = None
    machine: tuple[str, dict[str, Any]] = ("machine_given", {})

    def __post_init__(self) -> None:
        check_count("seed", self.seed, 0)
        check_count("kv_bytes", self.kv_bytes)
        check_count("requests", len(self.requests))
        number = isinstance(self.quality, int | float) and not isinstance(self.quality, bool)
        if not number or not 0 <= self.quality <= 1:
            raise ArgumentError("out_of_range", what="quality", value=self.quality, low=0, high=1)
        before = 0.0
        for place, request in enumerate(self.requests):
            _check_request(place, request, before)
            before = request.arrival_s

    def __repr__(self) -> str:
        load = f"{len(self.requests):,} requests", f"{format_bytes(self.kv_bytes)} of KV"
        return one_line(
            "Task", self.title, *load, f"{self.asked:,} answer tokens asked, {self.quality:.0%} wanted"
        )

    @property
    def title(self) -> str:
        """The task's name and seed."""
        return f"{self.name}, seed {self.seed}"

    @cached_property
    def id(self) -> str:
        """The key of its runs in the leaderboard: the title, and a digest of load, budget, bar and clock."""
        parts = (self.requests, self.kv_bytes, self.quality, self.roof, self.assumptions)
        return f"{self.title} #{sha256(repr(parts).encode()).hexdigest()[:6]}"

    @property
    def max_model_len(self) -> int:
        """Tokens of the longest prompt with its output."""
        return max(request.longest for request in self.requests)

    @cached_property
    def asked(self) -> int:
        """Answer tokens that are expected of all requests together."""
        return sum(len(request.answer) for request in self.requests)

    def spec(self, kv_dtype: str | None = None) -> CacheSpec:
        """The cost of a token in ``kv_dtype`` (None: in the dtype of the weights)."""
        return CacheSpec.from_config(self.model.config, kv_dtype=kv_dtype or kv_dtype_of(self.model))

    def step_time(self, kv_dtype: str | None = None) -> StepTime:
        """The clock of steps that read a cache in ``kv_dtype`` (None: the dtype of the weights)."""
        dtype = kv_dtype or kv_dtype_of(self.model)
        return StepTime.of_model(self.model.config, self.roof, kv_dtype=dtype, assumptions=self.assumptions)

    def explain(self, lang: str = "en") -> str:
        """The task in words, with every number."""
        from minikv.course.capstone.words import explain_task  # the sentences are needed only here

        return explain_task(self, lang)

    def shown(self, lang: str = "en") -> Shown:
        """The same as a table."""
        from minikv.course.capstone.words import show_task

        return show_task(self, lang)

    text = text_of
    _repr_html_ = html_of


def _check_request(place: int, request: TaskRequest, before: float) -> None:
    time = request.arrival_s
    number = isinstance(time, int | float) and not isinstance(time, bool)
    if not number or not before <= time < math.inf:
        raise ArgumentError("capstone_arrival", number=place, value=time, before=before)
    check_count("tokens", len(request.tokens))
    check_count("max_tokens", request.max_tokens)
    if len(request.answer) > request.max_tokens:
        values = {"answer": len(request.answer), "max_tokens": request.max_tokens}
        raise ArgumentError("capstone_answer", number=place, **values)
