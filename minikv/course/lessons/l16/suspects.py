"""The five suspects of lesson 16, each an experiment on the installed transformers, with small random models.

Each function runs what its suspect is said to do and returns plain figures; ``tests/memory/test_suspects.py`` asserts
them. Below: what the analysis says, and what is true of transformers 5.15.0, 5.17.0, 5.18.0 and 5.23.0.

1. "generate() keeps no past_key_values on the model": true by default.
2. "No mask is kept, and in decode there is none": nothing is kept. There is no mask for SDPA without padding;
   a left-padded batch gets a mask at every step, and eager attention always does.
3. "SDPA has no state": true. Its workspace does not lie "on the stack": on CUDA the softmax statistics and
   split-KV results are tensors of the caching allocator, freed before the call returns.
4. "Tensor parallelism adds no buffers": true of the tensors. The cited file no longer holds that code, and
   NCCL's communicators take memory outside torch's count (``MemoryStats.non_torch``).
5. "The helper that calls generate() holds no reference": true of one that returns text.
"""

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from minikv.errors import ArgumentError
from minikv.memory import RetentionReport, retention_report

NEW_TOKENS = 4


def small_model(attention: str = "sdpa", seed: int = 0) -> Any:
    """Return a Llama with 2 layers, 4 heads of 16 on 2 KV heads, float32, random weights, on the CPU."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=64,
        hidden_size=64,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=128,
        attn_implementation=attention,
    )
    return LlamaForCausalLM(config).eval()


def answer(model: Any, ids: Tensor, **more: Any) -> Any:
    """Return ``NEW_TOKENS`` greedy tokens after ``ids`` [B, T]."""
    mask = more.pop("attention_mask", torch.ones_like(ids))
    return model.generate(
        ids, attention_mask=mask, max_new_tokens=NEW_TOKENS, min_new_tokens=NEW_TOKENS, do_sample=False,
        pad_token_id=0, **more,
    )  # fmt: skip


def suspect_generate(model: Any, ids: Tensor) -> RetentionReport:
    """1: report what is alive after ``generate()`` when its result was dropped."""
    return retention_report(lambda: answer(model, ids))


def suspect_mask(
    model: Any, ids: Tensor, attention_mask: Tensor
) -> tuple[RetentionReport, list[tuple | None]]:
    """2: report what is alive after a call, and the shape of the first layer's mask (or None) at each step."""
    shapes: list[tuple | None] = []

    def look(module: Any, args: Any, kwargs: dict[str, Any]) -> None:
        mask = kwargs.get("attention_mask")
        shapes.append(None if mask is None else tuple(mask.shape))

    handle = model.model.layers[0].self_attn.register_forward_pre_hook(look, with_kwargs=True)
    try:
        report = retention_report(lambda: answer(model, ids, attention_mask=attention_mask))
    finally:
        handle.remove()
    return report, shapes


def suspect_sdpa(batch: int = 2, heads: int = 4, tokens: int = 64, dim: int = 16) -> RetentionReport:
    """3: report what is alive after ``scaled_dot_product_attention`` ran, alone and with a mask."""
    q, k, v = (torch.randn(batch, heads, tokens, dim) for _ in range(3))
    mask = torch.ones(tokens, tokens, dtype=torch.bool).tril()

    def attend() -> None:
        torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)

    return retention_report(attend)


def suspect_helper(model: Any, ids: Tensor, decode: Callable[[list[int]], str]) -> RetentionReport:
    """5: report what is alive after a helper that calls ``generate()``, decodes the tokens and returns text."""

    def helper() -> list[str]:
        sequences = answer(model, ids)
        return [decode(row.tolist()) for row in sequences]

    return retention_report(helper)


# Suspect 4: a model sharded as for tensor parallelism, on a single rank. That rank does all that two do, sharded
# tensors and all-reduces included, only without a partner; the tests run the same with two processes.


def parallel_plan(num_layers: int) -> dict[str, Any]:
    """Return the column and row parallel styles of transformers' plan for Llama: module name -> style."""
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel

    plan: dict[str, Any] = {}
    for layer in range(num_layers):
        attention, mlp = f"model.layers.{layer}.self_attn", f"model.layers.{layer}.mlp"
        columns = [f"{attention}.{name}_proj" for name in "qkv"] + [
            f"{mlp}.{name}_proj" for name in ("gate", "up")
        ]
        plan |= {name: ColwiseParallel() for name in columns}
        plan |= {f"{attention}.o_proj": RowwiseParallel(), f"{mlp}.down_proj": RowwiseParallel()}
    return plan


def suspect_parallel(model: Any, ids: Tensor) -> tuple[RetentionReport, bool]:
    """4: report what is alive after ``generate()`` of the sharded ``model``, and whether it answers as the whole one.

    ``model`` (on the CPU) is sharded in place. The first call may create meshes, so the second is reported.
    Raises ``ArgumentError`` where this process already is a rank of a group.
    """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import parallelize_module

    if dist.is_initialized():
        raise ArgumentError("parallel_16_taken", ranks=dist.get_world_size())
    whole = answer(model, ids)
    with tempfile.TemporaryDirectory() as folder:
        store = dist.FileStore(str(Path(folder) / "store"), 1)
        dist.init_process_group("gloo", store=store, rank=0, world_size=1)
        try:
            parallelize_module(
                model, init_device_mesh("cpu", (1,)), parallel_plan(model.config.num_hidden_layers)
            )
            same = bool((answer(model, ids) == whole).all())
            report = retention_report(lambda: answer(model, ids))
        finally:
            dist.destroy_process_group()
            del store
    return report, same
