"""Lesson 03: the estimate that missed by 2.86x, and what an MLA layer really caches."""

import random
from typing import Any

from minikv.course.exercise import Lesson, Prediction
from minikv.course.lessons.l03.batch import BATCH
from minikv.course.lessons.l03.mla_bytes import BF16, EXPANDED, KIND, LATENT, MLA_MODELS, RANK
from minikv.plan import CacheSpec, find_model


def _mla_sizes(rng: random.Random) -> dict[str, object]:
    """Draw a model other than the one of the first picture; the question states its sizes, for paper and pencil."""
    model = rng.choice(MLA_MODELS[1:])
    config = find_model(model).config
    fields = {"heads": "num_attention_heads", "nope": "qk_nope_head_dim", "rope": "qk_rope_head_dim"}
    fields |= {"v_dim": "v_head_dim", "latent": "kv_lora_rank"}
    return {"model": model, **{name: config[field] for name, field in fields.items()}}


def _token_bytes(model: str, **options: Any) -> int:
    return CacheSpec.from_config(model, **options).layers[0].token_bytes


def _rebuilt_gb(num_tokens: int) -> float:
    return num_tokens * _token_bytes("DeepSeek-V3", layout="hf-expanded") / 10**9


LESSON = Lesson(
    exercises=(EXPANDED, LATENT, KIND, BATCH, RANK),
    predictions=(
        Prediction(
            "naive_heads",
            lambda rng: {"heads": rng.choice([32, 64, 256])},
            how="2 * {heads} * (7168 // {heads}) * 2",
            unit="bytes",
            answer=lambda heads: 2 * heads * (7168 // heads) * BF16,
        ),
        Prediction(
            "expanded_token",
            _mla_sizes,
            how="{heads} * (({nope} + {rope}) + {v_dim}) * 2",
            unit="bytes",
            answer=lambda model, **sizes: _token_bytes(model, layout="hf-expanded"),
        ),
        Prediction(
            "latent_token",
            _mla_sizes,
            how="({latent} + {rope}) * 2",
            unit="bytes",
            answer=lambda model, **sizes: _token_bytes(model, layout="hf"),
        ),
        Prediction(
            "rebuilt",
            lambda rng: {"num_tokens": rng.choice([8192, 16384, 32768])},
            how="{num_tokens} * 128 * (192 + 128) * 2 / 10**9",
            unit="GB",
            answer=_rebuilt_gb,
            tolerance=1.25,
        ),
        Prediction(
            "all_ranks",
            lambda rng: {"tp": rng.choice([2, 4, 8, 16])},
            how="{tp} * (512 + 64) * 2",
            unit="bytes",
            answer=lambda tp: tp * _token_bytes("DeepSeek-V3", tp=tp),
        ),
    ),
    questions=("heads_cancel", "who_needs_heads", "estimate_and_leak"),
)
