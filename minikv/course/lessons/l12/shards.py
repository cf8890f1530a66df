"""Lesson 12: what each rank of a sharded model holds, and the ranks' common answer. Started by torchrun.

    torchrun --nproc-per-node 2 -m minikv.course.lessons.l12.shards FOLDER ...

Each folder (or name) is a model. Rank 0 prints one line of JSON: for each model a ``Shards``, as a dict.
"""

import json
import os
import sys
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import distributed

from minikv.cache import allocate_kv_cache
from minikv.course.torchrun import run_ranks
from minikv.engine import LLM, SamplingParams
from minikv.models import load

ROOM = (160_000, 120_000)  # bytes for blocks on rank 0, and on every other rank
PROMPTS = tuple(tuple((7 * i + 3 * j) % 90 + 1 for j in range(9 + 5 * i)) for i in range(4))
PARAMS = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)


@dataclass(frozen=True)
class Shard:
    """One rank: its process, its weights in bytes, and its cache. ``block`` is the shape of a block in all layers."""

    pid: int
    device: str
    weight_bytes: int
    kv_bytes: int
    block: tuple[int, ...]
    own_blocks: int
    num_blocks: int


@dataclass(frozen=True)
class Shards:
    """All ranks of one model, and the token ids with which they answer ``PROMPTS``."""

    kv_dtype: str
    ranks: tuple[Shard, ...]
    answers: tuple[tuple[int, ...], ...]


def measure_shards(*models: str, ranks: int = 2, seconds: float = 120.0) -> list[Shards]:
    """Shard each of ``models`` over ``ranks`` processes, one model after the other. Raises as ``run_ranks`` does."""
    printed = run_ranks(__name__, *models, ranks=ranks, seconds=seconds)
    told = json.loads(printed.strip().splitlines()[-1])
    return [
        Shards(
            each["kv_dtype"],
            tuple(Shard(**{**shard, "block": tuple(shard["block"])}) for shard in each["ranks"]),
            tuple(map(tuple, each["answers"])),
        )
        for each in told
    ]


def answer(llm: LLM) -> tuple[tuple[int, ...], ...]:
    """Return the greedy token ids after each of ``PROMPTS``."""
    outputs = llm.generate([list(prompt) for prompt in PROMPTS], PARAMS, progress=False)
    return tuple(tuple(output.completions[0].token_ids) for output in outputs)


def save_one_head(folder: str | Path) -> None:
    """Save a small Llama with random weights and four query heads on one KV head: more ranks than KV heads."""
    from safetensors.torch import save_file
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=128,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=1,
        max_position_embeddings=256,
        dtype="float16",
    )
    config.architectures = ["LlamaForCausalLM"]
    torch.manual_seed(12)
    weights = LlamaForCausalLM(config).state_dict()
    save_file(
        {name: weight.half().contiguous() for name, weight in weights.items()},
        Path(folder) / "model.safetensors",
        metadata={"format": "pt"},
    )
    config.save_pretrained(folder)


def shard(name: str) -> dict[str, Any]:
    """Return ``Shards`` of one model as a dict. Every rank must call it; only rank 0 gets the answers."""
    loaded = load(name, tp="auto")
    size, rank = distributed.get_world_size(), distributed.get_rank()
    cache, report = allocate_kv_cache(loaded.model, kv_bytes=ROOM[min(rank, 1)], tp=size)
    block = tuple(cache.parts(0)[0].shape.block_shape)
    held = Shard(
        os.getpid(),
        report.device,
        report.weight_bytes,
        cache.nbytes,
        block,
        report.own_blocks,
        report.num_blocks,
    )
    kv_dtype = cache.spec.kv_dtype
    cache.close()
    gathered: list[Any] = [None] * size
    distributed.all_gather_object(gathered, held)
    answers: tuple[tuple[int, ...], ...] = ()
    # On ranks other than 0, LLM(...) returns when rank 0 closes, and then ends the process unless another model
    # follows.
    with suppress(SystemExit), LLM(loaded, tp="auto", num_blocks=report.num_blocks) as llm:
        answers = answer(llm)
    return asdict(Shards(kv_dtype, tuple(gathered), answers))


def main() -> None:
    torch.set_num_threads(1)
    told = [shard(name) for name in sys.argv[1:]]
    if distributed.get_rank() == 0:
        print(json.dumps(told), flush=True)
    distributed.barrier()  # rank 0 keeps the store that every rank needs to end


if __name__ == "__main__":
    main()
