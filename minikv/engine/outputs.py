"""The outputs of an LLM: each token as soon as it is sampled, and each request as a whole at its end."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from minikv.engine.core.sequence import FinishReason, Request, Sequence
from minikv.errors import MiniKVError
from minikv.keywords import no_attribute

if TYPE_CHECKING:
    from minikv.engine.sampler import TokenLogprobs


class Token(NamedTuple):
    """A new token of one sequence, or its end without one. With accepted drafts a step brings several.

    ``id`` is None if the sequence was aborted or failed. ``text`` is the text that became certain since the last
    piece; a character, or a possible stop text, is held back until it is whole. It is None without a
    tokenizer and where no pieces were asked for. ``finish_reason`` is None until the sequence ends.
    """

    request: str | int
    sample: int
    id: int | None
    text: str | None
    logprobs: "TokenLogprobs | None"
    finish_reason: FinishReason | None


@dataclass(frozen=True)
class Timing:
    """Seconds on the engine's clock. None if the sequence did not get that far.

    ``queued``: from arrival to the first step; ``ttft``: from arrival to the first token; ``tpot``: the mean from token
    to token after it; ``total``: from arrival to the end.
    """

    queued: float | None
    ttft: float | None
    tpot: float | None
    total: float


@dataclass(frozen=True)
class Completion:
    """One of the ``n`` sequences of a request, ended.

    ``token_ids`` are the generated ones, the stopping one included. ``text`` is their text without special tokens, up
    to a stop text; for an aborted or failed sequence it is the certain part (None without a tokenizer). ``error`` is
    the error of its step if ``finish_reason`` is "error". ``num_preemptions`` counts how often its blocks were taken
    and its tokens computed again. ``num_accepted`` of its ``num_drafted`` draft tokens were right.
    """

    sample: int
    token_ids: tuple[int, ...]
    text: str | Any  # None only without a tokenizer; typed so that callers need no test
    finish_reason: FinishReason
    logprobs: "tuple[TokenLogprobs, ...] | None"
    num_preemptions: int
    timing: Timing
    error: BaseException | None = None
    num_drafted: int = 0
    num_accepted: int = 0

    if not TYPE_CHECKING:  # otherwise a type checker would accept every name

        def __getattr__(self, name: str):
            raise no_attribute(self, name)


@dataclass(frozen=True)
class RequestOutput:
    """A request that has ended. ``num_cached`` of its prompt's tokens were found in the prefix cache.

    ``text``, ``token_ids``, ``finish_reason``, ``logprobs`` and ``timing`` are those of the first completion, the only
    one with ``n=1``.
    """

    request: str | int
    prompt: str | None
    prompt_token_ids: tuple[int, ...]
    num_cached: int
    completions: tuple[Completion, ...]

    @property
    def text(self) -> str | Any:
        return self.completions[0].text

    @property
    def token_ids(self) -> tuple[int, ...]:
        return self.completions[0].token_ids

    @property
    def finish_reason(self) -> FinishReason:
        return self.completions[0].finish_reason

    @property
    def logprobs(self) -> "tuple[TokenLogprobs, ...] | None":
        return self.completions[0].logprobs

    @property
    def timing(self) -> Timing:
        return self.completions[0].timing

    if not TYPE_CHECKING:  # otherwise a type checker would accept every name

        def __getattr__(self, name: str):
            raise no_attribute(self, name)


@dataclass(frozen=True)
class StepOutput:
    """The news since the last ``step``: new tokens, and the requests that have ended."""

    tokens: tuple[Token, ...]
    finished: tuple[RequestOutput, ...]


class GenerationFailedError(MiniKVError):
    """Some requests of a ``generate`` failed. ``outputs`` has the outputs of all, in order, so that none is lost."""

    def __init__(self, code: str, outputs: list[RequestOutput], **values: object):
        super().__init__(code, **values)
        self.outputs = outputs


def check_failures(outputs: list[RequestOutput]) -> None:
    """Raise ``GenerationFailedError``, from the first error, if any of these has failed."""
    failed = [out for out in outputs if any(each.error is not None for each in out.completions)]
    if failed:
        error = next(each.error for each in failed[0].completions if each.error is not None)
        said = f"{type(error).__name__}: {error}"
        raise GenerationFailedError(
            "llm_failed", outputs, failed=len(failed), total=len(outputs), error=said
        ) from error


def timing_of(seq: Sequence) -> Timing:
    """Return the timing of a sequence that has ended."""
    assert seq.finished_at is not None
    first, more = seq.first_token_at, seq.num_output - 1
    return Timing(
        queued=None if seq.admitted_at is None else seq.admitted_at - seq.arrival,
        ttft=None if first is None else first - seq.arrival,
        tpot=(seq.finished_at - first) / more if first is not None and more > 0 else None,
        total=seq.finished_at - seq.arrival,
    )


def request_output(
    request: Request, prompt: str | None, completions: tuple[Completion, ...]
) -> RequestOutput:
    """Return the output of a request with only ended sequences."""
    cached = request.sequences[0].num_cached or 0
    return RequestOutput(request.id, prompt, tuple(request.prompt), cached, completions)
