"""A measured model is held against its own forward, on blocks of its own, before anything is answered with it.

Two sequences are computed in chunks, in batches of prefills and decodes, and the logits are compared with those of the
model's own forward over the whole sequences. How far its own cache, in the same chunks, is from that forward says what
rounding does; a difference beyond that is a difference in meaning.
"""

import inspect
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from traceback import clear_frames
from typing import Any

import numpy as np
import torch
from torch import Tensor

from minikv.cache.pages import Pages
from minikv.errors import ConfigError, MiniKVError, first_line
from minikv.models.batch import Batch
from minikv.models.measured import carries_states
from minikv.models.takes_cache import TakesCache

LENGTHS = (9, 26)  # tokens of the two sequences
CHUNK = 6  # of a prefill; the last DECODES tokens of a sequence come one by one
DECODES = 3
TOGETHER = (DECODES + 2, DECODES + 4)  # tokens of two known sequences, of which the decodes are compared
LONGEST = 96  # a window below it is passed by the longer sequence
EXACT = 1e-3  # of the logits' spread: what the order of float32 sums changes
ROUNDING = 3  # times the difference that the model's own cache makes
# Bytes of an element: the share of the spread above which the model's own cache is no measure. Small random models that
# are right differ by less than 4e-4 in float32 (44 of them), in bf16 by 0.03 in the median and by 0.16 at most, but for
# two of 65 (0.26 and 0.52). Those that are wrong begin at 1.6 in either. ROUNDING times this has to stay well below.
MOST_ROUNDING = {4: 3e-3, 2: 0.2}

Forward = Callable[[Any, Batch], Tensor]


def hold_against_own(
    model: Any, cache: Pages, forward: Forward, state_slots: tuple[int, ...] | None = None
) -> None:
    """Raise ``ConfigError`` unless ``forward`` on ``cache``, made for this alone, computes what ``model`` does.

    ``state_slots``: those of the two sequences, for a model with states.
    """
    own = own_logits(model, cache)
    _hold(cache, own.sequences, forward, state_slots, own.logits, own.allowed)


def hold_together(cache: Pages, forward: Forward, state_slots: tuple[int, ...]) -> None:
    """Raise ``ConfigError`` unless sequences that decode in one forward get the logits that each gets by itself.

    For a known model with states: the code of its layers has to take those of several sequences at once.
    """
    sequences = [list(range(1, 1 + length)) for length in TOGETHER]
    each = zip(sequences, state_slots, strict=True)
    alone = [_tried([tokens], cache, forward, (slot,))[0] for tokens, slot in each]
    allowed = MOST_ROUNDING[2] * min(float(logits.std()) for logits in alone)
    _hold(cache, sequences, forward, state_slots, alone, allowed)


def _hold(
    cache: Pages,
    sequences: list[list[int]],
    forward: Forward,
    state_slots: tuple[int, ...] | None,
    expected: list[Tensor],
    allowed: float,
) -> None:
    """Raise unless ``forward`` on ``cache`` is as near as ``allowed`` to the ``expected`` logits of each sequence."""
    found = _tried(sequences, cache, forward, state_slots)
    difference = max(float((mine - whole).abs().max()) for mine, whole in zip(found, expected, strict=True))
    if not difference <= allowed:
        raise ConfigError("measured_differs", name=cache.spec.name, difference=difference, allowed=allowed)


def _tried(
    sequences: list[list[int]], cache: Pages, forward: Forward, state_slots: tuple[int, ...] | None
) -> list[Tensor]:
    """Return the logits as ``_on_blocks`` does. Raises ``ConfigError`` with what the model's code raises."""
    try:
        return _on_blocks(sequences, cache, forward, state_slots)
    except Exception as error:
        if isinstance(error, torch.OutOfMemoryError):
            raise
        reason = str(error) if isinstance(error, MiniKVError) else first_line(error)
        clear_frames(error.__traceback__)  # their views of the cache, which could not be closed
        raise ConfigError("measured_trial_failed", name=cache.spec.name, reason=reason) from error


class OwnLogits:
    """``logits`` of the model's own forward at the ends of the chunks of ``sequences``, and how far others may be."""

    def __init__(self, sequences: list[list[int]], logits: list[Tensor], allowed: float):
        self.sequences, self.logits, self.allowed = sequences, logits, allowed


