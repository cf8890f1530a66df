"""The reference operations against NumPy models: what is written where, and that nothing else moves."""

import numpy as np
import pytest
import torch

from minikv.errors import ArgumentError
from minikv.kernels import copy_blocks, gather, move_slots, reference, store_kv

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.float8_e5m2)


def numbered(*shape, dtype=torch.float32):
    """A tensor in which every element has bytes of its own, as far as the dtype has that many."""
    count = int(np.prod(shape))
    if dtype.itemsize == 1:
        return (torch.arange(count) % 120).to(torch.uint8).view(*shape).view(dtype)
    return torch.arange(count, dtype=torch.float32).view(*shape).to(dtype)


def raw(tensor):
    """The elements as integers, so that every bit counts."""
    kinds = {1: torch.uint8, 2: torch.int16, 4: torch.int32}
    return tensor.contiguous().view(kinds[tensor.element_size()]).numpy()


def caches(dtype, *, blocks=5, block_size=4, heads=3, dims=(6, 2), strided=False):
    """K and V caches; strided ones are views of one wider tensor, as in a latent layer."""
    if strided:
        whole = numbered(blocks, block_size, heads, sum(dims), dtype=dtype)
        return whole[..., : dims[0]], whole[..., dims[0] :]
    return tuple(numbered(blocks, block_size, heads, dim, dtype=dtype) for dim in dims)


