"""Lesson 02, "What does one token cost?": the formula, head_dim, tensor parallelism, windows, and the inverse."""

import math
import random

from minikv.course import Exercise, Lesson, Misconception, Prediction
from minikv.plan import CacheSpec, LayerSpec, find_model, weight_bytes


class RaisedValueError:
    """What a check sees of a function that refuses its arguments. No value that a learner returns equals it."""

    def __repr__(self) -> str:
        return "raises ValueError"


_REFUSED = RaisedValueError()


# 02.1


def bytes_per_token(layers: int, kv_heads: int, head_dim: int, dtype_bytes: int) -> int:
    return 2 * layers * kv_heads * head_dim * dtype_bytes


def _sizes(rng: random.Random) -> list[tuple]:
    cases = []
    for number in range(40):
        layers, kv_heads = rng.randint(2, 4 + 3 * number), rng.randint(2, 4 + number)
        cases.append((layers, kv_heads, rng.choice([64, 80, 96, 128, 192, 256]), rng.choice([1, 2, 4])))
    return cases


BYTES_PER_TOKEN = Exercise(
    id="02.1",
    name="bytes_per_token",
    signature=("layers", "kv_heads", "head_dim", "dtype_bytes"),
    cases=_sizes,
    reference=bytes_per_token,
    misconceptions=(
        Misconception("forgot_v", lambda *sizes: bytes_per_token(*sizes) // 2),
        Misconception("counts_q", lambda *sizes: bytes_per_token(*sizes) // 2 * 3),
        Misconception("bits", lambda *sizes: 8 * bytes_per_token(*sizes)),
        Misconception("one_layer", lambda layers, *sizes: bytes_per_token(1, *sizes)),
    ),
)


# 02.2


def head_dim_of(config: dict) -> int:
    head_dim = config.get("head_dim")
    return config["hidden_size"] // config["num_attention_heads"] if head_dim is None else head_dim


def _head_configs(rng: random.Random) -> list[tuple]:
    """Configs in the three shapes that exist: head_dim a number, null, and not there at all."""
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
    """What ``fn`` returns; for a ValueError, which is the right answer where no split exists, ``_REFUSED``."""
    try:
        return fn(kv_heads, tp)
    except ValueError:
        return _REFUSED


def _ranks(rng: random.Random) -> list[tuple]:
    """Splits, replications and pairs that divide neither way, a third each."""
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
        Misconception("part_of_a_head", lambda kv_heads, tp: max(1, kv_heads // tp)),
        Misconception("rounds_up", lambda kv_heads, tp: -(-kv_heads // tp)),
        Misconception("refuses_replication", _refuses_replication),
    ),
)


# 02.4


def bytes_for(lengths: list[int], windows: list[int | None], token_bytes: int) -> int:
    return sum(kept(n, window) * token_bytes for n in lengths for window in windows)


def kept(num_tokens: int, window: int | None) -> int:
    """Tokens that transformers keeps of ``num_tokens`` in a layer whose config says ``window``."""
    return num_tokens if window is None else min(num_tokens, window - 1)


def _as_if_full(lengths: list[int], windows: list[int | None], token_bytes: int) -> int:
    return bytes_for(lengths, [None] * len(windows), token_bytes)


def _keeps_the_window(lengths: list[int], windows: list[int | None], token_bytes: int) -> int:
    return bytes_for(lengths, [None if window is None else window + 1 for window in windows], token_bytes)


def _window_of_the_batch(lengths: list[int], windows: list[int | None], token_bytes: int) -> int:
    return bytes_for([sum(lengths)], windows, token_bytes)


def _padded(lengths: list[int], windows: list[int | None], token_bytes: int) -> int:
    return bytes_for([max(lengths)] * len(lengths), windows, token_bytes)


def _windowed(rng: random.Random, number: int) -> tuple[list[int | None], int]:
    """One entry a layer (None: full), with at least one of each kind, and the bytes of a token in a layer."""
    window = rng.choice([4, 8, 16, 32]) * (1 + number // 10)
    windows = [None, window, *(rng.choice([None, window]) for _ in range(number // 6))]
    rng.shuffle(windows)
    return windows, rng.choice([64, 256, 1024, 4096])


def _batches(rng: random.Random) -> list[tuple]:
    cases = []
    for number in range(40):
        windows, token_bytes = _windowed(rng, number)
        edge = next(window for window in windows if window)
        near = [edge - 2, edge - 1, edge, edge + 1, rng.randint(1, edge), rng.randint(edge, 4 * edge)]
        lengths = [edge + 2 + number, *rng.sample(near, rng.randint(1, 3))]
        rng.shuffle(lengths)
        cases.append((lengths, windows, token_bytes))
    return cases


BYTES_FOR = Exercise(
    id="02.4",
    name="bytes_for",
    signature=("lengths", "windows", "token_bytes"),
    cases=_batches,
    reference=bytes_for,
    misconceptions=(
        Misconception("no_windows", _as_if_full),
        Misconception("keeps_the_window", _keeps_the_window),
        Misconception("window_of_the_batch", _window_of_the_batch),
        Misconception("padded", _padded),
    ),
)


# 02.5


def max_tokens(num_bytes: int, windows: list[int | None], token_bytes: int) -> int | float:
    """Walk the windows from the narrowest: between two of them, each token costs the same."""
    left, tokens = num_bytes // token_bytes, 0
    growing = len(windows)
    for window in sorted(window for window in windows if window is not None):
        step = window - 1 - tokens
        if left < step * growing:
            return tokens + left // growing
        left, tokens, growing = left - step * growing, window - 1, growing - 1
    return tokens + left // growing if growing else math.inf


def _full_layers_only(num_bytes: int, windows: list[int | None], token_bytes: int) -> int | float:
    full = windows.count(None)
    return num_bytes // (full * token_bytes) if full else max_tokens(num_bytes, windows, token_bytes)


def _no_windows(num_bytes: int, windows: list[int | None], token_bytes: int) -> int | float:
    return num_bytes // (len(windows) * token_bytes)


def _windows_first(num_bytes: int, windows: list[int | None], token_bytes: int) -> int | float:
    """Sets every window aside before the first token, also where the sequence never fills it."""
    full = windows.count(None)
    if not full:
        return max_tokens(num_bytes, windows, token_bytes)
    aside = token_bytes * sum(window - 1 for window in windows if window is not None)
    return max(0, num_bytes - aside) // (full * token_bytes)


def _never_infinite(num_bytes: int, windows: list[int | None], token_bytes: int) -> int | float:
    """Takes a full window for the end of the sequence."""
    most = max_tokens(num_bytes, windows, token_bytes)
    return most if math.isfinite(most) else max(window for window in windows if window is not None) - 1


def _budgets(rng: random.Random) -> list[tuple]:
    """Bytes at, just below and just above those of some length, on both sides of the windows.

    The last six cases have no full layer, and bytes one below, at, and one above those of all windows full.
    """
    cases = []
    for number in range(48):
        windows, token_bytes = _windowed(rng, number % 24)
        widest = max(window for window in windows if window)
        if number % 4 == 3:  # a second, wider window
            windows.append(2 * widest)
        if number % 8 == 7:  # no full layer: past the windows, tokens are free
            windows = [window or widest for window in windows]
        length = rng.choice([widest // 2, widest - 1, widest, widest + 1, 3 * widest])
        exact = bytes_for([length], windows, token_bytes)
        near = rng.choice([0, 0, 1, -1, -(token_bytes // 2)])
        cases.append((max(0, exact + near), windows, token_bytes))
    for number in (0, 12):
        layers, token_bytes = _windowed(rng, number)
        widest = 2 * max(window for window in layers if window)
        windows = [window or widest for window in layers]
        every_window_full = bytes_for([widest], windows, token_bytes)
        cases += [(every_window_full + near, list(windows), token_bytes) for near in (-1, 0, 1)]
    return cases


MAX_TOKENS = Exercise(
    id="02.5",
    name="max_tokens",
    signature=("num_bytes", "windows", "token_bytes"),
    cases=_budgets,
    reference=max_tokens,
    misconceptions=(
        Misconception("no_windows", _no_windows),
        Misconception("full_layers_only", _full_layers_only),
        Misconception("windows_first", _windows_first),
        Misconception("never_infinite", _never_infinite),
        Misconception("first_that_fails", lambda *case: max_tokens(*case) + 1),
    ),
)


# Predictions


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
    exercises=(BYTES_PER_TOKEN, HEAD_DIM_OF, KV_HEADS_PER_RANK, BYTES_FOR, MAX_TOKENS),
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
