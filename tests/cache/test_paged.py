"""PagedKVCache: shapes, bytes, and that what is written by random tables reads back as a dense cache has it."""

import numpy as np
import pytest
import torch

from minikv.blocks import BlockManager, KVCacheGroup
from minikv.cache.codec import CODECS, find_codec
from minikv.cache.paged import PagedKVCache
from minikv.memory.arena import ArenaInUseError
from minikv.plan import CacheSpec
from minikv.plan.pool import kv_cache_groups
from tests.cache.paged_cases import LAYERS, Beside, cache_for, every_byte, fill, spec_for, storing, unchanged
from tests.in_turn import in_turn


@in_turn("layers", LAYERS)
@in_turn("codec", CODECS)
@in_turn("seed", [0, 1])
def test_whatever_is_written_reads_back_as_from_a_dense_cache(layers, codec, seed):
    """Shuffled blocks, random steps, several sequences, skipped tokens, blocks that a window gave back."""
    random = np.random.default_rng(seed)
    cache = cache_for(layers, codec, num_blocks=40, block_size=int(random.integers(1, 8)))
    beside = Beside(cache, sequences=3, seed=seed)
    exact = find_codec(codec)
    checked = 0
    for _ in range(4):
        beside.step(most=cache.block_size * 2 + 1)
        for layer in range(len(cache.spec.layers)):
            source = cache.spec.layers[layer].reads_layer
            source = layer if source is None else source
            if not cache.spec.layers[source].token_bytes:
                continue
            group = cache.kv_cache_group_of(layer)
            for number, length in enumerate(beside.lengths):
                low = beside.first(number, cache.kv_cache_groups[group].layer.window)
                start = int(random.integers(low, length + 1))
                end = int(random.integers(start, length + 1))
                got = cache.gather(layer, beside.tables[number][group], end, start)
                for have, want in zip(got, beside.dense(number, source, start, end), strict=True):
                    assert have.shape == want.shape
                    error = (have.double() - want.double()).abs()
                    assert (error <= exact.error_bound(want)).all()
                    if exact.reads_as == exact.dtype:
                        assert torch.equal(have, want.to(exact.dtype))
                    checked += have.numel()
    assert checked > 1000


@in_turn("codec", CODECS)
@in_turn("layers", LAYERS)
def test_nbytes_is_the_planner_s_sum_to_the_byte(layers, codec):
    spec = spec_for(layers, codec)
    blocks = [3 + 2 * group for group in range(len(kv_cache_groups(spec)))]
    cache = PagedKVCache(spec, blocks, 7, codec=codec)
    assert cache.num_blocks == tuple(blocks)
    assert cache.nbytes == sum(
        group.block_bytes(7) * count for group, count in zip(kv_cache_groups(spec), blocks, strict=True)
    )
    report = cache.arena.report()
    assert report.used == cache.nbytes
    assert report.capacity == cache.nbytes + report.padding


def test_layers_of_one_shape_lie_in_one_tensor():
    cache = cache_for("gqa", num_blocks=5)
    (part,) = cache.parts(0)
    assert part.tensor.shape == (2, 3, 5, 4, 2, 8)
    views = cache.layer(1)
    assert views.k.shape == views.v.shape == (5, 4, 2, 8)
    assert views.k.data_ptr() == part.tensor[0, 1].data_ptr()
    assert views.v.data_ptr() == part.tensor[1, 1].data_ptr()
    assert views.k_scale is None


def test_a_latent_layer_is_one_tensor_and_two_views():
    cache = cache_for("mla", "fp8_scaled")
    latent, scales = (part.tensor for part in cache.parts(0))
    assert latent.shape == (2, 5, 4, 1, 28)
    assert scales.shape == (2, 2, 5, 4, 1)
    views = cache.layer(1)
    assert views.k.shape == (5, 4, 1, 20)
    assert views.v.shape == (5, 4, 1, 8)
    assert views.v.data_ptr() == views.k.data_ptr() + 20
    assert views.k_scale.data_ptr() == scales[0, 1].data_ptr()
    assert views.v_scale.data_ptr() == scales[1, 1].data_ptr()
    assert views.k_scale.shape == views.v_scale.shape == (5, 4, 1)


def test_k_and_v_of_different_width_lie_in_two_tensors():
    cache = cache_for("mixed", "int8")
    k, v, scale = (part.tensor for part in cache.parts(1))
    assert cache.kv_cache_groups[1].layer.window == 9
    assert k.shape == (1, 5, 4, 3, 6)
    assert v.shape == (1, 5, 4, 3, 4)
    assert scale.shape == (2, 1, 5, 4, 3)


