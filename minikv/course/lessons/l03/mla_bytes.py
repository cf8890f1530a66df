"""Exercises 03.1 to 03.3 and 03.5: what an MLA layer caches, expanded or as latents, and on each rank."""

from minikv.course.exercise import Exercise, Misconception

MLA_MODELS = ("DeepSeek-V3", "Kimi-K2", "DeepSeek-V2-Lite")
BF16 = 2  # bytes an element


def expanded_bytes(heads: int, nope: int, rope: int, v_dim: int, itemsize: int) -> int:
    return heads * (nope + rope + v_dim) * itemsize


def draw_expanded(rng) -> list[dict]:
    sizes = [(2 + i // 2, 8 + 4 * i) for i in range(40)]
    return [
        {
            "heads": heads + rng.randint(0, 3),
            "nope": nope,
            "rope": rng.choice([4, 8, 16, 32, 64]),
            # K and V never have the same width (nope + rope): equal widths would hide the most common mistake.
            "v_dim": rng.choice([nope, nope // 2 + 1]),
            "itemsize": rng.choice([1, 2, 4]),
        }
        for heads, nope in sizes
    ]


EXPANDED = Exercise(
    id="03.1",
    minutes=4,
    name="expanded_bytes",
    signature=("heads", "nope", "rope", "v_dim", "itemsize"),
    cases=draw_expanded,
    reference=expanded_bytes,
    misconceptions=(
        Misconception(
            "forgot_rope", lambda heads, nope, rope, v_dim, itemsize: heads * (nope + v_dim) * itemsize
        ),
        Misconception(
            "v_like_k", lambda heads, nope, rope, v_dim, itemsize: 2 * heads * (nope + rope) * itemsize
        ),
        Misconception(
            "rope_once",
            lambda heads, nope, rope, v_dim, itemsize: (heads * (nope + v_dim) + rope) * itemsize,
        ),
    ),
)


def latent_bytes(heads: int, kv_lora_rank: int, rope: int, itemsize: int) -> int:
    return (kv_lora_rank + rope) * itemsize


def draw_latent(rng) -> list[tuple]:
    return [
        (2 + i // 3 + rng.randint(0, 2), 16 + 13 * i, rng.choice([4, 8, 32, 64]), rng.choice([1, 2, 4]))
        for i in range(40)
    ]


LATENT = Exercise(
    id="03.2",
    minutes=3,
    name="latent_bytes",
    signature=("heads", "kv_lora_rank", "rope", "itemsize"),
    cases=draw_latent,
    reference=latent_bytes,
    misconceptions=(
        Misconception("forgot_rope", lambda heads, kv_lora_rank, rope, itemsize: kv_lora_rank * itemsize),
        Misconception(
            "times_heads",
            lambda heads, kv_lora_rank, rope, itemsize: heads * (kv_lora_rank + rope) * itemsize,
        ),
        Misconception(
            "doubled", lambda heads, kv_lora_rank, rope, itemsize: 2 * (kv_lora_rank + rope) * itemsize
        ),
        # The formula of LMCache PR #694.
        Misconception(
            "twice_no_rope", lambda heads, kv_lora_rank, rope, itemsize: 2 * kv_lora_rank * itemsize
        ),
        Misconception(
            "latent_twice", lambda heads, kv_lora_rank, rope, itemsize: (2 * kv_lora_rank + rope) * itemsize
        ),
        Misconception(
            "rope_each_head",
            lambda heads, kv_lora_rank, rope, itemsize: (kv_lora_rank + heads * rope) * itemsize,
        ),
    ),
)

# The first transformers version in which each class caches latents.
LATENT_SINCE = {"deepseek_v3": (5, 15), "deepseek_v32": (5, 18), "glm_moe_dsa": (5, 18)}


def cache_kind(config: dict, version: tuple[int, int]) -> str:
    if not config.get("kv_lora_rank"):
        return "heads"
    return "latent" if version >= LATENT_SINCE[config["model_type"]] else "expanded"


def kind_by_decimal(config: dict, version: tuple[int, int]) -> str:
    if not config.get("kv_lora_rank"):
        return "heads"
    major, minor = LATENT_SINCE[config["model_type"]]
    return "latent" if float(f"{version[0]}.{version[1]}") >= float(f"{major}.{minor}") else "expanded"


def kind_by_minor(config: dict, version: tuple[int, int]) -> str:
    if not config.get("kv_lora_rank"):
        return "heads"
    return "latent" if version[1] >= LATENT_SINCE[config["model_type"]][1] else "expanded"


def kind_one_version(config: dict, version: tuple[int, int]) -> str:
    if not config.get("kv_lora_rank"):
        return "heads"
    return "latent" if version >= (5, 15) else "expanded"


def kind_by_key(config: dict, version: tuple[int, int]) -> str:
    if "kv_lora_rank" not in config:
        return "heads"
    return "latent" if version >= LATENT_SINCE.get(config["model_type"], (5, 15)) else "expanded"


def draw_kinds(rng) -> list[tuple]:
    mla = [{"model_type": kind, "kv_lora_rank": 512, "num_key_value_heads": 64} for kind in LATENT_SINCE]
    heads = [
        {"model_type": "llama", "num_key_value_heads": 8},
        {"model_type": "qwen3", "num_key_value_heads": 4, "kv_lora_rank": None},
    ]
    versions = [(5, 2), (5, 9), (5, 14), (5, 15), (5, 17), (5, 18), (5, 23), (6, 0), (6, 2)]
    cases = [(dict(config), version) for config in mla + heads for version in versions]
    cases += [(dict(rng.choice(mla)), (rng.randint(4, 7), rng.randint(0, 60))) for _ in range(10)]
    return cases


KIND = Exercise(
    id="03.3",
    minutes=5,
    name="cache_kind",
    signature=("config", "version"),
    cases=draw_kinds,
    reference=cache_kind,
    misconceptions=(
        Misconception("decimal", kind_by_decimal),
        Misconception("minor_only", kind_by_minor),
        Misconception("one_version", kind_one_version),
        Misconception("key_is_there", kind_by_key),
    ),
)


def rank_bytes(config: dict, tp: int) -> int:
    if "kv_lora_rank" in config:
        return (config["kv_lora_rank"] + config["qk_rope_head_dim"]) * BF16
    return 2 * max(1, config["num_key_value_heads"] // tp) * config["head_dim"] * BF16


def rank_divided_latent(config: dict, tp: int) -> int:
    return rank_bytes(config, tp) // (tp if "kv_lora_rank" in config else 1)


def rank_zero_heads(config: dict, tp: int) -> int:
    if "kv_lora_rank" in config:
        return rank_bytes(config, tp)
    return 2 * (config["num_key_value_heads"] // tp) * config["head_dim"] * BF16


def rank_split_heads(config: dict, tp: int) -> int:
    return rank_bytes(config, tp if "kv_lora_rank" in config else 1) // (
        1 if "kv_lora_rank" in config else tp
    )


def rank_head_dim(config: dict, tp: int) -> int:
    return 2 * max(1, config["num_key_value_heads"] // tp) * config["head_dim"] * BF16


def draw_ranks(rng) -> list[dict]:
    cases = []
    for i in range(40):
        config = {"num_key_value_heads": 2 ** rng.randint(1, 4), "head_dim": rng.choice([64, 96, 128, 256])}
        if i % 2:
            heads = rng.choice([16, 64, 128])
            rope = rng.choice([32, 64])
            config = {"num_key_value_heads": heads, "head_dim": rope, "qk_rope_head_dim": rope}
            config["kv_lora_rank"] = rng.choice([128, 256, 512])
        cases.append({"config": config, "tp": 2 ** (1 + i // 8) if i < 32 else rng.choice([2, 8, 32])})
    return cases


RANK = Exercise(
    id="03.5",
    minutes=4,
    name="rank_bytes",
    signature=("config", "tp"),
    cases=draw_ranks,
    reference=rank_bytes,
    misconceptions=(
        Misconception("divided_latent", rank_divided_latent),
        Misconception("zero_heads", rank_zero_heads),
        Misconception("split_heads", rank_split_heads),
        Misconception("trusted_head_dim", rank_head_dim),
    ),
)
