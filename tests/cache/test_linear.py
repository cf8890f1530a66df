"""LinearKVCache: what is written reads back as from plain lists; lengths move once a step; bytes are exact."""

import random
from itertools import pairwise

import numpy as np
import pytest
import torch

from minikv.cache.linear import LinearKVCache
from minikv.plan import CacheSpec, LayerSpec
from tests.in_turn import in_turn

GQA = LayerSpec("full", kv_heads=2, k_dim=8, v_dim=8)
LATENT = LayerSpec("latent", kv_heads=1, k_dim=12, v_dim=4)
WIDE_K = LayerSpec("full", kv_heads=3, k_dim=6, v_dim=10)
SLIDING = LayerSpec("sliding", kv_heads=2, k_dim=8, v_dim=8, window=5)
NOTHING = LayerSpec("none")


def shared(source):
    return LayerSpec("shared", reads_layer=source)


MODELS = {
    "gqa": (GQA, GQA, GQA),
    "mla": (LATENT, LATENT),
    "wide_k": (WIDE_K, WIDE_K),
    "mixed": (SLIDING, LATENT, GQA, shared(0), NOTHING, WIDE_K, shared(2), LATENT),
}
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def spec_of(model="gqa", dtype="fp32"):
    itemsize = DTYPES[dtype].itemsize
    layers = tuple(LayerSpec(**{**vars(layer), "itemsize": itemsize}) for layer in MODELS[model])
    return CacheSpec(layers=layers, name=model, kv_dtype=dtype)


def tokens_for(layer, batch, count, generator):
    """Random K and V of a step, in fp32."""
    return tuple(
        torch.randn(batch, layer.kv_heads, count, dim, generator=generator)
        for dim in (layer.k_dim, layer.v_dim)
    )


def stored_layers(spec):
    return [number for number, layer in enumerate(spec.layers) if layer.token_bytes]


class Dense:
    """The model that the cache is compared with: a list of tensors for each layer and row, joined when read."""

    def __init__(self, spec, batch):
        self.rows = {(layer, row): [] for layer in stored_layers(spec) for row in range(batch)}

    def add(self, layer, row, k, v):
        self.rows[layer, row] += [(k[:, place], v[:, place]) for place in range(k.shape[1])]

    def read(self, layer, row):
        return [torch.stack(parts, 1) for parts in zip(*self.rows[layer, row], strict=True)]

    def clear(self, row):
        for (layer, owner), tokens in self.rows.items():
            if owner == row:
                self.rows[layer, owner] = tokens[:0]


def assert_equal(cache, dense):
    for (layer, row), tokens in dense.rows.items():
        assert cache.host_lengths[row] == len(tokens)
        if tokens:
            for view, expected in zip(cache.layer(layer), dense.read(layer, row), strict=True):
                assert torch.equal(view[row, :, : len(tokens)], expected.to(cache.dtype))
    assert cache.lengths.tolist() == list(cache.host_lengths)


@in_turn("dtype", DTYPES)
@in_turn("model", MODELS)
@in_turn("seed", range(3))
def test_whatever_is_written_reads_back_as_from_a_dense_cache(model, dtype, seed):
    choice, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    batch, max_seq = choice.randint(2, 4), choice.randint(9, 21)
    spec = spec_of(model, dtype)
    cache, dense = LinearKVCache(spec, batch, max_seq), Dense(spec, batch)
    for _ in range(30):
        room = [max_seq - length for length in cache.host_lengths]
        most = choice.choice([1, 1, 3, 7])
        ragged = choice.random() < 0.5 or min(room) < most
        counts = [choice.randint(0, min(most, free)) for free in room] if ragged else [most] * batch
        # A speculative step may keep fewer tokens than it wrote.
        kept = [choice.randint(0, count) for count in counts] if choice.random() < 0.2 else counts
        order = stored_layers(spec)
        choice.shuffle(order)
        for layer in order:
            k, v = tokens_for(spec.layers[layer], batch, most, generator)
            cache.write(layer, k, v, counts if ragged else None)
            for row in range(batch):
                dense.add(layer, row, k[row, :, : kept[row]], v[row, :, : kept[row]])
        cache.commit(
            choice.choice([list, tuple, torch.tensor, np.array, lambda kept: list(np.array(kept))])(kept)
        )
        assert_equal(cache, dense)
        if choice.random() < 0.2:
            gone = choice.sample(range(batch), choice.randint(1, batch))
            cache.reset(None if len(gone) == batch else gone)
            for row in gone:
                dense.clear(row)
            assert_equal(cache, dense)


