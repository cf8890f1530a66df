"""Exercises 02.1, 02.2 and 02.6: the bytes of a token, head_dim, and the bytes of a block."""

import random

from minikv.course import Exercise, Misconception

# 02.1


def token_bytes(num_layers: int, num_kv_heads: int, k_dim: int, v_dim: int, itemsize: int) -> int:
    return num_layers * num_kv_heads * (k_dim + v_dim) * itemsize


def _widths_as(widths):
    """``token_bytes`` with another width than ``k_dim + v_dim``."""

    def wrong(num_layers, num_kv_heads, k_dim, v_dim, itemsize):
        return token_bytes(num_layers, num_kv_heads, widths(k_dim, v_dim), 0, itemsize)

    return wrong


def _sizes(rng: random.Random) -> list[tuple]:
    """Draw sizes. In every third case K and V are equally wide; else K is wider by a rope key, as in MLA."""
    cases = []
    for number in range(42):
        layers, kv_heads = rng.randint(2, 4 + 3 * number), rng.randint(2, 4 + number)
        k_dim = rng.choice([64, 80, 96, 128, 192, 256])
        v_dim = k_dim if number % 3 == 0 else rng.choice([32, 48, 112, 160, 512])
        cases.append((layers, kv_heads, k_dim, v_dim, rng.choice([1, 2, 4])))
    return cases


TOKEN_BYTES = Exercise(
    id="02.1",
    minutes=3,
    name="token_bytes",
    signature=("num_layers", "num_kv_heads", "k_dim", "v_dim", "itemsize"),
    cases=_sizes,
    reference=token_bytes,
    misconceptions=(
        Misconception("forgot_v", _widths_as(lambda k, v: k)),
        Misconception("counts_q", _widths_as(lambda k, v: 2 * k + v)),
        Misconception("v_as_wide_as_k", _widths_as(lambda k, v: 2 * k)),
        Misconception("two_again", _widths_as(lambda k, v: 2 * (k + v))),
        Misconception("bits", lambda *sizes: 8 * token_bytes(*sizes)),
        Misconception("one_layer", lambda num_layers, *sizes: token_bytes(1, *sizes)),
    ),
)


# 02.2


def head_dim_of(config: dict) -> int:
    head_dim = config.get("head_dim")
    return config["hidden_size"] // config["num_attention_heads"] if head_dim is None else head_dim


def _head_configs(rng: random.Random) -> list[tuple]:
    """Draw configs in the three shapes that exist: head_dim is a number, null, or missing."""
    cases = []
    for number in range(42):
        kv_heads, quotient = rng.randint(2, 8), rng.choice([48, 64, 80, 96, 128])
        heads = kv_heads * rng.randint(2, 4)
        config: dict[str, int | None] = {"hidden_size": heads * quotient, "num_attention_heads": heads}
        config["num_key_value_heads"] = kv_heads
        if number % 3 == 1:
            config["head_dim"] = None
        elif number % 3 == 2:
            config["head_dim"] = rng.choice([32, 72, 112, 160, 256])
        cases.append((config,))
    return cases


HEAD_DIM_OF = Exercise(
    id="02.2",
    minutes=4,
    name="head_dim_of",
    signature=("config",),
    cases=_head_configs,
    reference=head_dim_of,
    misconceptions=(
        Misconception(
            "always_divides", lambda config: config["hidden_size"] // config["num_attention_heads"]
        ),
        Misconception(
            "null_is_not_absent",
            lambda config: config.get("head_dim", config["hidden_size"] // config["num_attention_heads"]),
        ),
        Misconception(
            "divides_by_kv_heads",
            lambda config: config.get("head_dim") or config["hidden_size"] // config["num_key_value_heads"],
        ),
    ),
)


# 02.6


def block_bytes(token_bytes: int, block_size: int) -> int:
    return token_bytes * block_size


def _tokens_and_blocks(rng: random.Random) -> list[tuple]:
    return [
        (64 * rng.randint(2 + number, 8 + number**2), rng.choice([2, 4, 8, 16, 32, 64]))
        for number in range(40)
    ]


BLOCK_BYTES = Exercise(
    id="02.6",
    minutes=3,
    name="block_bytes",
    signature=("token_bytes", "block_size"),
    cases=_tokens_and_blocks,
    reference=block_bytes,
    misconceptions=(
        Misconception("two_again", lambda token_bytes, block_size: 2 * token_bytes * block_size),
        Misconception("divides", lambda token_bytes, block_size: token_bytes // block_size),
        Misconception("one_token", lambda token_bytes, block_size: token_bytes),
        Misconception("bits", lambda token_bytes, block_size: 8 * token_bytes * block_size),
    ),
)
