"""The engine widget's state of a request: the progress of each of its sequences, and the reason of its end."""

from dataclasses import dataclass

from minikv.course.widgets.parts import letters
from minikv.engine.core.sequence import FinishReason, SequenceStatus
from minikv.engine.outputs import RequestOutput, Token
from minikv.engine.prompts import TokenizedRequest
from minikv.engine.serve.view import SequenceView

WAITING, PREFILL, DECODE = "waiting", "prefill", "decode"
DONE = (FinishReason.STOP, FinishReason.LENGTH)


@dataclass(frozen=True)
class SequenceRow:
    """A sequence as it is drawn. ``state`` is "waiting", "prefill", "decode", or its ``FinishReason``.

    Of its prompt's tokens, ``cached`` were found in the prefix cache, ``computed`` went through a forward, and ``left``
    have no K and V (yet, or since a preemption). ``generated`` tokens follow; ``longest`` is the most it can have in
    all. ``number`` is that of its request.
    """

    name: str
    number: int
    state: str
    cached: int
    computed: int
    left: int
    generated: int
    longest: int

    @property
    def ended(self) -> bool:
        return self.state not in (WAITING, PREFILL, DECODE)


@dataclass
class _Sample:
    """One of the ``n`` sequences: K and V of ``stored`` of its tokens are in the cache."""

    state: str = WAITING
    stored: int = 0
    generated: int = 0
    preemptions: int = 0


class RequestRows:
    """Request ``number`` of a run, updated from the LLM's outputs and snapshots."""

    def __init__(self, number: int, asked: TokenizedRequest):
        self.number = number
        self.cached = 0
        self._prompt, self._longest = len(asked.ids), len(asked.ids) + asked.params.max_tokens
        self._samples = [_Sample() for _ in range(asked.params.n)]

    @property
    def preemptions(self) -> int:
        return sum(sample.preemptions for sample in self._samples)

    def name(self, index: int) -> str:
        """Return A, B, ..., Z, AA, ...; the sequences of a request that has several are A1, A2, ..."""
        return letters(self.number) + (str(index + 1) if len(self._samples) > 1 else "")

    def see(self, view: SequenceView) -> None:
        """Update a sequence from a snapshot."""
        sample = self._samples[view.id.sample]
        self.cached = view.num_cached
        sample.stored, sample.preemptions = view.num_computed, view.num_preemptions
        sample.state = state_of(view)

    def take_token(self, token: Token) -> None:
        sample = self._samples[token.sample]
        sample.generated += token.id is not None
        if token.finish_reason is not None:
            sample.state = token.finish_reason

    def take_output(self, output: RequestOutput) -> None:
        """Record that the request has ended."""
        self.cached = output.num_cached
        for sample, completion in zip(self._samples, output.completions, strict=True):
            sample.state, sample.generated = completion.finish_reason, len(completion.token_ids)
            sample.preemptions = completion.num_preemptions

    def abandon(self) -> None:
        """Record that the request was aborted and its output was lost."""
        for sample in self._samples:
            if sample.state in (WAITING, PREFILL, DECODE):
                sample.state = FinishReason.ABORT

    def rows(self) -> list[SequenceRow]:
        return [self._row(index, sample) for index, sample in enumerate(self._samples)]

    def _row(self, index: int, sample: _Sample) -> SequenceRow:
        # A failed step leaves no tokens stored, and how many the sequence lost is unknown.
        stored = 0 if sample.state == FinishReason.ERROR else sample.stored
        stored = self._prompt if sample.state in DONE else min(stored, self._prompt)
        cached = min(self.cached, stored)
        return SequenceRow(
            name=self.name(index),
            number=self.number,
            state=str(sample.state),
            cached=cached,
            computed=stored - cached,
            left=self._prompt - stored,
            generated=sample.generated,
            longest=self._longest,
        )


def state_of(view: SequenceView) -> str:
    """Return the state of a sequence that has not ended: "waiting", "prefill" or "decode"."""
    if view.status is not SequenceStatus.RUNNING:
        return WAITING
    missing = view.num_prompt + view.num_output - view.num_computed
    return DECODE if view.num_output and missing == 1 else PREFILL
