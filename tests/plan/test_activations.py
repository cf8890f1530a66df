"""The estimated activation peak against the tensors that transformers really holds alive in a forward.

A dispatch mode sees every tensor that an operation makes and counts its storage until Python frees it. What it
cannot see are temporaries inside a kernel. The models are small, random and in bf16, on the CPU, without a cache:
the K and V of the layer at work are activations, those of the others are the cache's.

Not here, and why: Mamba, Mamba-2 and Gated DeltaNet layers are estimated for their fused kernels, which need a GPU;
the reference code that runs here holds up to ten times more. (Qwen3-Next is here with small linear layers, so that
its experts set the peak.) GPT-J, BLOOM and MPT compute whole score matrices in their own code.
"""

import weakref

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import CONFIG_MAPPING, AttentionInterface, AttentionMaskInterface, AutoModelForCausalLM
from transformers.integrations.sdpa_attention import repeat_kv
from transformers.masking_utils import sdpa_mask

from minikv.plan.activations import activation_peak
from minikv.plan.estimate import EXPANDED_BYTES
from minikv.plan.spec.config import read_config

SIZES = {
    "vocab_size": 100,
    "hidden_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "intermediate_size": 768,
    "max_position_embeddings": 4096,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
EXPERTS = {"moe_intermediate_size": 96, "num_experts": 16, "num_experts_per_tok": 4}
DEEPSEEK = {
    "moe_intermediate_size": 96,
    "n_routed_experts": 16,
    "num_experts_per_tok": 4,
    "n_shared_experts": 1,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
}
MLA = {
    "num_key_value_heads": 8,
    "kv_lora_rank": 64,
    "q_lora_rank": 96,
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 16,
    "v_head_dim": 24,
    "head_dim": 16,
}
V4 = DEEPSEEK | {
    "num_key_value_heads": 1,
    "q_lora_rank": 96,
    "o_groups": 4,
    "o_lora_rank": 64,
    "index_n_heads": 2,
    "index_head_dim": 16,
    "sliding_window": 200,
    "layer_types": ["compressed_sparse_attention", "heavily_compressed_attention"],
}
GPT2 = {"vocab_size": 100, "n_embd": 256, "n_layer": 2, "n_head": 8, "n_positions": 4096}
GPT2 |= {"bos_token_id": 1, "eos_token_id": 2}
LINEAR = {"linear_num_key_heads": 1, "linear_num_value_heads": 2, "linear_key_head_dim": 16}
LINEAR |= {"linear_value_head_dim": 16, "shared_expert_intermediate_size": 96}

# (name, model_type, sizes, the most that the estimate may be over). 1.1, and more where a term is an upper bound:
# - wide heads: every model is charged a float32 norm of Q beside K and V; Llama has none, Qwen3 has no K and V yet;
# - a window: the copies of K and V and the mask are charged on top of the largest temporaries of a layer;
# - MLA: the latents and the output's projection are alive with some of the rest, not with all of it.
MODELS = [
    ("llama", "llama", SIZES, 1.1),
    ("llama, wide heads", "llama", SIZES | {"head_dim": 128, "intermediate_size": 256}, 1.3),
    ("llama, many KV heads", "llama", SIZES | {"num_key_value_heads": 8, "intermediate_size": 256}, 1.1),
    ("llama, narrow", "llama", SIZES | {"head_dim": 8, "intermediate_size": 64}, 1.1),
    ("mistral, window", "mistral", SIZES | {"intermediate_size": 384, "sliding_window": 200}, 1.25),
    ("gemma2", "gemma2", SIZES | {"sliding_window": 4096}, 1.1),
    ("gemma3, window", "gemma3_text", SIZES | {"head_dim": 64, "sliding_window": 200}, 1.2),
    ("gemma3, wide heads", "gemma3_text", SIZES | {"head_dim": 128, "sliding_window": 200}, 1.2),
    ("qwen3", "qwen3", SIZES, 1.1),
    ("qwen3, wide heads", "qwen3", SIZES | {"head_dim": 128, "intermediate_size": 256}, 1.2),
    ("phi3", "phi3", {**SIZES, "sliding_window": None}, 1.1),
    ("gpt2", "gpt2", GPT2, 1.1),
    ("gpt_neox", "gpt_neox", SIZES | {"num_key_value_heads": 8}, 1.1),
    ("starcoder2", "starcoder2", SIZES, 1.1),
    ("mixtral", "mixtral", SIZES | {"num_local_experts": 4, "num_experts_per_tok": 2}, 1.1),
    ("mixtral, narrow", "mixtral", SIZES | {"intermediate_size": 128, "num_experts_per_tok": 4}, 1.1),
    ("qwen3_moe", "qwen3_moe", SIZES | EXPERTS, 1.1),
    ("qwen3_next", "qwen3_next", SIZES | EXPERTS | LINEAR | {"num_hidden_layers": 4}, 1.1),
    ("glm4_moe", "glm4_moe", SIZES | DEEPSEEK, 1.1),
    (
        "gpt_oss",
        "gpt_oss",
        SIZES | {"num_local_experts": 4, "intermediate_size": 256, "sliding_window": 200},
        1.1,
    ),
    ("llama4", "llama4_text", SIZES | {"num_local_experts": 4, "intermediate_size_mlp": 256}, 1.1),
    ("deepseek_v3", "deepseek_v3", SIZES | MLA | DEEPSEEK, 1.1),
    ("deepseek_v4", "deepseek_v4", SIZES | V4, 1.1),
    ("deepseek_v4, wide heads", "deepseek_v4", SIZES | V4 | {"head_dim": 128}, 1.15),
    ("deepseek_v4, wide experts", "deepseek_v4", SIZES | V4 | {"moe_intermediate_size": 768}, 1.1),
    ("deepseek_v4, streams", "deepseek_v4", SIZES | V4 | {"num_experts_per_tok": 1}, 1.1),
    ("minicpm3", "minicpm3", SIZES | MLA | {"intermediate_size": 256}, 1.2),
]
# Their attention has no SDPA in transformers (softcaps, sinks), or K and V of different widths, for which the
# CPU's SDPA computes whole score matrices; GPU kernels take them.
NO_CPU_KERNEL = ("gemma2", "gpt_oss", "deepseek_v3", "deepseek_v4", "minicpm3")


def attention_without_scores(module, query, key, value, attention_mask, **_):
    """Allocates what SDPA with a fused kernel does, and computes nothing. Shapes (batch, heads, tokens, dim)."""
    if attention_mask is not None:
        groups = module.num_key_value_groups
        key, value = repeat_kv(key, groups), repeat_kv(value, groups)
        attention_mask = torch.where(attention_mask, query.new_zeros(()), query.new_ones(()))
    batch, heads, tokens, _ = query.shape
    return query.new_zeros(batch, tokens, heads, value.shape[-1]), None


AttentionInterface.register("without_scores", attention_without_scores)
AttentionMaskInterface.register("without_scores", sdpa_mask)


class LiveBytes(TorchDispatchMode):
    """``peak`` is the most bytes that were alive at once in storages made while the mode was on."""

    def __init__(self, model):
        super().__init__()
        tensors = [*model.parameters(), *model.buffers()]
        self.weights = {tensor.untyped_storage()._cdata for tensor in tensors}
        self.alive, self.now, self.peak = {}, 0, 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, torch.Tensor):
                storage = tensor.untyped_storage()
                if storage._cdata not in self.alive and storage._cdata not in self.weights:
                    self.alive[storage._cdata] = storage.nbytes()
                    self.now += storage.nbytes()
                    weakref.finalize(storage, self.free, storage._cdata)
        self.peak = max(self.peak, self.now)
        return result

    def free(self, pointer):
        self.now -= self.alive.pop(pointer)


