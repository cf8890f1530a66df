"""On a GPU: the same cache as on the CPU, no waiting for the device, and swaps beside the computation."""

import numpy as np
import pytest
import torch

from minikv.cache.codec import CODECS
from minikv.cache.offload import HostPool
from tests.cache.paged_cases import LAYERS, cache_for, refused, storing

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]


def random_bytes(cache, seed):
    for group in range(len(cache.kv_cache_groups)):
        for part in cache.parts(group):
            generator = torch.Generator().manual_seed(seed)
            part.tensor.view(torch.uint8).copy_(
                torch.empty(part.tensor.view(torch.uint8).shape, dtype=torch.uint8).random_(
                    generator=generator
                )
            )


def every_byte(cache):
    return [
        part.tensor.view(torch.uint8).cpu()
        for group in range(len(cache.kv_cache_groups))
        for part in cache.parts(group)
    ]


@pytest.mark.parametrize("layers", LAYERS)
@pytest.mark.parametrize("codec", CODECS)
def test_the_gpu_holds_what_the_cpu_holds(layers, codec):
    """Plain codecs and copies bit for bit; a quantized element may round the other way at a tie."""
    random = np.random.default_rng(6)
    here, there = cache_for(layers, codec), cache_for(layers, codec, device="cuda")
    for layer in storing(here):
        spec = here.spec.layers[layer]
        generator = torch.Generator().manual_seed(layer)
        k = torch.randn(9, spec.kv_heads, spec.k_dim, generator=generator)
        v = torch.randn(9, spec.kv_heads, spec.v_dim, generator=generator)
        slots = random.permutation(20)[:9]
        slots[[2, 5]] = -1
        here.write(layer, k, v, slots)
        there.write(layer, k.cuda(), v.cuda(), torch.from_numpy(slots).cuda())
        src, dst = random.permutation(20)[:6], random.permutation(20)[:6]
        here.move(layer, src, dst)
        there.move(layer, src, torch.from_numpy(dst).cuda())
    for group in range(len(here.kv_cache_groups)):
        here.copy_blocks(group, [0, 1, 2], [1, 2, 4])
        there.copy_blocks(group, [0, 1, 2], [1, 2, 4])
    for layer in storing(here):
        start = 0
        for have, want in zip(
            there.gather(layer, range(5), 20, start), here.gather(layer, range(5), 20, start), strict=True
        ):
            bound = 2 * here.codec.error_bound(want) if here.codec.itemsize == 1 else torch.zeros(want.shape)
            assert ((have.cpu().double() - want.double()).abs() <= bound).all()


def test_a_write_can_be_captured_in_a_graph():
    """So nothing in it waits for the GPU, skipped tokens included."""
    cache = cache_for("gqa", "int8", device="cuda")
    k = torch.randn(4, 2, 8, device="cuda")
    slots = torch.tensor([3, -1, 9, -1], device="cuda")
    cache.write(0, k, k, slots)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        cache.write(0, k, k, slots)
    slots.copy_(torch.tensor([-1, -1, -1, 12]))
    graph.replay()
    got = cache.gather(0, [3], 4)[0][0]
    assert (got - k[3]).abs().max() < 0.05
    slots.fill_(-1)
    before = every_byte(cache)
    graph.replay()
    assert all(torch.equal(now, then) for now, then in zip(every_byte(cache), before, strict=True))


def test_a_host_list_is_checked_before_it_goes_to_the_gpu():
    cache = cache_for("gqa", device="cuda")
    k = torch.ones(1, 2, 8, device="cuda")
    refused("cache_index", cache.write, 0, k, k, [20])
    refused("cache_device", cache.write, 0, k.cpu(), k, [0])
    refused("cache_index", cache.copy_blocks, 0, [5], [0])


@pytest.mark.parametrize("layers", LAYERS)
def test_swaps_beside_the_computation_keep_every_byte(layers):
    """The blocks are overwritten right behind swap_out, and read right behind swap_in's wait."""
    cache = cache_for(layers, "fp8_scaled", num_blocks=64, block_size=16, device="cuda")
    pool = HostPool(cache, 32)
    groups = range(len(cache.kv_cache_groups))
    assert all(tensor.is_pinned() for group in groups for tensor in pool._parts[group])
    for turn in range(10):
        random_bytes(cache, turn)
        before = every_byte(cache)
        pool.swap_out([[(block, block // 2) for block in range(0, 64, 2)] for _ in groups])
        for group in groups:
            for part in cache.parts(group):
                part.tensor.view(torch.uint8).fill_(turn)
        pool.swap_in([[(block, block // 2) for block in range(0, 64, 2)] for _ in groups]).wait()
        place = 0
        for group in groups:
            for part in cache.parts(group):
                now = part.tensor.view(torch.uint8).cpu().movedim(part.shape.block_dim, 0)
                then = before[place].movedim(part.shape.block_dim, 0)
                assert torch.equal(now[0::2], then[0::2])
                assert (now[1::2] == turn).all()
                place += 1
    pool.close()
    cache.close()
