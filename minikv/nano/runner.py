"""From a step to tokens: the arrays that a forward needs, the forward, and the choice of the next tokens."""

from dataclasses import dataclass
from random import Random
from typing import Any

import torch
from torch import Tensor

from minikv.nano.block_manager import slot_mapping
from minikv.nano.kv_cache import KVCache
from minikv.nano.scheduler import Step
from minikv.nano.sequence import SamplingParams

DECODES_AT_ONCE = 16  # in plain torch: sequences with keys padded to the longest of them


@dataclass(frozen=True)
class Batch:
    """What a forward over T tokens of B sequences needs. The tokens lie in one row, sequence after sequence.

    ``groups`` are what plain torch computes at once: (sequences [n], rows [n * q], blocks of the longest).
    """

    input_ids: Tensor  # [T]
    positions: Tensor  # [T], each token's place in its sequence
    slots: Tensor  # [T], where its K and V go
    block_tables: Tensor  # [B, W], padded with 0
    lengths: Tensor  # [B], tokens of each sequence that are in the cache after this step
    last: Tensor  # [B], row of the last token of each sequence: its logits choose the next
    groups: list[tuple[Tensor, Tensor, int]]
    is_decode: bool  # every sequence brings one token


def make_batch(step: Step, block_size: int, device: torch.device) -> Batch:
    """The arrays of ``step``. Decodes are sorted by length, so a group has sequences of about one length."""

    def tensor(values: list) -> Tensor:
        return torch.tensor(values, dtype=torch.long, device=device)

    tokens, positions, slots, tables, rows = list[int](), list[int](), [], [], []
    for seq, start, end in step:
        rows.append(list(range(len(tokens), len(tokens) + end - start)))
        tokens += seq.tokens[start:end]
        positions += range(start, end)
        slots += slot_mapping(seq.block_table, start, end, block_size)
        tables.append(seq.block_table[: -(-end // block_size)])
    width = max(map(len, tables))

    decodes = [i for i in range(len(step)) if len(rows[i]) == 1]
    decodes.sort(key=lambda i: len(tables[i]))
    groups = [decodes[i : i + DECODES_AT_ONCE] for i in range(0, len(decodes), DECODES_AT_ONCE)]
    groups += [[i] for i in range(len(step)) if len(rows[i]) > 1]
    return Batch(
        input_ids=tensor(tokens),
        positions=tensor(positions),
        slots=tensor(slots),
        block_tables=tensor([table + [0] * (width - len(table)) for table in tables]),
        lengths=tensor([end for _, _, end in step]),
        last=tensor([own[-1] for own in rows]),
        groups=[
            (
                tensor(group),
                tensor([row for i in group for row in rows[i]]),
                max(len(tables[i]) for i in group),
            )
            for group in groups
        ],
        is_decode=len(decodes) == len(step),
    )


@torch.inference_mode()
def forward(model: Any, batch: Batch, cache: KVCache) -> Tensor:
    """The logits [B, vocabulary] of each sequence's last token. K and V of all T tokens are stored.

    The model keeps no cache of its own (``use_cache=False``): it computes Q, K and V of the new tokens, and
    the attention function, which gets ``batch`` and ``cache`` as they are, does the rest.
    """
    out = model(
        input_ids=batch.input_ids[None],  # [1, T]
        position_ids=batch.positions[None],
        use_cache=False,
        logits_to_keep=batch.last,
        batch=batch,
        kv_cache=cache,
    )
    return out.logits[0]


def sample(logits: Tensor, step: Step) -> list[int]:
    """The next token of every sequence of ``step`` from its row of ``logits`` [B, vocabulary]."""
    tokens = logits.argmax(-1).tolist()
    for row, (seq, _, end) in enumerate(step):
        if seq.params.temperature > 0 and end == len(seq.tokens):
            tokens[row] = draw(logits[row], seq.params, end)
    return tokens


def draw(logits: Tensor, params: SamplingParams, position: int) -> int:
    """A token drawn from ``logits`` [vocabulary]: temperature, then top-p.

    The random number belongs to the seed and the position: a preempted sequence draws as it would have drawn.
    """
    scaled = logits.float() / params.temperature
    probabilities, tokens = scaled.softmax(-1).sort(descending=True, stable=True)
    before = probabilities.cumsum(-1) - probabilities  # the sum of all likelier ones
    kept = probabilities.masked_fill(before >= params.top_p, 0)
    number = Random(f"{params.seed}/{position}").random() * kept.sum().item()
    # Rounding may lead past the last token.
    place = min(int((kept.cumsum(-1) <= number).sum()), int((kept > 0).sum()) - 1)
    return int(tokens[place])
