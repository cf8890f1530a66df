"""A Qwen3 of any size with random weights, built on its device: for measurements that ask nothing of the answers.

``shape_for`` chooses the size that a card has room for, with most of it left for the cache.
"""

from dataclasses import dataclass
from typing import Any

import torch

from minikv.errors import check_count

SPREAD = 0.05  # the weights' deviation: at transformers' 0.02 the best logits lie too close to tell two tokens apart


@dataclass(frozen=True)
class ModelShape:
    """A Qwen3 of random weights; ``name`` is what a table calls it. Embedding and head are two tensors."""

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

    @property
    def parameters(self) -> int:
        """Elements of all weights."""
        hidden, dim = self.hidden, self.head_dim
        attention = 2 * hidden * self.heads * dim + 2 * hidden * self.kv_heads * dim
        norms = 2 * hidden + 2 * dim
        layer = attention + 3 * hidden * self.intermediate + norms
        return 2 * self.vocabulary * hidden + self.layers * layer + hidden


SMALL = ModelShape("4 layers x 512", 4, 512, 1536, 8, 4, 64, 8192)
MEDIUM = ModelShape("8 layers x 1024", 8, 1024, 3072, 16, 8, 64, 8192)
QWEN3_06B = ModelShape("Qwen3-0.6B's shape", 28, 1024, 3072, 16, 8, 128, 151_936)
QWEN3_8B = ModelShape("Qwen3-8B's shape", 36, 4096, 12_288, 32, 8, 128, 151_936)
TOY = ModelShape("2 layers x 256", 2, 256, 768, 4, 2, 64, 2048)

# The least bytes of a card, largest first. A card of 40 GB tells of a little less than 40 * 2**30 bytes.
SIZES = ((40 * 10**9, QWEN3_8B), (4 * 10**9, QWEN3_06B))


def shape_for(total: int | None) -> ModelShape:
    """Return the shape for a card of ``total`` bytes: 8B from 40 GB on, about 1B on a T4; a toy without a GPU (None).

    Raises ``ArgumentError`` for a ``total`` that is no positive number of bytes.
    """
    if total is None:
        return TOY
    check_count("total", total)
    return next((shape for least, shape in SIZES if total >= least), TOY)


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
    """The model in eval mode. It never ends a text by itself, so that every length is the caller's.

    The weights are made on ``device`` in ``dtype``: neither the host nor the card ever has them in float32 as well.
    """
    from transformers import AutoModelForCausalLM

    torch.manual_seed(0)
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(config_of(shape, positions), dtype=dtype).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(SPREAD / parameter.std())
    model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = 0
    return model
