"""Lesson 01: why generation slows down without a cache."""

import math
import operator
import random
from collections.abc import Callable, Iterable

from minikv.course.compare import shown
from minikv.course.exercise import Exercise, Lesson, Misconception, Prediction
from minikv.errors import ArgumentError
from minikv.plan.flops import crossing_length, step_flops

# 01.1 ------------------------------------------------------------------------------------------------------


def attend(query, keys, values, scale=None, normalise=True):
    """One query against every key: the weighted mean of the values, as a list of floats."""
    scale = math.sqrt(len(query)) if scale is None else scale
    scores = [sum(q * k for q, k in zip(query, key, strict=True)) / scale for key in keys]
    top = max(scores) if normalise else 0.0  # a common factor cancels, and exp() cannot overflow
    weights = [math.exp(score - top) for score in scores]
    total = sum(weights) if normalise else 1.0
    columns = zip(*values, strict=True)
    return [sum(w * v for w, v in zip(weights, column, strict=True)) / total for column in columns]


def close_in_float32(expected, got) -> bool:
    """Whether ``got``, a sequence of numbers or a 1-D tensor or array, is ``expected`` as float32 gives it."""
    numbers = got.tolist() if hasattr(got, "tolist") else got
    if len(numbers) != len(expected):
        return False
    pairs = zip(expected, numbers, strict=True)
    return all(math.isclose(due, number, rel_tol=1e-5, abs_tol=1e-5) for due, number in pairs)


def draw_attention(rng: random.Random):
    cases = []
    for number in range(40):
        tokens, d = 2 + number // 6, rng.choice([2, 4, 6, 8])
        d_v = rng.choice([size for size in (3, 5, 7) if size != d])
        rows = [[round(rng.uniform(-2, 2), 2) for _ in range(d)] for _ in range(tokens + 1)]
        values = [[round(rng.uniform(-9, 9), 1) for _ in range(d_v)] for _ in range(tokens)]
        cases.append((rows[0], rows[1:], values))
    return cases


ATTEND = Exercise(
    id="01.1",
    name="attend",
    signature=("query", "keys", "values"),
    cases=draw_attention,
    reference=attend,
    equal=close_in_float32,
    misconceptions=(
        Misconception("no_scale", lambda query, keys, values: attend(query, keys, values, 1.0)),
        Misconception("whole_d", lambda query, keys, values: attend(query, keys, values, len(query))),
        Misconception(
            "root_of_tokens", lambda query, keys, values: attend(query, keys, values, math.sqrt(len(keys)))
        ),
        Misconception(
            "not_normalised", lambda query, keys, values: attend(query, keys, values, normalise=False)
        ),
    ),
)

# 01.2 and 01.3 ---------------------------------------------------------------------------------------------

SIZES = ("layers", "hidden", "heads", "kv_heads", "head_dim", "intermediate")


def per_token(layers, hidden, heads, kv_heads, head_dim, intermediate):
    """FLOPs of a token's projections: two for each element of every weight matrix."""
    attention = hidden * (heads + 2 * kv_heads) * head_dim + heads * head_dim * hidden
    return 2 * layers * (attention + 3 * hidden * intermediate)


def per_pair(layers, heads, head_dim):
    """FLOPs of one query meeting one key and one value, in every head of every layer."""
    return 4 * layers * heads * head_dim


def uncached_step(num_tokens, layers, hidden, heads, kv_heads, head_dim, intermediate, vocab):
    projections = num_tokens * per_token(layers, hidden, heads, kv_heads, head_dim, intermediate)
    return projections + num_tokens**2 * per_pair(layers, heads, head_dim) + 2 * hidden * vocab


def _without_groups(num_tokens, layers, hidden, heads, kv_heads, head_dim, intermediate, vocab):
    return uncached_step(num_tokens, layers, hidden, heads, heads, head_dim, intermediate, vocab)


def _without_values(num_tokens, layers, hidden, heads, kv_heads, head_dim, intermediate, vocab):
    whole = uncached_step(num_tokens, layers, hidden, heads, kv_heads, head_dim, intermediate, vocab)
    return whole - num_tokens**2 * per_pair(layers, heads, head_dim) // 2


