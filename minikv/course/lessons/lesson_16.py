"""Lesson 16: who holds the memory after ``generate()``, and which figure tells."""

import math

from minikv.course.exercise import Exercise, Lesson, Misconception, Prediction
from minikv.course.lessons.evidence_16 import GROWN, HOLDERS, left_reserved
from minikv.course.lessons.pins_16 import PINS
from minikv.plan import CacheSpec
from minikv.units import MIB

BF16 = 2  # bytes an element

# The small model of the lesson, float32.
SMALL = {
    "model_type": "llama",
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 128,
    "dtype": "float32",
}

# 16.1


def split_used(total: int, free: int, allocated: int, reserved: int, inactive_split: int) -> tuple:
    returnable = reserved - allocated - inactive_split
    return allocated, inactive_split, returnable, total - free - reserved


def split_outside_with_free(total, free, allocated, reserved, inactive_split):
    live, pinned, returnable, _ = split_used(total, free, allocated, reserved, inactive_split)
    return live, pinned, returnable, total - reserved


def split_outside_with_cache(total, free, allocated, reserved, inactive_split):
    live, pinned, returnable, _ = split_used(total, free, allocated, reserved, inactive_split)
    return live, pinned, returnable, total - free - allocated


def split_pinned_returned(total, free, allocated, reserved, inactive_split):
    live, pinned, _, outside = split_used(total, free, allocated, reserved, inactive_split)
    return live, pinned, reserved - allocated, outside


def split_reserved_live(total, free, allocated, reserved, inactive_split):
    _, pinned, returnable, outside = split_used(total, free, allocated, reserved, inactive_split)
    return reserved, pinned, returnable, outside


def split_signs(total, free, allocated, reserved, inactive_split):
    live, pinned, returnable, outside = split_used(total, free, allocated, reserved, inactive_split)
    return live, pinned, returnable + 2 * inactive_split, outside


def draw_figures(rng) -> list[dict]:
    cases = []
    for i in range(40):
        unit = (1, 512, MIB)[i % 3]
        allocated, pinned, returnable, outside = (rng.randint(2, 9 + 4 * i) * unit for _ in range(4))
        free = rng.randint(1, 9 + 4 * i) * unit
        reserved = allocated + pinned + returnable
        figures = {
            "total": free + reserved + outside,
            "free": free,
            "allocated": allocated,
            "reserved": reserved,
        }
        cases.append({**figures, "inactive_split": pinned})
    return cases


SPLIT = Exercise(
    id="16.1",
    name="split_used",
    signature=("total", "free", "allocated", "reserved", "inactive_split"),
    cases=draw_figures,
    reference=split_used,
    misconceptions=(
        Misconception("free_outside", split_outside_with_free),
        Misconception("cache_outside", split_outside_with_cache),
        Misconception("pinned_returned", split_pinned_returned),
        Misconception("reserved_live", split_reserved_live),
        Misconception("pinned_added", split_signs),
    ),
)

# 16.4


def fitting_batch(config: dict, free_mib: int, num_tokens: int) -> int:
    return _fits(config, free_mib * MIB, num_tokens, _layer_bytes(config))


def _fits(config: dict, free_bytes: int, num_tokens: int, layer_bytes: int, extra: int = 1) -> int:
    return free_bytes // (num_tokens * layer_bytes * (config["num_hidden_layers"] + extra))


def _layer_bytes(config: dict) -> int:
    """Bytes of one token in one layer: K and V of every KV head, or with MLA one latent and one rope key."""
    if config.get("kv_lora_rank"):
        return (config["kv_lora_rank"] + config["qk_rope_head_dim"]) * BF16
    head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    return 2 * config["num_key_value_heads"] * head_dim * BF16


def batch_hidden_size(config, free_mib, num_tokens):
    """The script's line: the width of a head from the hidden size, MLA or not."""
    head_dim = config["hidden_size"] // config["num_attention_heads"]
    return _fits(config, free_mib * MIB, num_tokens, 2 * config["num_key_value_heads"] * head_dim * BF16)


def batch_trusted_head_dim(config, free_mib, num_tokens):
    return fitting_batch({**config, "kv_lora_rank": None}, free_mib, num_tokens)


