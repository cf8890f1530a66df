"""Prefill, latents and moving bytes on a GPU: against a large matmul, a copy, torch, and our other way."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention as sdpa

from benchmarks.kernels_cases import LLAMA_8B, batch, paged
from benchmarks.kernels_decode import ROUNDS, bounds_of, of_copy
from benchmarks.kernels_timing import Detailed, Stopwatch, agree, matmul_rate, tell
from minikv.kernels import (
    PagedKV,
    latent_decode,
    latent_decode_traffic,
    latent_prefill,
    move_slots,
    move_traffic,
    paged_prefill,
    prefill_traffic,
    store_kv,
    store_traffic,
)
from minikv.kernels.expanding import LatentSizes, absorb, expanded, expanding_pays, of_latents
from minikv.plan.estimate import EXPANDED_BYTES

PREFILLS = ((8192, 8192), (2048, 32768 + 2048))  # (queries, tokens in all)
MATMUL_SHARE, BEHIND_SDPA = 0.6, 1.3
RANK, ROPE = 512, 64
LATENTS = ((1, 32768, 128), (32, 8192, 128), (128, 4096, 128), (32, 8192, 16))  # batch, tokens, heads
LATENT_TFLOPS, LATENT_SHARE = 350.0, 0.6
NOPE = VALUE = 128
# Queries, tokens in all, heads: DeepSeek-V3's, below, at and above what is expanded at once.
LATENT_PREFILLS = ((512, 512, 128), (2048, 2048, 128), (8192, 8192, 128), (512, 32768, 128))
MOVE_SHARE = 0.8
MOVED_TOKENS = 65536


def prefill_rows(watch: Stopwatch, prefills: tuple[tuple[int, int], ...]) -> Iterator[Detailed]:
    """A whole prompt, and a chunk behind a long prefix: against a matmul's rate, and against SDPA's flash path."""
    from torch.nn.attention.bias import causal_lower_right

    reached = matmul_rate(watch)
    heads = LLAMA_8B
    for queries, length in prefills:
        name = f"prefill, {queries} queries of {length} tokens"
        case = paged(batch(1, length), heads, 16, torch.bfloat16, watch.device)
        query = torch.randn(queries, heads.query, heads.dim, device=watch.device).to(torch.bfloat16)
        starts = torch.tensor([0, queries], dtype=torch.int32, device=watch.device)
        keys, values = (x[:, :, :length] for x in case.contiguous())
        rows = query.transpose(0, 1).unsqueeze(0)
        bias = None if queries == length else causal_lower_right(queries, length)

        def ours(case=case, query=query, starts=starts, queries=queries) -> Tensor:
            return paged_prefill(query, case.kv, starts, max_queries=queries, scale=heads.scale).out

        def flash(rows=rows, keys=keys, values=values, bias=bias) -> Tensor:
            causal = bias is None
            found = sdpa(rows, keys, values, bias, is_causal=causal, scale=heads.scale, enable_gqa=True)
            return found[0].transpose(0, 1)

        result, first = watch.first(ours)
        agree(name, result, flash())
        seconds = watch.compare({"ours": [ours], "SDPA": [flash]}, ROUNDS)
        flops = prefill_traffic(
            [queries], [length], query_heads=heads.query, kv_heads=heads.kv, dim=heads.dim
        ).flops
        rate = flops / seconds["ours"]
        us = {peer: 1e6 * value for peer, value in seconds.items()}
        details = {f"{peer} us": value for peer, value in us.items()} | {
            "TFLOP/s": rate / 1e12,
            "first call, s": first,
        }
        tell({"": name} | details)
        goal = f"at least {MATMUL_SHARE:.0%}"
        yield Detailed(
            name, rate / 1e12, reached / 1e12, "a large bfloat16 matmul", "TFLOP/s", goal,
            rate >= MATMUL_SHARE * reached, details,
        )  # fmt: skip
        goal, holds = f"at most {BEHIND_SDPA:g}x", us["ours"] <= BEHIND_SDPA * us["SDPA"]
        yield Detailed(
            name, us["ours"], us["SDPA"], "SDPA, causal, K and V contiguous", "us", goal, holds, details
        )


@dataclass(frozen=True)
class Latents:
    """One latent decode: queries [B, H, R] and [B, H, P], a cache [N, 16, 1, R + P], tables [B, W], lengths [B]."""

    q_latent: Tensor
    q_rope: Tensor
    cache: Tensor
    tables: Tensor
    lengths: Tensor

    scale = 192**-0.5  # of DeepSeek-V3's heads: 128 + 64

    def ours(self) -> Tensor:
        return latent_decode(self.q_latent, self.q_rope, self.kv, scale=self.scale).out

    @property
    def kv(self) -> PagedKV:
        return PagedKV(self.cache[..., :RANK], self.cache[..., RANK:], self.tables, self.lengths)

    def dense(self, lying: Tensor) -> Tensor:
        """torch on latents [B, S, R + P] that lie one by one."""
        query = torch.cat([self.q_latent, self.q_rope], -1)
        weights = torch.softmax(query @ lying.transpose(1, 2) * self.scale, -1)
        return weights @ lying[..., :RANK]


def latents(count: int, length: int, heads: int, watch: Stopwatch) -> Latents:
    """Random latents on shuffled blocks of 16; ``length`` is a multiple of 16."""

    def normal(*sizes: int) -> Tensor:
        return torch.randn(sizes, device=watch.device).to(torch.bfloat16)

    blocks = count * length // 16
    tables = torch.randperm(blocks, device=watch.device).int().view(count, -1)
    lengths = torch.full((count,), length, dtype=torch.int32, device=watch.device)
    return Latents(
        normal(count, heads, RANK),
        normal(count, heads, ROPE),
        normal(blocks, 16, 1, RANK + ROPE),
        tables,
        lengths,
    )


def latent_rows(watch: Stopwatch, shapes: tuple[tuple[int, int, int], ...]) -> Iterator[Detailed]:
    """MLA decode: at least 350 TFLOP/s or 60 % of the copy's bytes a second; against torch's matmuls and softmax."""
    bounds = bounds_of(watch)
    for count, length, heads in shapes:
        name = f"latent decode, B{count} {length}, {heads} heads"
        case = latents(count, length, heads, watch)
        lying = case.cache[case.tables.long()].view(count, length, RANK + ROPE)
        result, first = watch.first(case.ours)
        agree(name, result, case.dense(lying))
        calls: dict[str, list[Callable[[], Tensor]]] = {
            "ours": [case.ours],
            "torch": [lambda case=case, lying=lying: case.dense(lying)],
        }
        seconds = watch.compare(calls, ROUNDS)
        work = latent_decode_traffic([length] * count, heads=heads, rank=RANK, rope=ROPE)
        tflops = work.flops / seconds["ours"] / 1e12
        share = work.num_bytes / seconds["ours"] / bounds.copy
        details = bounds.columns(work.num_bytes, seconds["ours"])
        details |= {"TFLOP/s": tflops, "torch us": 1e6 * seconds["torch"], "first call, s": first}
        tell({"": name} | details)
        if share / LATENT_SHARE >= tflops / LATENT_TFLOPS:
            yield of_copy(name, work.num_bytes, seconds["ours"], LATENT_SHARE, bounds, details)
        else:
            goal, holds = (
                f"at least {LATENT_TFLOPS:g}, or {LATENT_SHARE:.0%} of the copy",
                tflops >= LATENT_TFLOPS,
            )
            dense = work.flops / seconds["torch"] / 1e12
            yield Detailed(name, tflops, dense, "torch, contiguous", "TFLOP/s", goal, holds, details)
        us = {peer: 1e6 * value for peer, value in seconds.items()}
        peer = "torch matmul, softmax, matmul"
        yield Detailed(name, us["ours"], us["torch"], peer, "us", "faster", us["ours"] < us["torch"], details)


def expanded_rows(watch: Stopwatch, shapes: tuple[tuple[int, int, int], ...]) -> Iterator[Detailed]:
    """MLA prefill with K and V expanded beside the absorbed one: the way that ``expanding_pays`` chooses is faster."""
    for queries, length, heads in shapes:
        name = f"MLA prefill, expanded beside absorbed, {queries} queries of {length}, {heads} heads"
        kv = latents(1, length, heads, watch).kv
        rope = kv.v.shape[3]
        up = (torch.randn(heads, NOPE + VALUE, RANK, device=watch.device) * RANK**-0.5).to(torch.bfloat16)
        query = torch.randn(queries, heads, NOPE + rope, device=watch.device).to(torch.bfloat16)
        starts = torch.tensor([0, queries], dtype=torch.int32, device=watch.device)
        sizes = LatentSizes.of(up, kv, NOPE, EXPANDED_BYTES)

        def in_heads(query=query, kv=kv, up=up, starts=starts, sizes=sizes, length=length) -> Tensor:
            out = query.new_empty(len(query), sizes.heads, sizes.value)
            expanded(query, kv, up, starts, sizes, keys=length, scale=Latents.scale, out=out)
            return out

        def absorbed(query=query, kv=kv, up=up, starts=starts) -> Tensor:
            rows, options = absorb(query, up, NOPE), {"max_queries": len(query), "scale": Latents.scale}
            return of_latents(latent_prefill(*rows, kv, starts, **options).out, up, NOPE)

        result, first = watch.first(in_heads)
        agree(name, result, absorbed())
        seconds = watch.compare({"expanded": [in_heads], "absorbed": [absorbed]}, ROUNDS)
        us = {way: 1e6 * value for way, value in seconds.items()}
        details = {f"{way} us": value for way, value in us.items()}
        details |= {"heads at a time": sizes.heads_at_once(length), "first call, s": first}
        tell({"": name} | details)
        ours, peer = sorted(us, reverse=expanding_pays(watch.device.type, sizes, queries, length))
        yield Detailed(name, us[ours], us[peer], peer, "us", "faster", us[ours] < us[peer], details)


def storage_rows(watch: Stopwatch, quick: bool, tokens: int | None = None) -> Iterator[Detailed]:
    """store_kv to random slots and move_slots between random slots: at least 80 % of the copy's bytes a second."""
    bounds, heads = bounds_of(watch), LLAMA_8B
    tokens = tokens or (MOVED_TOKENS // 4 if quick else MOVED_TOKENS)
    shape = (tokens // 8, 16, heads.kv, heads.dim)  # twice as many slots as tokens
    k_cache, v_cache = (torch.zeros(shape, dtype=torch.bfloat16, device=watch.device) for _ in range(2))
    new = [torch.randn(tokens, heads.kv, heads.dim, device=watch.device).to(torch.bfloat16) for _ in range(2)]
    order = torch.randperm(2 * tokens, device=watch.device).int()
    here, there = order[:tokens].contiguous(), order[tokens:].contiguous()

    def store() -> None:
        store_kv(*new, k_cache, v_cache, here)

    def move() -> None:
        move_slots(k_cache, here, there)

    first = {"store": watch.first(store)[1], "move": watch.first(move)[1]}
    for slots in (here, there):  # what was stored, and its copy
        agree("store_kv, move_slots", k_cache.flatten(0, 1)[slots.long()], new[0])
    seconds = watch.compare({"store": [store], "move": [move]}, ROUNDS)
    row = 2 * heads.kv * heads.dim
    moved = {
        "store": store_traffic(tokens, kv_heads=heads.kv, dim=heads.dim),
        "move": move_traffic(tokens, row),
    }
    for name, what in (("store", "store_kv"), ("move", "move_slots")):
        work: int = moved[name].num_bytes
        details = bounds.columns(work, seconds[name]) | {"first call, s": first[name]}
        claim = f"{what}, {tokens:,} tokens, random slots"
        yield of_copy(claim, work, seconds[name], MOVE_SHARE, bounds, details)
