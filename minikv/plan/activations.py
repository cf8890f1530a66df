"""What a forward needs besides weights and cache: the largest set of tensors that are alive together.

A forward of ``chunk`` tokens passes three stages in every layer, and only one of them is alive at a time:

    attention   residual, normed input, Q, K, V, attention output (MLA: the expanded K and V)
    mlp         residual, normed input, gate, up and their product (experts: top-k rows of each)
    logits      one row of the vocabulary a sequence, in the model's dtype and in float32

The peak is the largest stage. It is an estimate from shapes, not a measurement: fused kernels need less, a
library's workspace is counted elsewhere, and ``allocate_kv_cache`` measures the real one.
"""

from dataclasses import dataclass

from minikv.plan.architectures import head_dim, split_heads
from minikv.plan.config import Config

_WITHOUT_ATTENTION = ("mamba", "mamba2", "falcon_mamba")


@dataclass(frozen=True)
class Activations:
    """``bytes`` is the peak on one rank, ``stage`` the stage that sets it, ``stages`` all of them in bytes."""

    bytes: int
    stage: str
    stages: dict[str, int]


def activation_peak(config: Config, *, chunk: int, batch: int, tp: int, itemsize: int) -> Activations:
    """The peak of a forward of ``chunk`` tokens in ``batch`` sequences on one of ``tp`` ranks.

    ``itemsize`` is bytes an activation element (2 for bf16). Raises ``ConfigError`` where a field is missing.
    """
    hidden = config.count("hidden_size")
    stream = 2 * chunk * hidden
    stages = {
        "attention": (stream + chunk * _attention_width(config, tp)) * itemsize,
        "mlp": (stream + chunk * _mlp_width(config, tp)) * itemsize,
        # Sampling wants float32 beside the model's own logits.
        "logits": stream * itemsize + batch * config.count("vocab_size") * (itemsize + 4) // tp,
    }
    stage = max(stages, key=lambda name: stages[name])
    return Activations(stages[stage], stage, stages)


def routed_experts(config: Config) -> tuple[int, int]:
    """(experts in a layer, experts that a token is routed to); (0, 0) for a model without experts."""
    names = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
    experts = next((count for name in names if (count := config.optional_count(name))), 0)
    names = ("num_experts_per_tok", "experts_per_token", "top_k_experts", "moe_k")
    top_k = next((count for name in names if (count := config.optional_count(name))), 0)
    return (experts, top_k) if experts and top_k else (0, 0)


def _attention_width(config: Config, tp: int) -> int:
    """Elements a token of Q, K, V and the attention output on one rank."""
    if config.model_type in _WITHOUT_ATTENTION:
        # A Mamba layer holds its input, its gate and its scan in the inner width.
        inner = config.optional_count("intermediate_size")
        return 3 * -(-(inner or config.count("expand") * config.count("hidden_size")) // tp)
    heads = -(-config.count("num_attention_heads") // tp)
    if config.get("kv_lora_rank"):
        k_dim = config.count("qk_nope_head_dim") + config.count("qk_rope_head_dim")
        v_dim = config.count("v_head_dim")
        return heads * (2 * k_dim + 2 * v_dim)
    dim = head_dim(config)
    kv_heads = config.optional_count("num_key_value_heads") or config.count("num_attention_heads")
    return (2 * heads + 2 * split_heads(kv_heads, tp)) * dim


def _mlp_width(config: Config, tp: int) -> int:
    """Elements a token of gate, up and their product on one rank; with experts, of the top-k that run.

    ``intermediate_size`` stands for the dense layers, ``moe_intermediate_size`` for the experts where they
    have a width of their own. The wider of the two sets the peak.
    """
    if config.model_type in _WITHOUT_ATTENTION:
        return 0
    dense = _dense_width(config)
    _, top_k = routed_experts(config)
    if not top_k:
        return 3 * -(-dense // tp)
    expert = config.optional_count("moe_intermediate_size") or dense
    shared = config.optional_count("n_shared_experts")
    # Each of the top-k rows also carries its input and its output.
    routed = top_k * (3 * -(-expert // tp) + 2 * config.count("hidden_size"))
    return max(routed + 3 * shared * -(-expert // tp), 3 * -(-dense // tp))


def _dense_width(config: Config) -> int:
    """``intermediate_size`` under its other names; Gemma 3n has one a layer, GPT-2 leaves it out for 4 x hidden."""
    stated = config.get("intermediate_size")
    if isinstance(stated, list) and stated:
        return max(config.count("intermediate_size", width) for width in stated)
    names = ("intermediate_size", "ffn_dim", "n_inner", "ffn_hidden_size")
    width = next((size for name in names if (size := config.optional_count(name))), 0)
    return width or 4 * config.count("hidden_size")