@in_turn("dtype", DTYPES)
@in_turn("model", ["gqa", "mla", "wide_k"])
@in_turn("batch, max_seq", [(1, 1), (2, 15), (3, 16), (5, 17)])
def test_bytes_are_the_spec_s_to_the_byte(model, dtype, batch, max_seq):
    spec = spec_of(model, dtype)
    cache = LinearKVCache(spec, batch, max_seq)
    assert cache.nbytes == spec.bytes_for(max_seq, batch)
    assert cache.nbytes == sum(tensor.nbytes for tensor in cache.tensors)


@pytest.mark.parametrize("name", ["Llama-3.1-8B", "Qwen3-0.6B", "DeepSeek-V3"])
def test_bytes_of_real_models_are_the_spec_s(name):
    spec = CacheSpec.from_config(name)
    assert LinearKVCache(spec, 2, 3).nbytes == spec.bytes_for(3, batch=2)


def test_a_sliding_layer_is_stored_in_full_and_a_shared_one_not_at_all():
    spec = spec_of("mixed")
    cache = LinearKVCache(spec, 2, 40)
    assert cache.nbytes == 2 * 40 * sum(layer.token_bytes for layer in spec.layers)
    assert cache.nbytes > spec.bytes_for(40, batch=2)


def test_everything_lies_in_one_allocation():
    cache = LinearKVCache(spec_of("mixed"), 3, 11)
    spans = sorted((tensor.data_ptr(), tensor.nbytes) for tensor in (*cache.tensors, cache.lengths))
    for (start, nbytes), (following, _) in pairwise(spans):
        assert 0 <= following - (start + nbytes) < 256, (
            "only the padding of an alignment lies between two tensors"
        )


def test_the_layout_is_layers_batch_two_heads_tokens_dim():
    cache = LinearKVCache(spec_of("gqa"), 5, 7)
    (tensor,) = cache.tensors
    assert tensor.shape == (3, 5, 2, 2, 7, 8)
    assert tensor.is_contiguous()
    for layer in range(3):
        for kind, view in enumerate(cache.layer(layer)):
            assert view.shape == (5, 2, 7, 8)
            assert view.data_ptr() == tensor[layer, 0, kind].data_ptr(), "a view, not a copy"
            assert view.stride() == (tensor.stride(1), *tensor.stride()[3:])


def test_k_and_v_of_different_width_lie_in_two_tensors():
    cache = LinearKVCache(spec_of("mla"), 3, 9)
    assert [tensor.shape for tensor in cache.tensors] == [(2, 3, 1, 9, 12), (2, 3, 1, 9, 4)]
    k, v = cache.layer(1)
    assert (k.data_ptr(), v.data_ptr()) == tuple(tensor[1].data_ptr() for tensor in cache.tensors)


def test_a_shared_layer_reads_what_its_source_wrote():
    spec = spec_of("mixed")
    cache = LinearKVCache(spec, 2, 6)
    k, v = tokens_for(spec.layers[2], 2, 3, torch.Generator().manual_seed(0))
    cache.write(2, k, v)
    for view, written, source in zip(cache.layer(6), (k, v), cache.layer(2), strict=True):
        assert torch.equal(view[:, :, :3], written)
        assert view.data_ptr() == source.data_ptr()


