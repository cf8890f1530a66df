"""A first look at a GPU, of a minute: one small case of each thing that everything else rests on.

    python -m tools.gpu.smoke --json FILE

Each is compared with the plain-torch reference on the same device. A row says the microseconds of a call (in a CUDA
graph, with cold caches) and the seconds of the first one, which compiles. Exit code: 0 where all agree, 1 where one
does not or cannot run, 2 without a GPU.
"""

import argparse
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.kernels_cases import LLAMA_8B, Heads, Paged, Shape, paged
from benchmarks.kernels_timing import Stopwatch, agree, captured
from benchmarks.report import write_rows
from minikv import kernels
from minikv.kernels import PagedKV, reference
from minikv.kernels.expanding import LatentSizes, absorb, expanded, of_latents

ROUNDS, REPLAYS = 5, 20


@dataclass(frozen=True)
class Sizes:
    """What the cases are made of: tokens of each sequence, new ones of each in a prefill, and the latents' sizes."""

    heads: Heads
    lengths: tuple[int, ...]
    queries: tuple[int, ...]
    latent_heads: int
    rank: int
    rope: int


FULL = Sizes(LLAMA_8B, (4096, 17, 1000), (512, 17, 1), 128, 512, 64)


@dataclass(frozen=True)
class Check:
    """``call`` is what is timed; it gives what is compared with ``expected``."""

    call: Callable[[], Tensor]
    expected: Tensor
    is_graph: bool = False


