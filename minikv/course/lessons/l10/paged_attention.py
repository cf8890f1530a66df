"""Exercise 10.5: nano's ``paged_attention``, and eleven ways to get it wrong."""

import torch
from torch import Tensor

from minikv.course.exercise import Exercise, Misconception
from minikv.course.lessons.l10.launch import paged
from minikv.nano.runner import Batch

STALE = 1e4  # what fills slots without a token of the case: nano's pool may hold any finite number there


def paged_attention(
    query: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    batch: Batch,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
) -> Tensor:
    """Nano's function, sequence by sequence. Nano's own file imports Triton, and 10.6 must prepare that first."""
    return _attention(query, k_cache, v_cache, batch, scale, window, softcap)


def _attention(
    query, k_cache, v_cache, batch, scale, window=None, softcap=None,
    *, late=0, logical=False, window_of=lambda window: window, capped="before",
    stand=lambda positions, length: positions, alternate=False, scaled=True, values=True,
):  # fmt: skip
    """Compute one sequence after the other over all slots of its table, masked, with at most one mistake."""
    heads, group = k_cache.shape[2], query.shape[1] // k_cache.shape[2]
    head = torch.arange(query.shape[1])
    head = head % heads if alternate else head // group
    v_cache, window = v_cache if values else k_cache, window_of(window)
    out = query.new_empty(*query.shape[:2], v_cache.shape[-1])
    begin = 0
    for table, length, last in zip(
        batch.block_tables, batch.lengths.tolist(), batch.last.tolist(), strict=True
    ):
        rows, begin = slice(begin, last + 1), last + 1
        blocks = torch.arange(len(table)) if logical else table
        k, v = (cache[blocks].flatten(0, 1)[:, head] for cache in (k_cache, v_cache))  # [S, Hq, D]
        logits = torch.einsum("qhd,shd->hqs", query[rows], k) * (scale if scaled else 1)
        query_at, key_at = stand(batch.positions[rows], length)[:, None], torch.arange(len(k))
        hidden = key_at > query_at + late
        if window is not None:
            hidden |= key_at <= query_at - window
        if softcap is not None and capped == "before":
            logits = softcap * torch.tanh(logits / softcap)
        logits = logits.masked_fill(hidden, -torch.inf)
        if softcap is not None and capped == "after":
            logits = softcap * torch.tanh(logits / softcap)
        out[rows] = torch.einsum("hqs,shd->qhd", logits.softmax(-1), v)
    return out


def _wrong(**how):
    def wrong(query, k_cache, v_cache, batch, scale, window=None, softcap=None):
        return _attention(query, k_cache, v_cache, batch, scale, window, softcap, **how)

    return wrong


def attention_case(lengths, new, block_size, window, softcap, group, v_dim, seed) -> tuple:
    """Return the arguments of ``paged_attention``: two KV heads of 8 numbers, and ``v_dim`` in V."""
    case = paged(lengths, kv_heads=2, group=group, dim=8, block_size=block_size, seed=seed)
    query = torch.randn(sum(new), 2 * group, 8, generator=torch.Generator().manual_seed(seed))
    k, v = (cache.nan_to_num(STALE) for cache in (case.k_cache, case.v_cache))
    return query, k, v[..., :v_dim].contiguous(), case.batch(new), case.scale, window, softcap


def run_attention(fn, lengths, new, block_size, window, softcap, group, v_dim, seed) -> dict:
    """Return the result of ``fn`` for one step, and whether it changed its arguments."""
    given = attention_case(lengths, new, block_size, window, softcap, group, v_dim, seed)
    batch = given[3]
    tensors = [x for x in (*given, *vars(batch).values()) if isinstance(x, Tensor)]
    before = [tensor.clone() for tensor in tensors]
    out = fn(*given)
    changed = not all(torch.equal(*pair) for pair in zip(before, tensors, strict=True))
    return {"out": out, "inputs_changed": changed}


def draw_attention(rng) -> list[dict]:
    """Draw decodes, prefills, chunks of prompts and steps of both; lengths on, below and above a block's edge."""
    cases = []
    for i in range(30):
        block_size = (2, 4, 8)[i % 3]
        lengths = [
            max(2, block_size * rng.randint(1, 2 + i // 12) + rng.choice([-1, 0, 1]))
            for _ in range(2 + i // 20)
        ]
        new = [1 if i % 2 else rng.choice([1, rng.randint(2, length), length]) for length in lengths]
        cases.append(
            {
                "lengths": lengths,
                "new": new,
                "block_size": block_size,
                "window": rng.randint(1, max(lengths) - 1) if i // 3 % 3 == 2 else None,
                "softcap": rng.choice([0.5, 1.5]) if i // 3 % 4 == 3 else None,
                "group": rng.choice([2, 3, 4]),
                "v_dim": 6 if i % 5 == 4 else 8,
                "seed": rng.randint(0, 999),
            }
        )
    return cases


ATTENTION = Exercise(
    id="10.5",
    minutes=10,
    name="paged_attention",
    signature=("lengths", "new", "block_size", "window", "softcap", "group", "v_dim", "seed"),
    cases=draw_attention,
    reference=paged_attention,
    drive=run_attention,
    misconceptions=(
        Misconception("tail_one_late", _wrong(late=1)),
        Misconception("sees_the_future", _wrong(stand=lambda at, length: torch.full_like(at, length - 1))),
        Misconception("positions_from_zero", _wrong(stand=lambda at, length: torch.arange(len(at)))),
        Misconception("logical_block", _wrong(logical=True)),
        Misconception("window_ignored", _wrong(window_of=lambda window: None)),
        Misconception("window_one_late", _wrong(window_of=lambda window: window and window + 1)),
        Misconception("softcap_ignored", _wrong(capped="never")),
        Misconception("softcap_after_mask", _wrong(capped="after")),
        Misconception("heads_alternate", _wrong(alternate=True)),
        Misconception("scale_forgotten", _wrong(scaled=False)),
        Misconception("values_are_keys", _wrong(values=False)),
    ),
    limit_s=20.0,
)