def test_write_never_moves_lengths_and_a_second_write_of_a_step_overwrites_the_first():
    spec = spec_of("gqa")
    cache = LinearKVCache(spec, 2, 9)
    address = cache.lengths.data_ptr()
    generator = torch.Generator().manual_seed(1)
    for layer in (0, 1, 2, 1):
        k, v = tokens_for(GQA, 2, 4, generator)
        cache.write(layer, k, v)
        assert cache.lengths.tolist() == [0, 0]
        assert torch.equal(cache.layer(layer)[0][:, :, :4], k)
    cache.commit([4, 2])
    assert (cache.lengths.tolist(), cache.host_lengths) == ([4, 2], (4, 2))
    assert cache.lengths.dtype == torch.int32
    assert cache.lengths.data_ptr() == address, "a kernel may hold the address"


def test_a_write_touches_its_own_places_and_no_others():
    spec = spec_of("gqa")
    cache = LinearKVCache(spec, 3, 6)
    cache.tensors[0].fill_(-7)
    cache.commit([0, 2, 6])
    k, v = tokens_for(GQA, 3, 4, torch.Generator().manual_seed(2))
    cache.write(1, k, v, [4, 1, 0])
    changed = (cache.tensors[0] != -7).any(-1)  # [layers, batch, 2, heads, max_seq]
    expected = torch.zeros_like(changed)
    expected[1, 0, :, :, 0:4] = True
    expected[1, 1, :, :, 2:3] = True
    assert torch.equal(changed, expected)


def test_a_new_cache_holds_zeros_so_that_masked_places_cannot_spread_nan():
    cache = LinearKVCache(spec_of("mixed"), 2, 33)
    assert all(not tensor.any() for tensor in cache.tensors)


def test_the_cache_does_not_keep_the_graph_of_what_was_written():
    cache = LinearKVCache(spec_of("gqa"), 2, 4)
    k = torch.ones(2, 2, 1, 8, requires_grad=True)
    cache.write(0, 2 * k, 3 * k)
    assert not cache.tensors[0].requires_grad
    assert cache.tensors[0].grad_fn is None


def test_use_counts_slots_tokens_and_what_a_window_does_not_need():
    spec = spec_of("mixed")
    cache = LinearKVCache(spec, 3, 20)
    cache.commit([20, 3, 0])
    use = cache.use()
    assert (use.slots, use.tokens) == (60, 23)
    assert use.nbytes == cache.nbytes
    assert use.useful_bytes == spec.bytes_for(20) + spec.bytes_for(3)
    assert use.useful_bytes + use.wasted_bytes == use.nbytes
    assert use.wasted_fraction == use.wasted_bytes / cache.nbytes
    cache.reset()
    assert (cache.use().tokens, cache.use().wasted_fraction) == (0, 1.0)
    full = LinearKVCache(spec_of("gqa"), 2, 5)
    full.commit([5, 5])
    assert full.use().wasted_bytes == 0


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_step_on_cuda_never_waits_for_the_device():
    spec = spec_of("mixed", "bf16")
    cache = LinearKVCache(spec, 3, 16, device="cuda")
    steps = {
        layer: [part.cuda() for part in tokens_for(spec.layers[layer], 3, 4, torch.Generator())]
        for layer in stored_layers(spec)
    }
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for counts in (None, [4, 0, 2]):
            for layer, (k, v) in steps.items():
                cache.write(layer, k, v, counts)
            cache.commit(counts or [4, 4, 4])
        cache.reset([1])
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert cache.lengths.tolist() == [8, 0, 6]


def test_a_cache_made_in_inference_mode_is_written_outside_it():
    with torch.inference_mode():
        cache = LinearKVCache(spec_of("gqa"), 2, 4)
        k = torch.ones(2, 2, 1, 8)
        cache.write(0, k, k)
    cache.write(0, k, 2 * k)
    cache.commit([1, 1])
    assert cache.layer(0)[1][:, :, 0].unique().tolist() == [2]


def test_what_is_too_large_for_the_dtype_saturates_and_never_becomes_infinite():
    cache = LinearKVCache(spec_of("gqa", "fp16"), 2, 4)
    k = torch.full((2, 2, 1, 8), 1e30)
    cache.write(0, k, -k)
    most = torch.finfo(torch.float16).max
    assert [view[0, 0, 0, 0].item() for view in cache.layer(0)] == [most, -most]