def checks(watch: Stopwatch, sizes: Sizes) -> dict[str, Callable[[], Check]]:
    """Each check by its name; making one allocates its tensors and computes what is expected."""
    case = paged(Shape("", sizes.lengths), sizes.heads, 16, torch.bfloat16, watch.device)
    normal = torch.Generator(watch.device).manual_seed(1)
    starts = torch.tensor([0, *sizes.queries], device=watch.device).cumsum(0).int()
    most, tokens = max(sizes.queries), sum(sizes.queries)

    def random(*shape: int) -> Tensor:
        return torch.randn(shape, generator=normal, device=watch.device).to(torch.bfloat16)

    def decode(case: Paged = case) -> Check:
        expected = reference.paged_decode(case.query, case.kv, scale=case.heads.scale).out
        return Check(lambda: kernels.paged_decode(case.query, case.kv, scale=case.heads.scale).out, expected)

    def fp8() -> Check:
        new = torch.cuda.get_device_capability() >= (8, 9) if watch.on_gpu else True
        stored = torch.float8_e4m3fn if new else torch.float8_e5m2
        return decode(replace(case, kv=replace(case.kv, k=case.kv.k.to(stored), v=case.kv.v.to(stored))))

    def prefill() -> Check:
        query = random(tokens, sizes.heads.query, sizes.heads.dim)
        given = (query, case.kv, starts)
        options: dict[str, Any] = {"max_queries": most, "scale": sizes.heads.scale}
        expected = reference.paged_prefill(*given, **options).out
        return Check(lambda: kernels.paged_prefill(*given, **options).out, expected)

    def latents(rows: int) -> tuple[Tensor, Tensor, PagedKV]:
        cache = random(len(case.kv.k), 16, 1, sizes.rank + sizes.rope)
        kv = replace(case.kv, k=cache[..., : sizes.rank], v=cache[..., sizes.rank :])
        heads = sizes.latent_heads
        return random(rows, heads, sizes.rank), random(rows, heads, sizes.rope), kv

    def latent_decode() -> Check:
        given, scale = latents(len(sizes.lengths)), 192**-0.5
        expected = reference.latent_decode(*given, scale=scale).out
        return Check(lambda: kernels.latent_decode(*given, scale=scale).out, expected)

    def latent_prefill() -> Check:
        given = (*latents(tokens), starts)
        options: dict[str, Any] = {"max_queries": most, "scale": 192**-0.5}
        expected = reference.latent_prefill(*given, **options).out
        return Check(lambda: kernels.latent_prefill(*given, **options).out, expected)

    def expanded_prefill() -> Check:
        """One sequence, in two pieces of heads."""
        queries, keys, nope = sizes.queries[0], sizes.lengths[0], sizes.heads.dim
        kv, scale, (first, _) = latents(1)[2], 192**-0.5, starts.split([2, len(starts) - 2])
        kv = replace(kv, block_tables=kv.block_tables[:1, : -(-keys // 16)], lengths=kv.lengths[:1])
        up = random(sizes.latent_heads, 2 * nope, sizes.rank) * sizes.rank**-0.5
        query = random(queries, sizes.latent_heads, nope + sizes.rope)
        whole = LatentSizes.of(up, kv, nope, 2**29)
        half = whole._replace(most_bytes=kv.block_tables.numel() * 16 * whole.key_bytes(whole.heads // 2))
        rows = absorb(query.float(), up.float(), nope)
        found = reference.latent_prefill(*rows, kv, first, max_queries=queries, scale=scale).out
        out = query.new_empty(queries, sizes.latent_heads, nope)

        def call() -> Tensor:
            expanded(query, kv, up, first, half, keys=keys, scale=scale, out=out)
            return out

        return Check(call, of_latents(found, up.float(), nope))

    def slots(count: int) -> Tensor:
        free = len(case.kv.k) * 16
        return torch.randperm(free, generator=normal, device=watch.device)[:count].int()

    def store() -> Check:
        new = [random(tokens, sizes.heads.kv, sizes.heads.dim) for _ in range(2)]
        where = slots(tokens)
        ours, theirs = (torch.stack([case.kv.k, case.kv.v]) for _ in range(2))
        reference.store_kv(new[0], new[1], theirs[0], theirs[1], where)

        def call() -> Tensor:
            kernels.store_kv(new[0], new[1], ours[0], ours[1], where)
            return ours

        return Check(call, theirs)

    def move() -> Check:
        order = slots(2 * tokens)
        here, there = order[:tokens].contiguous(), order[tokens:].contiguous()
        ours, theirs = case.kv.k.clone(), case.kv.k.clone()
        reference.move_slots(theirs, here, there)

        def call() -> Tensor:
            kernels.move_slots(ours, here, there)
            return ours

        return Check(call, theirs)

    def graph() -> Check:
        """Captured with other queries and lengths than it is replayed with."""
        query, kv = case.query * 2, replace(case.kv, lengths=torch.ones_like(case.kv.lengths))
        out: list[Tensor] = []

        def step() -> None:
            out[:] = [kernels.paged_decode(query, kv, scale=case.heads.scale).out]

        replay = captured([step])
        query.copy_(case.query)
        kv.lengths.copy_(case.kv.lengths)

        def call() -> Tensor:
            replay()
            return out[0]

        return Check(call, decode().expected, is_graph=True)

    return {
        "decode": decode,
        "prefill": prefill,
        "MLA decode": latent_decode,
        "MLA prefill": latent_prefill,
        "MLA prefill, expanded": expanded_prefill,
        "store": store,
        "move": move,
        "fp8 decode": fp8,
        "graph capture and replay": graph,
    }


def look(watch: Stopwatch, sizes: Sizes = FULL) -> Iterator[dict[str, Any]]:
    """A row a check: its name, "us" of a call, "first_s" of the first one, "problem" ("" where it agrees)."""
    for name, make in checks(watch, sizes).items():
        row: dict[str, Any] = {"check": name, "us": None, "first_s": None, "problem": ""}
        try:
            check = make()
            result, row["first_s"] = watch.first(check.call)
            agree(name, result, check.expected)
            row["us"] = 1e6 * (_replays(watch, check.call) if check.is_graph else _seconds(watch, check.call))
        except Exception as error:  # the other checks have something to say, too
            row["problem"] = f"{type(error).__name__}: {error}".splitlines()[0][:300]
        yield row


def _seconds(watch: Stopwatch, call: Callable[[], Tensor]) -> float:
    return watch.compare({"": [call]}, ROUNDS)[""]


def _replays(watch: Stopwatch, replay: Callable[[], Tensor]) -> float:
    """A graph cannot be replayed in another one that is captured."""

    def many() -> None:
        for _ in range(REPLAYS):
            replay()

    return watch.first(many)[1] / REPLAYS


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.gpu.smoke", description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, required=True, help="write a row a check here")
    options = parser.parse_args(arguments)
    if not torch.cuda.is_available():
        print("No CUDA device that torch can use: the first look needs one.")
        return 2
    begin = time.monotonic()
    rows = []
    for row in look(Stopwatch(torch.device("cuda"))):
        rows.append(row)
        write_rows(options.json, rows, complete=False)
        print(line(row), flush=True)
    write_rows(options.json, rows, complete=True)
    broken = [row["check"] for row in rows if row["problem"]]
    print(f"{len(rows) - len(broken)} of {len(rows)} agree, {time.monotonic() - begin:.0f} s", flush=True)
    return 1 if broken else 0


def line(row: dict[str, Any]) -> str:
    """ "decode                     12.3 us  first call  1.9 s"."""
    if row["problem"]:
        return f"{row['check']:<26} BROKEN: {row['problem']}"
    return f"{row['check']:<26}{row['us']:>9.1f} us  first call {row['first_s']:>5.1f} s"


if __name__ == "__main__":
    raise SystemExit(main())
