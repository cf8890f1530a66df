"""Lesson 12: what each GPU keeps. Exercises: ``sharded_heads, sharded_latents, swap_or_recompute, streams``."""

from minikv.course.exercise import Lesson, Prediction
from minikv.course.lessons.l12.sharded_heads import BLOCKS, HEADS
from minikv.course.lessons.l12.sharded_latents import LATENTS
from minikv.course.lessons.l12.streams import EXCHANGE
from minikv.course.lessons.l12.swap_or_recompute import PREEMPT
from minikv.plan import CacheSpec
from minikv.plan.preemption import TransferRates, swap_seconds

HEAD_DIM, GIB = 128, 2**30


def _rank_bytes(layers: int, kv_heads: int, tp: int) -> int:
    config = {
        "model_type": "llama",
        "hidden_size": 32 * HEAD_DIM,
        "num_hidden_layers": layers,
        "num_attention_heads": 32,
        "num_key_value_heads": kv_heads,
        "head_dim": HEAD_DIM,
        "dtype": "bfloat16",
        "vocab_size": 1000,
    }
    return CacheSpec.from_config(config, tp=tp).bytes_for(1)


def _common_blocks(free: list[int], kib: int) -> int:
    return min(gib * GIB // (kib * 1024) for gib in free)


def _pools(rng) -> dict[str, object]:
    """Draw the GiB on each GPU: the second has less by attention's whole weights instead of an eighth."""
    tp_pool = rng.randint(45, 90)
    return {"tp_pool": tp_pool, "dp_pool": tp_pool - rng.randint(9, 12)}


def _more_tokens(tp_pool: int, dp_pool: int) -> float:
    spec = CacheSpec.from_config("DeepSeek-V3", tp=8)
    tp_tokens, dp_tokens = (pool * GIB / spec.bytes_for(1) for pool in (tp_pool, dp_pool))
    return 8 * dp_tokens / tp_tokens


def _swap_ms(tokens: int, token_bytes: int, link: int) -> float:
    rates = TransferRates(link * 1e9, link * 1e9, 1.0)
    return swap_seconds(tokens * token_bytes, rates) * 1e3


LESSON = Lesson(
    exercises=(HEADS, BLOCKS, LATENTS, PREEMPT, EXCHANGE),
    predictions=(
        Prediction(
            "rank_bytes",
            lambda rng: {
                "layers": rng.randint(24, 80),
                "kv_heads": rng.choice([2, 4]),
                "tp": rng.choice([8, 16]),
            },
            how="2 * {layers} * 1 * 128 * 2",
            unit="bytes",
            answer=_rank_bytes,
        ),
        Prediction(
            "common_blocks",
            lambda rng: {"free": rng.sample(range(30, 60), 4), "kib": rng.choice([320, 512, 640])},
            how="min({free}) * 2**30 // ({kib} * 1024)",
            unit="blocks",
            answer=_common_blocks,
        ),
        Prediction(
            "more_tokens",
            _pools,
            how="8 * {dp_pool} / {tp_pool}",
            unit="times",
            answer=_more_tokens,
            tolerance=1.05,
        ),
        Prediction(
            "swap_ms",
            lambda rng: {
                "tokens": 1000 * rng.randint(2, 30),
                "token_bytes": rng.choice([131_072, 163_840, 327_680]),
                "link": rng.choice([20, 25, 50]),
            },
            how="2 * {tokens} * {token_bytes} / ({link} * 1e9) * 1e3",
            unit="ms",
            answer=_swap_ms,
            tolerance=1.1,
        ),
    ),
    questions=("why_whole_latents", "why_minimum", "why_not_longer", "swap_or_not"),
)
