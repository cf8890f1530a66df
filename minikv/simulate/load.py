"""Load: a synthetic trace with properties of real traffic: bursts, shared system prompts, several turns.

    >>> trace = Load(num_requests=1000, rate=5.0, turns=4, system_tokens=1024, seed=1).trace()
    >>> len(trace), round(len(trace) / trace.duration)
    (1000, 5)

A session begins with one of a few system prompts and goes on for some turns. The prompt of a turn is the conversation
so far, answers included, and a new message. An answer gets new hash ids as part of the next prompt, as in Mooncake's
traces: blocks that decoding has cached are not found again, so that hit rates are on the low side.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from minikv.errors import ArgumentError, check_count
from minikv.simulate.trace import MOST_TOKENS, Trace, TraceRequest

MOST_REQUESTS = 2**24  # made at once, including those before the trace begins
SETTLED = 3  # mean lengths of a session: after so long as many sessions end as begin


@dataclass(frozen=True)
class Load:
    """``num_requests`` that arrive at ``rate`` a second on average. ``seed`` determines the whole ``trace()``.

    - ``burst``: the gaps between sessions, their standard deviation over their mean. 1: a Poisson process; 0: evenly
      spaced; 3: long silences and many at once (gamma-distributed, as vLLM's benchmark has them).
    - ``prompt_tokens``, ``output_tokens``: the mean of a turn's message and of its answer. ``spread``: their standard
      deviation over the mean (log-normal; 0: all alike).
    - ``turns``: the mean of a session's turns (geometric); ``think_seconds``: the mean from one turn's arrival to the
      next one's (exponential).
    - ``system_tokens``: the length of the system prompts; ``system_prompts``: their number. The k-th is 1 / k as
      frequent as the first (Zipf).
    - ``max_model_len``: bounds a prompt and its output together. Longer messages are cut, and the session ends.

    Raises ``ArgumentError`` for counts that are none, for a mean below 1 and for values that are not finite. ``trace``
    raises it for more than ``MOST_REQUESTS``.
    """

    num_requests: int = 1000
    rate: float = 1.0
    burst: float = 1.0
    prompt_tokens: float = 1000.0
    output_tokens: float = 200.0
    spread: float = 1.0
    turns: float = 1.0
    think_seconds: float = 60.0
    system_tokens: int = 0
    system_prompts: int = 1
    max_model_len: int = 131_072
    hash_block: int = 512
    seed: int = 0

    def __post_init__(self):
        for what, least in (("num_requests", 1), ("system_prompts", 1), ("hash_block", 1), ("seed", 0)):
            check_count(what, getattr(self, what), least)
        check_count("system_tokens", self.system_tokens, 0)
        check_count("max_model_len", self.max_model_len, self.system_tokens + 2)
        if self.max_model_len > MOST_TOKENS:
            raise ArgumentError(
                "trace_count", what="max_model_len", value=self.max_model_len, most=MOST_TOKENS
            )
        _check("rate", self.rate, 0, above=True)
        for what, low in (("burst", 0), ("spread", 0), ("think_seconds", 0)):
            _check(what, getattr(self, what), low)
        for what in ("prompt_tokens", "output_tokens", "turns"):
            _check(what, getattr(self, what), 1)

    def trace(self, name: str = "synthetic") -> Trace:
        """The requests; the first arrives at zero. By then sessions are in all of their turns, as in steady traffic."""
        settled = SETTLED * (self.turns - 1) * self.think_seconds
        wanted = self.num_requests + settled * self.rate
        if wanted > MOST_REQUESTS:
            raise ArgumentError("load_too_large", count=wanted, settled=settled, most=MOST_REQUESTS)
        sessions = math.ceil(wanted / self.turns)
        while True:  # make more sessions until the last one begins after the last request of the trace
            starts, asked = self._sessions(sessions)
            found = [each for each in asked if settled <= each.arrival <= starts[-1]]
            if len(found) >= self.num_requests:
                break
            sessions += sessions // 4 + 1
        zero = found[0].arrival
        moved = (
            TraceRequest(round(each.arrival - zero, 6), each.prompt_tokens, each.output_tokens, each.hash_ids)
            for each in found[: self.num_requests]
        )
        return Trace(name, tuple(moved), self.hash_block)

    def _sessions(self, count: int) -> tuple[np.ndarray, list[TraceRequest]]:
        """The times at which ``count`` sessions begin, and the requests of all of them by arrival."""
        random = np.random.default_rng(self.seed)
        starts = np.cumsum(self._gaps(random, count))
        weights = 1 / np.arange(1, self.system_prompts + 1)
        systems = random.choice(self.system_prompts, count, p=weights / weights.sum())
        turns = random.geometric(1 / self.turns, count)
        ids = _HashIds(self)
        asked = [
            request
            for start, system, number in zip(starts.tolist(), systems.tolist(), turns.tolist(), strict=True)
            for request in self._session(random, ids, start, system, number)
        ]
        return starts, sorted(asked, key=lambda request: request.arrival)

    def _session(
        self, random: np.random.Generator, ids: "_HashIds", at: float, system: int, turns: int
    ) -> Iterator[TraceRequest]:
        waits = random.exponential(self.think_seconds, turns).tolist()
        messages, outputs = (
            self._lengths(random, mean, turns) for mean in (self.prompt_tokens, self.output_tokens)
        )
        said, blocks = self.system_tokens, ids.begin(system)
        for wait, message, output in zip(waits, messages, outputs, strict=True):
            prompt = min(said + message, self.max_model_len - 1)
            output = min(output, self.max_model_len - prompt)
            yield TraceRequest(at, prompt, output, ids.of(blocks, prompt))
            at, said = at + wait, prompt + output
            if said + 2 > self.max_model_len:
                return

    def _gaps(self, random: np.random.Generator, count: int) -> np.ndarray:
        """float64 [count]: seconds from session to session."""
        mean = self.turns / self.rate
        if self.burst == 0:
            return np.full(count, mean)
        shape = self.burst**-2
        return random.gamma(shape, mean / shape, count)

    def _lengths(self, random: np.random.Generator, mean: float, count: int) -> list[int]:
        """Tokens of ``count`` messages, at least 1 each."""
        sigma = math.sqrt(math.log1p(self.spread**2))
        drawn = random.lognormal(math.log(mean) - sigma**2 / 2, sigma, count)
        return np.clip(np.rint(drawn), 1, self.max_model_len).astype(int).tolist()


class _HashIds:
    """Gives hash ids to the blocks of prompts. All sessions with the same system prompt share its ids."""

    def __init__(self, load: Load):
        self._size = load.hash_block
        self._shared = load.system_tokens // load.hash_block  # full blocks of a system prompt
        self._next = self._shared * load.system_prompts

    def begin(self, system: int) -> list[int]:
        """The ids of the full blocks of system prompt ``system``, with which a session begins."""
        return list(range(system * self._shared, (system + 1) * self._shared))

    def of(self, blocks: list[int], prompt: int) -> tuple[int, ...]:
        """The ids of a session's next prompt. A partly filled block gets another id once it is full."""
        full = prompt // self._size
        new = max(0, full - len(blocks))
        blocks += range(self._next, self._next + new)
        self._next += new
        if prompt % self._size == 0:
            return tuple(blocks)
        self._next += 1
        return (*blocks, self._next - 1)


def _check(what: str, value: float, low: float, *, above: bool = False) -> None:
    """Raise ``ArgumentError`` unless ``value`` is a finite number of at least ``low``, or above it."""
    number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if not number or value < low or (above and value == low):
        raise ArgumentError("load_number", what=what, value=value, low=low, sign=">" if above else "≥")
