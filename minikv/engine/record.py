"""Record: what an LLM keeps of a request that it has not given back yet: whose it is, and what was drawn so far."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from minikv.engine.detokenizer import Detokenizer
from minikv.engine.outputs import Completion, RequestOutput, StepOutput, Token, request_output, timing_of
from minikv.engine.sampler import Draws, TokenLogprobs
from minikv.engine.sequence import Request, Sequence


@dataclass(eq=False)
class Inbox:
    """Where the outputs of some requests go: each caller reads its own."""

    tokens: list[Token] = field(default_factory=list)
    finished: list[RequestOutput] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.tokens or self.finished)

    def take(self) -> StepOutput:
        """All that has come; the inbox is empty then."""
        out = StepOutput(tuple(self.tokens), tuple(self.finished))
        self.tokens, self.finished = [], []
        return out


class Samples:
    """One sequence of a request: its numbers, its text, its log-probabilities.

    ``pieces``: its caller wants the text as it comes.
    """

    def __init__(self, seq: Sequence, tokenizer: Any, seed: int, pieces: bool):
        self.seq, self.params = seq, seq.params
        self.told = False  # its end has been given to the caller
        self._pieces = pieces and tokenizer is not None
        self._draws = None if seq.params.temperature == 0 else Draws(seed, seq.id.sample)
        self._reader = None if tokenizer is None else Detokenizer(tokenizer, seq.tokens, seq.params.stop)
        self._text: list[str] = []
        self._logprobs: list[TokenLogprobs] | None = None if seq.params.logprobs is None else []

    @property
    def draw(self) -> float:
        """The number that the next token is drawn with: it depends on the token's place alone."""
        return 0.0 if self._draws is None else self._draws[self.seq.num_output]

    def read(self, token: int, eos: frozenset[int]) -> tuple[str, bool]:
        """What ``token``, the next one, makes certain of the text, and whether the sequence stops with it.

        Whatever a tokenizer raises it raises here, while the step can still fail. Nothing counts before ``take``.
        """
        stops = token in eos and not self.params.ignore_eos
        if self._reader is None:
            return "", stops
        piece = self._reader.push(token)
        last = self.seq.num_output + 1 == self.params.max_tokens or token in self.params.stop_token_ids
        if stops or last or self._reader.stopped:
            piece += self._reader.flush()
        return piece, stops or self._reader.stopped

    def take(self, token: int, piece: str, logprobs: TokenLogprobs | None) -> Token:
        """``token`` has been added to the sequence; this is what the caller is told of it."""
        self._text.append(piece)
        if self._logprobs is not None and logprobs is not None:
            self._logprobs.append(logprobs)
        return self._tell(token, piece, logprobs)

    def end(self) -> Token:
        """The end of a sequence that has no token to go with it: it was aborted or failed."""
        return self._tell(None, "", None)

    def completion(self) -> Completion:
        """Of a sequence that has ended."""
        seq, reason = self.seq, self.seq.finish_reason
        assert reason is not None
        text = None if self._reader is None else "".join(self._text)
        logprobs = None if self._logprobs is None else tuple(self._logprobs)
        times, how_often = timing_of(seq), seq.num_preemptions
        return Completion(
            seq.id.sample, tuple(seq.output), text, reason, logprobs, how_often, times, seq.error
        )

    def _tell(self, token: int | None, piece: str, logprobs: TokenLogprobs | None) -> Token:
        (request, sample), reason = self.seq.id, self.seq.finish_reason
        self.told = reason is not None
        return Token(request, sample, token, piece if self._pieces else None, logprobs, reason)


@dataclass(eq=False)
class Record:
    """A request with its samples, and the inbox of whoever asked for it."""

    request: Request
    prompt: str | None
    samples: tuple[Samples, ...]
    inbox: Inbox

    def ends(self) -> Iterator[Token]:
        """A last ``Token`` for each sequence that has ended without anybody having been told."""
        for each in self.samples:
            if each.seq.ended and not each.told:
                yield each.end()

    def output(self) -> RequestOutput:
        """Of a request that has ended."""
        return request_output(self.request, self.prompt, tuple(each.completion() for each in self.samples))
