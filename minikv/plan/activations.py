"""The memory of a prefill besides weights and cache: the largest set of tensors that are alive together.

The model is transformers in eager mode: each operation writes a new tensor, and Python frees it with the last
reference. Two streams of (tokens, hidden) live through every layer: the embeddings, held by the model's forward,
and the layer's input, held by the loop over the layers. On top of them, one stage at a time:

    norm        the stream in float32, and its square
    attention   normed input, Q, K, V, and the temporaries of RoPE or of a norm of Q, whichever are larger; MLA: on a
                GPU also K and V of all tokens of one sequence, of as many heads at a time as ``EXPANDED_BYTES`` hold
    recurrent   normed input, projections, convolutions and scans of a Mamba or DeltaNet layer
    mlp         residual, normed input, gate, up and their product; experts: the same for top-k rows a token
    logits      one row of the vocabulary a sequence, in the model's dtype and in float32

The peak is the largest stage. ``tests/plan/test_activations.py`` compares it with the live tensors of small models.

The number leaves out attention scores: it assumes SDPA or FlashAttention, also for the architectures that transformers
runs with materialised scores (GPT-OSS, Gemma 2, MiMo-V2, DeepSeek-V4, BLOOM, GPT-J, MPT). It leaves out the scores of a
sparse-attention indexer, and an encoder. Recurrent layers are counted with fused kernels (causal-conv1d, mamba-ssm,
fla), from the kernels' shapes and unmeasured; transformers' reference code in plain torch holds up to ten times more.
The chunk is a whole prompt: a later chunk of a long one also holds a mask over earlier tokens. Memory that a kernel
allocates for itself is not counted. On a CPU, SDPA allocates a tile of q x kv scores for each thread, in float32
and in the model's dtype. It sets the peak of a small model (q up to 256, kv up to 512, whatever the prompt's length:
``cpu_flash_attention`` in ``aten/src/ATen/native/cpu/FlashAttentionKernel.cpp``).
"""

from dataclasses import dataclass

from minikv.plan.dtypes import KV_DTYPES
from minikv.plan.estimate import expanded_bytes
from minikv.plan.spec.architectures import ARCHITECTURES, build_layers
from minikv.plan.spec.block_configs import read_blocks
from minikv.plan.spec.config import Config
from minikv.plan.spec.layer_kinds import CONV, HYBRID, LINEAR
from minikv.plan.spec.layers import LayerSpec
from minikv.plan.spec.states import gated_delta_state

FLOAT32 = 4  # bytes

# The tensors of the MLP's width that are alive at its peak. A gated MLP has 3: act(gate), up, product.
# These have 4: the gate shares a tensor with up, so it outlives its activation.
_KEEPS_GATE = ("phi3", "glm", "glm4", "gemma3n_text")
_UNGATED = """arcee bart bloom falcon gpt2 gpt_bigcode gpt_neox gptj mbart mpt nemotron nemotron_h opt persimmon phi
    starcoder2 whisper""".split()
# Without a gate: input and output of the activation; relu2 keeps the relu, gelu_new (the rest) has temporaries.
_UNGATED_TENSORS = {"gelu": 2, "gelu_pytorch_tanh": 2, "relu": 2, "silu": 2, "relu2": 3}
# These keep two more streams: position embeddings and the sum, or the outputs of the norm and of the attention.
_SIX_STREAMS = ("bart", "gpt2", "gpt_bigcode", "mbart", "opt", "persimmon", "stablelm", "whisper")
# The router weights of these are float32, and an expert's output times a float32 weight is float32.
_FLOAT32_ROUTER = """deepseek_v2 deepseek_v3 deepseek_v32 gemma4_text glm4_moe glm4_moe_lite glm_moe_dsa mimo_v2_flash
    minimax_m2 mixtral nemotron_h solar_open""".split()


@dataclass(frozen=True)
class Activations:
    """``bytes`` is the peak on one rank, ``stage`` the stage that sets it, ``stages`` the bytes of every stage."""

    bytes: int
    stage: str
    stages: dict[str, int]


