"""The kernels compiled for GPUs that need not be there: what fits a multiprocessor, instructions, buffers.

    python -m benchmarks.kernels --only compiled --json FILE
    python -m benchmarks.kernels_compiled BEFORE.json AFTER.json

The first writes the table of a checkout, the second two of them as one, in Markdown.
"""

import json
import multiprocessing
import os
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import torch

from benchmarks.kernels_timing import Detailed
from minikv.kernels import PagedKV
from minikv.kernels.gpu.ahead import SHARED_KIB, Compiled, compile_ahead
from minikv.kernels.gpu.common import Device, Launch
from minikv.kernels.gpu.launches import attention_launches
from minikv.kernels.gpu.moving import move_launches
from minikv.kernels.gpu.storage import store_launch

CAPABILITIES = (75, 80, 87, 89, 90, 100)  # T4, A100, Jetson AGX Orin, L4 and RTX 40, H100 and H200, B200
ATTENTION = ("decode", "prefill", "latent decode", "latent prefill")
MOVING = ("store_kv", "move_slots")
QUICK = [(90, "decode"), (90, "store_kv")]
Case = tuple[int, str]


def cases(quick: bool) -> list[Case]:
    """(capability, operation): attention for every kind of GPU, what only moves bytes for the oldest and the H200's."""
    if quick:
        return QUICK
    moving = [(capability, name) for capability in (75, 90) for name in MOVING]
    return [(capability, name) for capability in CAPABILITIES for name in ATTENTION] + moving


def launch_of(capability: int, name: str) -> Launch:
    """The launch of an operation on tensors without data: Llama-8B's heads, or DeepSeek-V3's latent with 128 heads, 8
    sequences of up to 4,096 tokens in blocks of 16; bfloat16, on Turing float16. A prefill has 512 queries each."""
    dtype = torch.float16 if capability < 80 else torch.bfloat16

    def empty(*shape: int, dtype: torch.dtype = dtype) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype, device="meta")

    cache, slots = empty(4096, 16, 8, 128), empty(8192, dtype=torch.int32)
    if name == "store_kv":
        return store_launch(empty(8192, 8, 128), empty(8192, 8, 128), cache, cache, slots)
    if name == "move_slots":
        return move_launches(cache, slots, slots)[0]
    options = {}
    queries, heads = (512 if name.endswith("prefill") else 1), (32, 128)
    k, v = cache, cache
    if name.startswith("latent"):
        heads, latent = (128, 512), empty(4096, 16, 1, 576)
        k, v = latent[..., :512], latent[..., 512:]
        options = {"q_rope": empty(8 * queries, 128, 64)}
    if queries > 1:
        options |= {"query_starts": empty(9, dtype=torch.int32), "max_queries": queries}
    kv = PagedKV(k, v, empty(8, 257, dtype=torch.int32), empty(8, dtype=torch.int32))
    query = empty(8 * queries, *heads)
    launches, _ = attention_launches(Device(capability, 132), query, kv, scale=0.1, **options)
    return launches[0]


def compile_case(case: Case) -> tuple[Case, Compiled]:
    return case, compile_ahead(launch_of(*case), case[0])


def compiled(wanted: list[Case]) -> Iterator[tuple[Case, Compiled]]:
    """Each case as it is done, several at a time: in new processes, since Triton compiles one at a time in each."""
    workers = min(len(wanted), os.cpu_count() or 1)
    with multiprocessing.get_context("spawn").Pool(workers) as pool:
        yield from pool.imap(compile_case, wanted)


