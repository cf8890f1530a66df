"""Request and Sequence: what was asked, and how far each sequence of it has come."""

from array import array
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from minikv.engine.sampling_params import SamplingParams

Tokens = list[int] | array
"""Token ids: a list, or an ``array("q")`` where the prompt was given as one."""


class State(StrEnum):
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
    """Which of the ``n`` sequences of which request; the block manager knows the sequence by it."""

    request: str | int
    sample: int


@dataclass(eq=False, slots=True)
class Sequence:
    """One of the ``n`` sequences of a request. ``tokens`` are the prompt's and those generated, in one list.

    - ``num_computed``: the first so many tokens have K and V in the cache. Of a waiting sequence it is more than 0
      only while an extension keeps them elsewhere.
    - ``num_placed``: so many tokens have slots, those that the open steps compute included.
    - ``num_cached``: tokens of the prompt that the prefix cache had when the sequence was first admitted, at
      ``admitted_at``. Both are None until its first step has ended.
    - ``num_preemptions``: how often its blocks were taken away.
    - ``figures``: what extensions count of it, by name.
    - ``pending``: the request's other sequences, until this one has computed the prompt that they share.

    Times are those of the scheduler's clock, in seconds.
    """

    id: SequenceId
    order: tuple[int, int]  # (number of the request, sample): the smaller came first
    tokens: Tokens
    num_prompt: int
    params: SamplingParams
    salt: str
    arrival: float
    state: State = State.WAITING
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
        """Only the newest token, which was generated, has no K and V yet."""
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
        """Whether all of its sequences have."""
        return all(seq.ended for seq in self.sequences)


def new_request(
    request_id: str | int, number: int, prompt: Tokens, params: SamplingParams, salt: str, arrival: float
) -> Request:
    """The request with its sequences, the first of which will compute the prompt for all."""
    sequences = tuple(
        Sequence(
            SequenceId(request_id, sample), (number, sample), prompt[:], len(prompt), params, salt, arrival
        )
        for sample in range(params.n)
    )
    sequences[0].pending = list(sequences[1:])
    kept = prompt if isinstance(prompt, array) else tuple(prompt)
    return Request(request_id, kept, params, salt, arrival, sequences)
