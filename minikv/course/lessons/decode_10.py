"""Exercise 10.5: a decode over a block table, and six ways to get it wrong."""

from dataclasses import replace

import torch
from torch import Tensor

from minikv.course.exercise import Exercise, Misconception
from minikv.course.lessons.steps_10 import Paged, paged
from minikv.kernels import paged_decode


def decode(
    query: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_table: Tensor,
    length: int,
    window: int | None,
    scale: float,
) -> Tensor:
    lengths = torch.tensor([length])
    out = paged_decode(query[None], k_cache, v_cache, block_table[None], lengths, scale=scale, window=window)
    return out.out[0]


def _decode_with(
    *, late=0, table=lambda table: table, windowed=True, alternate=False, scaled=True, values=True
):
    """Dense attention over the looked-up tokens, with one thing wrong."""

    def wrong(query, k_cache, v_cache, block_table, length, window, scale):
        size, kv_heads = k_cache.shape[1:3]
        heads = torch.arange(len(query))
        heads = heads % kv_heads if alternate else heads // (len(query) // kv_heads)
        first = max(0, length - window) if windowed and window is not None else 0
        positions = torch.arange(first, length + late)
        blocks = table(block_table)[positions // size].long()
        k, v = (cache[blocks, positions % size][:, heads] for cache in (k_cache, v_cache))  # [n, Hq, D]
        logits = (k * query).sum(-1) * (scale if scaled else 1)
        weights = torch.exp(logits - torch.logsumexp(logits, 0))
        return (weights.unsqueeze(-1) * (v if values else k)).sum(0)

    return wrong


def run_decode(fn, lengths: list[int], block_size: int, window: int | None, group: int, seed: int) -> dict:
    """``fn`` on each sequence of a small cache. What no query may read is NaN; entries behind the window are -1."""
    case = decode_case(lengths, block_size, window, group, seed)
    before = [tensor.clone().view(torch.int32) for tensor in case.tensors]  # as bits: NaN equals no NaN
    out = [
        fn(case.query[row], case.k_cache, case.v_cache, case.block_tables[row], length, window, case.scale)
        for row, length in enumerate(lengths)
    ]
    after = [tensor.view(torch.int32) for tensor in case.tensors]
    changed = not all(torch.equal(*pair) for pair in zip(before, after, strict=True))
    return {"out": out, "inputs_changed": changed}


def decode_case(lengths: list[int], block_size: int, window: int | None, group: int, seed: int) -> Paged:
    case = paged(lengths, kv_heads=2, group=group, dim=8, block_size=block_size, seed=seed)
    wider = torch.nn.functional.pad(
        case.block_tables, (0, 1), value=-1
    )  # a table is as wide as the longest needs
    for row, length in enumerate(lengths):
        for place in range(max(0, length - (window or length)) // block_size):
            block = wider[row, place].item()
            case.k_cache[block], case.v_cache[block] = torch.nan, torch.nan
            wider[row, place] = -1
    return replace(case, block_tables=wider)


def draw_decodes(rng) -> list[dict]:
    """Two sequences and more; lengths on, below and above a block's edge; every third case with a window."""
    cases = []
    for i in range(30):
        block_size = (4, 8, 16)[i % 3]
        lengths = [
            max(2, block_size * rng.randint(1, 2 + i // 12) + rng.choice([-1, 0, 1, block_size // 2]))
            for _ in range(2 + i // 15)
        ]
        window = rng.randint(1, max(lengths) - 1) if i // 3 % 3 == 2 else None
        cases.append(
            {
                "lengths": lengths,
                "block_size": block_size,
                "window": window,
                "group": rng.choice([2, 3, 4]),
                "seed": rng.randint(0, 999),
            }
        )
    return cases


DECODE = Exercise(
    id="10.5",
    name="decode",
    signature=("lengths", "block_size", "window", "group", "seed"),
    cases=draw_decodes,
    reference=decode,
    drive=run_decode,
    misconceptions=(
        Misconception("tail_one_late", _decode_with(late=1)),
        Misconception("logical_block", _decode_with(table=lambda table: torch.arange(len(table)))),
        Misconception("window_ignored", _decode_with(windowed=False)),
        Misconception("heads_alternate", _decode_with(alternate=True)),
        Misconception("scale_forgotten", _decode_with(scaled=False)),
        Misconception("values_are_keys", _decode_with(values=False)),
    ),
    limit_s=20.0,
)
