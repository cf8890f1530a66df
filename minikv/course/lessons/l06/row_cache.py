"""Exercise 06.3: a linear cache of the learner's own, its known mistakes, and the steps that reveal them."""

import torch

from minikv.course.exercise import Exercise, Misconception


class RowCache:
    """The reference: one tensor [layers, batch, 2, kv_heads, max_seq, head_dim] and one length a row."""

    def __init__(self, layers: int, batch: int, kv_heads: int, max_seq: int, head_dim: int):
        self.kv = torch.zeros(layers, batch, 2, kv_heads, max_seq, head_dim)
        self.lengths = [0] * batch

    def write(self, layer: int, k: torch.Tensor, v: torch.Tensor) -> None:
        for row, start in enumerate(self.starts(layer)):
            self.kv[layer, row, 0, :, start : start + k.shape[2]] = k[row]
            self.kv[layer, row, 1, :, start : start + v.shape[2]] = v[row]

    def starts(self, layer: int) -> list[int]:
        """Return the position of each row's first new token."""
        return self.lengths

    def commit(self, increments: list[int]) -> None:
        self.lengths = [have + more for have, more in zip(self.lengths, increments, strict=True)]

    def read(self, layer: int, row: int) -> tuple[torch.Tensor, torch.Tensor]:
        length = self.lengths[row]
        return self.kv[layer, row, 0, :, :length], self.kv[layer, row, 1, :, :length]


class CommitsPerLayer(RowCache):
    """Moves the lengths with every layer's write: after a step they have moved once a layer."""

    def write(self, layer, k, v):
        super().write(layer, k, v)
        super().commit([k.shape[2]] * k.shape[0])

    def commit(self, increments):
        pass


class WritesAtLongest(RowCache):
    def starts(self, layer):
        return [max(self.lengths)] * len(self.lengths)


class WritesOneLate(RowCache):
    def starts(self, layer):
        return [length + 1 for length in self.lengths]


class CommitsLongest(RowCache):
    def commit(self, increments):
        super().commit([max(increments)] * len(increments))


class KeepsOldLengths(RowCache):
    """Sets the lengths to the increments in ``commit`` instead of adding them."""

    def commit(self, increments):
        self.lengths = list(increments)


def run_steps(cache_class, layers: int, kv_heads: int, max_seq: int, steps: list[list[int]]) -> dict:
    """Write and commit ``steps`` (new tokens a row), layer by layer as a model does; then read every row.

    Each token's K is filled with its own position (plus 100 a row, 1,000 a head, 10,000 a layer and 10,000 more), its
    V with the negative of that; padding is filled with 999,999. So the result says which token lies where, and 0 is a
    place that was never written.
    """
    batch, head_dim = len(steps[0]), 3
    cache = cache_class(layers, batch, kv_heads, max_seq, head_dim)
    lengths = [0] * batch
    for step in steps:
        new = _labelled(layers, kv_heads, head_dim, lengths, step)
        for layer in range(layers):
            cache.write(layer, new[layer].clone(), -new[layer])
        cache.commit(list(step))
        lengths = [have + more for have, more in zip(lengths, step, strict=True)]
    seen = {}
    for layer in range(layers):
        for row in range(batch):
            k, v = cache.read(layer, row)
            seen[f"read({layer}, {row})"] = [k[..., -1].long().tolist(), v[..., 0].long().tolist()]
    return seen


def _labelled(layers: int, kv_heads: int, head_dim: int, lengths: list[int], step: list[int]) -> torch.Tensor:
    """Return one step's K, [layers, batch, kv_heads, max(step), head_dim], each token filled with its own label."""
    new = torch.full((layers, len(step), kv_heads, max(step), head_dim), 999_999.0)
    heads = 1000 * torch.arange(kv_heads)[:, None, None]
    for layer in range(layers):
        for row, count in enumerate(step):
            positions = lengths[row] + torch.arange(count)[:, None]
            new[layer, row, :, :count] = (10_000 * (layer + 1) + 100 * row + heads + positions).float()
    return new


def draw_steps(rng) -> list[dict]:
    cases = []
    for i in range(32):
        batch = 2 + i // 12
        # Prompts of different lengths, then steps with one token in every row, then some with 0 to 3 tokens a row.
        prompts = [rng.randint(1, 3 + i // 4) for _ in range(batch)]
        prompts[rng.randrange(batch)] += 2
        steps = [prompts, *([1] * batch for _ in range(i // 4))]
        if i % 3 == 2:
            steps.append([rng.randint(0, 3) for _ in range(batch - 1)] + [rng.randint(1, 3)])
        layers = 2 + i // 16
        # There is room for a length that is counted too often: the check then sees the mistake, not an IndexError.
        most = sum(max(step) for step in steps) + 1
        cases.append({"layers": layers, "kv_heads": 2, "max_seq": (layers + 1) * most, "steps": steps})
    return cases


CACHE = Exercise(
    id="06.3",
    minutes=7,
    name="row_cache",
    signature=("layers", "kv_heads", "max_seq", "steps"),
    cases=draw_steps,
    reference=RowCache,
    drive=run_steps,
    misconceptions=(
        Misconception("commits_per_layer", CommitsPerLayer),
        Misconception("writes_at_longest", WritesAtLongest),
        Misconception("writes_one_late", WritesOneLate),
        Misconception("commits_longest", CommitsLongest),
        Misconception("keeps_old_lengths", KeepsOldLengths),
    ),
    limit_s=10.0,
)
