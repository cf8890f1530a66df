"""Trace: the requests to a service and their times. It holds no text, only lengths and which prefixes are equal.

    >>> trace = Trace("two", (TraceRequest(0.0, 700, 9, (4, 5)), TraceRequest(1.5, 600, 3, (4, 6))))
    >>> trace.duration, trace.prompt_tokens, trace.output_tokens
    (1.5, 1300, 12)
    >>> bool((trace.prompt(0)[:512] == trace.prompt(1)[:512]).all()), int(trace.prompt(0)[512])
    (True, 15)

A request's ``hash_ids`` name the blocks of ``hash_block`` tokens of its prompt, a partly filled last one included.
Requests with equal first ids have the same prompt up to there. A request without ids shares its prompt with no
other. The form is that of the Mooncake traces (Qin et al., "Mooncake: Trading More Storage for Less Computation", FAST
2025), which count in blocks of 512.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from minikv.errors import LARGEST_COUNT, ArgumentError, MiniKVError, check_count
from minikv.shown import one_line

MOST_TOKENS = 2**31 - 1  # of a prompt or an output: positions are int32
LARGEST_HASH_ID = LARGEST_COUNT // 3  # three times an id is still a token id
LATEST = 1e10  # seconds, 300 years: a Unix time is earlier
FIELDS = ("arrival", "prompt_tokens", "output_tokens")


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """A prompt of ``prompt_tokens`` arrives ``arrival`` seconds after the trace's zero, for ``output_tokens`` tokens.

    ``hash_ids``: one for each block of the prompt, or none where its shared prefix is not known.
    """

    arrival: float
    prompt_tokens: int
    output_tokens: int
    hash_ids: tuple[int, ...] = ()


@dataclass(frozen=True)
class Trace:
    """The requests of a load, in the order of their arrival; a hash id stands for ``hash_block`` tokens.

    ``first_line`` is the line of the first request in the file ``name``, with the others on the next lines; None for
    requests that come from no file.

    Raises ``ArgumentError`` for a trace without requests, and with the number of the first request (from 0) that is
    wrong: an arrival that is no time or earlier than the one before, a length that is no whole number from 1 to
    2**31 - 1, or more or fewer hash ids than blocks.
    """

    name: str
    requests: tuple[TraceRequest, ...]
    hash_block: int = 512
    first_line: int | None = field(default=None, compare=False)

    def __post_init__(self):
        check_count("hash_block", self.hash_block)
        object.__setattr__(self, "requests", tuple(self.requests))
        if not self.requests:
            raise ArgumentError("trace_empty", name=self.name)
        before = -math.inf
        for index, request in enumerate(self.requests):
            fault = fault_of(request, before, self.hash_block)
            if fault is not None:
                raise self.at(index, fault)
            before = request.arrival

    def __repr__(self) -> str:
        tokens = f"{self.prompt_tokens:,} prompt and {self.output_tokens:,} output tokens"
        return one_line("Trace", self.name, f"{len(self):,} requests in {self.duration:,.6g} s", tokens)

    def __len__(self) -> int:
        return len(self.requests)

    @property
    def duration(self) -> float:
        """Seconds from the first arrival to the last."""
        return self.requests[-1].arrival - self.requests[0].arrival

    @property
    def prompt_tokens(self) -> int:
        """Prompt tokens of all requests."""
        return sum(request.prompt_tokens for request in self.requests)

    @property
    def output_tokens(self) -> int:
        """Output tokens of all requests."""
        return sum(request.output_tokens for request in self.requests)

    def prompt(self, index: int) -> np.ndarray:
        """int64 [prompt_tokens]: token ids that are equal to another prompt's exactly as far as the hash ids are.

        A block is ``hash_block`` times one token id, made from its hash id. That is enough for a prefix cache with
        blocks of any size, since a block's digest covers everything before it.
        """
        request = self.requests[index]
        if not request.hash_ids:
            return np.full(request.prompt_tokens, 3 * self._place(index) + 1, np.int64)
        ids = np.array(request.hash_ids, np.int64) * 3
        return np.repeat(ids, self.hash_block)[: request.prompt_tokens]

    def output_token(self, index: int) -> int:
        """The one token id that request ``index`` generates, over and over; no prompt and no other output has it."""
        return 3 * self._place(index) + 2

    def at(self, index: int, reason: MiniKVError) -> MiniKVError:
        """``reason`` after the place of request ``index``: its line if the trace comes from a file, else its number."""
        if self.first_line is None:
            return type(reason)("trace_request", index=index, reason=reason)
        return type(reason)("trace_line", line=self.first_line + index, path=self.name, reason=reason)

    def head(self, count: int) -> "Trace":
        """The first ``count`` requests; all of them where there are no more."""
        check_count("count", count)
        return self if count >= len(self) else replace(self, requests=self.requests[:count])

    def _place(self, index: int) -> int:
        """``index`` counted from the beginning; a negative one counts from the end."""
        return range(len(self.requests))[index]


def fault_of(
    request: TraceRequest, before: float, hash_block: int, names: Sequence[str] = FIELDS, value: Any = None
) -> MiniKVError | None:
    """The error of ``request``, which follows one at ``before`` seconds; None if it has none.

    ``names`` are the names of arrival, prompt and output in the file; ``value`` is the arrival as the file has it.
    """
    at, prompt, output, ids = request.arrival, request.prompt_tokens, request.output_tokens, request.hash_ids
    value = at if value is None else value
    if isinstance(at, (float, int)) and at < before:
        return ArgumentError("trace_unsorted", what=names[0], value=value, seconds=before - at)
    if type(at) not in (float, int) or not 0.0 <= at <= LATEST:
        return ArgumentError("trace_time", what=names[0], value=value, most=LATEST)
    for what, count in ((names[1], prompt), (names[2], output)):
        if type(count) is not int or not 1 <= count <= MOST_TOKENS:
            return ArgumentError("trace_count", what=what, value=count, most=MOST_TOKENS)
    if ids:
        blocks = -(-prompt // hash_block)
        if len(ids) != blocks:
            given = {"count": len(ids), "blocks": blocks, "tokens": prompt, "hash_block": hash_block}
            return ArgumentError("trace_hash_count", **given)
        if set(map(type, ids)) != {int} or min(ids) < 0 or max(ids) > LARGEST_HASH_ID:
            wrong = next(each for each in ids if type(each) is not int or not 0 <= each <= LARGEST_HASH_ID)
            return ArgumentError("trace_hash_id", value=wrong, most=LARGEST_HASH_ID)
    return None
