"""The floors against a count: every byte that an operation touches, one address at a time."""

import itertools

import pytest
import torch

from minikv.errors import ArgumentError
from minikv.kernels import (
    decode_traffic,
    gather,
    gather_traffic,
    latent_decode_traffic,
    latent_prefill_traffic,
    move_slots,
    move_traffic,
    prefill_traffic,
    store_kv,
    store_traffic,
)
from tests.kernels.dense import make_case

LENGTHS = [1, 7, 8, 9, 30, 0]
QUERIES = [1, 7, 3, 1, 12, 0]
HEADS = {"query_heads": 6, "kv_heads": 2, "dim": 5, "value_dim": 3}


def counted(queries, lengths, block_size, window, itemsize, cache_itemsize, scaled):
    """Walk over sequences, queries, heads and keys; keep every address that is touched, add up what it holds."""
    read, written, flops = {}, {}, 0
    group = HEADS["query_heads"] // HEADS["kv_heads"]
    for row, (count, length) in enumerate(zip(queries, lengths, strict=True)):
        for position, head in itertools.product(range(length - count, length), range(HEADS["query_heads"])):
            read["query", row, position, head] = HEADS["dim"] * itemsize
            written["out", row, position, head] = HEADS["value_dim"] * itemsize
            for key in range(length):
                if key > position or (window is not None and key <= position - window):
                    continue
                read["table", row, key // block_size] = 4
                kv_head = head // group
                read["K", row, key, kv_head] = HEADS["dim"] * cache_itemsize
                read["V", row, key, kv_head] = HEADS["value_dim"] * cache_itemsize
                if scaled:
                    read["scales", row, key, kv_head] = 8
                flops += 2 * HEADS["dim"] + 2 * HEADS["value_dim"]
    return sum(read.values()), sum(written.values()), flops


@pytest.mark.parametrize("window", [None, 1, 4, 100])
@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("block_size", [1, 8])
def test_attention_moves_what_a_walk_over_it_touches(block_size, scaled, window):
    given = dict(block_size=block_size, window=window, itemsize=4, cache_itemsize=1, scaled=scaled)
    got = prefill_traffic(QUERIES, LENGTHS, **HEADS, **given)
    assert (got.read_bytes, got.written_bytes, got.flops) == counted(QUERIES, LENGTHS, **given)
    ones = [min(1, length) for length in LENGTHS]
    got = decode_traffic(LENGTHS, **HEADS, **given)
    assert (got.read_bytes, got.written_bytes, got.flops) == counted(ones, LENGTHS, **given)


def test_a_decode_is_the_formula_of_the_docstring():
    batch, length, block_size = 3, 100, 16
    got = decode_traffic([length] * batch, query_heads=32, kv_heads=8, dim=128, block_size=block_size)
    kv, queries = 2 * batch * length * 8 * 128 * 2, 2 * batch * 32 * 128 * 2
    assert got.num_bytes == kv + queries + 4 * batch * 7
    assert got.flops == 4 * batch * 32 * length * 128


def test_what_splits_and_scores_add():
    given = dict(query_heads=64, kv_heads=8, dim=128)
    plain = decode_traffic([4096, 100], **given)
    assert decode_traffic([4096, 100], splits=1, **given) == plain
    split = decode_traffic([4096, 100], splits=5, **given)
    assert split.num_bytes - plain.num_bytes == 8 * 2 * 64 * 5 * 128
    assert split.flops == plain.flops
    scored = decode_traffic([4096, 100], scores=True, **given)
    assert scored.num_bytes - plain.num_bytes == 8 * 64 * 4196 + 4 * 8 * 4196


def test_more_heads_of_a_latent_read_no_more_of_the_cache():
    few, many = (latent_decode_traffic([1000, 24], heads=heads) for heads in (1, 128))
    per_head = (576 + 512) * 2 * 2
    assert many.num_bytes - few.num_bytes == 127 * per_head
    assert many.flops == 128 * few.flops == 2 * 128 * 1024 * (576 + 512)
    long = latent_decode_traffic([10**6], heads=128)
    assert long.intensity == pytest.approx(2 * 128 * 1088 / (576 * 2), rel=1e-2)


def test_a_latent_prefill_of_one_query_is_a_decode():
    assert latent_prefill_traffic([1, 1], [50, 7], heads=4, window=9) == latent_decode_traffic(
        [50, 7], heads=4, window=9
    )
    with_all = latent_prefill_traffic([7], [7], heads=4)
    assert with_all.flops == sum(latent_decode_traffic([n], heads=4).flops for n in range(1, 8))


@pytest.mark.parametrize("stored", [torch.bfloat16, torch.float8_e4m3fn])
def test_a_store_writes_as_many_bytes_as_change(stored):
    """Into caches of a value that the tokens do not have, so that every byte written differs."""
    scaled = stored != torch.bfloat16
    caches = [torch.zeros(4, 8, 2, dim, dtype=stored) for dim in (16, 24)]
    scales = [torch.zeros(4, 8, 2) for _ in caches] if scaled else [None, None]
    new = [torch.full((5, 2, cache.shape[3]), 3.0, dtype=torch.bfloat16) for cache in caches]
    slots = torch.tensor([3, 30, 9, 8, 17], dtype=torch.int32)
    store_kv(*new, *caches, slots, *scales)
    changed = sum(int((x.float() != 0).sum()) * x.element_size() for x in [*caches, *scales] if x is not None)
    size = {"itemsize": 2, "cache_itemsize": stored.itemsize}
    got = store_traffic(5, kv_heads=2, dim=16, value_dim=24, scaled=scaled, **size)
    assert got.written_bytes == changed
    assert got.read_bytes == sum(x.nbytes for x in new) + slots.nbytes


@pytest.mark.parametrize("per_head", [False, True])
def test_a_move_writes_as_many_bytes_as_change(per_head):
    cache = torch.ones(4, 8, 2, 16, dtype=torch.float16)
    cache[2:] = 0
    src, dst = (torch.tensor(slots, dtype=torch.int32) for slots in ([0, 5, 9], [31, 16, 20]))
    if per_head:
        src, dst = src.expand(2, -1).contiguous(), dst.expand(2, -1).contiguous()
    move_slots(cache, src, dst)
    got = move_traffic(3, 2 * 16 * 2, lists=2 if per_head else 1)
    assert got.written_bytes == int(cache[2:].sum()) * 2
    assert got.read_bytes == got.written_bytes + src.nbytes + dst.nbytes


@pytest.mark.parametrize("span", [(0, 30), (8, 30), (9, 16), (9, 17), (5, 5), (0, 0)])
def test_a_gather_moves_what_it_returns(span):
    start, length = span
    case = make_case([40], block_size=8)
    out = gather(case.k_cache, case.block_tables[0], length, start)
    got = gather_traffic(length, 2 * 64 * 4, block_size=8, start=start)
    assert got.written_bytes == out.nbytes
    blocks = {position // 8 for position in range(start, length)}
    assert got.read_bytes == out.nbytes + 4 * len(blocks)


@pytest.mark.parametrize(
    "call",
    [
        lambda: decode_traffic([5], query_heads=0, kv_heads=1, dim=8),
        lambda: decode_traffic([-1], query_heads=1, kv_heads=1, dim=8),
        lambda: decode_traffic([True], query_heads=1, kv_heads=1, dim=8),
        lambda: decode_traffic([5], query_heads=1, kv_heads=1, dim=8, window=0),
        lambda: decode_traffic([5], query_heads=1, kv_heads=1, dim=8, splits=0),
        lambda: prefill_traffic([6], [5], query_heads=1, kv_heads=1, dim=8),
        lambda: prefill_traffic([1, 1], [5], query_heads=1, kv_heads=1, dim=8),
        lambda: latent_decode_traffic([5], heads=4, rank=0),
        lambda: store_traffic(-1, kv_heads=1, dim=8),
        lambda: move_traffic(3, 0),
        lambda: gather_traffic(3, 8, start=4),
        lambda: gather_traffic(3, 8, block_size=0),
    ],
)
def test_what_cannot_be_is_refused(call):
    with pytest.raises(ArgumentError):
        call()