@pytest.mark.parametrize("strided", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_store_writes_each_token_to_its_slot_and_nothing_else(dtype, strided):
    generator = torch.Generator().manual_seed(1)
    k_cache, v_cache = caches(dtype, strided=strided)
    expected = [raw(cache).reshape(-1, *cache.shape[2:]) for cache in (k_cache, v_cache)]
    slots = torch.tensor([19, -1, 0, 7, 8, -1])
    new = [torch.randn(6, 3, dim, generator=generator) for dim in (6, 2)]
    store_kv(*new, k_cache, v_cache, slots)
    for rows, wanted, cache in zip(new, expected, (k_cache, v_cache), strict=True):
        for token, slot in enumerate(slots.tolist()):
            if slot >= 0:
                wanted[slot] = raw(rows[token].to(dtype))
        assert np.array_equal(raw(cache).reshape(wanted.shape), wanted)


@pytest.mark.parametrize("slots", [[-1, -1, -1], [3, -1, -1], [-1, -1, 19], [5, 6, 4], [-1, 0, -1]])
def test_skipping_without_reading_the_slots_gives_the_same_cache(slots):
    """The path of a GPU, run here: tensors of fixed shape in, the same bytes written."""
    slots = torch.tensor(slots, dtype=torch.int32)
    rows = torch.randn(3, 3, 6, generator=torch.Generator().manual_seed(2))
    by_mask, by_stand_in = (numbered(5, 4, 3, 6) for _ in range(2))
    reference._put(by_mask, slots, rows)
    fixed_slots, fixed_rows = reference._skip_without_reading(by_stand_in, slots, rows)
    assert fixed_slots.shape == slots.shape
    assert fixed_rows.shape == rows.shape
    by_stand_in[fixed_slots.long() // 4, fixed_slots.long() % 4] = fixed_rows
    assert torch.equal(by_mask, by_stand_in)


def test_store_of_no_token_changes_nothing():
    k_cache, v_cache = caches(torch.float32)
    before = raw(k_cache).copy(), raw(v_cache).copy()
    store_kv(torch.ones(0, 3, 6), torch.ones(0, 3, 2), k_cache, v_cache, torch.tensor([], dtype=torch.int32))
    store_kv(torch.ones(2, 3, 6), torch.ones(2, 3, 2), k_cache, v_cache, torch.tensor([-1, -1]))
    assert np.array_equal(raw(k_cache), before[0])
    assert np.array_equal(raw(v_cache), before[1])


def test_store_quantizes_each_token_and_head_with_a_scale_of_its_own():
    cache = [torch.zeros(2, 4, 2, 8, dtype=torch.int8) for _ in range(2)]
    scales = [torch.zeros(2, 4, 2) for _ in range(2)]
    size = torch.tensor([[1.0, 1000.0], [1e-3, 1e6]])
    key = torch.linspace(-1, 1, 8).expand(2, 2, 8) * size[..., None]
    store_kv(key, key, *cache, torch.tensor([6, 1]), *scales)
    for scale in scales:
        assert torch.allclose(scale[1, 2], size[0] / 127, rtol=1e-6)
        assert torch.allclose(scale[0, 1], size[1] / 127, rtol=1e-6)
        assert scale.count_nonzero() == 4
    assert cache[0][1, 2].abs().amax() == 127


def test_an_int8_cache_without_scales_is_refused_before_a_byte_is_written():
    k_cache, v_cache = torch.zeros(2, 4, 1, 8), torch.zeros(2, 4, 1, 8, dtype=torch.int8)
    tokens = torch.ones(1, 1, 8)
    with pytest.raises(ArgumentError, match="int8") as caught:
        store_kv(tokens, tokens, k_cache, v_cache, torch.tensor([0]))
    assert caught.value.code == "cache_needs_scales"
    assert not k_cache.any()


def test_store_takes_part_in_no_graph():
    k_cache, v_cache = torch.zeros(2, 4, 1, 8), torch.zeros(2, 4, 1, 8)
    key = torch.ones(1, 1, 8, requires_grad=True)
    store_kv(key * 2, key, k_cache, v_cache, torch.tensor([0]))
    assert not k_cache.requires_grad
    assert k_cache[0, 0].eq(2).all()


@pytest.mark.parametrize("strided", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_gather_gives_the_tokens_of_a_table_in_order(dtype, strided):
    cache = caches(dtype, strided=strided)[0]
    flat = raw(cache).reshape(-1, 3, 6)
    table = torch.tensor([3, 0, 4], dtype=torch.int32)
    for length in range(13):
        for start in range(length + 1):
            got = gather(cache, table, length, start)
            slots = [table.tolist()[i // 4] * 4 + i % 4 for i in range(start, length)]
            assert got.dtype == dtype
            assert got.shape == (length - start, 3, 6)
            assert np.array_equal(raw(got), flat[slots])


def test_gather_reads_only_the_blocks_that_it_needs():
    cache = numbered(5, 4, 3, 6)
    table = torch.tensor([999, 2, 999])
    assert torch.equal(gather(cache, table, 8, 4), cache[2])


@pytest.mark.parametrize("strided", [False, True])
@pytest.mark.parametrize("block", [-1, 5])
def test_a_block_that_does_not_exist_is_an_error_and_not_the_last_one(strided, block):
    """-1 is what stands in a table where a window moved on; an index in torch would count from the end."""
    cache = caches(torch.bfloat16, strided=strided)[0]
    before = raw(cache).copy()
    bad, good = torch.tensor([block]), torch.tensor([0])
    for call in (
        lambda: gather(cache, bad, 4),
        lambda: copy_blocks(cache, bad, good),
        lambda: copy_blocks(cache, good, bad),
    ):
        with pytest.raises(IndexError):
            call()
    assert np.array_equal(raw(cache), before)


def test_gather_of_scales_has_no_trailing_dimension():
    scales = numbered(5, 4, 3)
    assert torch.equal(gather(scales, torch.tensor([1, 4]), 6), scales[[1, 4]].view(8, 3)[:6])


@pytest.mark.parametrize("strided", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("src", "dst"), [([0, 1], [1, 0]), ([0, 1, 2], [1, 2, 3]), ([3, 3], [0, 4]), ([2], [2]), ([], [])]
)
def test_copy_reads_every_block_before_it_writes_one(dtype, strided, src, dst):
    cache = caches(dtype, strided=strided)[0]
    expected = raw(cache).copy()
    expected[dst] = expected[src]
    copy_blocks(cache, torch.tensor(src, dtype=torch.int32), torch.tensor(dst, dtype=torch.int32))
    assert np.array_equal(raw(cache), expected)


@pytest.mark.parametrize("strided", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_move_reads_every_slot_before_it_writes_one(dtype, strided):
    generator = np.random.default_rng(4)
    for _ in range(20):
        cache = caches(dtype, strided=strided)[0]
        expected = raw(cache).reshape(-1, 3, 6).copy()
        count = int(generator.integers(0, 20))
        src, dst = (generator.permutation(20)[:count] for _ in range(2))
        expected[dst] = expected[src]
        move_slots(cache, torch.from_numpy(src), torch.from_numpy(dst))
        assert np.array_equal(raw(cache).reshape(expected.shape), expected)


@pytest.mark.parametrize("trailing", [(6,), ()])
def test_move_of_each_head_by_its_own_list(trailing):
    generator = np.random.default_rng(5)
    for _ in range(20):
        cache = numbered(5, 4, 3, *trailing)
        expected = raw(cache).reshape(20, 3, *trailing).copy()
        count = int(generator.integers(1, 20))
        src, dst = (np.stack([generator.permutation(20)[:count] for _ in range(3)]) for _ in range(2))
        for head in range(3):
            expected[dst[head], head] = expected[src[head], head]
        move_slots(cache, torch.from_numpy(src.astype(np.int32)), torch.from_numpy(dst.astype(np.int32)))
        assert np.array_equal(raw(cache).reshape(expected.shape), expected)


def test_a_pool_of_more_than_2_31_elements_is_addressed_with_64_bits():
    """int32 slots whose element offset passes 2**31; the pages of the pool that nobody writes take no memory."""
    elements = 1 << 15
    cache = torch.empty(2**31 // elements // 16 + 2, 16, 1, elements, dtype=torch.int8).view(
        torch.float8_e5m2
    )
    last = len(cache) * 16 - 1
    assert last * elements > 2**31
    token = torch.full((1, 1, elements), 3.0)
    store_kv(token, token, cache, cache, torch.tensor([last], dtype=torch.int32))
    table = torch.tensor([len(cache) - 1], dtype=torch.int32)
    assert gather(cache, table, 16, 15).float().eq(3).all()
    move_slots(cache, torch.tensor([last], dtype=torch.int32), torch.tensor([last - 1], dtype=torch.int32))
    assert gather(cache, table, 15, 14).float().eq(3).all()
