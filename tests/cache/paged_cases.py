"""Specs of every shape that a paged cache holds, and a dense cache to hold beside it."""

import dataclasses

import numpy as np
import pytest
import torch

from minikv.blocks import NULL_BLOCK
from minikv.cache.codec import find_codec
from minikv.cache.paged import PagedKVCache
from minikv.errors import MiniKVError
from minikv.plan import CacheSpec, LayerSpec

FULL = LayerSpec("full", kv_heads=2, k_dim=8, v_dim=8)
LAYERS = {
    "gqa": (FULL,) * 3,
    "mla": (LayerSpec("latent", kv_heads=1, k_dim=20, v_dim=8),) * 2,
    # Full and sliding layers, K and V of different width, and two layers that store nothing.
    "mixed": (
        LayerSpec("sliding", kv_heads=2, k_dim=8, v_dim=8, window=6),
        FULL,
        LayerSpec("sliding", kv_heads=3, k_dim=6, v_dim=4, window=9),
        LayerSpec("sliding", kv_heads=2, k_dim=8, v_dim=8, window=6),
        LayerSpec("shared", reads_layer=1),
        LayerSpec("none"),
        LayerSpec("shared", reads_layer=3),
    ),
    # One group, since a token costs the same in each: they share a block table and no tensor.
    "one group, three shapes": (
        FULL,
        LayerSpec("full", kv_heads=2, k_dim=6, v_dim=10),
        LayerSpec("latent", kv_heads=2, k_dim=8, v_dim=8),
        FULL,
    ),
}


def spec_for(layers: str, codec: str = "bf16") -> CacheSpec:
    """The spec of those layers as ``codec`` stores them."""
    found = find_codec(codec)
    sizes = {"itemsize": found.itemsize, "scale_bytes": found.scale_bytes}
    return CacheSpec(
        layers=tuple(dataclasses.replace(layer, **sizes) for layer in LAYERS[layers]),
        name=layers,
        kv_dtype=codec,
    )


def cache_for(layers: str, codec: str = "bf16", num_blocks=5, block_size: int = 4, **options) -> PagedKVCache:
    return PagedKVCache(spec_for(layers, codec), num_blocks, block_size, codec=codec, **options)


def storing(cache: PagedKVCache) -> list[int]:
    """The layers that have K and V of their own."""
    return [number for number, layer in enumerate(cache.spec.layers) if layer.token_bytes]


def fill(cache: PagedKVCache, seed: int = 0) -> None:
    """Random bytes everywhere, so that nothing can be right by being zero."""
    generator = torch.Generator().manual_seed(seed)
    for group in range(len(cache.kv_cache_groups)):
        for part in cache.parts(group):
            part.tensor.view(torch.uint8).random_(generator=generator)


def every_byte(cache: PagedKVCache) -> list[np.ndarray]:
    """A copy of all that the cache holds."""
    return [
        part.tensor.view(torch.uint8).numpy().copy()
        for group in range(len(cache.kv_cache_groups))
        for part in cache.parts(group)
    ]


def unchanged(cache: PagedKVCache, before: list[np.ndarray]) -> bool:
    return all(np.array_equal(now, then) for now, then in zip(every_byte(cache), before, strict=True))


def refused(code, call, *args, **kwargs):
    """The error that the call raises, checked to speak both languages."""
    with pytest.raises(MiniKVError) as caught:
        call(*args, **kwargs)
    assert caught.value.code == code
    assert caught.value.text("zh") != caught.value.text("en")
    return caught.value


class Beside:
    """Sequences in a paged cache, and the same tokens in plain lists beside it.

    It owns the block tables: blocks come from a shuffled list, so that neighbours never lie together.
    """

    def __init__(self, cache: PagedKVCache, sequences: int, seed: int):
        self.cache, self.random = cache, np.random.default_rng(seed)
        self.free = [list(self.random.permutation(blocks)) for blocks in cache.num_blocks]
        self.tables = [[[] for _ in cache.kv_cache_groups] for _ in range(sequences)]
        self.rows = [{layer: ([], []) for layer in storing(cache)} for _ in range(sequences)]
        self.lengths = [0] * sequences

    def step(self, most: int = 7) -> None:
        """Some sequences get some tokens, written in one call a layer, with skipped tokens among them."""
        counts = [int(self.random.integers(0, most + 1)) for _ in self.lengths]
        for number, count in enumerate(counts):
            self._grow(number, self.lengths[number] + count)
        owners = [
            (number, position)
            for number, count in enumerate(counts)
            for position in range(self.lengths[number], self.lengths[number] + count)
        ]
        owners += [None] * int(self.random.integers(0, 3))
        self.random.shuffle(owners)
        for layer in storing(self.cache):
            self._write(layer, owners)
        self.lengths = [length + count for length, count in zip(self.lengths, counts, strict=True)]
        self._give_back()

    def _grow(self, number: int, length: int) -> None:
        for group, table in enumerate(self.tables[number]):
            while len(table) * self.cache.block_size < length:
                table.append(int(self.free[group].pop()))

    def _give_back(self) -> None:
        """Blocks that lie behind a window go back to the free list, and are written by others."""
        for number, tables in enumerate(self.tables):
            for group, table in zip(self.cache.kv_cache_groups, tables, strict=True):
                if group.layer.window is None:
                    continue
                for place in range(self.first(number, group.layer.window) // self.cache.block_size):
                    if table[place] != NULL_BLOCK:
                        self.free[self.cache.kv_cache_groups.index(group)].insert(0, table[place])
                        table[place] = NULL_BLOCK

    def first(self, number: int, window: int | None) -> int:
        """The first token that a window of that many still holds."""
        return 0 if window is None else max(0, self.lengths[number] - window)

    def _write(self, layer: int, owners: list) -> None:
        cache, spec = self.cache, self.cache.spec.layers[layer]
        group = cache.kv_cache_group_of(layer)
        slots, rows = [], ([], [])
        for owner in owners:
            new = [self.random.normal(size=(spec.kv_heads, dim)) for dim in (spec.k_dim, spec.v_dim)]
            for side, row in zip(rows, new, strict=True):
                side.append(torch.from_numpy(row).float() * float(2.0 ** self.random.integers(-6, 7)))
            if owner is None:
                slots.append(-1)
                continue
            number, position = owner
            block = self.tables[number][group][position // cache.block_size]
            slots.append(block * cache.block_size + position % cache.block_size)
        for number in range(len(self.lengths)):
            order = sorted(
                (owner[1], place) for place, owner in enumerate(owners) if owner and owner[0] == number
            )
            for side, kept in zip(rows, self.rows[number][layer], strict=True):
                kept.extend(side[place] for _, place in order)
        forms = (
            list,
            np.array,
            torch.tensor,
            lambda s: np.array(s, np.int32),
            lambda s: torch.tensor(s).int(),
        )
        slots = forms[self.random.integers(0, len(forms))](slots) if slots else []
        k, v = (
            torch.stack(side) if side else torch.zeros(0, spec.kv_heads, dim)
            for side, dim in zip(rows, (spec.k_dim, spec.v_dim), strict=True)
        )
        cache.write(layer, k, v, slots)

    def dense(self, number: int, layer: int, start: int, end: int) -> tuple[torch.Tensor, torch.Tensor]:
        """What was written: K and V [end - start, kv_heads, dim] in float32."""
        spec = self.cache.spec.layers[layer]
        k, v = (
            torch.stack(rows[start:end]) if end > start else torch.zeros(0, spec.kv_heads, dim)
            for rows, dim in zip(self.rows[number][layer], (spec.k_dim, spec.v_dim), strict=True)
        )
        return k, v
