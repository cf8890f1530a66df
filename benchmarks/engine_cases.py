"""What the engine's benchmark runs: a random Qwen3, and loads of requests of random tokens."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from minikv.course.your_engine.ways import RaceLoad, RaceRequest

SPREAD = 0.05  # the weights' deviation: at transformers' 0.02 the best logits lie too close to tell two tokens apart


@dataclass(frozen=True)
class ModelShape:
    """A Qwen3 of random weights; ``name`` is what the table calls it."""

    name: str
    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int

    @property
    def token_bytes(self) -> int:
        """Bytes of K and V that a token takes in float32."""
        return 2 * self.layers * self.kv_heads * self.head_dim * 4


SMALL = ModelShape("4 layers x 512", 4, 512, 1536, 8, 4, 64, 8192)
MEDIUM = ModelShape("8 layers x 1024", 8, 1024, 3072, 16, 8, 64, 8192)
QWEN3_06B = ModelShape("Qwen3-0.6B's shape", 28, 1024, 3072, 16, 8, 128, 151_936)


def config_of(shape: ModelShape, positions: int = 4096) -> Any:
    """transformers' configuration of that shape."""
    from transformers import Qwen3Config

    return Qwen3Config(
        vocab_size=shape.vocabulary,
        hidden_size=shape.hidden,
        intermediate_size=shape.intermediate,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        max_position_embeddings=positions,
        tie_word_embeddings=False,
    )


def random_model(shape: ModelShape, device: torch.device, dtype: torch.dtype, positions: int = 4096) -> Any:
    """The model in eval mode. It never ends a text by itself, so that every length is the load's."""
    from transformers import Qwen3ForCausalLM

    torch.manual_seed(0)
    model = Qwen3ForCausalLM(config_of(shape, positions)).to(device, dtype).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(SPREAD / parameter.std())
    model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = 0
    return model


def mixed(count: int, least: int, most: int, vocabulary: int) -> RaceLoad:
    """Prompts and answers of ``least`` to ``most`` tokens, each length as likely."""
    random = np.random.default_rng(0)
    sizes = random.integers(least, most + 1, (count, 2)).tolist()
    requests = [RaceRequest(_tokens(random, size, vocabulary), new) for size, new in sizes]
    return RaceLoad(f"{count} of {least}-{most} tokens in and out", tuple(requests))


def skewed(count: int, least: int, most: int, vocabulary: int) -> RaceLoad:
    """The same bounds, but the logarithm of a length is exponential: many short answers, and a few long ones."""
    random = np.random.default_rng(1)
    span = math.log(most / least)
    falls = np.minimum(random.exponential(0.25, (count, 2)), 1)
    sizes = np.rint(least * np.exp(span * falls)).astype(int).tolist()
    requests = [RaceRequest(_tokens(random, size, vocabulary), new) for size, new in sizes]
    return RaceLoad(f"{count} skewed, {least}-{most} tokens", tuple(requests))


def shared_prefix(count: int, shared: int, own: int, new: int, vocabulary: int) -> RaceLoad:
    """Prompts whose first ``shared`` tokens are the same, with ``own`` tokens behind them."""
    random = np.random.default_rng(2)
    prefix = _tokens(random, shared, vocabulary)
    requests = [RaceRequest(prefix + _tokens(random, own, vocabulary), new) for _ in range(count)]
    return RaceLoad(f"{count} that share {shared} of {shared + own} tokens", tuple(requests))


def _tokens(random: np.random.Generator, size: int, vocabulary: int) -> tuple[int, ...]:
    return tuple(random.integers(1, vocabulary, size).tolist())