def build(model_type, sizes):
    config = CONFIG_MAPPING[model_type](**sizes)
    config.dtype = torch.bfloat16
    implementation = "without_scores" if model_type in NO_CPU_KERNEL else "sdpa"
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16, attn_implementation=implementation)
    return config, model.eval()


def measured_peak(model, batch, tokens):
    ids = torch.randint(3, 100, (batch, tokens))
    with torch.no_grad(), LiveBytes(model) as live:
        model(ids, use_cache=False, logits_to_keep=1)
    return live.peak


@pytest.mark.parametrize(
    ("model_type", "sizes", "most"), [row[1:] for row in MODELS], ids=[row[0] for row in MODELS]
)
def test_the_estimate_covers_what_is_alive_and_little_more(model_type, sizes, most):
    config, model = build(model_type, sizes)
    for batch, tokens in ((1, 33), (1, 700), (3, 250)):
        live = measured_peak(model, batch, tokens)
        estimate = activation_peak(
            read_config(config), chunk=batch * tokens, batch=batch, tp=1, itemsize=2
        ).bytes
        assert live <= estimate <= most * live, (
            f"{batch} x {tokens} tokens: {estimate / live:.3f} of the live bytes"
        )


def stages_of_ranks(name):
    model_type, sizes = next(row[1:3] for row in MODELS if row[0] == name)
    config = read_config(CONFIG_MAPPING[model_type](**sizes))
    return [activation_peak(config, chunk=64, batch=1, tp=tp, itemsize=2).stages for tp in (1, 2, 4)]


@pytest.mark.parametrize("name", ["llama", "mixtral", "deepseek_v3", "qwen3_next"])
def test_every_rank_holds_the_streams_whole(name):
    one, two, four = stages_of_ranks(name)
    assert one["norm"] == two["norm"] == four["norm"]
    for stage in set(one):
        assert one[stage] / 2 < two[stage] <= one[stage]
    assert two["attention"] < one["attention"]


def test_ranks_share_the_width_of_the_mlp():
    one, two, four = (stages["mlp"] for stages in stages_of_ranks("llama"))
    assert one - two == 64 * 3 * (768 - 384) * 2
    assert two - four == 64 * 3 * (384 - 192) * 2


def test_a_window_that_no_sequence_reaches_costs_nothing():
    config = read_config(CONFIG_MAPPING["gemma3_text"](**SIZES, sliding_window=200))
    short, long = (activation_peak(config, chunk=800, batch=batch, tp=1, itemsize=2) for batch in (8, 1))
    masks = 800 * 800
    assert long.stages["mlp"] - short.stages["mlp"] == masks
    assert long.stages["attention"] - short.stages["attention"] >= 3 * masks


def test_latents_are_expanded_beside_the_tokens_of_the_step_up_to_a_bound():
    """DeepSeek-V3's heads on 8 ranks: 16 * (2 * 128 + 192) + 64 elements a token of the longest sequence."""
    config = read_config("DeepSeek-V3")

    def attention(tp, context):
        peak = activation_peak(config, chunk=64, batch=1, tp=tp, itemsize=2, context=context)
        return peak.stages["attention"]

    assert attention(8, 4096) - attention(8, 0) == 4096 * (16 * (128 + 128 + 192) + 64) * 2
    assert attention(1, 2**17) - attention(1, 0) == EXPANDED_BYTES
    assert activation_peak(config, chunk=64, batch=1, tp=1, itemsize=2, context=2**17).stage == "attention"
    llama = read_config("Llama-3.1-8B")
    short, long = (
        activation_peak(llama, chunk=64, batch=1, tp=1, itemsize=2, context=context) for context in (0, 2**17)
    )
    assert short == long
