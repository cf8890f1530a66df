"""Lesson 12: what each rank of a sharded model holds, and what the ranks answer together. Started by torchrun.

    torchrun --nproc-per-node 2 -m minikv.course.lessons.l12.shards FOLDER ...

Each folder (or name) is a model. Rank 0 prints one line of JSON: of each model a ``Shards``, as a dict.
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

ROOM = (160_000, 120_000)  # bytes for blocks that rank 0 has, and that every other rank has
PROMPTS = tuple(tuple((7 * i + 3 * j) % 90 + 1 for j in range(9 + 5 * i)) for i in range(4))
PARAMS = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)


@dataclass(frozen=True)
class Shard:
    """One rank: its process, its weights in bytes, and its cache. ``block`` is the shape of a block, all layers."""

    pid: int
    device: str
    weight_bytes: int
    kv_bytes: int
    block: tuple[int, ...]
    own_blocks: int
    num_blocks: int


@dataclass(frozen=True)
class Shards:
    """All ranks of one model, and the token ids that they answer together to ``PROMPTS``."""

    kv_dtype: str
    ranks: tuple[Shard, ...]
    answers: tuple[tuple[int, ...], ...]


def measure_shards(*models: str, ranks: int = 2, seconds: float = 120.0) -> list[Shards]:
    """Shard each of ``models`` over ``ranks`` processes, one model after the other; raises as ``run_ranks``."""
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
    """The token ids that follow each of ``PROMPTS``, greedily."""
    outputs = llm.generate([list(prompt) for prompt in PROMPTS], PARAMS, progress=False)
    return tuple(tuple(output.completions[0].token_ids) for output in outputs)


def save_one_head(folder: str | Path) -> None:
    """Write a small Llama of random weights whose four query heads share one KV head: more ranks than heads."""
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
    """``Shards`` of one model as a dict. Every rank calls; only rank 0 gets the answers."""
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
    everybody: list[Any] = [None] * size
    distributed.all_gather_object(everybody, held)
    answers: tuple[tuple[int, ...], ...] = ()
    # On every rank but 0 the LLM computes until rank 0 closes, and then ends the process: there is another model.
    with suppress(SystemExit), LLM(loaded, tp="auto", num_blocks=report.num_blocks) as llm:
        answers = answer(llm)
    return asdict(Shards(kv_dtype, tuple(everybody), answers))


def main() -> None:
    torch.set_num_threads(1)
    told = [shard(name) for name in sys.argv[1:]]
    if distributed.get_rank() == 0:
        print(json.dumps(told), flush=True)
    distributed.barrier()  # rank 0 keeps the store that all of them end with


if __name__ == "__main__":
    main()
