"""The storage kernels at full size, where programs really run side by side. Only on a GPU."""

import pytest
import torch

from minikv.kernels import copy_blocks, gather, gpu, move_slots, reference, store_kv
from tests.kernels.agreement import DEVICE, permutation, store

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]


def random_pool(*shape):
    return torch.randint(-(2**15), 2**15, shape, dtype=torch.int16, device=DEVICE).view(torch.bfloat16)


@pytest.mark.parametrize("count", [2, 250, 1000, 2000])
def test_large_copies_that_overlap_are_right_every_time(count):
    """Half a GiB, the programs really side by side: a race would show as a difference now and then."""
    generator = torch.Generator().manual_seed(18)
    for _ in range(10):
        pool_ = random_pool(2, 4, 2048, 16, 8, 128)
        src, dst = (permutation(2048, count, generator).to(DEVICE) for _ in range(2))
        expected = pool_.view(torch.int16).clone()
        expected[:, :, dst] = expected[:, :, src]
        gpu.copy_blocks(pool_, src, dst, 2)
        assert torch.equal(pool_.view(torch.int16), expected)


@pytest.mark.parametrize("count", [250, 1000, 30_000])
def test_large_moves_that_overlap_are_right_every_time(count):
    generator = torch.Generator().manual_seed(19)
    heads = torch.arange(8, device=DEVICE)[:, None]
    for _ in range(10):
        cache = random_pool(2048, 16, 8, 128)
        expected = cache.view(torch.int16).flatten(0, 1).clone()
        src, dst = (permutation(32_768, count, generator).to(DEVICE) for _ in range(2))
        expected[dst] = expected[src]
        gpu.move_slots(cache, src, dst)
        assert torch.equal(cache.view(torch.int16).flatten(0, 1), expected)
        src, dst = (
            torch.stack([permutation(32_768, count, generator) for _ in range(8)]).to(DEVICE)
            for _ in range(2)
        )
        expected[dst, heads] = expected[src, heads]
        gpu.move_slots(cache, src, dst)
        assert torch.equal(cache.view(torch.int16).flatten(0, 1), expected)


def test_a_captured_graph_follows_slots_that_change():
    """Nothing is read back and no size depends on a value, so a CUDA graph holds all four operations."""
    generator = torch.Generator().manual_seed(20)
    cache = [random_pool(64, 16, 8, 128) for _ in range(2)]
    key, value = (torch.randn(40, 8, 128, dtype=torch.bfloat16, device=DEVICE) for _ in range(2))
    slots, src, dst = (torch.zeros(40, dtype=torch.int64, device=DEVICE) for _ in range(3))
    table = torch.zeros(8, dtype=torch.int32, device=DEVICE)

    def step(on):
        store(on, key, value, *cache, slots)
        on.move_slots(cache[0], src, dst)
        on.copy_blocks(cache[1], table[:4].long(), table[4:].long())
        return on.gather(cache[0], table, 100, 7)

    def fill_in():
        for index, size in ((slots, 1024), (src, 1024), (dst, 1024), (table, 64)):
            index.copy_(permutation(size, len(index), generator))

    fill_in()
    step(gpu)  # compiles
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = step(gpu)
    for _ in range(3):
        fill_in()
        before = [half.clone() for half in cache]
        graph.replay()
        got = [half.clone() for half in (*cache, out)]
        for half, old in zip(cache, before, strict=True):
            half.copy_(old)
        expected = [step(reference), *cache]
        for one, other in zip(got, [*expected[1:], expected[0]], strict=True):
            assert torch.equal(one.view(torch.int16), other.view(torch.int16))


def test_nothing_waits_for_the_gpu():
    cache = [random_pool(64, 16, 8, 128) for _ in range(2)]
    new = torch.randn(40, 8, 128, dtype=torch.bfloat16, device=DEVICE)
    index = torch.arange(40, device=DEVICE)
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        store_kv(new, new, *cache, index)
        move_slots(cache[0], index, index + 1)
        copy_blocks(cache[1], index, index + 1)
        gather(cache[0], index, 100, 7)
    finally:
        torch.cuda.set_sync_debug_mode(before)
