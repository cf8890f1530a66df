"""Exercises 02.1, 02.2, 02.3 and 02.6: the bytes of a token and of a block, head_dim, and a rank's KV heads."""

import random

from minikv.course import Exercise, Misconception


class RaisedValueError:
    """The result that a check records for a function that refuses its arguments. No value of a learner's equals it."""

    def __repr__(self) -> str:
        return "raises ValueError"


_REFUSED = RaisedValueError()


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


# 02.3


def kv_heads_per_rank(kv_heads: int, tp: int) -> int:
    if kv_heads % tp and tp % kv_heads:
        raise ValueError(f"{kv_heads} KV heads over {tp} ranks")
    return max(1, kv_heads // tp)


def _refuses_replication(kv_heads: int, tp: int) -> int:
    if kv_heads % tp:
        raise ValueError
    return kv_heads // tp


def _or_refused(fn, kv_heads: int, tp: int):
    """Return what ``fn`` returns, or ``_REFUSED`` for a ValueError, the right answer where no split exists."""
    try:
        return fn(kv_heads, tp)
    except ValueError:
        return _REFUSED


def _ranks(rng: random.Random) -> list[tuple]:
    """Draw splits, replications, and pairs where neither number divides the other, a third each."""
    cases = []
    for number in range(16):
        few, times = rng.randint(2, 3 + number // 2), rng.randint(2, 4)
        cases += [(few * times, few), (few, few * times)]
        odd = rng.choice([tp for tp in range(2, 40) if few * times % tp and tp % (few * times)])
        cases.append((few * times, odd))
    return cases


KV_HEADS_PER_RANK = Exercise(
    id="02.3",
    name="kv_heads_per_rank",
    signature=("kv_heads", "tp"),
    cases=_ranks,
    reference=kv_heads_per_rank,
    drive=_or_refused,
    misconceptions=(
        Misconception("no_replication", lambda kv_heads, tp: kv_heads // tp),
        Misconception("part_of_a_head", lambda kv_heads, tp: max(1, kv_heads // tp), within=("rounds_up",)),
        Misconception("rounds_up", lambda kv_heads, tp: -(-kv_heads // tp)),
        Misconception("refuses_replication", _refuses_replication),
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