def activation_peak(
    config: Config, *, chunk: int, batch: int, tp: int, itemsize: int, context: int = 0
) -> Activations:
    """The peak of a prefill of ``chunk`` tokens, shared by ``batch`` sequences, on one of ``tp`` ranks.

    ``itemsize`` is bytes an activation element (2 for bf16). Every rank holds the streams whole; heads, the
    MLP's width and the vocabulary are divided. ``context`` are the tokens of the longest sequence, which are
    expanded on a GPU. Raises ``ConfigError`` where a field is missing.
    """
    hidden = config.count("hidden_size")
    layers = set(_layers(config))
    attending = [layer for layer in layers if layer.k_dim]
    # A window shorter than the sequence needs a mask: one byte for each pair of tokens, alive in every stage.
    length = -(-chunk // batch)
    pairs = batch * length**2 if any(_is_masked(layer, length) for layer in attending) else 0
    # The residual, its copy in float32 and the square of that; two numbers a token.
    norm = hidden + 2 * (hidden + 1) * FLOAT32 // itemsize
    if config.model_type == "deepseek_v4":  # all its streams at once, which it mixes, and then their sum
        norm = _residual_streams(config) * norm + hidden
    widths = {"norm": norm, "mlp": _mlp_width(config, tp, itemsize)}
    if attending:
        widths["attention"] = hidden + max(
            _attention_width(config, layer, tp, itemsize, _is_masked(layer, length)) for layer in attending
        )
    if any(layer.kind in (LINEAR, CONV, HYBRID) for layer in layers):
        widths["recurrent"] = hidden + _recurrent_width(config, tp)
    # Cos and sin for two RoPEs, or one in float32; ids and positions of 8 bytes each.
    always = _stream_width(config) + 4 * max((layer.k_dim for layer in attending), default=0) + 16 // itemsize
    stages = {name: chunk * (always + width) * itemsize + pairs for name, width in widths.items() if width}
    if pairs:
        stages["attention"] += pairs * itemsize  # SDPA turns the mask into numbers to add to the scores
    if attending:
        stages["attention"] += expanded_bytes(config, context, tp=tp)
    # Sampling wants float32 beside the model's own logits.
    vocabulary = -(-config.count("vocab_size") // tp)
    stages["logits"] = chunk * hidden * itemsize + batch * vocabulary * (itemsize + FLOAT32)
    stage = max(stages, key=lambda name: stages[name])
    return Activations(stages[stage], stage, stages)


def routed_experts(config: Config) -> tuple[int, int]:
    """(experts in a layer, experts that a token is routed to); (0, 0) for a model without experts."""
    names = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
    experts = next((count for name in names if (count := config.optional_count(name))), 0)
    names = ("num_experts_per_tok", "experts_per_token", "top_k_experts", "moe_k")
    top_k = next((count for name in names if (count := config.optional_count(name))), 0)
    return (experts, top_k) if experts and top_k else (0, 0)


def _layers(config: Config) -> list[LayerSpec]:
    """The layers with all their heads, and their windows; MLA expanded, as its heads compute it."""
    architecture = ARCHITECTURES.get(config.model_type)
    encoder_tokens = 1 if architecture and architecture.encoder_decoder else None
    return build_layers(
        config,
        tp=1,
        dtype=KV_DTYPES["bf16"],
        model_itemsize=2,
        layout="hf-expanded",
        encoder_tokens=encoder_tokens,
        assumptions=[],
    )


def _is_masked(layer: LayerSpec, length: int) -> bool:
    return layer.window is not None and length > layer.window


def _stream_width(config: Config) -> int:
    """Elements a token that live through every layer: the embeddings and the layer's input."""
    streams = 4 if config.model_type in _SIX_STREAMS else 2
    # DeepSeek-V4's layer input is several streams side by side; what a part of it reads is one more, their sum.
    streams += _residual_streams(config) if config.model_type == "deepseek_v4" else 0
    # Gemma 3n runs several streams side by side: its inputs, their predictions, corrections and projections.
    inputs = config.optional_count("altup_num_inputs")
    streams += 4 * inputs + 1 if inputs else 0
    # Gemma 3n and 4: a small input of its own for every layer.
    own = config.optional_count("hidden_size_per_layer_input") * config.optional_count("num_hidden_layers")
    return streams * config.count("hidden_size") + own


def _residual_streams(config: Config) -> int:
    """The streams that a residual is: DeepSeek-V4's hyper-connections mix ``hc_mult`` of them."""
    return config.count("hc_mult") if config.model_type == "deepseek_v4" else 1


def _attention_width(config: Config, layer: LayerSpec, tp: int, itemsize: int, masked: bool) -> int:
    """Elements a token of one attention layer, besides the streams."""
    heads = -(-config.count("num_attention_heads") // tp)
    kv_heads = -(-layer.kv_heads // tp)  # fewer heads than ranks: one each
    q, k, v = heads * layer.k_dim, kv_heads * layer.k_dim, kv_heads * layer.v_dim
    if config.get("kv_lora_rank"):
        # Q twice (its rope part is joined again), the projection that holds K's other part and V, K, the output
        # and its projection into the stream.
        latents = config.optional_count("q_lora_rank") + 2 * config.count("kv_lora_rank")
        rope = heads * config.count("qk_rope_head_dim")
        return 2 * q + (k - rope + v) + k + v + rope + 2 * latents + config.count("hidden_size")
    projected = q + k + v
    if config.get("attn_output_gate") or config.model_type == "qwen3_next":
        projected += 2 * q  # the projection of Q also gives the gate, which waits
    rope_temporaries = max(3 * q, q + 3 * k)  # x cos, rotate_half(x), rotate_half(x) sin; Q first, then K
    # Qwen3, Gemma 3: an RMSNorm of Q in float32, its square, and two numbers a head.
    norm_temporaries = 2 * (q + heads) * FLOAT32 // itemsize
    # With a mask, SDPA copies K and V to every query head; the output comes on top.
    repeated = 3 * q if masked else 0
    return projected + max(rope_temporaries, norm_temporaries, repeated)


def _recurrent_width(config: Config, tp: int) -> int:
    """Elements a token of one recurrent layer that runs on fused kernels, besides the streams."""
    if ARCHITECTURES[config.model_type].state is gated_delta_state:
        v_heads, v_dim = config.count("linear_num_value_heads"), config.count("linear_value_head_dim")
        k_heads, k_dim = config.count("linear_num_key_heads"), config.count("linear_key_head_dim")
        k, v, k_repeated = k_heads * k_dim, v_heads * v_dim, v_heads * k_dim
        projected, convolved = 2 * k + 2 * v, 2 * k + v
        # Q, K, V for every value head; the kernel's w, u, new V and output; a state every 64 tokens.
        scanned = (2 * k_repeated + v) + (k_repeated + 3 * v) + k_repeated * v_dim // 64
        return -(-(projected + convolved + scanned) // tp)
    hidden = config.count("hidden_size")
    if config.model_type == "lfm2":
        return -(-6 * hidden // tp)  # B, C and x in one tensor, B x, its convolution, the product with C
    # Mamba: x and z, convolved x, step sizes, scan, gated output; Mamba-2: B and C too, its norm in float32.
    expand = next((n for name in ("mamba_expand", "expand") if (n := config.optional_count(name))), 2)
    return -(-10 * expand * hidden // tp)


def _mlp_width(config: Config, tp: int, itemsize: int) -> int:
    """Elements a token of the residual, the normed input and the MLP; with experts, the wider of the two kinds."""
    if config.model_type in ("mamba", "mamba2", "falcon_mamba"):
        return 0
    hidden, dense = config.count("hidden_size"), _dense_width(config)
    residual = _residual_streams(config) * hidden
    inner = _tensors_of_inner(config) * -(-dense // tp)
    experts, top_k = routed_experts(config)
    if not top_k:
        return residual + hidden + inner
    expert = -(-(config.optional_count("moe_intermediate_size") or dense) // tp)
    # Llama 4 sends every token to every expert; the router's zeros come later.
    rows = experts if config.model_type == "llama4_text" else top_k
    # Gate and up in one tensor, act(gate), product; GPT-OSS adds biases and clamps, DeepSeek-V4 clamps.
    inner_tensors = {"gpt_oss": 9, "deepseek_v4": 6}.get(config.model_type, 4)
    gate = rows * (hidden + expert * inner_tensors)
    # The rows stay, the experts' output, the same weighted, and the same in the order of the tokens.
    weighted = FLOAT32 if config.model_type in _FLOAT32_ROUTER else itemsize
    combine = rows * (2 * hidden + 2 * hidden * weighted // itemsize)
    # Float32 logits of the router, and five lists of 8-byte indices for sorting the rows.
    routing = (experts * FLOAT32 + rows * 5 * 8) // itemsize
    return residual + hidden + max(hidden + routing + max(gate, combine), inner)


def _tensors_of_inner(config: Config) -> int:
    if config.model_type not in _UNGATED:
        return 4 if config.model_type in _KEEPS_GATE else 3
    names = ("hidden_act", "activation_function", "activation", "mlp_hidden_act")
    name = next((name for field in names if isinstance(name := config.get(field), str)), "")
    return _UNGATED_TENSORS.get(name, 4)


def _dense_width(config: Config) -> int:
    """``intermediate_size`` under its other names; Gemma 3n has one a layer, GPT-2 leaves it out for 4 x hidden."""
    blocks = read_blocks(config)
    if blocks is not None:
        return max(block.inner or config.count("hidden_size") for block in blocks)
    stated = config.get("intermediate_size")
    if isinstance(stated, list) and stated:
        return max(config.count("intermediate_size", width) for width in stated)
    names = ("intermediate_size", "ffn_dim", "n_inner", "ffn_hidden_size")
    width = next((size for name in names if (size := config.optional_count(name))), 0)
    return width or 4 * config.count("hidden_size")
