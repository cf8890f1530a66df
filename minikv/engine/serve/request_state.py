"""The LLM's state of a request that is not returned yet: its caller's queue, and its sampled tokens."""

from collections.abc import Iterator
from collections.abc import Sequence as Seq
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from minikv.engine.adjusted import Asked, WithHistory
from minikv.engine.core.sequence import FinishReason, Request, Sequence
from minikv.engine.detokenizer import Detokenizer
from minikv.engine.outputs import Completion, RequestOutput, StepOutput, Token, request_output, timing_of
from minikv.engine.sampler import Draws, TokenLogprobs


@dataclass(eq=False)
class OutputQueue:
    """The destination of some requests' outputs: each caller reads its own."""

    tokens: list[Token] = field(default_factory=list)
    finished: list[RequestOutput] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.tokens or self.finished)

    def drain(self) -> StepOutput:
        """Return everything in the queue and empty it."""
        out = StepOutput(tuple(self.tokens), tuple(self.finished))
        self.tokens, self.finished = [], []
        return out


class SequenceOutput:
    """One sequence of a request: its numbers, its text, its log-probabilities.

    ``pieces``: its caller wants the text as it comes. Otherwise, if no text can end the sequence, its tokens are
    decoded while a GPU computes the next ones.
    """

    def __init__(self, seq: Sequence, tokenizer: Any, seed: int, pieces: bool):
        self.seq, self.params = seq, seq.params
        self.told = False  # whether its end has been given to the caller
        self._pieces = pieces and tokenizer is not None
        self._draws = None if seq.params.temperature == 0 else Draws(seed, seq.id.sample)
        self._reader = None if tokenizer is None else Detokenizer(tokenizer, seq.tokens, seq.params.stop)
        self._text: list[str] = []
        self._can_wait = not self._pieces and not seq.params.stop
        self._unread: list[int] = []  # tokens without text yet
        self._logprobs: list[TokenLogprobs] | None = None if seq.params.logprobs is None else []

    def draws(self, count: int, unread: int = 0) -> list[float]:
        """Return the numbers for the draws of the next ``count`` tokens; each depends on its token's place alone.

        ``unread`` tokens before them are drawn already, and not yet among the sequence's.
        """
        first = self.seq.num_output + unread
        return [0.0 if self._draws is None else self._draws[first + place] for place in range(count)]

    def asked(self, guesses: Seq[int], eos: frozenset[int]) -> list[Asked]:
        """Return what the next token is drawn with, and the one behind each of ``guesses``."""
        if not self.params.adjusts:
            return [self.params] * (len(guesses) + 1)
        known = list(self.seq.tokens)
        histories = ([*known, *guesses[:count]] for count in range(len(guesses) + 1))
        return [WithHistory(self.params, tokens, self.seq.num_prompt, eos) for tokens in histories]

    def read(self, tokens: Seq[int], eos: frozenset[int]) -> tuple[list[str | None], bool]:
        """Return the text that each of the next ``tokens`` makes certain (None: later), and whether they stop it.

        There are as many pieces as tokens, or fewer if the text ends before: tokens behind an end do not count. A
        tokenizer's errors are raised here and in ``catch_up``, while a step can still fail. Nothing counts before
        ``take``.
        """
        pieces: list[str | None] = []
        stops, reader = False, self._reader
        for count, token in enumerate(tokens, self.seq.num_output + 1):
            stops = token in eos and not self.params.ignore_eos
            last = count == self.params.max_tokens or token in self.params.stop_token_ids
            if reader is None:
                pieces.append("")
            elif self._can_wait and not (stops or last):
                pieces.append(None)
            else:
                self.catch_up()
                late = zip(tokens, pieces, strict=False)  # with those of this step that were to wait
                pieces = [reader.push(each) if piece is None else piece for each, piece in late]
                piece = reader.push(token, may_stop=count >= self.params.min_tokens)
                if stops or last or reader.stopped:
                    piece += reader.flush()  # it may end the held text with a stop text
                stops = stops or reader.stopped
                pieces.append(piece)
            if stops or last:
                break
        return pieces, stops

    def catch_up(self) -> None:
        """Decode the tokens left for later."""
        while self._unread and self._reader is not None:
            self._text.append(self._reader.push(self._unread.pop(0)))

    def take(self, token: int, piece: str | None, logprobs: TokenLogprobs | None) -> Token:
        """Return the caller's ``Token`` for ``token``, which has been added to the sequence."""
        if piece is None:
            self._unread.append(token)
        else:
            self._text.append(piece)
        if self._logprobs is not None and logprobs is not None:
            self._logprobs.append(logprobs)
        is_last = len(self._text) + len(self._unread) == self.seq.num_output
        reason = self.seq.finish_reason if is_last else None
        if reason is FinishReason.ABORT:  # behind the step: ``end`` reports it
            reason = None
        return self._tell(token, piece, logprobs, reason)

    def end(self) -> Token:
        """Return the end of a sequence without a token to go with it: it was aborted or failed."""
        return self._tell(None, "", None, self.seq.finish_reason)

    def completion(self) -> Completion:
        """Return the completion of a sequence that has ended."""
        seq, reason = self.seq, self.seq.finish_reason
        assert reason is not None
        # No step is left that a tokenizer could fail, so the text ends where it fails.
        with suppress(Exception):
            self.catch_up()
        text = None if self._reader is None else "".join(self._text)
        logprobs = None if self._logprobs is None else tuple(self._logprobs)
        times, how_often = timing_of(seq), seq.num_preemptions
        return Completion(
            seq.id.sample,
            tuple(seq.output),
            text,
            reason,
            logprobs,
            how_often,
            times,
            seq.error,
            seq.figures.get("num_drafted", 0),
            seq.figures.get("num_accepted", 0),
        )

    def _tell(
        self,
        token: int | None,
        piece: str | None,
        logprobs: TokenLogprobs | None,
        reason: FinishReason | None,
    ) -> Token:
        request, sample = self.seq.id
        self.told = reason is not None
        return Token(request, sample, token, piece if self._pieces else None, logprobs, reason)


@dataclass(eq=False)
class RequestState:
    """A request with the outputs of its sequences, and the queue of its caller."""

    request: Request
    prompt: str | None
    outputs: tuple[SequenceOutput, ...]
    queue: OutputQueue

    def ends(self) -> Iterator[Token]:
        """Yield a last ``Token`` for each ended sequence that its caller does not know of."""
        for each in self.outputs:
            if each.seq.ended and not each.told:
                yield each.end()

    def output(self) -> RequestOutput:
        """Return the output of a request that has ended."""
        return request_output(self.request, self.prompt, tuple(each.completion() for each in self.outputs))
