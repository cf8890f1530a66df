"""The models that the benchmark of fewer KV bytes runs: the tiny ones, and random ones of real patterns."""

from collections.abc import Callable
from typing import Any

import torch

from benchmarks.engine_cases import SPREAD

TINY = ("tiny-gqa", "tiny-mla")
WINDOW, LAYERS = 64, 6
_SIZES = {
    "vocab_size": 2048,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 4096,
}


def llama_like() -> Any:
    """Llama's layers with heads of 128 elements, as Llama 3, Qwen 3 and most others have."""
    from transformers import LlamaConfig

    return _random(LlamaConfig(**_SIZES, num_hidden_layers=4, head_dim=128))


def gemma3_like() -> Any:
    """Gemma 3: five layers of a window, then one that sees all. (arXiv 2503.19786, section 2)"""
    from transformers import Gemma3TextConfig

    sizes = {"num_hidden_layers": LAYERS, "head_dim": 64, "sliding_window": WINDOW}
    return _random(Gemma3TextConfig(**_SIZES, **sizes))


def gpt_oss_like() -> Any:
    """gpt-oss: every other layer has a window, every head a sink logit. (OpenAI, gpt-oss model card, 2025)"""
    from transformers import GptOssConfig

    sizes = {"num_hidden_layers": LAYERS, "head_dim": 64, "sliding_window": WINDOW}
    return _random(GptOssConfig(**_SIZES, **sizes, num_local_experts=4, num_experts_per_tok=2))


WINDOWED: dict[str, Callable[[], Any]] = {"Gemma-3-like": gemma3_like, "gpt-oss-like": gpt_oss_like}


def _random(config: Any) -> Any:
    """A model of ``config`` in eval mode: bfloat16 on a GPU, float32 on a CPU. It never ends a text by itself."""
    from transformers import AutoModelForCausalLM

    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(SPREAD / parameter.std().clamp(min=1e-9))  # biases are zeros
    model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = 0
    return model.to("cuda", torch.bfloat16) if torch.cuda.is_available() else model.to(torch.float32)
