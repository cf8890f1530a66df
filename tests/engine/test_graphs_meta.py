"""No decode of a model that is on the list waits for the device or brings anything to it: so a graph can hold it.

The forward runs on the meta device, which has shapes and no values: whoever asks for a value gets an error, and what
is made on the host shows as a copy. The kernels are left out; they are tested where they are.
"""

from unittest.mock import patch

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from minikv.cache import PagedKVCache
from minikv.kernels import checked
from minikv.kernels.attention import Attention
from minikv.models import Batch, bind_model
from minikv.models.hf_cache import PagedCache
from minikv.plan import CacheSpec
from tests.models.running import World

ROWS, WIDTH = 5, 8
MODELS = (
    "llama",
    "qwen2",
    "qwen3",
    "qwen3_moe",
    "mistral",
    "mixtral",
    "gemma2",
    "gemma3_text",
    "phi3",
    "gpt_oss",
    "deepseek_v2",
    "deepseek_v3",
    "opt",
)


class Copies(TorchDispatchMode):
    """What is copied from the host, or computed there."""

    def __init__(self):
        super().__init__()
        self.found = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if any(isinstance(each, torch.Tensor) and each.device.type == "cpu" for each in (*args, out)):
            self.found.append(func._schema.name)
        return out


def on_meta(model):
    """The same model without values; its parameters in bfloat16, as on a GPU."""
    for module in model.modules():
        for name, value in module._parameters.items():
            if value is not None:
                empty = torch.empty(value.shape, dtype=torch.bfloat16, device="meta")
                module._parameters[name] = torch.nn.Parameter(empty, requires_grad=False)
        for name, value in module._buffers.items():
            if value is not None:
                module._buffers[name] = torch.empty_like(value, device="meta")


def decode(model):
    """Run a decode of ``model`` twice; what the second one copies."""
    cache = PagedKVCache(CacheSpec.from_config(model.config, kv_dtype="fp32"), 8, 4)
    adapter = bind_model(model, cache)
    num_groups = len(cache.kv_cache_groups)
    on_meta(model)

    def zeros(*shape, dtype=torch.int64):
        return torch.zeros(shape, dtype=dtype, device="meta")

    batch = Batch(
        cache=cache,
        positions=zeros(ROWS),
        slots=(zeros(ROWS),) * num_groups,
        block_tables=(zeros(ROWS, WIDTH, dtype=torch.int32),) * num_groups,
        lengths=(zeros(ROWS, dtype=torch.int32),) * num_groups,
        query_starts=zeros(ROWS + 1, dtype=torch.int32),
        last=zeros(ROWS),
        max_queries=1,
        max_position=0,
    )
    kernels = {
        "paged_decode": lambda query, kv, **__: Attention(
            query.new_empty(*query.shape[:2], kv.v.shape[3]), None, None
        ),
        "latent_decode": lambda query, *_, **__: Attention(torch.empty_like(query), None, None),
        "store_kv": lambda *_: None,
    }
    patches = [patch.object(checked, name, call) for name, call in kernels.items()]
    for each in patches:
        each.start()
    try:
        with torch.no_grad():
            adapter._paged(zeros(ROWS), batch, PagedCache(batch))  # what a model makes once is made now
            with Copies() as copies:
                logits = adapter._paged(zeros(ROWS), batch, PagedCache(batch))
    finally:
        for each in patches:
            each.stop()
    assert logits.shape == (ROWS, 97)
    assert logits.device.type == "meta"
    return copies.found


@pytest.mark.parametrize("model_type", MODELS)
def test_a_decode_neither_waits_nor_copies(model_type):
    assert not decode(World.bare(model_type))


def test_one_that_looks_at_a_token_is_found():
    """GPT-2 with a token for padding: transformers looks whether a prompt has any."""
    with pytest.raises(RuntimeError, match=r"item\(\) cannot be called on meta tensors"):
        decode(World.bare("gpt2"))


def test_one_that_brings_a_number_is_found():
    model = World.bare("llama")
    model.lm_head.register_forward_hook(lambda _, __, out: out + torch.ones(97).to(out.device))
    assert decode(model)
