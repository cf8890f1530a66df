"""Lesson 01: why generation slows down without a cache. Exercises: ``attention, flops, decode_loop`` and 01.5."""

from dataclasses import asdict

from minikv.course.exercise import Exercise, Lesson, Misconception, Prediction
from minikv.course.lessons.l01.attention import ATTEND
from minikv.course.lessons.l01.decode_loop import GENERATE
from minikv.course.lessons.l01.flops import CROSSING, UNCACHED
from minikv.plan.flops import crossing_length, flop_cost, step_flops


def tokens_held(prompt_tokens, new_tokens):
    """Return the number of tokens in the cache. The last new token is never fed, so it has no K and V."""
    return prompt_tokens + new_tokens - 1


HELD = Exercise(
    id="01.5",
    minutes=3,
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


def _with_costs(model, **values):
    """Return ``values`` with the FLOPs that the question states, so that it can be answered on paper."""
    return {"model": model, **asdict(flop_cost(model)), **values}


def step_ratio(model, num_tokens, **costs):
    without, cached = (step_flops(model, num_tokens, flag) for flag in (False, True))
    return without.total / cached.total


LESSON = Lesson(
    exercises=(ATTEND, UNCACHED, CROSSING, GENERATE, HELD),
    predictions=(
        Prediction(
            "step_ratio",
            lambda rng: _with_costs("Llama-3.1-8B", num_tokens=rng.choice([500, 1000, 2000, 4000])),
            how=(
                "({num_tokens} * {per_token} + {num_tokens}**2 * {per_pair} + {lm_head})"
                " / ({per_token} + {num_tokens} * {per_pair} + {lm_head})"
            ),
            unit="times",
            answer=step_ratio,
            tolerance=1.25,
        ),
        Prediction(
            "crossing",
            lambda rng: _with_costs(rng.choice(["Llama-3.1-8B", "Llama-2-7B", "Qwen3-8B"])),
            how="{per_token} // {per_pair} + 1",
            unit="tokens",
            answer=lambda model, **costs: crossing_length(model),
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
