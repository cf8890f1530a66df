"""The kernels' benchmark where there is no GPU: decode as a CPU runs it, in C or plain torch, against torch's SDPA."""

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention as sdpa

from benchmarks.kernels_cases import LLAMA_8B, batch, decode_bytes, paged
from benchmarks.kernels_peers import Decode, gathered, sdpa_grouped, sdpa_packed
from benchmarks.kernels_timing import Detailed, Stopwatch, agree, tell
from minikv.kernels import PagedKV, cpu
from minikv.kernels.quantize import quantize

SHAPES = (batch(1, 4096), batch(1, 32768), batch(8, 4096), batch(32, 512), batch(64, 100))
QUICK = (batch(1, 4096), batch(32, 512), batch(64, 100))
STORED = {  # a dtype of K and V, and whether it has a scale a token and head
    "int8": (torch.int8, True),
    "fp8_scaled": (torch.float8_e4m3fn, True),
    "fp8_e4m3": (torch.float8_e4m3fn, False),
    "fp8_e5m2": (torch.float8_e5m2, False),
}
RANK, ROPE, LATENT_HEADS = 512, 64, 16
BLOCK_SIZE = 16
WITHIN = 3.0


def cpu_rows(watch: Stopwatch, quick: bool) -> Iterator[Detailed]:
    yield from plain_rows(watch, quick)
    yield from stored_rows(watch, quick)
    yield from latent_rows(watch, quick)


def plain_rows(watch: Stopwatch, quick: bool) -> Iterator[Detailed]:
    """Two rows a shape: against SDPA on a copy made for it, and on K and V that lie one by one already.

    The peer of a row is the faster of SDPA's two forms, ``enable_gqa`` and packed; both stand in the details.
    """
    for dtype in (torch.float32, torch.bfloat16):
        for shape in QUICK if quick else SHAPES:
            name = f"CPU decode, {shape.name}, {str(dtype).removeprefix('torch.')}"
            case = paged(shape, LLAMA_8B, BLOCK_SIZE, dtype, watch.device)
            keys, values = (x[:, :, : max(shape.lengths)] for x in case.contiguous())

            def ours(case=case):
                return cpu.paged_decode(case.query, case.kv, scale=LLAMA_8B.scale).out

            runs = {
                "ours": ours,
                "SDPA, enable_gqa": sdpa_grouped(case, keys, values),
                "SDPA, packed": sdpa_packed(case, keys, values),
                "copy, SDPA, enable_gqa": gathered(case, sdpa_grouped),
                "copy, SDPA, packed": gathered(case, sdpa_packed),
            }
            for peer, call in runs.items():
                agree(f"{name}: {peer}", ours(), call())
            seconds = watch.compare({peer: [call] for peer, call in runs.items()}, 5 if quick else 25)
            moved = decode_bytes(shape, LLAMA_8B, BLOCK_SIZE, dtype.itemsize)
            us = {peer: 1e6 * value for peer, value in seconds.items()}
            details = {f"{peer} us": value for peer, value in us.items()}
            details |= {"GB/s": moved / seconds["ours"] / 1e9, "threads": torch.get_num_threads()}
            tell(details)
            best = min(("copy, SDPA, enable_gqa", "copy, SDPA, packed"), key=us.__getitem__)
            yield Detailed(name, us["ours"], us[best], best, "us", "faster", us["ours"] < us[best], details)
            best = min(("SDPA, enable_gqa", "SDPA, packed"), key=us.__getitem__)
            goal, holds = f"within {WITHIN:g}x", us["ours"] <= WITHIN * us[best]
            yield Detailed(name, us["ours"], us[best], f"{best}, no copy", "us", goal, holds, details)


def stored_rows(watch: Stopwatch, quick: bool) -> Iterator[Detailed]:
    """K and V in 8 bits, float32 queries: against SDPA on a copy that is made float32 for it."""
    heads = LLAMA_8B
    for stored, (dtype, scaled) in STORED.items():
        for shape in QUICK if quick else SHAPES:
            plain = paged(shape, heads, BLOCK_SIZE, torch.float32, watch.device)
            kv = plain.kv
            (k, k_scale), (v, v_scale) = (
                quantize(each, dtype) if scaled else (each.to(dtype), None) for each in (kv.k, kv.v)
            )
            case = replace(plain, kv=PagedKV(k, v, kv.block_tables, kv.lengths, k_scale, v_scale))

            def copied(
                pages: Tensor,
                scale: Tensor | None,
                tables: Tensor = kv.block_tables,
                length: int = max(shape.lengths),
            ) -> Tensor:
                blocks = tables.flatten()
                found = pages.view(torch.uint8).index_select(0, blocks).view(pages.dtype).to(torch.float32)
                if scale is not None:
                    found *= scale.index_select(0, blocks).unsqueeze(-1)
                return found.view(len(tables), -1, *pages.shape[2:])[:, :length].transpose(1, 2)

            def theirs(case=case, copied=copied) -> Tensor:
                keys, values = copied(case.kv.k, case.kv.k_scale), copied(case.kv.v, case.kv.v_scale)
                return sdpa_packed(case, keys, values)()

            def ours(case=case) -> Tensor:
                return cpu.paged_decode(case.query, case.kv, scale=heads.scale).out

            name = f"CPU decode, {shape.name}, {stored}"
            yield copied_row(watch, quick, name, ours, theirs, "copy, convert, SDPA, packed")


def latent_rows(watch: Stopwatch, quick: bool) -> Iterator[Detailed]:
    """Latents of DeepSeek's width, float32: against SDPA on a copy of them, keys and values at once."""
    for shape in QUICK if quick else SHAPES:
        both = replace(LLAMA_8B, query=LATENT_HEADS, kv=1, dim=RANK + ROPE)
        case = paged(shape, both, BLOCK_SIZE, torch.float32, watch.device)
        kv = replace(case.kv, k=case.kv.k[..., :RANK], v=case.kv.k[..., RANK:])
        parts = case.query[..., :RANK].contiguous(), case.query[..., RANK:].contiguous()

        def theirs(case=case, length: int = max(shape.lengths)) -> Tensor:
            keys = case.gathered(case.kv.k)[:, :, :length]
            query = case.query.unsqueeze(1)
            return sdpa(query, keys, keys[..., :RANK], scale=case.heads.scale).squeeze(1)

        def ours(kv=kv, parts=parts, scale: float = both.scale) -> Tensor:
            return cpu.latent_decode(*parts, kv, scale=scale).out

        name = f"CPU latent decode, {shape.name}, {LATENT_HEADS} heads"
        yield copied_row(watch, quick, name, ours, theirs, "copy, SDPA")


def copied_row(watch: Stopwatch, quick: bool, name: str, ours: Decode, theirs: Decode, peer: str) -> Detailed:
    """Ours beside a peer that copies what it reads."""
    agree(f"{name}: {peer}", ours(), theirs())
    seconds = watch.compare({"ours": [ours], peer: [theirs]}, 5 if quick else 25)
    us = {who: 1e6 * value for who, value in seconds.items()}
    details = {f"{who} us": value for who, value in us.items()} | {"threads": torch.get_num_threads()}
    tell(details)
    return Detailed(name, us["ours"], us[peer], peer, "us", "faster", us["ours"] < us[peer], details)
