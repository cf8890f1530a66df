"""Exercise 02.7: what a widget over ``CacheSpec`` shows for the values of its four controls."""

import random

from minikv.course import Exercise, Misconception
from minikv.plan import CacheSpec
from minikv.units import GIB

MODELS = ("Llama-3.1-8B", "Qwen2.5-7B-Instruct", "Qwen3-0.6B", "Gemma-2-9B")  # the last has windows
KV_DTYPES = ("bf16", "fp8", "fp8_scaled", "fp32")


def reading(model: str, kv_dtype: str, context: int, gib: int) -> tuple[int, int]:
    one = CacheSpec.from_config(model, kv_dtype=kv_dtype).bytes_for(context)
    return one, gib * GIB // one


def in_the_models_dtype(model, kv_dtype, context, gib):
    return reading(model, "bf16", context, gib)


def of_one_token(model, kv_dtype, context, gib):
    return reading(model, kv_dtype, 1, gib)


def context_times_a_token(model, kv_dtype, context, gib):
    one = context * reading(model, kv_dtype, 1, gib)[0]
    return one, gib * GIB // one


def decimal(model, kv_dtype, context, gib):
    one, _ = reading(model, kv_dtype, context, gib)
    return one, gib * 10**9 // one


def rounded_up(model, kv_dtype, context, gib):
    one, _ = reading(model, kv_dtype, context, gib)
    return one, -(-gib * GIB // one)


def _controls(rng: random.Random) -> list[tuple]:
    """Draw values of the controls: contexts on and beside a multiple of 1,024, below and above Gemma 2's window."""
    cases = []
    for number in range(40):
        context = 1024 * rng.randint(1, 16) + rng.choice([0, 0, 1, 1023])
        cases.append((MODELS[number % 4], rng.choice(KV_DTYPES), context, rng.randint(2, 4 + 2 * number)))
    return cases


READING = Exercise(
    id="02.7",
    minutes=4,
    name="reading",
    signature=("model", "kv_dtype", "context", "gib"),
    cases=_controls,
    reference=reading,
    misconceptions=(
        Misconception("model_dtype", in_the_models_dtype),
        Misconception("one_token", of_one_token),
        Misconception("multiplies", context_times_a_token),
        Misconception("decimal", decimal),
        Misconception("rounds_up", rounded_up),
    ),
)
