"""Exercise 14.4: one decode step of a layer that evicts. Cache, scores and positions must stay aligned."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch

from minikv.course.exercise import Exercise, Misconception

Choose = Callable[[torch.Tensor], torch.Tensor]


@dataclass
class Layer:
    """The cache of one sequence in one layer; H KV heads, n tokens in the cache. A step changes it.

    keys, values  [H, n, 3] float64
    scores        [H, n] float64: the attention that each token has received so far
    positions     [H, n] int64: each token's position in the text
    length        the tokens of the text so far, evicted ones included
    """

    keys: torch.Tensor
    values: torch.Tensor
    scores: torch.Tensor
    positions: torch.Tensor
    length: int


def step(
    layer: Layer, new_token: Callable, attend: Callable, choose: Choose, capacity: int, evict_every: int
):
    _step(layer, new_token, attend, choose, capacity, evict_every)


def _step(
    layer,
    new_token,
    attend,
    choose,
    capacity,
    evict_every,
    *,
    compact=None,
    position=None,
    seen_always=True,
    slack=0,
):
    """Run the step. Each keyword argument, changed, gives one wrong answer."""
    place = position(layer) if position else layer.length
    _append(layer, new_token, place)
    evicts = layer.keys.shape[1] >= capacity + evict_every + slack
    if seen_always or evicts:
        layer.scores = layer.scores + attend(layer.keys)
    if evicts:
        (compact or _gather)(layer, choose(layer.scores))


def _append(layer: Layer, new_token: Callable, place: int) -> None:
    key, value = new_token(place)
    heads = len(layer.keys)
    layer.keys = torch.cat([layer.keys, key[:, None]], 1)
    layer.values = torch.cat([layer.values, value[:, None]], 1)
    layer.scores = torch.cat([layer.scores, layer.scores.new_zeros(heads, 1)], 1)
    layer.positions = torch.cat([layer.positions, layer.positions.new_full((heads, 1), place)], 1)
    layer.length += 1


def _pick(rows: torch.Tensor, kept: torch.Tensor) -> torch.Tensor:
    """Gather [H, n] or [H, n, D] at ``kept`` [H, k], each head its own tokens, into new storage of that size."""
    index = kept if rows.dim() == 2 else kept[..., None].expand(*kept.shape, rows.shape[2])
    return rows.gather(1, index)


_PARTS = ("keys", "values", "scores", "positions")


def _gather(layer: Layer, kept: torch.Tensor, parts=_PARTS) -> None:
    """Gather only ``parts`` at ``kept``; the others keep their last columns, so that the sizes agree."""
    for name in _PARTS:
        rows = getattr(layer, name)
        count = kept.shape[1]
        setattr(layer, name, _pick(rows, kept) if name in parts else rows[:, -count:].clone())


def _without(name: str):
    def compact(layer, kept):
        _gather(layer, kept, [part for part in _PARTS if part != name])

    return compact


def _as_views(layer, kept):
    """Moves the survivors to the front of the old storage and keeps a slice, so all of the storage stays alive."""
    for name in _PARTS:
        rows = getattr(layer, name)
        rows[:, : kept.shape[1]] = _pick(rows, kept)
        setattr(layer, name, rows[:, : kept.shape[1]])


def _first_heads_choice(layer, kept):
    _gather(layer, kept[:1].expand_as(kept))


def _newest(layer, kept):
    """Keeps the last tokens whatever was chosen."""
    end = layer.keys.shape[1]
    _gather(layer, torch.arange(end - kept.shape[1], end).expand_as(kept))


def _fresh_scores(layer, kept):
    """Resets all scores to 0 after an eviction."""
    _gather(layer, kept)
    layer.scores = torch.zeros_like(layer.scores)


def step_without_itself(layer, new_token, attend, choose, capacity, evict_every):
    """Attends before the newest token is in the cache: its attention to itself is lost."""
    mass = attend(layer.keys)
    layer.scores = layer.scores + mass
    _append(layer, new_token, layer.length)
    if layer.keys.shape[1] >= capacity + evict_every:
        _gather(layer, choose(layer.scores))


def step_decrementing(layer, new_token, attend, choose, capacity, evict_every):
    """Sets ``length`` to the tokens in the cache, not of the text: wrong from the first eviction on."""
    _append(layer, new_token, layer.length)
    layer.scores = layer.scores + attend(layer.keys)
    if layer.keys.shape[1] >= capacity + evict_every:
        _gather(layer, choose(layer.scores))
        layer.length = layer.keys.shape[1]


class _Text:
    """A text with keys that identify themselves: token, the position that it was rotated to, head."""

    def __init__(self, heads: int, prompt: int):
        random = torch.Generator().manual_seed(prompt)
        self.liked = 4 * torch.rand(heads, 96, generator=random, dtype=torch.float64)
        self.heads = torch.arange(heads).double()
        self.token = prompt
        places = torch.arange(prompt).expand(heads, prompt).clone()
        keys = torch.stack([places, places, places], 2).double()
        keys[..., 2] = self.heads[:, None]
        scores = self.liked[:, :prompt] * (1 + prompt - places) / 8
        self.layer = Layer(keys, -keys, scores, places, prompt)

    def key(self, token: int, place: int) -> torch.Tensor:
        key = self.heads.new_empty(len(self.heads), 3)
        key[:, 0], key[:, 1], key[:, 2] = token, place, self.heads
        return key

    def new_token(self, place: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return key and value [H, 3] of the newest token, its key rotated to ``place``."""
        key = self.key(self.token, place)
        return key, -key

    def attend(self, keys: torch.Tensor) -> torch.Tensor:
        """Return [H, n] float64, the attention of the newest token's two query heads a KV head; each row sums to 2."""
        tokens = keys[..., 0].long()
        near = -(self.token - tokens).double() / 16
        shift = (tokens * 7 + self.token * 3) % 11
        return 2 * (self.liked.gather(1, tokens) + near + shift / 4).softmax(1)