def _every_logit(num_tokens, layers, hidden, heads, kv_heads, head_dim, intermediate, vocab):
    whole = uncached_step(num_tokens, layers, hidden, heads, kv_heads, head_dim, intermediate, vocab)
    return whole + (num_tokens - 1) * 2 * hidden * vocab


def _one_query(num_tokens, layers, hidden, heads, kv_heads, head_dim, intermediate, vocab):
    whole = uncached_step(num_tokens, layers, hidden, heads, kv_heads, head_dim, intermediate, vocab)
    return whole - (num_tokens**2 - num_tokens) * per_pair(layers, heads, head_dim)


def _no_logits(num_tokens, layers, hidden, heads, kv_heads, head_dim, intermediate, vocab):
    return uncached_step(num_tokens, layers, hidden, heads, kv_heads, head_dim, intermediate, 0)


def _square_q_and_output(num_tokens, layers, hidden, heads, kv_heads, head_dim, intermediate, vocab):
    whole = uncached_step(num_tokens, layers, hidden, heads, kv_heads, head_dim, intermediate, vocab)
    return whole + num_tokens * 2 * layers * 2 * hidden * (hidden - heads * head_dim)


def _causal_half(num_tokens, layers, hidden, heads, kv_heads, head_dim, intermediate, vocab):
    whole = uncached_step(num_tokens, layers, hidden, heads, kv_heads, head_dim, intermediate, vocab)
    return whole - num_tokens * (num_tokens - 1) // 2 * per_pair(layers, heads, head_dim)


