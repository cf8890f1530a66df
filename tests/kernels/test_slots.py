"""The reference operations against NumPy models: what is written where, and that nothing else moves."""

import numpy as np
import pytest
import torch

from minikv.errors import ArgumentError
from minikv.kernels import copy_blocks, gather, move_slots, store_kv
from minikv.kernels import slots as slot_ops
from tests.in_turn import in_turn

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
    slot_ops.store_kv(rows, rows, by_mask, by_mask.clone(), slots)
    fixed_slots, fixed_rows = slot_ops._skip_without_reading(by_stand_in, slots, rows)
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
        with pytest.raises(ArgumentError, match=str(block)):
            call()
    assert np.array_equal(raw(cache), before)


def test_gather_of_scales_has_no_trailing_dimension():
    scales = numbered(5, 4, 3)
    assert torch.equal(gather(scales, torch.tensor([1, 4]), 6), scales[[1, 4]].view(8, 3)[:6])


@in_turn("strided", [False, True])
@in_turn("dtype", DTYPES)
@in_turn("src, dst", [([0, 1], [1, 0]), ([0, 1, 2], [1, 2, 3]), ([3, 3], [0, 4]), ([2], [2]), ([], [])])
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


def valid_store():
    """Arguments of ``store_kv`` by name, each of which a test may spoil."""
    return {
        "key": torch.ones(3, 2, 8),
        "value": torch.ones(3, 2, 4),
        "k_cache": torch.zeros(5, 4, 2, 8, dtype=torch.float8_e4m3fn),
        "v_cache": torch.zeros(5, 4, 2, 4, dtype=torch.float8_e4m3fn),
        "slots": torch.tensor([0, 7, -1]),
        "k_scale": torch.zeros(5, 4, 2),
        "v_scale": torch.zeros(5, 4, 2),
    }


FP8 = {"dtype": torch.float8_e4m3fn}
BAD_STORES = {
    "no tensor": ("cache_not_a_tensor", {"key": [[[1.0]]]}),
    "key without heads": ("cache_shape", {"key": torch.ones(3, 16)}),
    "whole numbers": ("kernel_dtype", {"key": torch.ones(3, 2, 8, dtype=torch.int32)}),
    "fp8 tokens": ("kernel_dtype", {"value": torch.ones(3, 2, 4).to(torch.float8_e5m2)}),
    "fewer values": ("cache_shape", {"value": torch.ones(2, 2, 4)}),
    "other heads": ("cache_shape", {"value": torch.ones(3, 1, 4)}),
    "key wider than its cache": ("cache_shape", {"key": torch.ones(3, 2, 9)}),
    "value wider than its cache": ("cache_shape", {"value": torch.ones(3, 2, 5)}),
    "fewer blocks for V": ("cache_shape", {"v_cache": torch.zeros(4, 4, 2, 4, **FP8)}),
    "a dtype that is not stored": ("kernel_dtype", {"k_cache": torch.zeros(5, 4, 2, 8, dtype=torch.int16)}),
    "two stored dtypes": ("kernel_dtype", {"v_cache": torch.zeros(5, 4, 2, 4, dtype=torch.int8)}),
    "cache not contiguous along a head": ("kernel_stride", {"k_cache": torch.zeros(5, 4, 8, 2, **FP8).mT}),
    "another device": ("kernel_device", {"slots": torch.zeros(3, dtype=torch.int64, device="meta")}),
    "cache elsewhere": ("kernel_device", {"v_cache": torch.zeros(5, 4, 2, 4, device="meta", **FP8)}),
    "fewer slots": ("cache_shape", {"slots": torch.tensor([0, 1])}),
    "slots of 16 bits": ("kernel_dtype", {"slots": torch.zeros(3, dtype=torch.int16)}),
    "slot past the end": ("cache_index", {"slots": torch.tensor([0, 20, 1])}),
    "one scale": ("cache_not_a_tensor", {"v_scale": None}),
    "the other scale": ("cache_not_a_tensor", {"k_scale": None}),
    "scales of another shape": ("cache_shape", {"v_scale": torch.zeros(5, 4, 1)}),
    "scales of 16 bits": ("kernel_dtype", {"k_scale": torch.zeros(5, 4, 2, dtype=torch.float16)}),
}


@pytest.mark.parametrize("case", BAD_STORES)
def test_a_store_that_cannot_be_right_is_refused_before_a_byte_is_written(case):
    code, spoiled = BAD_STORES[case]
    arguments = valid_store() | spoiled
    caches = [arguments[name] for name in ("k_cache", "v_cache") if not arguments[name].is_meta]
    with pytest.raises(ArgumentError) as caught:
        store_kv(**arguments)
    assert caught.value.code == code
    assert all(not cache.float().any() for cache in caches)
    store_kv(**valid_store())


