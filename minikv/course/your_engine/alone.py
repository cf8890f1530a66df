"""The definitions that replace minikv in an exported engine. ``export.py`` copies them; nothing imports them.

An exported file reads a model's layers from the config of transformers, and only for the model types of
``MODEL_TYPES``: `tests/course/test_your_engine_export.py` compares each with ``minikv.plan``.
"""

import sys
from argparse import ArgumentParser
from dataclasses import dataclass
from typing import Any, Self

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from minikv.errors import ConfigError
from minikv.nano.llm import LLM
from minikv.nano.sequence import SamplingParams

SENTENCES: dict[str, str] = {}  # the code of an error: its sentence


class MiniKVError(Exception):
    """Anything that the engine refuses. ``code`` names the sentence, ``values`` are the numbers in it."""

    def __init__(self, code: str, **values: object):
        self.code, self.values = code, values
        super().__init__(SENTENCES[code].format(**values))


# Decoders with layers that `CacheSpec` reads. Some of them are refused for another reason, by name.
MODEL_TYPES = set(
    """arcee bloom cohere cohere2 deepseek_v2 deepseek_v3 ernie4_5 ernie4_5_moe exaone4 gemma gemma2 gemma3_text
    glm glm4 glm4_moe glm4_moe_lite gpt2 gpt_bigcode gpt_neox gpt_oss gptj granite granitemoe helium
    hunyuan_v1_dense hunyuan_v1_moe llama minicpm3 minimax_m2 ministral ministral3 mistral mixtral mpt nemotron olmo
    olmo2 olmo3 olmoe opt persimmon phi phi3 phimoe qwen2 qwen2_5_vl_text qwen2_moe qwen2_vl_text qwen3 qwen3_moe
    qwen3_vl_moe_text qwen3_vl_text seed_oss smollm3 solar_open stablelm starcoder2 youtu""".split()
)


@dataclass(frozen=True)
class Layer:
    """What a layer keeps of a token. ``window``: how many earlier tokens a query sees; None: all."""

    kind: str
    kv_heads: int
    k_dim: int
    v_dim: int
    window: int | None
    index_bytes: int = 0  # no layer of `MODEL_TYPES` has an indexer


@dataclass(frozen=True)
class CacheSpec:
    """The cache that a model needs, layer by layer."""

    name: str
    layers: list[Layer]
    max_positions: int | None

    @classmethod
    def from_config(cls, config: Any, **how_minikv_counts: object) -> Self:
        """The layers that ``config`` describes, a config of transformers. Raises ``ConfigError``."""
        name = config._name_or_path or config.model_type
        if config.model_type not in MODEL_TYPES:
            why = MiniKVError("nano_model_type", model_type=config.model_type)
            raise ConfigError("nano_cannot", model=name, why=why)
        heads = config.num_attention_heads
        if getattr(config, "kv_lora_rank", None):  # MLA: a K and a V for each head
            sizes = heads, config.qk_nope_head_dim + config.qk_rope_head_dim, config.v_head_dim
        else:
            dim = getattr(config, "head_dim", None) or config.hidden_size // heads
            sizes = getattr(config, "num_key_value_heads", None) or heads, dim, dim
        window: Any = getattr(config, "sliding_window", None)
        all_alike = ["sliding_attention" if window else "full_attention"] * config.num_hidden_layers
        kinds = [
            kind.removesuffix("_attention") for kind in getattr(config, "layer_types", None) or all_alike
        ]
        layers = [Layer(kind, *sizes, window - 1 if kind == "sliding" else None) for kind in kinds]
        return cls(name, layers, getattr(config, "max_position_embeddings", None))


def load(name: str) -> tuple[Any, Any]:
    """A model and its tokenizer from a folder or the hub: safetensors only, and none of its own code."""
    options = {"trust_remote_code": False}
    dtype = "auto" if torch.cuda.is_available() else torch.float32  # a CPU computes 16 bits slowly
    model = AutoModelForCausalLM.from_pretrained(name, dtype=dtype, use_safetensors=True, **options)
    tokenizer = AutoTokenizer.from_pretrained(name, **options)
    return model.to("cuda" if torch.cuda.is_available() else "cpu").eval(), tokenizer


def main() -> None:
    """Answer one prompt, greedily, and print the answer as it is made."""
    parser = ArgumentParser(description="Answer a prompt with the engine in this file.")
    parser.add_argument("model", metavar="FOLDER_OR_HUB_ID")
    parser.add_argument("prompt")
    parser.add_argument("--max-tokens", type=int, default=64)
    given = parser.parse_args()
    try:
        params = SamplingParams(given.max_tokens, temperature=0)
        model, tokenizer = load(given.model)
        num_tokens = len(tokenizer(given.prompt)["input_ids"]) + given.max_tokens
        # A GPU is measured. A CPU has more memory than one prompt needs.
        num_blocks = None if model.device.type == "cuda" else -(-num_tokens // 16)
        llm = LLM(model, tokenizer, num_blocks=num_blocks, block_size=16)
        for piece in llm.stream(given.prompt, params):
            print(piece, end="", flush=True)
        print()
    except (MiniKVError, OSError, ValueError) as error:  # the last two are transformers', of a model's files
        print(str(error).strip().splitlines()[0], file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