def compiled_rows(quick: bool) -> Iterator[Detailed]:
    """The table, then a row for each claim about it: how many of its lines break it."""
    print(
        f"  {'sm':<5}{'operation':<15}{'warps':>6}{'stages':>7}{'registers':>10}{'stack':>6}{'shared KiB':>12}"
        f"{'of':>5}{'programs':>9}{'wgmma':>6}{'mma':>5}{'tensor cores':>13}{'16-byte async':>14}"
        f"{'2-byte loads':>13}{'conversions':>12}  buffers",
        flush=True,
    )
    table = []
    for (capability, name), found in compiled(cases(quick)):
        table.append({"operation": name} | asdict(found))
        print(
            f"  {capability:<5}{name:<15}{found.num_warps:>6}{found.num_stages:>7}{found.registers:>10}{found.stack:>6}"
            f"{found.shared_bytes / 1024:>12.1f}{SHARED_KIB[capability]:>5}{found.occupancy:>9}{found.wgmma:>6}"
            f"{found.mma:>5}{found.tensor_cores:>13}{found.async_copies:>14}{found.narrow_loads:>13}"
            f"{found.conversions:>12}  {' '.join(map(str, found.buffers)) or 'none'}",
            flush=True,
        )
    yield from claims(table)


def claims(table: list[dict]) -> Iterator[Detailed]:
    """What every line of the table must fulfil."""
    attention = [line for line in table if line["operation"] in ATTENTION and line["capability"] >= 80]
    broken = {
        "spill registers": (table, [line for line in table if line["stack"]]),
        "exceed the GPU's shared memory": (
            table,
            [line for line in table if line["shared_bytes"] > 1024 * SHARED_KIB[line["capability"]]],
        ),
        "use no tensor cores (sm_80 on)": (
            attention,
            [line for line in attention if not line["tensor_cores"]],
        ),
        "copy no 16 bytes at once (sm_80 on)": (
            attention,
            [line for line in attention if line["num_stages"] > 1 and not line["async_copies"]],
        ),
        "load 2 bytes alone (sm_80 on)": (attention, [line for line in attention if line["narrow_loads"]]),
    }
    for what, (asked, found) in broken.items():
        details = {"table": table} if asked is table and what == "spill registers" else {}
        which = {"which": [f"sm_{line['capability']} {line['operation']}" for line in found]} if found else {}
        yield Detailed(
            f"kernels that {what}", len(found), len(asked), "kernels compiled ahead", "kernels", "none",
            bool(asked) and not found, details | which,
        )  # fmt: skip


def compared(before: list[dict], after: list[dict]) -> Iterator[str]:
    """The lines of a Markdown table: each kernel's figures ``after``, behind those ``before`` where they differ."""
    was = {(line["capability"], line["operation"]): figures(line) for line in before}
    names = ["sm", "operation", *figures(after[0])]
    yield f"| {' | '.join(names)} |"
    yield "|---" * len(names) + "|"
    for line in after:
        old, new = was.get((line["capability"], line["operation"]), {}), figures(line)
        cells = [
            each if old.get(name) in (each, None) else f"{old[name]} → {each}" for name, each in new.items()
        ]
        yield f"| {line['capability']} | {line['operation']} | {' | '.join(cells)} |"


def figures(line: dict) -> dict[str, str]:
    """What decides a kernel's speed. "under way": KiB that a full multiprocessor has asked for and not yet got."""
    found = Compiled(**{name: value for name, value in line.items() if name != "operation"})
    shapes = ", ".join(sorted(set(found.wgmma_shapes)))
    return {
        "warps, stages": f"{found.num_warps}, {found.num_stages}",
        "registers": str(found.registers),
        "stack, spills": f"{found.stack}, {found.spills}",
        "shared KiB": f"{found.shared_bytes / 1024:.1f}",
        "programs": str(found.occupancy),
        "buffers": " ".join(map(str, found.buffers)) or "none",
        "under way": f"{found.bytes_in_flight(found.occupancy, 1) / 1024:.0f}",
        "wgmma": f"{found.wgmma} ({shapes})" if shapes else str(found.wgmma),
        "mma": str(found.mma),
        "conversions": str(found.conversions),
        "copies of 16, 8, 4": f"{found.async_copies}, {found.copies_8}, {found.copies_4}",
    }


def read_table(path: Path) -> list[dict]:
    """The table that ``python -m benchmarks.kernels --json`` has written among the rows."""
    rows = json.loads(path.read_text(encoding="utf-8"))["rows"]
    return next(row["details"]["table"] for row in rows if "table" in row["details"])


if __name__ == "__main__":
    print("\n".join(compared(*(read_table(Path(name)) for name in sys.argv[1:]))))