def test_scales_of_a_cache_that_needs_none_are_refused():
    spoiled = {"k_cache": torch.zeros(5, 4, 2, 8), "v_cache": torch.zeros(5, 4, 2, 4)}
    with pytest.raises(ArgumentError) as caught:
        store_kv(**(valid_store() | spoiled))
    assert caught.value.code == "kernel_scale_unused"


CACHE = torch.arange(5 * 4 * 2 * 8.0).view(5, 4, 2, 8)
TWO = torch.tensor([0, 1])
BAD_MOVES = {
    "gather: no tensor": ("cache_not_a_tensor", lambda: gather([1.0], TWO, 1)),
    "gather: too few dimensions": ("cache_shape", lambda: gather(torch.ones(5, 4), TWO, 1)),
    "gather: a dtype that is not stored": ("kernel_dtype", lambda: gather(CACHE.double(), TWO, 1)),
    "gather: not contiguous": ("kernel_stride", lambda: gather(CACHE.mT, TWO, 1)),
    "gather: table of two dimensions": ("cache_shape", lambda: gather(CACHE, TWO[None], 1)),
    "gather: table of a list": ("cache_not_a_tensor", lambda: gather(CACHE, [0, 1], 1)),
    "gather: table elsewhere": ("kernel_device", lambda: gather(CACHE, TWO.to("meta"), 1)),
    "gather: longer than the table": ("kernel_gather_range", lambda: gather(CACHE, TWO, 9)),
    "gather: start past the length": ("kernel_gather_range", lambda: gather(CACHE, TWO, 3, 4)),
    "gather: negative start": ("bad_count", lambda: gather(CACHE, TWO, 3, -1)),
    "gather: length of a tensor": ("bad_count", lambda: gather(CACHE, TWO, torch.tensor(3))),
    "gather: length of True": ("bad_count", lambda: gather(CACHE, TWO, True)),
    "gather: no such block": ("cache_index", lambda: gather(CACHE, torch.tensor([0, 5]), 5)),
    "copy: no such source": ("cache_index", lambda: copy_blocks(CACHE, torch.tensor([0, 5]), TWO)),
    "copy: negative target": ("cache_index", lambda: copy_blocks(CACHE, TWO, torch.tensor([0, -1]))),
    "copy: fewer targets": ("cache_shape", lambda: copy_blocks(CACHE, TWO, TWO[:1])),
    "copy: blocks of float": ("kernel_dtype", lambda: copy_blocks(CACHE, TWO.float(), TWO)),
    "copy: blocks in the last dimensions": ("cache_shape", lambda: copy_blocks(CACHE, TWO, TWO, 2)),
    "copy: block_dim of -1": ("bad_count", lambda: copy_blocks(CACHE, TWO, TWO, -1)),
    "copy: in a dimension of fewer": (
        "cache_index",
        lambda: copy_blocks(CACHE, TWO, torch.tensor([0, 4]), 1),
    ),
    "move: a list": ("cache_not_a_tensor", lambda: move_slots(CACHE, [0, 1], TWO)),
    "move: no such slot": ("cache_index", lambda: move_slots(CACHE, torch.tensor([0, 20]), TWO)),
    "move: negative slot": ("cache_index", lambda: move_slots(CACHE, TWO, torch.tensor([-1, 0]))),
    "move: lists for other heads": (
        "cache_shape",
        lambda: move_slots(CACHE, TWO.expand(3, 2), TWO.expand(3, 2)),
    ),
    "move: one list, and one for each head": (
        "cache_shape",
        lambda: move_slots(CACHE, TWO, TWO.expand(2, 2)),
    ),
}


@pytest.mark.parametrize("case", BAD_MOVES)
def test_a_move_that_cannot_be_right_is_refused_before_a_byte_is_moved(case):
    code, call = BAD_MOVES[case]
    before = CACHE.clone()
    with pytest.raises(ArgumentError) as caught:
        call()
    assert caught.value.code == code
    assert torch.equal(CACHE, before)


def test_the_entry_that_is_wrong_is_named():
    with pytest.raises(ArgumentError) as caught:
        move_slots(CACHE, torch.tensor([0, 1, 2]), torch.tensor([3, 99, 4]))
    assert caught.value.values == {"what": "dst", "place": 1, "value": 99, "low": 0, "high": 19}


@pytest.mark.parametrize("block_dim", [0, 1, 2])
def test_a_copy_takes_all_places_of_the_dimensions_before(block_dim):
    whole = numbered(*(2, 3)[:block_dim], 5, 4, 3, 6)
    expected = whole.clone()
    src, dst = torch.tensor([0, 1, 4, 3]), torch.tensor([1, 4, 0, 2])
    where = (slice(None),) * block_dim
    expected[(*where, dst)] = whole[(*where, src)]
    copy_blocks(whole, src, dst, block_dim)
    assert torch.equal(whole, expected)
