"""Other configurations beside the table's, on the GPU that is here: what ``gpu/configs.py`` should say."""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
import triton
from torch import Tensor

from benchmarks.kernels_cases import LLAMA_8B, Shape, batch, paged
from benchmarks.kernels_others import latents
from benchmarks.kernels_timing import Detailed, DisagreementError, Stopwatch, agree, tell
from benchmarks.report import Step
from minikv.kernels import PagedKV
from minikv.kernels.gpu.common import Device, device_of
from minikv.kernels.gpu.configs import Config, attention_config
from minikv.kernels.gpu.launches import attention_launches

DECODES = (batch(1, 4096), batch(8, 4096), batch(32, 4096), batch(1, 131072))
PREFILL = (2048, 8192)  # queries, tokens
LATENT = (32, 8192, 128)  # batch, tokens, heads
CLOSE = 1.05
SHOWN = 5


class Sweep:
    """One call of the attention kernel, with any configuration."""

    def __init__(self, name: str, device: Device, query: Tensor, kv: PagedKV, options: dict[str, Any]):
        self.name, self.device, self.query, self.kv, self.options = name, device, query, kv, options

    def table_config(self) -> Config:
        query, value = self.query, self.kv.v
        heads, latent = self.kv.k.shape[2], "q_rope" in self.options
        return attention_config(
            self.device.capability, query.shape[2], value.shape[3], query.element_size(),
            self.options.get("max_queries", 1), query.shape[1] // heads, latent=latent,
        )  # fmt: skip

    def splits_of(self, config: Config) -> int:
        """The most splits of a sequence that the table allows."""
        launches, _ = attention_launches(self.device, self.query, self.kv, config=config, **self.options)
        return int(launches[0].arguments[-4])

    def run(self, config: Config, splits: int | None) -> Tensor:
        launches, result = attention_launches(
            self.device, self.query, self.kv, config=config, splits=splits, **self.options
        )
        for launch in launches:
            launch.run()
        return result.out


def candidates(sweep: Sweep, quick: bool) -> Iterator[tuple[Config, int | None]]:
    """The table's tile with other layouts, then with other tiles, then with other splits."""
    table = sweep.table_config()
    yield table, None
    rows = (table.block_m,) if table.block_m <= 32 else (64, 128)
    decoding = sweep.options.get("max_queries", 1) == 1
    tiles = (16, 32, 64, 128) if decoding else (32, 64, 128)
    tiles = (table.block_n,) if quick else tiles
    depths = (2, 3, 5, 7) if decoding else (2, 3, 4)
    for block_m, block_n, warps, stages in itertools.product(rows, tiles, (4, 8), depths):
        config = replace(table, block_m=block_m, block_n=block_n, num_warps=warps, num_stages=stages)
        if config != table:
            yield config, None
    if decoding:
        chosen = sweep.splits_of(table)
        for splits in sorted({max(1, chosen // 2), chosen * 2, chosen * 4} - {chosen}):
            yield table, splits


def measure(watch: Stopwatch, sweep: Sweep, quick: bool) -> Iterator[Detailed]:
    """Every candidate that compiles and fits, in turn with the table's; the best few are printed."""
    runs: dict[str, list] = {}
    refused, expected = 0, None
    for config, splits in candidates(sweep, quick):
        name = f"{config.block_m} x {config.block_n}, {config.num_warps} warps, {config.num_stages} stages"
        name += "" if splits is None else f", {splits} splits"
        try:
            result = sweep.run(config, splits)
            expected = result if expected is None else expected
            agree(name, result, expected)
            runs[name] = [lambda config=config, splits=splits: sweep.run(config, splits)]
        except (
            triton.runtime.errors.OutOfResources,
            triton.CompilationError,
            RuntimeError,
            DisagreementError,
        ) as error:
            if not runs:
                raise  # the table's own must run
            refused += 1
            tell({name: f"refused: {type(error).__name__}: {error}".splitlines()[0][:120]})
    seconds = watch.compare(runs, 10)
    table, *_ = runs
    ranked = sorted(seconds, key=seconds.__getitem__)
    for name in ranked[:SHOWN]:
        tell({sweep.name: name, "us": 1e6 * seconds[name]})
    best = ranked[0]
    details = {
        "table": table,
        "us": {name: 1e6 * value for name, value in seconds.items()},
        "refused": refused,
    }
    goal, holds = f"within {CLOSE:g}x of the best", seconds[table] <= CLOSE * seconds[best]
    yield Detailed(
        f"sweep, {sweep.name}", 1e6 * seconds[table], 1e6 * seconds[best], best, "us", goal, holds, details
    )


def sweeps(watch: Stopwatch, quick: bool, decodes: tuple[Shape, ...] = DECODES) -> Iterator[Sweep]:
    """Decodes of Llama-8B's heads, a prefill, and a latent decode; in bfloat16, pages of 16."""
    device = device_of(watch.device)
    for shape in decodes[:1] if quick else decodes:
        case = paged(shape, LLAMA_8B, 16, torch.bfloat16, watch.device)
        yield Sweep(f"decode, {shape.name}", device, case.query, case.kv, {"scale": LLAMA_8B.scale})
    queries, length = PREFILL
    case = paged(batch(1, length), LLAMA_8B, 16, torch.bfloat16, watch.device)
    query = torch.randn(queries, LLAMA_8B.query, LLAMA_8B.dim, device=watch.device).to(torch.bfloat16)
    starts = torch.tensor([0, queries], dtype=torch.int32, device=watch.device)
    options = {"scale": LLAMA_8B.scale, "query_starts": starts, "max_queries": queries}
    yield Sweep(f"prefill, {queries} of {length}", device, query, case.kv, options)
    many = latents(*LATENT, watch)
    options = {"scale": many.scale, "q_rope": many.q_rope}
    yield Sweep(f"latent decode, B{LATENT[0]} {LATENT[1]}", device, many.q_latent, many.kv, options)


def sweep_steps(watch: Stopwatch, quick: bool, wanted: Sequence[str] = ()) -> Iterator[Step]:
    """A step for each sweep whose name contains one of ``wanted``. A sweep compiles some 35 kernels, for minutes."""
    for sweep in sweeps(watch, quick):
        if not wanted or any(name in sweep.name for name in wanted):
            yield Step(f"sweep, {sweep.name}", partial(measure, watch, sweep, quick))
