"""FLOPs of one generation step, with a cache and without, from three numbers a model: the reason for a cache.

A decoder's step does three kinds of work. Write n for the tokens that the step's last query sees, itself included:

    projections   every weight matrix of every layer, once for each token that is fed: Q, K, V, output, MLP
    attention     Q K^T and P V: every query that is fed attends to n keys and n values
    lm_head       one row of logits, for the last token alone

Without a cache a step feeds all n tokens. With one it feeds the newest alone:

                  without           with
    projections   n * per_token     per_token
    attention     n * n * per_pair  n * per_pair
    lm_head       lm_head           lm_head

    per_token = layers * 2 * (hidden * (heads + 2 * kv_heads) * head_dim + heads * head_dim * hidden
                              + mlp_matrices * hidden * intermediate)
    per_pair  = layers * heads * 2 * (head_dim + head_dim)
    lm_head   = 2 * hidden * vocab

One multiplication and one addition are two FLOPs. Norms, softmax, activations and RoPE are left out, as in
``torch.utils.flop_counter`` (a test compares the two, to the last FLOP) and in Kaplan et al. 2020, section 2.1.
Attention is counted over the whole n x n square, as in an implementation that masks afterwards; a kernel that
skips what the causal mask hides does about half. No torch here.
"""

from dataclasses import dataclass
from typing import Any

from minikv.errors import ConfigError, check_count
from minikv.plan.spec.block_configs import read_blocks
from minikv.plan.spec.cache_spec import CacheSpec
from minikv.plan.spec.config import Config, read_config
from minikv.plan.spec.layers import LayerSpec

# Matrices of the MLP: gate, up and down, or up and down alone.
MLP_MATRICES = {
    "llama": 3,
    "mistral": 3,
    "qwen2": 3,
    "qwen3": 3,
    "phi3": 3,
    "smollm3": 3,
    "gpt2": 2,
    "gpt_neox": 2,
}


@dataclass(frozen=True)
class FlopCost:
    """The coefficients of a model, in FLOPs of all layers for one sequence: ``per_token`` that is projected,
    ``per_pair`` of a query and a key in attention, ``lm_head`` for one row of logits."""

    per_token: int
    per_pair: int
    lm_head: int


@dataclass(frozen=True)
class StepFlops:
    """FLOPs of one step of one sequence, by kind of work."""

    projections: int
    attention: int
    lm_head: int

    @property
    def total(self) -> int:
        return self.projections + self.attention + self.lm_head


def flop_cost(config: Any) -> FlopCost:
    """The three coefficients of a dense decoder; all of its layers attend to everything.

    ``config``: as for ``CacheSpec.from_config``. Raises ``ConfigError`` for experts, windows, latents and
    unknown architectures: it never guesses.
    """
    reader = read_config(config)
    layers = CacheSpec.from_config(reader).layers
    alike = read_blocks(reader) is None and all(layer.kind == "full" for layer in layers)
    if reader.model_type not in MLP_MATRICES or not alike:
        known = ", ".join(sorted(MLP_MATRICES))
        raise ConfigError("flops_unknown", name=reader.name, model_type=reader.stated_type, known=known)
    hidden, heads = reader.count("hidden_size"), reader.count("num_attention_heads")
    mlp = MLP_MATRICES[reader.model_type] * hidden * _intermediate(reader, hidden)
    return FlopCost(
        per_token=sum(2 * (_attention_weights(layer, hidden, heads) + mlp) for layer in layers),
        per_pair=sum(2 * heads * (layer.k_dim + layer.v_dim) for layer in layers),
        lm_head=2 * hidden * reader.count("vocab_size"),
    )


def step_flops(config: Any, num_tokens: int, cached: bool) -> StepFlops:
    """FLOPs of the step in which the last query sees ``num_tokens`` tokens, itself included.

    ``cached`` False feeds all ``num_tokens`` tokens; True feeds the newest, with the K and V of the
    ``num_tokens - 1`` before it in the cache. Raises as ``flop_cost`` does, ``ArgumentError`` for no tokens.
    """
    check_count("num_tokens", num_tokens)
    cost = flop_cost(config)
    fed = 1 if cached else num_tokens
    return StepFlops(fed * cost.per_token, fed * num_tokens * cost.per_pair, cost.lm_head)


def generation_flops(config: Any, prompt_tokens: int, new_tokens: int, cached: bool) -> int:
    """FLOPs of generating ``new_tokens`` tokens after a prompt of ``prompt_tokens``, all steps together.

    The first new token comes from the prompt's own step, which feeds the whole prompt either way; every later
    step is a ``step_flops``. Raises as ``step_flops`` does.
    """
    check_count("prompt_tokens", prompt_tokens)
    check_count("new_tokens", new_tokens)
    cost = flop_cost(config)
    lengths = range(prompt_tokens, prompt_tokens + new_tokens)  # tokens that each step's last query sees
    fed = [1 if cached and number else length for number, length in enumerate(lengths)]
    pairs = sum(tokens * length for tokens, length in zip(fed, lengths, strict=True))
    return sum(fed) * cost.per_token + pairs * cost.per_pair + new_tokens * cost.lm_head


def crossing_length(config: Any) -> int:
    """The least number of tokens at which a step's attention costs more than its projections.

    That is n * per_pair > per_token with a cache, and n * n * per_pair > n * per_token without. Both give the same
    n, floor(per_token / per_pair) + 1. Raises as ``flop_cost`` does.
    """
    cost = flop_cost(config)
    return cost.per_token // cost.per_pair + 1


def _attention_weights(layer: LayerSpec, hidden: int, heads: int) -> int:
    """Elements of the Q, K, V and output matrices of one layer."""
    queries, keys_values = heads * layer.k_dim, layer.kv_heads * (layer.k_dim + layer.v_dim)
    return hidden * (queries + keys_values) + heads * layer.v_dim * hidden


def _intermediate(config: Config, hidden: int) -> int:
    """The MLP's inner width; GPT-2 calls it ``n_inner`` and leaves it null for four times the hidden size."""
    stated = config.get("intermediate_size") or config.get("n_inner")
    return 4 * hidden if stated is None else config.count("intermediate_size", stated)
