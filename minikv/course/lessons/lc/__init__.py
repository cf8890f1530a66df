"""Appendix C: the FAQ. It has no exercises; the lessons that it points to do."""

import random

from minikv.course.exercise import Lesson, Prediction
from minikv.plan import CacheSpec, plan_memory


def _draw_card(rng: random.Random) -> dict[str, object]:
    """Draw a model and a card, with the bytes that the arithmetic needs and the GB that the question names."""
    model, gpu = rng.choice(["Qwen3-8B", "Llama-3.1-8B"]), rng.choice(["H100 SXM 80GB", "A100 SXM 80GB"])
    plan = plan_memory(model, gpu=gpu)
    rest = plan.activation_bytes + plan.workspace_bytes + plan.cuda_context_bytes
    sizes = {"limit": plan.limit_bytes, "weights": plan.weight_bytes, "rest": rest}
    gb = {f"{name}_gb": round(size / 10**9, 1) for name, size in sizes.items()}
    return {"model": model, "gpu": gpu, **sizes, **gb, "token": plan.spec.bytes_for(1)}


def _tokens_fit(model: str, gpu: str, **_: object) -> int:
    return plan_memory(model, gpu=gpu).max_tokens


def _mla_bytes(tp: int) -> int:
    """Return the bytes of a cached token on each of ``tp`` ranks of DeepSeek-V3."""
    return CacheSpec.from_config("DeepSeek-V3", tp=tp).bytes_for(1)


LESSON = Lesson(
    predictions=(
        Prediction(
            "tokens_fit",
            _draw_card,
            how="({limit:_} - {weights:_} - {rest:_}) // (16 * {token:_}) * 16",
            unit="tokens",
            answer=_tokens_fit,
            tolerance=1.25,
        ),
        Prediction(
            "mla_bytes",
            lambda rng: {"tp": rng.choice([4, 8, 16])},
            how="61 * (512 + 64) * 2",
            unit="bytes",
            answer=_mla_bytes,
        ),
    ),
    questions=("halve_what", "where_to_save"),
)
