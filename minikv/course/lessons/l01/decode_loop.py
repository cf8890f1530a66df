"""Exercise 01.4: the loop with a cache, on a toy model that remembers what it was fed."""

import operator
import random
from collections.abc import Callable, Iterable

from minikv.course.compare import shown
from minikv.course.exercise import Exercise, Misconception
from minikv.errors import ArgumentError


def list_of_ints(what: str, value) -> list[int]:
    """Return one int, a range, a list or tuple of ints, or a 1-D tensor or array of them as a list of Python ints.

    Raises ``ArgumentError`` for anything else; ``what`` names the argument in its sentence.
    """
    plain = value.tolist() if hasattr(value, "tolist") else value
    try:
        return [operator.index(item) for item in (plain if isinstance(plain, Iterable) else [plain])]
    except (TypeError, ValueError):
        raise ArgumentError("toy_not_ints", what=what, value=shown(value)) from None


class ToyModel:
    """A stand-in for a decoder with its cache. It remembers every (token, position) that it was fed.

    Its next token depends on all of them and on ``seed``. The exercise checks ``calls``.
    """

    def __init__(self, seed: int):
        self.seed = seed
        self.cache: list[tuple[int, int]] = []
        self.calls: list[tuple[list[int], list[int]]] = []

    def __call__(self, tokens, positions) -> int:
        """Return the next token (0 to 96) after ``tokens`` at ``positions``; both have one entry a token.

        Raises ``ArgumentError`` for what ``list_of_ints`` refuses and for two different lengths.
        """
        fed, at = list_of_ints("tokens", tokens), list_of_ints("positions", positions)
        if len(fed) != len(at):
            raise ArgumentError("toy_lengths", tokens=len(fed), positions=len(at))
        self.calls.append((fed, at))
        self.cache += zip(fed, at, strict=True)
        seen = self.seed
        for token, position in self.cache:
            seen = (seen * 31 + (token + 1) * (position + 7)) % 1_000_003
        return seen % 97


def generate(model, prompt, num_new):
    tokens = list(prompt)
    fed = tokens
    for _ in range(num_new):
        start = len(tokens) - len(fed)
        tokens = [*tokens, model(fed, list(range(start, start + len(fed))))]
        fed = tokens[-1:]
    return tokens[len(prompt) :]


def _loop(next_fed: Callable[[list[int], int], tuple[list[int], list[int]]]) -> Callable:
    """Return a generation loop that feeds the prompt first, and then what ``next_fed(tokens, step)`` returns."""

    def run(model, prompt, num_new):
        tokens = list(prompt)
        fed, positions = tokens, list(range(len(tokens)))
        for step in range(num_new):
            tokens = [*tokens, model(fed, positions)]
            fed, positions = next_fed(tokens, step)
        return tokens[len(prompt) :]

    return run


def _one_more_call(model, prompt, num_new):
    answer = generate(model, prompt, num_new)
    model(answer[-1:], [len(prompt) + num_new - 1])
    return answer


def _prompt_in_pieces(model, prompt, num_new):
    tokens = list(prompt)
    for position in range(len(prompt) + num_new - 1):
        newest = model([tokens[position]], [position])
        if position >= len(prompt) - 1:
            tokens.append(newest)
    return tokens[len(prompt) :]


def run_toy(fn, prompt, num_new, model_seed):
    """Return what the learner's loop returned, and what it fed in each call."""
    model = ToyModel(model_seed)
    new_tokens = fn(model, list(prompt), num_new)
    if new_tokens is None:
        return None  # The check has a note of its own for a forgotten return.
    new_tokens = list_of_ints("new_tokens", new_tokens)
    return {"new_tokens": new_tokens, "calls": [{"tokens": t, "positions": p} for t, p in model.calls]}


def draw_prompts(rng: random.Random):
    return [
        ([rng.randrange(97) for _ in range(2 + number // 8)], 1 + number % 6, rng.randrange(1000))
        for number in range(36)
    ]


GENERATE = Exercise(
    id="01.4",
    minutes=5,
    name="generate",
    signature=("prompt", "num_new", "model_seed"),
    cases=draw_prompts,
    reference=generate,
    drive=run_toy,
    misconceptions=(
        Misconception("feeds_everything", _loop(lambda tokens, step: (tokens, list(range(len(tokens)))))),
        Misconception("one_position_late", _loop(lambda tokens, step: (tokens[-1:], [len(tokens)]))),
        Misconception("positions_restart", _loop(lambda tokens, step: (tokens[-1:], [step]))),
        Misconception("one_more_call", _one_more_call),
        Misconception("prompt_in_pieces", _prompt_in_pieces),
    ),
)
