"""Request and Sequence: a request, and the progress of each of its sequences."""

from array import array
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from minikv.engine.sampling_params import SamplingParams

Tokens = list[int] | array
"""Token ids: a list, or an ``array("q")`` where the prompt was given as one."""


class SequenceStatus(StrEnum):
    """WAITING holds no block of the device; RUNNING does. The other two have ended."""

    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"
    ABORTED = "aborted"


class FinishReason(StrEnum):
    """Why a sequence ended: a stop token or text, ``max_tokens``, an ``abort``, an exception in its step."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"


class SequenceId(NamedTuple):
    """One of the ``n`` sequences of a request; the block manager uses it as the sequence's id."""

    request: str | int
    sample: int


@dataclass(eq=False, slots=True)
class Sequence:
    """One of the ``n`` sequences of a request. ``tokens`` has its prompt and its generated tokens in one list.

    - ``num_computed``: the first so many tokens have K and V in the cache. For a waiting sequence it is above 0 only
      while an extension keeps them elsewhere.
    - ``num_placed``: the first so many tokens have slots, those that the open steps compute included.
    - ``num_cached``: prompt tokens found in the prefix cache when the sequence was first admitted, at ``admitted_at``.
      Both are None until its first step has ended.
    - ``num_preemptions``: how often its blocks were taken away.
    - ``figures``: counts that extensions keep for it, by name.
    - ``pending``: the request's other sequences, until this one has computed their common prompt.

    Times are seconds of the scheduler's clock.
    """

    id: SequenceId
    order: tuple[int, int]  # (number of the request, sample): the smaller arrived first
    tokens: Tokens
    num_prompt: int
    params: SamplingParams
    salt: str
    arrival: float
    status: SequenceStatus = SequenceStatus.WAITING
    finish_reason: FinishReason | None = None
    error: BaseException | None = None
    num_computed: int = 0
    num_placed: int = 0
    num_cached: int | None = None
    num_preemptions: int = 0
    admitted_at: float | None = None
    first_token_at: float | None = None
    finished_at: float | None = None
    figures: dict[str, int] = field(default_factory=dict)
    pending: list["Sequence"] = field(default_factory=list)

    @property
    def output(self) -> list[int]:
        """The tokens generated so far."""
        return list(self.tokens[self.num_prompt :])

    @property
    def num_output(self) -> int:
        return len(self.tokens) - self.num_prompt

    @property
    def ended(self) -> bool:
        return self.finish_reason is not None

    @property
    def missing(self) -> int:
        """Tokens to compute before the next one can be sampled: 1 in decode."""
        return len(self.tokens) - self.num_computed

    @property
    def decoding(self) -> bool:
        """Whether only the newest token lacks K and V, and was generated."""
        return self.missing == 1 and self.num_output > 0


@dataclass(frozen=True)
class Request:
    """A prompt with its ``SamplingParams`` under a salt; ``sequences`` are its ``params.n`` sequences."""

    id: str | int
    prompt: tuple[int, ...] | array
    params: SamplingParams
    salt: str
    arrival: float
    sequences: tuple[Sequence, ...]

    @property
    def ended(self) -> bool:
        """Whether all of its sequences have ended."""
        return all(seq.ended for seq in self.sequences)


def new_request(
    request_id: str | int, number: int, prompt: Tokens, params: SamplingParams, salt: str, arrival: float
) -> Request:
    """Return the request with its sequences; the first one will compute the prompt for all."""
    sequences = tuple(
        Sequence(
            SequenceId(request_id, sample), (number, sample), prompt[:], len(prompt), params, salt, arrival
        )
        for sample in range(params.n)
    )
    sequences[0].pending = list(sequences[1:])
    kept = prompt if isinstance(prompt, array) else tuple(prompt)
    return Request(request_id, kept, params, salt, arrival, sequences)
