"""The kernels' benchmark where there is no GPU: the plain-torch decode against torch's SDPA."""

from collections.abc import Iterator

import torch

from benchmarks.kernels_cases import LLAMA_8B, batch, decode_bytes, paged
from benchmarks.kernels_peers import gathered, sdpa_grouped, sdpa_packed
from benchmarks.kernels_timing import Detailed, Stopwatch, agree, tell
from minikv.kernels import reference

SHAPES = (batch(1, 4096), batch(1, 32768), batch(8, 4096), batch(32, 512), batch(64, 100))
QUICK = (batch(1, 4096), batch(32, 512), batch(64, 100))
BLOCK_SIZE = 16
WITHIN = 3.0


def cpu_rows(watch: Stopwatch, quick: bool) -> Iterator[Detailed]:
    """Two rows a shape: against SDPA on a copy made for it, and on K and V that lie one by one already.

    The peer of a row is the faster of SDPA's two forms, ``enable_gqa`` and packed; both stand in the details.
    """
    for dtype in (torch.float32, torch.bfloat16):
        for shape in QUICK if quick else SHAPES:
            name = f"CPU decode, {shape.name}, {str(dtype).removeprefix('torch.')}"
            case = paged(shape, LLAMA_8B, BLOCK_SIZE, dtype, watch.device)
            keys, values = (x[:, :, : max(shape.lengths)] for x in case.contiguous())

            def ours(case=case):
                return reference.paged_decode(case.query, case.kv, scale=LLAMA_8B.scale).out

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