def run_steps(
    fn: Callable,
    heads: int,
    prompt: int,
    steps: int,
    n_sink: int,
    budget: int,
    n_recent: int,
    evict_every: int,
) -> list[dict]:
    """Return for each step the tokens in the cache, their rotated positions, their scores, and memory held too long."""
    text, capacity = _Text(heads, prompt), n_sink + budget + n_recent

    def choose(scores):
        score = scores.clone()
        score[:, :n_sink] = torch.inf
        score[:, score.shape[1] - n_recent :] = torch.inf
        return score.sort(dim=1, descending=True, stable=True).indices[:, :capacity].sort(1).values

    seen = []
    for _ in range(steps):
        fn(text.layer, text.new_token, text.attend, choose, capacity, evict_every)
        text.token += 1
        seen.append(_observed(text.layer, capacity + evict_every))
    return seen


def _observed(layer: Layer, most: int) -> dict:
    """``rotated_to`` is read from the keys. ``held_beyond`` counts tokens beyond ``most`` with storage still alive."""
    keys, values = layer.keys, layer.values
    stored = max(
        rows.untyped_storage().nbytes() // (len(rows) * 3 * rows.element_size()) for rows in (keys, values)
    )
    return {
        "length": layer.length,
        "tokens": keys[..., 0].long().tolist(),
        "rotated_to": keys[..., 1].long().tolist(),
        "values_of": (-values[..., 0]).long().tolist(),
        "positions": layer.positions.tolist(),
        "held_beyond": max(0, stored - most),
        "scores": layer.scores,
    }


def draw_runs(rng) -> list[dict]:
    """Draw prompts below the capacity and above it, with evictions every step or every few steps."""
    cases = []
    for i in range(30):
        kept = {
            "n_sink": rng.randint(2, 3),
            "budget": rng.randint(2, 4 + i // 8),
            "n_recent": rng.randint(2, 4),
        }
        evict_every = (1, 3, 2, 5)[i % 4]
        limit = sum(kept.values()) + evict_every
        prompt = (limit - 1, limit - 3, limit + 4, 2 * limit, limit)[i % 5] + (i // 15)
        steps = evict_every + rng.randint(2, 4)
        run = {"heads": rng.choice([2, 3]), "prompt": prompt, "steps": steps}
        cases.append({**run, **kept, "evict_every": evict_every})
    return cases


EVICT = Exercise(
    id="14.4",
    minutes=9,
    name="step",
    signature=("heads", "prompt", "steps", "n_sink", "budget", "n_recent", "evict_every"),
    cases=draw_runs,
    reference=step,
    drive=run_steps,
    misconceptions=(
        Misconception("views", partial(_step, compact=_as_views)),
        Misconception("scores_left_behind", partial(_step, compact=_without("scores"))),
        Misconception("values_left_behind", partial(_step, compact=_without("values"))),
        Misconception("positions_left_behind", partial(_step, compact=_without("positions"))),
        Misconception("seen_when_evicting", partial(_step, seen_always=False)),
        Misconception("cache_length", partial(_step, position=lambda layer: layer.keys.shape[1])),
        Misconception("length_shrinks", step_decrementing),
        Misconception("one_head_for_all", partial(_step, compact=_first_heads_choice)),
        Misconception("newest", partial(_step, compact=_newest)),
        Misconception("fresh_scores", partial(_step, compact=_fresh_scores)),
        Misconception("without_itself", step_without_itself),
        Misconception("one_late", partial(_step, slack=1)),
    ),
    limit_s=10.0,
)
