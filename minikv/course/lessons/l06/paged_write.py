"""Exercise 06.5: the write of a paged cache, `KVCache.write` of minikv.nano, its known mistakes and its cases."""

import torch

from minikv.course.exercise import Exercise, Misconception
from minikv.nano.kv_cache import KVCache
from minikv.plan import CacheSpec, LayerSpec

# Bound here: while a learner's wrong answer replaces nano's method, it can still call the right one.
nanos_write = KVCache.write


def all_writes(
    fn, layers: int, num_blocks: int, block_size: int, k_dim: int, v_dim: int, writes: list, dtype: str
) -> dict:
    """Make every write, (layer, slots), then read the first element of each slot, of the two heads in turn.

    Write n (from 1) gives token t the label 10 * n + t. The first head of its K is filled with the label and the
    second with 100 more; its V has the negative values. So 0 is a slot that was never written. The input is fp32, and
    the cache has ``dtype``.
    """
    layer_spec = LayerSpec("full", kv_heads=2, k_dim=k_dim, v_dim=v_dim, itemsize=4)
    spec = CacheSpec(layers=(layer_spec,) * layers, kv_dtype="fp32")
    owner = type("KVCache", (KVCache,), {"write": fn})
    cache = owner(spec, num_blocks, block_size, getattr(torch, dtype), torch.device("cpu"))
    k, v = cache.k, cache.v
    for number, (layer, slots) in enumerate(writes, 1):
        labels = 10.0 * number + torch.arange(len(slots))[:, None, None] + 100 * torch.arange(2)[:, None]
        key, value = labels.repeat(1, 1, k_dim), -labels.repeat(1, 1, v_dim)
        cache.write(layer, key, value, torch.tensor(slots))
    seen: dict = {"in place": cache.k is k and cache.v is v}
    for layer in range(layers):
        seen[f"k {layer}"] = cache.k[layer].flatten(0, 1)[:, :, -1].flatten().tolist()
        seen[f"v {layer}"] = cache.v[layer].flatten(0, 1)[:, :, 0].flatten().tolist()
    return seen


def wrote_k_alone(self, layer, key, value, slots):
    nanos_write(self, layer, key, self.v[layer].flatten(0, 1)[slots], slots)


def wrote_into_a_copy(self, layer, key, value, slots):
    """Indexing with a tensor copies: ``copy_`` fills that copy, and the cache stays as it was."""
    self.k[layer].flatten(0, 1)[slots].copy_(key)
    self.v[layer].flatten(0, 1)[slots].copy_(value)


def wrote_whole_blocks(self, layer, key, value, slots):
    blocks = slots // self.k.shape[2]
    self.k[layer, blocks] = key[:, None].to(self.k.dtype)
    self.v[layer, blocks] = value[:, None].to(self.v.dtype)


def wrote_side_by_side(self, layer, key, value, slots):
    """Writes side by side from the first slot on, as in a linear cache."""
    first = min(int(slots[0]), self.k.shape[1] * self.k.shape[2] - len(slots))
    nanos_write(self, layer, key, value, torch.arange(first, first + len(slots)))


def wrote_every_layer(self, layer, key, value, slots):
    for each in range(self.k.shape[0]):
        nanos_write(self, each, key, value, slots)


def wrote_first_layer(self, layer, key, value, slots):
    nanos_write(self, 0, key, value, slots)


def wrote_a_sum(self, layer, key, value, slots):
    k, v = self.k[layer].flatten(0, 1), self.v[layer].flatten(0, 1)
    k[slots] += key.to(k.dtype)
    v[slots] += value.to(v.dtype)


def wrote_without_a_cast(self, layer, key, value, slots):
    """Does not cast: torch refuses to put fp32 into a 16-bit tensor by index."""
    self.k[layer].flatten(0, 1)[slots] = key
    self.v[layer].flatten(0, 1)[slots] = value


def wrote_into_a_new_tensor(self, layer, key, value, slots):
    self.k, self.v = self.k.clone(), self.v.clone()
    nanos_write(self, layer, key, value, slots)


def draw_writes(rng) -> list[dict]:
    """Draw the steps of an engine: slots of several sequences, in no order; some slots are written again later."""
    cases = []
    for i in range(36):
        block_size = (2, 4, 3)[i % 3]
        num_blocks = 3 + i // 12
        layers = 2 + i // 24
        writes = []
        for _ in range(1 + i // 6):
            slots = rng.sample(range(num_blocks * block_size), rng.randint(2, min(9, 2 + i // 4)))
            order = list(range(layers)) if i % 2 else [layers - 1]
            writes += [(layer, slots) for layer in order]
        k_dim = 2 * rng.randint(1, 3)
        case = {"layers": layers, "num_blocks": num_blocks, "block_size": block_size, "k_dim": k_dim}
        case |= {"v_dim": k_dim if i % 2 else k_dim + 2, "writes": writes}
        cases.append(case | {"dtype": "float16" if i % 4 == 3 else "float32"})
    return cases


WRITE = Exercise(
    id="06.5",
    minutes=4,
    name="write",
    signature=("layers", "num_blocks", "block_size", "k_dim", "v_dim", "writes", "dtype"),
    cases=draw_writes,
    reference=nanos_write,
    drive=all_writes,
    misconceptions=(
        Misconception("k_alone", wrote_k_alone),
        Misconception("into_a_copy", wrote_into_a_copy),
        Misconception("whole_blocks", wrote_whole_blocks),
        Misconception("side_by_side", wrote_side_by_side),
        Misconception("every_layer", wrote_every_layer),
        Misconception("first_layer", wrote_first_layer),
        Misconception("a_sum", wrote_a_sum),
        Misconception("no_cast", wrote_without_a_cast),
        Misconception("new_tensor", wrote_into_a_new_tensor),
    ),
    limit_s=10.0,
)
