"""Paged decode on a GPU: against a copy of as many bytes, and against SDPA, FlexAttention and transformers."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
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
    return lambda: paged_decode(case.query, case.kv, scale=case.heads.scale, **options).out


def own_rows(watch: Stopwatch, quick: bool, shapes: tuple[Shape, ...]) -> Iterator[Detailed]:
    """For each shape and page size ours alone: where a goal is set, the share of the copy, or the us."""
    bounds = bounds_of(watch)
    for shape in shapes:
        if fits(watch, shape):
            _, runs, first = own_runs(watch, shape, LLAMA_8B)
            seconds = watch.compare(runs, 5 if quick else ROUNDS)
            for page in PAGES:
                name = f"page {page}"
                yield own_row(shape, page, seconds[name], bounds, {"first call, s": first[name]})


def peer_rows(watch: Stopwatch, quick: bool, shapes: tuple[Shape, ...]) -> Iterator[Detailed]:
    """For each shape and page size: ahead of every peer, in turn with all of them."""
    bounds = bounds_of(watch)
    for shape in shapes:
        if fits(watch, shape):
            runs, skipped = decode_runs(watch, shape, LLAMA_8B)
            seconds = watch.compare(runs, 5 if quick else ROUNDS)
            for page in PAGES:
                yield peer_row(shape, page, seconds, skipped, bounds)


def fits(watch: Stopwatch, shape: Shape) -> bool:
    """Whether this GPU's memory is enough for all who take part; said where it is not."""
    if watch.on_gpu and MEMORY_OF_KV * kv_bytes(shape.lengths, LLAMA_8B) > torch.cuda.mem_get_info()[1]:
        tell({"": f"decode, {shape.name}: left out, this GPU's memory is too small for all who take part"})
        return False
    return True


def own_runs(
    watch: Stopwatch, shape: Shape, heads: Heads
) -> tuple[dict[int, list[Paged]], dict[str, list], dict[str, float]]:
    """The cases of each page size, our calls on them, and the seconds of the first call, compiling included.

    Ours must agree with SDPA, or ``DisagreementError`` ends the step.
    """
    count = watch.sets(kv_bytes(shape.lengths, heads))
    cases = {
        page: [paged(shape, heads, page, torch.bfloat16, watch.device, seed) for seed in range(count)]
        for page in PAGES
    }
    runs: dict[str, list] = {}
    first = {}
    for page, of in cases.items():
        name = f"page {page}"
        runs[name] = [decode(case) for case in of]
        expected = peers.sdpa_grouped(of[0], *of[0].contiguous())()
        result, first[name] = watch.first(runs[name][0])
        agree(f"decode, {shape.name}, {name}", result, expected)
    return cases, runs, first


def decode_runs(watch: Stopwatch, shape: Shape, heads: Heads) -> tuple[dict[str, list], dict[str, str]]:
    """The calls of ours for each page size and of every peer; and the peers that cannot run, with the reason.

    A peer that does not agree with ours is left out.
    """
    torch.compiler.reset()  # torch compiles one function 8 times and no more
    cases, runs, _ = own_runs(watch, shape, heads)
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


def peer_row(
    shape: Shape, page: int, seconds: dict[str, float], skipped: dict[str, str], bounds: Bounds
) -> Detailed:
    """Ours beside the fastest peer."""
    name, ours = f"decode, {shape.name}, page {page}", seconds[f"page {page}"]
    others = {peer: value for peer, value in seconds.items() if not peer.startswith("page ")}
    details = bounds.columns(decode_bytes(shape, LLAMA_8B, page), ours)
    details |= {f"{peer} us": 1e6 * value for peer, value in others.items()} | skipped
    tell({"": name} | details)
    best = min(others, key=others.__getitem__)
    goal, holds = "ahead of every peer", ours < others[best]
    return Detailed(name, 1e6 * ours, 1e6 * others[best], best, "us", goal, holds, details)


def own_row(shape: Shape, page: int, seconds: float, bounds: Bounds, more: dict[str, float]) -> Detailed:
    """Ours beside a copy of as many bytes: a share of it from 134 MB of K and V on, at most so many us for B1 4K."""
    name, moved = f"decode, {shape.name}, page {page}", decode_bytes(shape, LLAMA_8B, page)
    details = bounds.columns(moved, seconds) | more
    size = details["KV MB"] = kv_bytes(shape.lengths, LLAMA_8B) / 1e6
    tell({"": name} | details)
    if size >= 134:
        return of_copy(name, moved, seconds, GOAL_500_MB if size >= 500 else GOAL_134_MB, bounds, details)
    goal, holds = "told, no goal", True
    if shape.lengths == (4096,):
        goal, holds = f"at most {GOAL_B1_4K_US:g} us", 1e6 * seconds <= GOAL_B1_4K_US
    floor = 1e6 * moved / bounds.copy
    return Detailed(name, 1e6 * seconds, floor, "a copy of as many bytes", "us", goal, holds, details)


def of_copy(
    name: str, moved: int, seconds: float, share: float, bounds: Bounds, details: dict[str, Any] | None = None
) -> Detailed:
    """Bytes a second against the copy's."""
    rate = moved / seconds
    return Detailed(
        name, rate / 1e9, bounds.copy / 1e9, "a copy on the device", "GB/s", f"at least {share:.0%}",
        rate >= share * bounds.copy, details or bounds.columns(moved, seconds),
    )  # fmt: skip


def variant_rows(watch: Stopwatch, quick: bool, shape: Shape | None = None) -> Iterator[Detailed]:
    """float8 against bfloat16 at 1 GB of K and V, with scales and without; and what scores cost at group 8."""
    shape = shape or (batch(8, 4096) if quick else batch(8, 32768))
    case = paged(shape, LLAMA_8B, 16, torch.bfloat16, watch.device)
    kv, stored = case.kv, torch.float8_e4m3fn
    (k, k_scale), (v, v_scale) = quantize(kv.k, stored), quantize(kv.v, stored)
    plain = replace(case, kv=replace(kv, k=kv.k.to(stored), v=kv.v.to(stored)))
    scaled = replace(case, kv=replace(kv, k=k, v=v, k_scale=k_scale, v_scale=v_scale))
    runs = {
        "bfloat16": [decode(case)],
        "float8": [decode(plain)],
        "float8 with scales": [decode(scaled)],
    }
    first = {name: {"first call, s": watch.first(calls[0])[1]} for name, calls in runs.items()}
    seconds = watch.compare(runs, ROUNDS)
    base = seconds.pop("bfloat16")
    for name, value in seconds.items():
        claim, goal = f"decode, {shape.name}, {name}", f"at least {FP8_GOAL:g}x faster"
        peer, holds = "bfloat16", FP8_GOAL * value <= base
        yield Detailed(claim, 1e6 * value, 1e6 * base, peer, "us", goal, holds, first[name])
    case = paged(shape, GROUP_OF_8, 16, torch.bfloat16, watch.device)
    scoring = decode(case, return_scores=True)
    seconds = watch.compare({"scores": [scoring], "none": [decode(case)]}, ROUNDS)
    claim, goal = f"decode with scores, {shape.name}, group 8", f"at most {SCORES_GOAL:g}x"
    ours, none = seconds["scores"], seconds["none"]
    yield Detailed(claim, 1e6 * ours, 1e6 * none, "without scores", "us", goal, ours <= SCORES_GOAL * none)
