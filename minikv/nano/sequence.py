"""A request on its way through the engine: its tokens, how far they are computed, and which blocks hold
them.
"""

from dataclasses import dataclass, field

from minikv.errors import ArgumentError, check_count


@dataclass(frozen=True)
class SamplingParams:
    """How the next token is chosen, and when a sequence ends.

    ``temperature`` 0 takes the likeliest token. Otherwise logits are divided by it, and the token is drawn
    from the fewest likeliest tokens with probabilities that sum to ``top_p``. ``seed`` makes the draws
    repeatable. ``max_tokens`` tokens are generated at most; ``ignore_eos`` goes on past the model's end-of-
    sequence tokens.
    """

    max_tokens: int = 16
    temperature: float = 1.0
    top_p: float = 1.0
    seed: int = 0
    ignore_eos: bool = False

    def __post_init__(self) -> None:
        check_count("max_tokens", self.max_tokens)
        for what, value, low in (("temperature", self.temperature, 0), ("top_p", self.top_p, 1e-9)):
            high = 1 if what == "top_p" else 100
            if not isinstance(value, int | float) or not low <= value <= high:
                raise ArgumentError("sampling_range", what=what, value=value, low=low, high=high)


@dataclass(eq=False)
class Sequence:
    """One prompt and its answer. ``tokens`` holds both, so a preempted sequence loses nothing but K and V.

    ``num_computed`` tokens have their K and V in the cache, in the blocks of ``block_table``. ``num_cached``
    of them were found in the prefix cache when the sequence was last admitted. ``finish_reason`` is "stop" or
    "length".
    """

    id: int
    tokens: list[int]
    num_prompt: int
    params: SamplingParams
    block_table: list[int] = field(default_factory=list)
    num_computed: int = 0
    num_cached: int = 0
    finish_reason: str | None = None

    @property
    def answer(self) -> list[int]:
        """The generated tokens."""
        return self.tokens[self.num_prompt :]

    def append(self, token: int, eos: frozenset[int]) -> None:
        """Add a generated token, and say if the sequence ends with it."""
        self.tokens.append(token)
        if token in eos and not self.params.ignore_eos:
            self.finish_reason = "stop"
        elif len(self.tokens) - self.num_prompt == self.params.max_tokens:
            self.finish_reason = "length"
