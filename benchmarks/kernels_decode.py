"""Paged decode on a GPU: against a copy of as many bytes, and against SDPA, FlexAttention and transformers."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from benchmarks import kernels_peers as peers
from benchmarks.kernels_cases import (
    GROUP_OF_8,
    LLAMA_8B,
    Heads,
    Paged,
    Shape,
    batch,
    decode_bytes,
    kv_bytes,
    paged,
    skewed,
)
from benchmarks.kernels_timing import Detailed, Stopwatch, agree, copy_rate, tell
from benchmarks.report import device
from minikv.errors import UnknownNameError
from minikv.kernels import paged_decode
from minikv.kernels.quantize import quantize
from minikv.plan import find_gpu

PAGES = (16, 64)
SHAPES = (
    batch(1, 4096), batch(1, 32768), batch(1, 131072), batch(8, 4096), batch(32, 4096), batch(32, 32768),
    batch(64, 4096), batch(128, 2048), skewed(32, 32768),
)  # fmt: skip
QUICK = (batch(1, 4096), batch(32, 4096))
GOAL_500_MB, GOAL_134_MB, GOAL_B1_4K_US = 0.85, 0.75, 12.0
SCORES_GOAL, FP8_GOAL = 1.15, 1.6
ROUNDS = 30
MEMORY_OF_KV = (
    20  # times K and V: two page sizes, a contiguous copy, and transformers, which repeats K and V 4 times
)


@dataclass(frozen=True)
class Bounds:
    """What the machine can do: a copy measured in this run, and its data sheet, both in bytes a second."""

    copy: float
    sheet: float | None

    def columns(self, moved: int, seconds: float) -> dict[str, Any]:
        rate = moved / seconds
        found = {"us": 1e6 * seconds, "GB/s": rate / 1e9, "% of copy": 100 * rate / self.copy}
        return found | ({"% of floor": 100 * rate / self.sheet} if self.sheet else {})


def bounds_of(watch: Stopwatch) -> Bounds:
    try:
        sheet = 1e9 * find_gpu(device()).bandwidth_gb_s
    except UnknownNameError:
        sheet = None
    found = Bounds(copy_rate(watch), sheet)
    print(
        f"  a copy on the device: {found.copy / 1e9:.0f} GB/s; data sheet: {(sheet or 0) / 1e9:.0f} GB/s",
        flush=True,
    )
    return found


def decode(case: Paged, **options: Any) -> Callable[[], Tensor]:
    return lambda: (
        paged_decode(
            case.query,
            case.k_cache,
            case.v_cache,
            case.tables,
            case.lengths,
            scale=case.heads.scale,
            **options,
        ).out
    )


def decode_rows(watch: Stopwatch, quick: bool, shapes: tuple[Shape, ...] | None = None) -> Iterator[Detailed]:
    """For each shape and page size: ahead of every peer; and, where a goal is set, the share of the copy, or the us."""
    bounds = bounds_of(watch)
    for shape in shapes or (QUICK if quick else SHAPES):
        if watch.on_gpu and MEMORY_OF_KV * kv_bytes(shape.lengths, LLAMA_8B) > torch.cuda.mem_get_info()[1]:
            tell(
                {"": f"decode, {shape.name}: left out, this GPU's memory is too small for all who take part"}
            )
            continue
        runs, skipped = decode_runs(watch, shape, LLAMA_8B)
        seconds = watch.compare(runs, 5 if quick else ROUNDS)
        for page in PAGES:
            yield from shape_rows(shape, page, seconds, skipped, bounds)


def decode_runs(watch: Stopwatch, shape: Shape, heads: Heads) -> tuple[dict[str, list], dict[str, str]]:
    """The calls of ours for each page size and of every peer; and the peers that cannot run, with the reason.

    Ours must agree with SDPA, or ``Disagrees`` ends the benchmark; a peer that does not is left out.
    """
    torch.compiler.reset()  # torch compiles one function 8 times and no more
    count = watch.sets(kv_bytes(shape.lengths, heads))
    cases = {
        page: [paged(shape, heads, page, torch.bfloat16, watch.device, seed) for seed in range(count)]
        for page in PAGES
    }
    runs: dict[str, list] = {}
    for page, of in cases.items():
        runs[f"page {page}"] = [decode(case) for case in of]
        expected = peers.sdpa_grouped(of[0], *of[0].contiguous())()
        agree(f"decode, {shape.name}, page {page}", runs[f"page {page}"][0](), expected)
    of = cases[PAGES[0]]
    lying = [case.contiguous() for case in of]
    expected = runs[f"page {PAGES[0]}"][0]()
    makers: dict[str, Callable[[Paged, Tensor, Tensor], Callable[[], Tensor]]] = {
        "SDPA, enable_gqa": peers.sdpa_grouped,
        "SDPA, packed": peers.sdpa_packed,
        "FlexAttention": partial(peers.flex, compiled=watch.on_gpu),
        "transformers": lambda case, keys, values: peers.transformers_paged(case),
    }
    skipped = {}
    for peer, make in makers.items():
        try:
            calls = [make(case, *kv) for case, kv in zip(of, lying, strict=True)]
            agree(peer, calls[0](), expected)
            runs[peer] = calls
        except Exception as error:  # whatever keeps a peer from running here is the reason that the row gives
            skipped[peer] = f"skipped: {type(error).__name__}: {error}".splitlines()[0][:150]
    return runs, skipped


def shape_rows(
    shape: Shape, page: int, seconds: dict[str, float], skipped: dict[str, str], bounds: Bounds
) -> Iterator[Detailed]:
    """The rows of one shape and page size from what was measured."""
    name, ours = f"decode, {shape.name}, page {page}", seconds[f"page {page}"]
    others = {peer: value for peer, value in seconds.items() if not peer.startswith("page ")}
    details = bounds.columns(decode_bytes(shape, LLAMA_8B, page), ours)
    details |= {f"{peer} us": 1e6 * value for peer, value in others.items()} | skipped
    details["KV MB"] = kv_bytes(shape.lengths, LLAMA_8B) / 1e6
    tell({"": name} | details)
    best = min(others, key=others.__getitem__)
    yield Detailed(
        name, 1e6 * ours, 1e6 * others[best], best, "us", "ahead of every peer", ours < others[best], details
    )
    share = GOAL_500_MB if details["KV MB"] >= 500 else GOAL_134_MB
    if details["KV MB"] >= 134:
        yield of_copy(name, decode_bytes(shape, LLAMA_8B, page), ours, share, bounds)
    if shape.lengths == (4096,):
        goal = f"at most {GOAL_B1_4K_US:g} us"
        floor = 1e6 * decode_bytes(shape, LLAMA_8B, page) / bounds.copy
        yield Detailed(
            name, 1e6 * ours, floor, "a copy of as many bytes", "us", goal, 1e6 * ours <= GOAL_B1_4K_US
        )


def of_copy(name: str, moved: int, seconds: float, share: float, bounds: Bounds) -> Detailed:
    """Bytes a second against the copy's."""
    rate = moved / seconds
    return Detailed(
        name, rate / 1e9, bounds.copy / 1e9, "a copy on the device", "GB/s", f"at least {share:.0%}",
        rate >= share * bounds.copy, bounds.columns(moved, seconds),
    )  # fmt: skip