def draw_sizes(rng: random.Random, number: int) -> tuple[int, ...]:
    """A model with grouped heads whose head_dim is not hidden // heads."""
    kv_heads, head_dim = rng.choice([2, 3, 4]), rng.choice([2, 3, 4]) * (1 + number // 10)
    heads = kv_heads * rng.choice([2, 3, 4])
    hidden = heads * head_dim + rng.choice([2, 4, 6])
    return rng.randint(2, 3 + number // 4), hidden, heads, kv_heads, head_dim, hidden * 2 + rng.randint(1, 9)


UNCACHED = Exercise(
    id="01.2",
    name="uncached_step",
    signature=("num_tokens", *SIZES, "vocab"),
    cases=lambda rng: [
        (rng.randint(2, 3 + 2 * number), *draw_sizes(rng, number), rng.randint(90, 300))
        for number in range(40)
    ],
    reference=uncached_step,
    misconceptions=(
        Misconception("without_values", _without_values),
        Misconception("without_groups", _without_groups),
        Misconception("every_logit", _every_logit),
        Misconception("one_query", _one_query),
        Misconception("no_logits", _no_logits),
        Misconception("square_q_and_output", _square_q_and_output),
        Misconception("causal_half", _causal_half),
        Misconception("one_flop_each", lambda *args: uncached_step(*args) // 2),
    ),
)


def crossing(layers, hidden, heads, kv_heads, head_dim, intermediate):
    """The least n with n * per_pair > per_token."""
    return per_token(layers, hidden, heads, kv_heads, head_dim, intermediate) // per_pair(
        layers, heads, head_dim
    ) + 1  # fmt: skip


def _ceiling(layers, hidden, heads, kv_heads, head_dim, intermediate):
    pair = per_pair(layers, heads, head_dim)
    return -(-per_token(layers, hidden, heads, kv_heads, head_dim, intermediate) // pair)


def _kv_heads_attend(layers, hidden, heads, kv_heads, head_dim, intermediate):
    pair = per_pair(layers, kv_heads, head_dim)
    return per_token(layers, hidden, heads, kv_heads, head_dim, intermediate) // pair + 1


def draw_crossing(rng: random.Random):
    cases = []
    for number in range(40):
        layers, hidden, heads, kv_heads, head_dim, intermediate = draw_sizes(rng, number)
        if number % 2:  # per_token is a multiple of per_pair: the two meet exactly
            hidden = 2 * heads * head_dim
        cases.append((layers, hidden, heads, kv_heads, head_dim, intermediate))
    return cases


CROSSING = Exercise(
    id="01.3",
    name="crossing",
    signature=SIZES,
    cases=draw_crossing,
    reference=crossing,
    misconceptions=(
        Misconception("rounds_down", lambda *sizes: crossing(*sizes) - 1),
        Misconception("stops_at_the_tie", _ceiling),
        Misconception("kv_heads_attend", _kv_heads_attend),
    ),
)

# 01.4 ------------------------------------------------------------------------------------------------------


def list_of_ints(what: str, value) -> list[int]:
    """One int, a range, a list or tuple of ints, a 1-D tensor or array of them: as a list of Python ints.

    Raises ``ArgumentError`` for anything else; ``what`` names the argument in its sentence.
    """
    plain = value.tolist() if hasattr(value, "tolist") else value
    try:
        return [operator.index(item) for item in (plain if isinstance(plain, Iterable) else [plain])]
    except (TypeError, ValueError):
        raise ArgumentError("toy_not_ints", what=what, value=shown(value)) from None


class ToyModel:
    """Stands for a decoder with its cache: it remembers every (token, position) that it was fed, and its next
    token depends on all of them and on ``seed``. ``calls`` is what the exercise looks at."""

    def __init__(self, seed: int):
        self.seed = seed
        self.cache: list[tuple[int, int]] = []
        self.calls: list[tuple[list[int], list[int]]] = []

    def __call__(self, tokens, positions) -> int:
        """The next token (0 to 96) after ``tokens`` at ``positions``, both one entry a token.

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
    """A generation loop that feeds the prompt first, then what ``next_fed(tokens, step)`` says."""

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
    """What the learner's loop returned, and what it fed in each call."""
    model = ToyModel(model_seed)
    new_tokens = fn(model, list(prompt), num_new)
    if new_tokens is None:
        return None  # the check has a note of its own for a forgotten return
    new_tokens = list_of_ints("new_tokens", new_tokens)
    return {"new_tokens": new_tokens, "calls": [{"tokens": t, "positions": p} for t, p in model.calls]}


def draw_prompts(rng: random.Random):
    return [
        ([rng.randrange(97) for _ in range(2 + number // 8)], 1 + number % 6, rng.randrange(1000))
        for number in range(36)
    ]


GENERATE = Exercise(
    id="01.4",
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

# 01.5 ------------------------------------------------------------------------------------------------------


def tokens_held(prompt_tokens, new_tokens):
    """The last new token is never fed, so its K and V are never made."""
    return prompt_tokens + new_tokens - 1


HELD = Exercise(
    id="01.5",
    name="tokens_held",
    signature=("prompt_tokens", "new_tokens"),
    cases=lambda rng: [(rng.randint(1, 3 + 5 * n), 1 + n % 7 + n * rng.randint(0, 4)) for n in range(40)],
    reference=tokens_held,
    misconceptions=(
        Misconception("counts_the_last", lambda prompt_tokens, new_tokens: prompt_tokens + new_tokens),
        Misconception("new_tokens_alone", lambda prompt_tokens, new_tokens: new_tokens),
        Misconception("prompt_alone", lambda prompt_tokens, new_tokens: prompt_tokens),
    ),
)


def step_ratio(num_tokens):
    without, cached = (step_flops("Llama-3.1-8B", num_tokens, flag) for flag in (False, True))
    return without.total / cached.total


LESSON = Lesson(
    exercises=(ATTEND, UNCACHED, CROSSING, GENERATE, HELD),
    predictions=(
        Prediction(
            "step_ratio",
            lambda rng: {"num_tokens": rng.choice([500, 1000, 2000, 4000])},
            how=(
                'step_flops("Llama-3.1-8B", {num_tokens}, cached=False).total'
                ' / step_flops("Llama-3.1-8B", {num_tokens}, cached=True).total'
            ),
            unit="times",
            answer=step_ratio,
            tolerance=1.25,
        ),
        Prediction(
            "crossing",
            lambda rng: {"model": rng.choice(["Llama-3.1-8B", "Llama-2-7B", "Qwen3-8B"])},
            how="crossing_length({model!r})",
            unit="tokens",
            answer=lambda model: crossing_length(model),  # its argument is called config
            tolerance=2.0,
        ),
        Prediction(
            "held",
            lambda rng: {"prompt_tokens": rng.randint(5, 40), "new_tokens": rng.randint(4, 30)},
            how="{prompt_tokens} + {new_tokens} - 1",
            unit="tokens",
            answer=tokens_held,
        ),
    ),
    questions=("no_q_cache", "divided_by_n", "edited_message"),
)