def batch_expanded(config, free_mib, num_tokens):
    """The fix that the document proposed: K and V of every head of an MLA model."""
    layer = _layer_bytes(config)
    if config.get("kv_lora_rank"):
        width = config["qk_nope_head_dim"] + config["qk_rope_head_dim"] + config["v_head_dim"]
        layer = config["num_key_value_heads"] * width * BF16
    return _fits(config, free_mib * MIB, num_tokens, layer)


def batch_mb(config, free_mib, num_tokens):
    return _fits(config, free_mib * 10**6, num_tokens, _layer_bytes(config))


def batch_without_v(config, free_mib, num_tokens):
    layer = _layer_bytes(config) // (1 if config.get("kv_lora_rank") else 2)
    return _fits(config, free_mib * MIB, num_tokens, layer)


def batch_two_latents(config, free_mib, num_tokens):
    layer = _layer_bytes(config) * (2 if config.get("kv_lora_rank") else 1)
    return _fits(config, free_mib * MIB, num_tokens, layer)


def batch_no_growth(config, free_mib, num_tokens):
    return _fits(config, free_mib * MIB, num_tokens, _layer_bytes(config), extra=0)


def draw_batches(rng) -> list[dict]:
    cases = []
    for i in range(40):
        heads = rng.choice([8, 16, 32])
        config = {"num_hidden_layers": rng.randint(2, 4 + i // 2), "num_attention_heads": heads}
        config["hidden_size"] = heads * rng.choice([48, 56, 80])
        if i % 2:  # MLA; like real configs it has the fields of the others too, and they mislead
            config |= {"num_key_value_heads": heads, "kv_lora_rank": rng.choice([128, 256, 512])}
            rope = rng.choice([32, 64])
            config |= {"qk_nope_head_dim": 128, "qk_rope_head_dim": rope, "v_head_dim": 128, "head_dim": rope}
        else:
            config |= {"num_key_value_heads": rng.choice([2, 4])}
            config |= {"kv_lora_rank": None} if i % 8 < 4 else {}
            # Without the field, or with one that is no quotient of the hidden size.
            config |= {} if i % 4 else {"head_dim": rng.choice([128, 256])}
        num_tokens = 64 * rng.randint(1, 6) if i % 5 == 4 else rng.randint(20, 60 + 10 * i)
        one = num_tokens * _layer_bytes(config) * (config["num_hidden_layers"] + 1)
        free_mib = -(-one * rng.randint(40, 90 + 10 * i) // MIB)
        if i % 5 == 4:  # the last of them fits to the byte
            free_mib = one // math.gcd(one, MIB) * rng.randint(1, 3)
        cases.append({"config": config, "free_mib": free_mib, "num_tokens": num_tokens})
    return cases


BATCH = Exercise(
    id="16.4",
    name="fitting_batch",
    signature=("config", "free_mib", "num_tokens"),
    cases=draw_batches,
    reference=fitting_batch,
    misconceptions=(
        Misconception("hidden_size", batch_hidden_size),
        Misconception("trusted_head_dim", batch_trusted_head_dim),
        Misconception("expanded", batch_expanded),
        Misconception("mb_for_mib", batch_mb),
        Misconception("forgot_v", batch_without_v),
        Misconception("two_latents", batch_two_latents),
        Misconception("no_growth", batch_no_growth),
    ),
)


LESSON = Lesson(
    exercises=(SPLIT, GROWN, HOLDERS, BATCH, PINS),
    predictions=(
        Prediction(
            "unexplained",
            lambda rng: {"free": rng.choice([4.5, 5.5, 6.5])},
            how="18 - {free} - 6",
            unit="GB",
            answer=lambda free: 18 - free - 6,
        ),
        Prediction(
            "kept_by_output",
            lambda rng: {"prompt": rng.choice([10, 17, 25])},
            how="CacheSpec.from_config(SMALL).bytes_for({prompt} + 8 - 1, batch=3)",
            unit="bytes",
            answer=lambda prompt: CacheSpec.from_config(SMALL).bytes_for(prompt + 8 - 1, batch=3),
        ),
        Prediction(
            "left_reserved",
            lambda rng: {"size": rng.choice([3, 4, 5]), "count": rng.choice([30, 40, 60])},
            how="left_reserved([{size} * 2**20] * {count}, kept=[0]) / 2**20",
            unit="MiB",
            answer=lambda size, count: left_reserved([size * MIB] * count, kept=[0]) / MIB,
        ),
    ),
    questions=("who_is_left", "what_empty_cache_returns", "estimate_is_no_holder"),
)