def test_layers_of_one_kind_and_three_shapes_share_a_table_and_no_tensor():
    cache = cache_for("one group, three shapes")
    assert [cache.kv_cache_group_of(layer) for layer in range(4)] == [0] * 4
    assert len(cache.kv_cache_groups) == 1
    assert [part.tensor.shape[-1] for part in cache.parts(0)] == [8, 6, 10, 16]
    pointers = {cache.layer(layer).k.untyped_storage().data_ptr() for layer in range(4)}
    assert len(pointers) == 3


def test_a_shared_layer_gives_the_views_of_the_layer_that_it_reads():
    cache = cache_for("mixed")
    assert cache.layer(4) is cache.layer(1)
    assert cache.kv_cache_group_of(6) == cache.kv_cache_group_of(3)
    assert cache.num_blocks == (5, 5, 5)


def test_the_cache_starts_as_zeros_in_every_byte():
    cache = cache_for("mixed", "int8")
    assert not any(part.any() for part in every_byte(cache))


@pytest.mark.parametrize("codec", ["bf16", "fp8", "int8"])
def test_gather_gives_the_dtype_that_is_asked_for(codec):
    cache = cache_for("gqa", codec)
    cache.write(0, torch.ones(1, 2, 8), torch.ones(1, 2, 8), [3])
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        k, v = cache.gather(0, [0], 4, dtype=dtype)
        assert k.dtype == v.dtype == dtype
        assert k[3].eq(1).all()
    assert cache.gather(0, [0], 4)[0].dtype == find_codec(codec).reads_as


def test_new_tokens_may_be_views_of_any_stride_and_any_float_dtype():
    cache = cache_for("gqa", "fp32", num_blocks=8)
    heads_first = torch.randn(2, 9, 8, generator=torch.Generator().manual_seed(1))
    cache.write(0, heads_first.transpose(0, 1), heads_first.transpose(0, 1).double(), range(4, 13))
    k, v = cache.gather(0, [1, 2, 3], 9)
    assert torch.equal(k, heads_first.transpose(0, 1))
    assert torch.equal(v, k)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64])
def test_indices_may_have_any_integer_dtype(dtype):
    """uint8 above all: torch would take it for a mask."""
    cache = cache_for("gqa", "fp32")
    new = torch.randn(3, 2, 8, generator=torch.Generator().manual_seed(9))
    cache.write(0, new, new, torch.tensor([1, 0, 4], dtype=dtype))
    cache.move(0, torch.tensor([4], dtype=dtype), torch.tensor([6], dtype=dtype))
    cache.copy_blocks(0, torch.tensor([0, 1], dtype=dtype), torch.tensor([1, 0], dtype=dtype))
    k, _ = cache.gather(0, torch.tensor([0, 1], dtype=dtype), 6)
    assert torch.equal(k, torch.stack([new[2], torch.zeros(2, 8), new[2], torch.zeros(2, 8), new[1], new[0]]))


def test_a_cache_made_in_inference_mode_can_be_written_outside_it():
    with torch.inference_mode():
        cache = cache_for("gqa")
    cache.write(0, torch.ones(1, 2, 8, requires_grad=True), torch.ones(1, 2, 8), [0])
    assert cache.gather(0, [0], 1)[0].eq(1).all()
    assert not cache.layer(0).k.requires_grad


@pytest.mark.parametrize("layers", LAYERS)
@pytest.mark.parametrize("codec", ["bf16", "int8"])
def test_copies_that_overlap_equal_a_numpy_model(layers, codec):
    random = np.random.default_rng(3)
    cache = cache_for(layers, codec, num_blocks=9)
    fill(cache)
    for _ in range(12):
        group = int(random.integers(0, len(cache.kv_cache_groups)))
        count = int(random.integers(0, 9))
        src, dst = random.integers(0, 9, count), random.permutation(9)[:count]
        expected = every_byte(cache)
        parts = [(other, part) for other in range(len(cache.kv_cache_groups)) for part in cache.parts(other)]
        for (other, part), model in zip(parts, expected, strict=True):
            if other == group:
                moved = np.moveaxis(model, part.shape.block_dim, 0)
                moved[dst] = moved[src]
        cache.copy_blocks(group, src, dst.tolist())
        assert unchanged(cache, expected)


