"""Exercises 01.2 and 01.3: the FLOPs of a step without a cache, and where attention overtakes the projections."""

import random

from minikv.course.exercise import Exercise, Misconception

SIZES = ("layers", "hidden", "heads", "kv_heads", "head_dim", "intermediate")


def per_token(layers, hidden, heads, kv_heads, head_dim, intermediate):
    """Return the FLOPs of a token's projections: two for each element of every weight matrix."""
    attention = hidden * (heads + 2 * kv_heads) * head_dim + heads * head_dim * hidden
    return 2 * layers * (attention + 3 * hidden * intermediate)


def per_pair(layers, heads, head_dim):
    """Return the FLOPs of one query with one key and one value, in every head of every layer."""
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
    """Draw a model with grouped heads and a head_dim other than hidden // heads."""
    kv_heads, head_dim = rng.choice([2, 3, 4]), rng.choice([2, 3, 4]) * (1 + number // 10)
    heads = kv_heads * rng.choice([2, 3, 4])
    hidden = heads * head_dim + rng.choice([2, 4, 6])
    return rng.randint(2, 3 + number // 4), hidden, heads, kv_heads, head_dim, hidden * 2 + rng.randint(1, 9)


UNCACHED = Exercise(
    id="01.2",
    minutes=4,
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
    """Return the smallest n with n * per_pair > per_token."""
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
        if number % 2:  # per_token is then a multiple of per_pair: the two are equal at some length
            hidden = 2 * heads * head_dim
        cases.append((layers, hidden, heads, kv_heads, head_dim, intermediate))
    return cases


CROSSING = Exercise(
    id="01.3",
    minutes=4,
    name="crossing",
    signature=SIZES,
    cases=draw_crossing,
    reference=crossing,
    misconceptions=(
        Misconception("rounds_down", lambda *sizes: crossing(*sizes) - 1),
        Misconception("stops_at_the_tie", _ceiling, within=("rounds_down",)),
        Misconception("kv_heads_attend", _kv_heads_attend),
    ),
)
