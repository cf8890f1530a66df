"""Lesson 02, "What does one token cost?": the formula, head_dim, tensor parallelism, windows, the inverse, a block."""

import math
import random

from minikv.course import Lesson, Prediction
from minikv.course.lessons.l02.cache_bytes import BLOCK_BYTES, HEAD_DIM_OF, KV_HEADS_PER_RANK, TOKEN_BYTES
from minikv.course.lessons.l02.windowed_bytes import BYTES_FOR, MAX_TOKENS
from minikv.plan import CacheSpec, LayerSpec, find_model, weight_bytes


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


def _rank_of_many(rng: random.Random) -> dict[str, object]:
    return {"model": "Llama-3.1-8B", "tp": rng.choice([16, 32])}


def _share(rng: random.Random) -> dict[str, object]:
    model = "Llama-3.1-8B"
    return {
        "model": model,
        "weights": weight_bytes(model).total,
        "token": CacheSpec.from_config(model).bytes_for(1),
    }


def _small_window(rng: random.Random) -> dict[str, object]:
    window = rng.choice([24, 16, 32])
    return {"window": window, "prompt": 2 * window + 8}


def _held_after_the_prompt(window: int, prompt: int) -> int:
    layer = LayerSpec("sliding", kv_heads=2, k_dim=32, v_dim=32, itemsize=4, window=window - 1)
    return layer.held_bytes_for(prompt, step=prompt)


LESSON = Lesson(
    exercises=(TOKEN_BYTES, HEAD_DIM_OF, KV_HEADS_PER_RANK, BYTES_FOR, MAX_TOKENS, BLOCK_BYTES),
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
            "after_the_prompt",
            _small_window,
            how="{prompt} * 2 * 2 * 32 * 4",
            unit="bytes",
            answer=_held_after_the_prompt,
        ),
        Prediction(
            "many_ranks",
            _rank_of_many,
            how="2 * 32 * 1 * 128 * 2",
            unit="bytes",
            answer=lambda model, tp: CacheSpec.from_config(model, tp=tp).bytes_for(1),
        ),
        Prediction(
            "seventy_percent",
            _share,
            how="-(-{weights} * 7 // (3 * {token}))",
            unit="tokens",
            answer=lambda model, weights, token: math.ceil(weights * 7 / 3 / token),
            tolerance=1.25,
        ),
    ),
    questions=("why_two", "no_hidden_size", "more_than_calculated", "seven_b_at_4k"),
)