def variant_rows(watch: Stopwatch, quick: bool, shape: Shape | None = None) -> Iterator[Detailed]:
    """float8 against bfloat16 at 1 GB of K and V, with scales and without; and what scores cost at group 8."""
    shape = shape or (batch(8, 4096) if quick else batch(8, 32768))
    case = paged(shape, LLAMA_8B, 16, torch.bfloat16, watch.device)
    small, scales = {}, {}
    for which, cache in (("k", case.k_cache), ("v", case.v_cache)):
        small[which], scales[f"{which}_scale"] = quantize(cache, torch.float8_e4m3fn)
    plain = Paged(
        case.heads,
        case.query,
        *(x.to(torch.float8_e4m3fn) for x in (case.k_cache, case.v_cache)),
        case.tables,
        case.lengths,
    )
    scaled = Paged(case.heads, case.query, small["k"], small["v"], case.tables, case.lengths)
    runs = {
        "bfloat16": [decode(case)],
        "float8": [decode(plain)],
        "float8 with scales": [decode(scaled, **scales)],
    }
    seconds = watch.compare(runs, ROUNDS)
    base = seconds.pop("bfloat16")
    for name, value in seconds.items():
        claim, goal = f"decode, {shape.name}, {name}", f"at least {FP8_GOAL:g}x faster"
        peer = "bfloat16"
        yield Detailed(claim, 1e6 * value, 1e6 * base, peer, "us", goal, FP8_GOAL * value <= base)
    case = paged(shape, GROUP_OF_8, 16, torch.bfloat16, watch.device)
    scoring = decode(case, return_scores=True)
    seconds = watch.compare({"scores": [scoring], "none": [decode(case)]}, ROUNDS)
    claim, goal = f"decode with scores, {shape.name}, group 8", f"at most {SCORES_GOAL:g}x"
    ours, none = seconds["scores"], seconds["none"]
    yield Detailed(claim, 1e6 * ours, 1e6 * none, "without scores", "us", goal, ours <= SCORES_GOAL * none)
