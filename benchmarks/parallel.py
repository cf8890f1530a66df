"""Two processes that share a model: bytes per rank, messages per step, and what the engine adds to the ranks' forward.

    python -m benchmarks.parallel [--quick] [--json FILE] [--ranks N]

The ranks talk over gloo on this machine's CPU, a thread each. "Engine": the decode steps of an ``LLM`` are timed on
rank 0 and computed again at once, on all ranks, with neither schedule nor message; the difference is what scheduling,
messages, sampling and bookkeeping cost. It is set against a decode step of transformers' own model on the same ranks,
with its own cache; "plan" is that step beside one process with as many threads. The difference is the median over
many steps, each computed in both ways; a time is the best of many steps.
"""

import argparse
import multiprocessing
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

import torch

from benchmarks.engine_cases import SMALL, ModelShape, random_model
from benchmarks.kernels_timing import Detailed, tell
from benchmarks.parallel_ranks import Decoding, alone_times, run_rank
from benchmarks.report import Row, publish
from minikv.plan import CacheSpec
from minikv.plan.pool import kv_cache_groups

MOST_ADDED = 0.05
MIB = 2**20
FULL, QUICK = Decoding(32, 64, 20, 6), Decoding(16, 32, 8, 3)
GQA, MLA = "GQA, " + SMALL.name, "MLA, " + SMALL.name


def latent_model(shape: ModelShape) -> Any:
    """A DeepSeek-V3 without experts, of random weights."""
    from transformers import DeepseekV3Config, DeepseekV3ForCausalLM

    config = DeepseekV3Config(
        vocab_size=shape.vocabulary,
        hidden_size=shape.hidden,
        intermediate_size=shape.intermediate,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.heads,
        first_k_dense_replace=shape.layers,
        n_routed_experts=8,
        n_group=1,
        topk_group=1,
        num_experts_per_tok=2,
        kv_lora_rank=128,
        q_lora_rank=256,
        qk_nope_head_dim=64,
        qk_rope_head_dim=32,
        v_head_dim=64,
        max_position_embeddings=4096,
    )
    torch.manual_seed(0)
    model = DeepseekV3ForCausalLM(config).eval()
    model.generation_config.eos_token_id = None
    return model


def measure(ranks: int, decoding: Decoding, shape: ModelShape = SMALL) -> dict[str, dict[str, Any]]:
    """{name: figures} of both models, from ``ranks`` processes."""
    cpu = torch.device("cpu")
    models = {GQA: lambda: random_model(shape, cpu, torch.float32), MLA: lambda: latent_model(shape)}
    server = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as scratch:
        folders = {name: str(Path(scratch) / name.partition(",")[0]) for name in models}
        for name, make in models.items():
            make().save_pretrained(folders[name])
        results = server.Queue()
        given = (ranks, str(Path(scratch) / "store"), folders, decoding, results)
        started = [server.Process(target=run_rank, args=(rank, *given)) for rank in range(ranks)]
        for process in started:
            process.start()
        try:
            told = results.get(timeout=600)
        finally:
            for process in started:
                process.join(10)
                process.kill()
        for name, folder in folders.items():
            groups = kv_cache_groups(CacheSpec.from_config(folder, tp=ranks))
            told[name]["planned"] = sum(group.block_bytes(16) for group in groups) * decoding.blocks
            told[name]["one process"] = alone_times(folder, decoding, ranks)
    return told


def rows(ranks: int, decoding: Decoding) -> Iterator[Row]:
    for name, found in measure(ranks, decoding).items():
        held, planned = found["held"], found["planned"]
        details = {
            f"rank {rank}": f"{each['kv']:,} B KV, {each['weights']:,} B weights"
            for rank, each in enumerate(held)
        }
        most = max(each["kv"] for each in held)
        same = all(each["kv"] == planned for each in held)
        tell(details)
        claim = f"{name}: KV of a rank"
        yield Detailed(
            claim, most / MIB, planned / MIB, "the plan", "MiB", "the same on every rank", same, details
        )

        messages, size = found["messages"], found["message bytes"]
        details = {"bytes a step": size, "sequences": decoding.batch}
        tell(details)
        claim = f"{name}: messages of a decode step"
        yield Detailed(claim, messages, 1, "one", "messages", "one", messages == 1, details)

        best = {way: min(found[way]) for way in ("engine", "forward", "transformers", "one process")}
        pairs = zip(found["engine"], found["forward"], strict=True)
        added, step = median(whole - alone for whole, alone in pairs), best["transformers"]
        details = {f"{way}, ms": 1e3 * seconds for way, seconds in best.items()}
        details |= {"plan": step / best["one process"], "steps": len(found["engine"]), "ranks": ranks}
        tell(details)
        claim, goal = f"{name}: added by the engine", f"at most {MOST_ADDED:.0%}"
        peer = f"transformers' step on {ranks} ranks"
        holds = added <= MOST_ADDED * step
        yield Detailed(claim, 1e3 * added, 1e3 * step, peer, "ms", goal, holds, details)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="end within 60 s on 2 cores")
    parser.add_argument("--json", type=Path, help="write the rows, the device and the versions here")
    parser.add_argument("--ranks", type=int, default=2, help="processes")
    return parser.parse_args()


def main() -> None:
    options = parse()
    os.environ |= {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}  # of the ranks
    publish(rows(options.ranks, QUICK if options.quick else FULL), options.json)


if __name__ == "__main__":
    main()