@pytest.mark.parametrize("layers", LAYERS)
@pytest.mark.parametrize("codec", ["fp16", "fp8_scaled"])
@pytest.mark.parametrize("per_head", [False, True])
def test_moves_that_overlap_equal_a_numpy_model(layers, codec, per_head):
    random = np.random.default_rng(4)
    cache = cache_for(layers, codec)
    fill(cache)
    for layer in storing(cache):
        views, heads = cache.layer(layer), cache.spec.layers[layer].kv_heads
        tensors = [t for t in (views.k, views.v, views.k_scale, views.v_scale) if t is not None]
        models = []
        count = int(random.integers(1, 20))
        src, dst = (
            np.stack([random.permutation(20)[:count] for _ in range(heads)])
            if per_head
            else random.permutation(20)[:count]
            for _ in range(2)
        )
        for tensor in tensors:
            model = tensor.float().numpy().reshape(20, heads, -1).copy()
            for head in range(heads):
                from_, to = (ids[head] if per_head else ids for ids in (src, dst))
                model[to, head] = model[from_, head]
            models.append(model)
        others = {n: cache.layer(n).k.float().clone() for n in storing(cache) if n != layer}
        cache.move(layer, src, torch.from_numpy(dst))
        for tensor, model in zip(tensors, models, strict=True):
            assert np.array_equal(tensor.float().numpy().reshape(model.shape), model, equal_nan=True)
        for number, before in others.items():
            assert np.array_equal(cache.layer(number).k.float().numpy(), before.numpy(), equal_nan=True)


def test_a_fork_that_writes_gets_copies_and_leaves_its_parent_alone():
    """The block manager says what to copy, the cache copies it, and both sequences read what is theirs."""
    cache = cache_for("mixed", "fp32", num_blocks=12)
    manager = BlockManager(
        [KVCacheGroup(12, group.layer.window) for group in cache.kv_cache_groups], cache.block_size
    )
    generator = torch.Generator().manual_seed(2)

    def write(sequence, start, end):
        new = {}
        for layer in storing(cache):
            spec = cache.spec.layers[layer]
            k = torch.randn(end - start, spec.kv_heads, spec.k_dim, generator=generator)
            v = torch.randn(end - start, spec.kv_heads, spec.v_dim, generator=generator)
            cache.write(
                layer,
                k,
                v,
                manager.slot_mapping(sequence, start, end, kv_cache_group=cache.kv_cache_group_of(layer)),
            )
            new[layer] = k
        manager.commit(sequence)
        return new

    manager.allocate("parent", list(range(6)))
    prompt = write("parent", 0, 6)
    manager.fork("parent", "child")
    tails = {}
    for sequence in ("child", "parent"):
        copies = manager.append(sequence, 77)
        assert len(copies) == (len(cache.kv_cache_groups) if sequence == "child" else 0)
        for copy in copies:
            cache.copy_blocks(copy.kv_cache_group, [copy.src], [copy.dst])
        tails[sequence] = write(sequence, 6, 7)
    for sequence, tail in tails.items():
        for layer in storing(cache):
            group = cache.kv_cache_group_of(layer)
            start = 7 - min(7, cache.kv_cache_groups[group].layer.window or 7)
            k, _ = cache.gather(layer, manager.block_table(sequence, group), 7, start)
            assert torch.equal(k, torch.cat([prompt[layer], tail[layer]])[start:])


@pytest.mark.parametrize("codec", ["bf16", "int8"])
def test_closing_names_what_is_still_read_and_changes_nothing(codec):
    cache = cache_for("mixed", codec)
    fill(cache)
    before, address = every_byte(cache), cache.layer(1).v.data_ptr()
    part = cache.layer(2).v[3]
    for _ in range(3):
        with pytest.raises(ArenaInUseError) as caught:
            cache.close()
        assert caught.value.values["names"] == "group 1 layer 2 v"  # and not what only the cache holds
        assert unchanged(cache, before)
        assert cache.layer(1).v.data_ptr() == address
        assert cache.layer(4) is cache.layer(1)
    part.zero_()
    assert not cache.layer(2).v[3].any()
    cache.write(1, torch.ones(1, 2, 8), torch.ones(1, 2, 8), [0])
    assert cache.gather(1, [0], 1)[0].eq(1).all()
    del part
    cache.close()
    cache.close()
    assert cache.arena.closed


def test_closing_gives_the_memory_back():
    cache = cache_for("mixed", "int8")
    cache.write(0, torch.ones(1, 2, 8), torch.ones(1, 2, 8), [0])
    gathered = cache.gather(0, [0], 1)
    cache.close()
    assert gathered[0].eq(1).all()


def test_a_catalogue_model_is_built_as_planned():
    spec = CacheSpec.from_config("gemma-3-4b", kv_dtype="int8")
    cache = PagedKVCache(spec, [2, 1])
    assert cache.codec.name == "int8"
    assert cache.nbytes == sum(
        group.block_bytes(16) * count for group, count in zip(kv_cache_groups(spec), (2, 1), strict=True)
    )
