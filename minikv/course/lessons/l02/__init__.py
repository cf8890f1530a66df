"""Lesson 02, "What does one token cost?": the formula, head_dim, a block, a widget."""

import math
import random

from minikv.course import Lesson, Prediction
from minikv.course.lessons.l02.cache_bytes import BLOCK_BYTES, HEAD_DIM_OF, TOKEN_BYTES
from minikv.course.lessons.l02.reading import READING
from minikv.plan import CacheSpec, find_model, weight_bytes


def _attention_sizes(rng: random.Random) -> dict[str, object]:
    name = rng.choice(["Llama-2-70B", "Qwen2.5-7B-Instruct", "Mixtral-8x22B", "Llama-3.1-8B"])
    config = find_model(name).config
    heads, hidden = config["num_attention_heads"], config["hidden_size"]
    return {
        "model": name,
        "layers": config["num_hidden_layers"],
        "heads": heads,
        "kv_heads": config["num_key_value_heads"],
        "hidden": hidden,
        "head_dim": hidden // heads,
    }


def _one_token(model: str, **sizes: int) -> int:
    return CacheSpec.from_config(model).bytes_for(1)


def _share(rng: random.Random) -> dict[str, object]:
    model = "Llama-3.1-8B"
    return {
        "model": model,
        "weights": weight_bytes(model).total,
        "token": CacheSpec.from_config(model).bytes_for(1),
    }


LESSON = Lesson(
    exercises=(TOKEN_BYTES, HEAD_DIM_OF, BLOCK_BYTES, READING),
    predictions=(
        Prediction(
            "one_token",
            _attention_sizes,
            how="2 * {layers} * {kv_heads} * {head_dim} * 2",
            unit="bytes",
            answer=_one_token,
        ),
        Prediction(
            "gqa_saves",
            lambda rng: {"mha": "Llama-2-7B", "gqa": "Llama-3.1-8B"},
            how="32 / 8",
            unit="times",
            answer=lambda mha, gqa: (
                CacheSpec.from_config(mha).bytes_for(1) / CacheSpec.from_config(gqa).bytes_for(1)
            ),
        ),
        Prediction(
            "seventy_percent",
            _share,
            how="7 * {weights} // (3 * {token}) + 1",
            unit="tokens",
            answer=lambda model, weights, token: math.ceil(weights * 7 / 3 / token),
            tolerance=1.25,
        ),
    ),
    questions=("why_two", "no_hidden_size", "seven_b_at_4k"),
)