@torch.no_grad()
def own_logits(model: Any, cache: Pages) -> OwnLogits:
    """Compute the model's own logits. Raises ``ConfigError`` if its own cache does not compute what it does without."""
    from minikv.models.adapter import own_attention  # it imports this file

    windows = [layer.window for layer in cache.spec.layers if layer.window is not None]
    longest = max([LENGTHS[1], *(window + CHUNK + 2 for window in windows if window < LONGEST)])
    embedding = model.get_input_embeddings()
    random = np.random.default_rng(5)
    sequences = [
        random.integers(0, embedding.num_embeddings, count).tolist() for count in (LENGTHS[0], longest)
    ]
    takes, whole, chunked = TakesCache.of(model), [], []
    placed = "position_ids" in inspect.signature(model.forward).parameters
    carries = carries_states(model)
    with own_attention(model):
        for tokens in sequences:
            ids = torch.tensor([tokens], device=embedding.weight.device)
            ends = chunk_ends(len(tokens))
            whole.append(model(input_ids=ids, use_cache=False).logits[0, [end - 1 for end in ends]].float())
            held = takes.empty(model)
            rows = {}
            own_ends = ends if carries else [ends[0], *range(ends[0] + 1, len(tokens) + 1)]
            for start, end in pairwise([0, *own_ends]):
                place = torch.arange(start, end, device=ids.device)[None]
                options = {"position_ids": place} if placed else {}
                out = takes.run(model, held, input_ids=ids[:, start:end], **options)
                rows[end] = out.logits[0, -1].float()
            chunked.append(torch.stack([rows[end] for end in ends]))
    spread = min(float(each.std()) for each in whole)
    rounding = max(float((one - other).abs().max()) for one, other in zip(whole, chunked, strict=True))
    if not rounding <= MOST_ROUNDING.get(model.dtype.itemsize, 0.2) * spread:
        raise ConfigError("measured_own_cache", name=cache.spec.name, difference=rounding, spread=spread)
    return OwnLogits(sequences, whole, max(EXACT * spread, ROUNDING * rounding))


def chunk_ends(length: int) -> list[int]:
    """Return where the chunks of a sequence of that length end."""
    prompt = length - DECODES
    return [*range(CHUNK, prompt, CHUNK), prompt, *range(prompt + 1, length + 1)]


def blocks_needed(spec_windows: list[int], block_size: int) -> int:
    """Return the blocks that a cache needs for the sequences of a trial."""
    longest = max([LENGTHS[1], *(window + CHUNK + 2 for window in spec_windows if window < LONGEST)])
    return 2 * -(-longest // block_size)


def _on_blocks(
    sequences: list[list[int]], cache: Pages, forward: Forward, state_slots: tuple[int, ...] | None
) -> list[Tensor]:
    """Compute the sequences on blocks, a chunk of each a step; return the logits at the ends of the chunks."""
    width = min(cache.num_blocks) // len(sequences)
    tables = np.arange(len(sequences) * width).reshape(len(sequences), width)
    ends = [chunk_ends(len(tokens)) for tokens in sequences]
    rows: list[list[Tensor]] = [[] for _ in sequences]
    most = max(map(len, ends))
    # Two steps before the longest ends: so chunks of prefills are beside decodes, and one decode is beside another.
    first = [max(0, most - 2 - len(each)) for each in ends]
    for step in range(most):
        mine = [number for number in range(len(sequences)) if 0 <= step - first[number] < len(ends[number])]
        begins = [ends[number][step - first[number] - 1] if step > first[number] else 0 for number in mine]
        stops = [ends[number][step - first[number]] for number in mine]
        batch = Batch.build(
            cache,
            [tables[mine]] * len(cache.kv_cache_groups),
            np.array(stops),
            np.array(stops) - np.array(begins),
        )
        if state_slots is not None:
            batch = replace(batch, state_slots=tuple(state_slots[number] for number in mine))
        parts = zip(mine, begins, stops, strict=True)
        ids = [token for number, begin, stop in parts for token in sequences[number][begin:stop]]
        for number, logits in zip(mine, forward(ids, batch), strict=True):
            rows[number].append(logits.float())
    return [torch.stack(each) for each in rows]
