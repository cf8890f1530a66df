"""Exercises 08.1 and 08.2: the bytes of a block on a rank, and the blocks that fit."""

from functools import partial
from typing import Any

from minikv.course.compare import difference
from minikv.course.exercise import Exercise, Misconception
from minikv.nano.kv_cache import num_blocks_that_fit
from minikv.units import MIB

# 08.1 ------------------------------------------------------------------------------------------------------


def _heads_on_a_rank(config: dict, tp: int) -> int:
    return max(1, config["num_key_value_heads"] // tp)


def _pair_bytes(config: dict, block_size: int, heads: int, head_dim: int) -> int:
    """Return the bytes of K and V of ``heads`` heads in all layers."""
    return 2 * config["num_hidden_layers"] * block_size * heads * head_dim * config["dtype_bytes"]


def _latent_bytes(config: dict, block_size: int) -> int:
    width = config["kv_lora_rank"] + config["qk_rope_head_dim"]
    return config["num_hidden_layers"] * block_size * width * config["dtype_bytes"]


def block_bytes(config: dict, block_size: int, tp: int) -> int:
    if "kv_lora_rank" in config:
        return _latent_bytes(config, block_size)
    return _pair_bytes(config, block_size, _heads_on_a_rank(config, tp), config["head_dim"])


def _only(heads_only):
    """Return a wrong answer that counts heads wrongly and MLA rightly."""

    def wrong(config, block_size, tp):
        if "kv_lora_rank" in config:
            return block_bytes(config, block_size, tp)
        return heads_only(config, block_size, tp)

    return wrong


def _hidden_dim(config: dict) -> int:
    return config["hidden_size"] // config["num_attention_heads"]


def block_mla_by_hidden(config, block_size, tp):
    """Takes MLA for heads of hidden_size // num_attention_heads."""
    heads = _heads_on_a_rank(config, tp)
    if "kv_lora_rank" in config:
        return _pair_bytes(config, block_size, heads, _hidden_dim(config))
    return block_bytes(config, block_size, tp)


def block_latent_divided(config, block_size, tp):
    return block_bytes(config, block_size, tp) // (tp if "kv_lora_rank" in config else 1)


def block_latent_doubled(config, block_size, tp):
    return block_bytes(config, block_size, tp) * (2 if "kv_lora_rank" in config else 1)


def block_of_one_layer(config, block_size, tp):
    return block_bytes(config, block_size, tp) // config["num_hidden_layers"]


def draw_blocks(rng) -> list[dict]:
    """Draw GQA with a head_dim other than hidden_size // heads, and MLA; sometimes more ranks than heads."""
    cases = []
    for i in range(40):
        heads = rng.choice([4, 8, 16])
        config = {
            "num_hidden_layers": rng.randint(2, 4 + 2 * i),
            "num_attention_heads": 2 * heads,
            "num_key_value_heads": heads if i % 2 else rng.choice([2, 4]),
            "hidden_size": 2 * heads * rng.choice([24, 40, 80]),
            "dtype_bytes": rng.choice([1, 2, 4]),
        }
        if i % 2:
            config |= {
                "kv_lora_rank": rng.choice([96, 256, 512]),
                "qk_rope_head_dim": rng.choice([16, 32, 64]),
            }
        else:
            config["head_dim"] = rng.choice([16, 64, 128])
        cases.append(
            {"config": config, "block_size": rng.choice([8, 16, 32]), "tp": rng.choice([1, 2, 4, 8])}
        )
    return cases


BLOCK_BYTES = Exercise(
    id="08.1",
    minutes=5,
    name="block_bytes",
    signature=("config", "block_size", "tp"),
    cases=draw_blocks,
    reference=block_bytes,
    misconceptions=(
        Misconception("no_factor_two", _only(lambda c, size, tp: block_bytes(c, size, tp) // 2)),
        Misconception("heads_not_divided", _only(lambda c, size, tp: block_bytes(c, size, 1))),
        Misconception(
            "no_head_left",
            _only(lambda c, size, tp: _pair_bytes(c, size, c["num_key_value_heads"] // tp, c["head_dim"])),
        ),
        Misconception(
            "head_dim_from_hidden",
            _only(lambda c, size, tp: _pair_bytes(c, size, _heads_on_a_rank(c, tp), _hidden_dim(c))),
            within=("hidden_everywhere",),
        ),
        Misconception("mla_from_hidden", block_mla_by_hidden, within=("hidden_everywhere",)),
        Misconception(
            "hidden_everywhere",
            lambda config, block_size, tp: _pair_bytes(
                config, block_size, _heads_on_a_rank(config, tp), _hidden_dim(config)
            ),
            within=("head_dim_from_hidden",),
        ),
        Misconception("latent_divided", block_latent_divided),
        Misconception("latent_doubled", block_latent_doubled),
        Misconception("one_layer", block_of_one_layer),
    ),
)

# 08.2 ------------------------------------------------------------------------------------------------------


def _blocks(total, utilization, rest, block_bytes) -> int:
    """Return the blocks that fit in total * utilization - ``rest`` (bytes)."""
    return num_blocks_that_fit(total, utilization, rest, 0, 0, block_bytes)


# Each takes total, utilization, used, peak, current and the bytes of a block.
BLOCKS_WRONG = {
    "wrong_sign": lambda t, u, used, peak, now, b: _blocks(t, u, used + peak + now, b),
    "weights_twice": lambda t, u, used, peak, now, b: _blocks(t, u, used + peak, b),
    "used_twice": lambda t, u, used, peak, now, b: _blocks(t, u, 2 * used + peak - now, b),
    "short_form": lambda t, u, used, peak, now, b: _blocks(t, u, peak, b),
    "no_peak": lambda t, u, used, peak, now, b: _blocks(t, u, used, b),
    "free_over_block": lambda t, u, used, peak, now, b: _blocks(t, 1, used, b),
    "share_of_free": lambda t, u, used, peak, now, b: int((t - used) * u) // b,
    "share_after_peak": lambda t, u, used, peak, now, b: int((t - used - (peak - now)) * u) // b,
    "bytes_left": lambda t, u, used, peak, now, b: int(t * u - used - (peak - now)),
    "rounds_up": lambda t, u, used, peak, now, b: -(-int(t * u - used - (peak - now)) // b),
    "a_float": lambda t, u, used, peak, now, b: (t * u - used - (peak - now)) // b,
    "terms_in_mib": lambda t, u, used, peak, now, b: int((t * u - used - (peak - now)) / MIB) // b,
    "mib_into_bytes": lambda t, u, used, peak, now, b: _blocks(t * MIB, u, used + peak - now, b),
    "at_least_one": lambda t, u, used, peak, now, b: max(1, _blocks(t, u, used + peak - now, b)),
}


def _in_order(wrong, *terms):
    return wrong(*terms)


def as_many(expected: Any, got: object) -> bool:
    """Compare two answers. Where nothing fits, 0 and every negative int are right. 3.0 blocks are not 3."""
    if isinstance(expected, float) != isinstance(got, float):
        return False
    if expected <= 0 and type(got) is int:
        return got <= 0
    return difference(expected, got) is None


def draw_terms(rng) -> list[dict]:
    """Draw GPUs of every size; used is above current; in one of eight cases the model does not fit.

    What is left is never within 1 KiB of whole blocks, so no answer depends on how a float is rounded.
    """
    cases: list[dict] = []
    while len(cases) < 40:
        i = len(cases)
        total = (200 + 40 * i * i) * MIB + rng.randint(0, MIB)
        current = rng.randint(total // 10, total // 3)
        case = {
            "total": total,
            "utilization": rng.choice([0.8, 0.9, 0.95]),
            "used": current + rng.randint(8 * MIB, total // 12),
            "peak": current + rng.randint(12 * MIB, total // 8),
            "current": current,
            "block_bytes": rng.choice([96 * 1024, 229_376, MIB, 2 * MIB]),
        }
        if i % 8 == 7:
            case["used"] = int(total * case["utilization"]) + rng.randint(4 * MIB, 20 * MIB)
        left = int(case["total"] * case["utilization"]) - case["used"] - case["peak"] + current
        if 1024 < left % case["block_bytes"] < case["block_bytes"] - 1024:
            cases.append(case)
    return cases


BLOCKS_THAT_FIT = Exercise(
    id="08.2",
    minutes=4,
    name="num_blocks_that_fit",
    signature=("total", "utilization", "used", "peak", "current", "block_bytes"),
    cases=draw_terms,
    reference=num_blocks_that_fit,
    equal=as_many,
    misconceptions=tuple(
        Misconception(name, partial(_in_order, wrong)) for name, wrong in BLOCKS_WRONG.items()
    ),
)
