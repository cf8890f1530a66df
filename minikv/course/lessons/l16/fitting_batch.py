"""Exercise 16.4: the largest batch that fits, for a config with K and V or with latents."""

import math

from minikv.course.exercise import Exercise, Misconception
from minikv.units import MIB

BF16 = 2  # bytes an element


# 16.4


def fitting_batch(config: dict, free_mib: int, num_tokens: int) -> int:
    return _fits(config, free_mib * MIB, num_tokens, _layer_bytes(config))


def _fits(config: dict, free_bytes: int, num_tokens: int, layer_bytes: int, extra: int = 1) -> int:
    return free_bytes // (num_tokens * layer_bytes * (config["num_hidden_layers"] + extra))


def _layer_bytes(config: dict) -> int:
    """Return the bytes of one token in one layer: K and V of every KV head, or with MLA one latent and one rope key."""
    if config.get("kv_lora_rank"):
        return (config["kv_lora_rank"] + config["qk_rope_head_dim"]) * BF16
    head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    return 2 * config["num_key_value_heads"] * head_dim * BF16


def batch_hidden_size(config, free_mib, num_tokens):
    """Takes the head's width from the hidden size, as the script does, also for MLA."""
    head_dim = config["hidden_size"] // config["num_attention_heads"]
    return _fits(config, free_mib * MIB, num_tokens, 2 * config["num_key_value_heads"] * head_dim * BF16)


def batch_trusted_head_dim(config, free_mib, num_tokens):
    return fitting_batch({**config, "kv_lora_rank": None}, free_mib, num_tokens)


def batch_expanded(config, free_mib, num_tokens):
    """Counts K and V of every head of an MLA model, as the document proposed."""
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
        if i % 2:  # MLA; like real configs it also has the misleading fields of the other models
            config |= {"num_key_value_heads": heads, "kv_lora_rank": rng.choice([128, 256, 512])}
            rope = rng.choice([32, 64])
            config |= {"qk_nope_head_dim": 128, "qk_rope_head_dim": rope, "v_head_dim": 128, "head_dim": rope}
        else:
            config |= {"num_key_value_heads": rng.choice([2, 4])}
            config |= {"kv_lora_rank": None} if i % 8 < 4 else {}
            # head_dim is missing, or not hidden_size // heads.
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
    minutes=6,
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
