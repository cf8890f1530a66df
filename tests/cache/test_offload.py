"""HostPool: every byte of a block goes out and comes back; a swap that fails has changed nothing."""

import numpy as np
import pytest
import torch

from minikv.blocks import BlockManager, HostBlocks, KVCacheGroup
from minikv.cache import offload
from minikv.cache.codec import CODECS
from minikv.cache.layout import Part
from minikv.cache.offload import HostPool
from tests.cache.paged_cases import LAYERS, Beside, cache_for, every_byte, fill, refused, storing, unchanged
from tests.in_turn import in_turn


def block_bytes(cache, group, block):
    """All bytes of one block: every layer, K, V and scales."""
    parts = [part.read_blocks(torch.tensor([block])) for part in cache.parts(group)]
    return b"".join(part.view(torch.uint8).numpy().tobytes() for part in parts)


def random_pairs(random, device_blocks, host_blocks):
    count = int(random.integers(0, min(device_blocks, host_blocks) + 1))
    device, host = random.permutation(device_blocks)[:count], random.permutation(host_blocks)[:count]
    return list(zip(device.tolist(), host.tolist(), strict=True))


@in_turn("layers", LAYERS)
@in_turn("codec", CODECS)
def test_any_course_of_swaps_equals_a_model_of_bytes(layers, codec):
    random = np.random.default_rng(8)
    cache = cache_for(layers, codec, num_blocks=6)
    fill(cache)
    pool = HostPool(cache, 4)
    groups = range(len(cache.kv_cache_groups))
    device = [[block_bytes(cache, group, block) for block in range(6)] for group in groups]
    host = [{} for _ in groups]
    for _ in range(15):
        pairs = [random_pairs(random, 6, 4) for _ in groups]
        if random.random() < 0.5:
            pool.swap_out(pairs).synchronize()
            for group in groups:
                host[group].update({there: device[group][here] for here, there in pairs[group]})
        else:
            pairs = [[pair for pair in pairs[group] if pair[1] in host[group]] for group in groups]
            pool.swap_in(pairs).wait()
            for group in groups:
                for here, there in pairs[group]:
                    device[group][here] = host[group][there]
        assert [[block_bytes(cache, group, block) for block in range(6)] for group in groups] == device
        assert [pool.held(group) for group in groups] == [frozenset(held) for held in host]


@in_turn("layers", LAYERS)
@in_turn("codec", CODECS)
def test_a_host_block_takes_as_many_bytes_as_a_device_block(layers, codec):
    cache = cache_for(layers, codec)
    blocks = [2 + group for group in range(len(cache.kv_cache_groups))]
    pool = HostPool(cache, blocks)
    planned = [group.block_bytes(cache.block_size) for group in cache.kv_cache_groups]
    assert pool.nbytes == sum(size * count for size, count in zip(planned, blocks, strict=True))
    tensors = [tensor for group in range(len(blocks)) for tensor in pool._parts[group]]
    assert pool.nbytes == sum(tensor.nbytes for tensor in tensors)
    assert all(tensor.is_contiguous() for tensor in tensors)  # one block, one piece


def test_a_transfer_on_a_cpu_is_done_when_the_call_returns():
    cache = cache_for("gqa")
    transfer = HostPool(cache, 1).swap_out([[(0, 0)]])
    assert transfer.done
    transfer.wait()
    transfer.synchronize()


def test_a_block_may_be_written_as_soon_as_swap_out_has_returned():
    cache = cache_for("gqa")
    fill(cache)
    before = block_bytes(cache, 0, 3)
    pool = HostPool(cache, 2)
    pool.swap_out([[(3, 1)]])
    fill(cache, seed=1)
    assert block_bytes(cache, 0, 3) != before
    pool.swap_in([[(0, 1)]]).wait()
    assert block_bytes(cache, 0, 0) == before


class Recorder:
    """Stands for a CUDA stream, its events and torch.cuda, and notes in what order it is used."""

    def __init__(self):
        self.log = []

    def __getattr__(self, name):
        def note(*args):
            self.log.append(name)
            return self

        return note

    def __enter__(self):
        self.log.append("enter")

    def __exit__(self, *error):
        self.log.append("exit")


@pytest.mark.parametrize("way", ["swap_out", "swap_in"])
def test_the_order_of_events_beside_a_gpu(way, monkeypatch):
    """Without a GPU: what is queued on which stream, and when the event is recorded."""
    cache = cache_for("gqa", "int8")
    fill(cache)
    pool = HostPool(cache, 2)
    pool.swap_out([[(0, 0), (1, 1)]])
    before = block_bytes(cache, 0, 1)
    fill(cache, seed=1)
    stream, read, write, copy = Recorder(), Part.read_blocks, Part.write_blocks, offload.copy_rows

    def noting(name, function):
        return lambda *args: (stream.log.append(name), function(*args))[1]

    monkeypatch.setattr(pool, "_stream", stream)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: "current")
    monkeypatch.setattr(torch.cuda, "stream", lambda side: side)
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda self, side: side.record_stream())
    monkeypatch.setattr(Part, "read_blocks", noting("read cache", read))
    monkeypatch.setattr(Part, "write_blocks", noting("write cache", write))
    monkeypatch.setattr(offload, "copy_rows", noting("copy", copy))
    transfer = getattr(pool, way)([[(4, 1)]])
    beside = ["wait_stream", "enter"]
    if way == "swap_out":
        # The cache is read on the current stream: whatever comes next there may overwrite the blocks.
        assert stream.log[:4] == ["read cache", "read cache", *beside]
        assert stream.log[4:] == ["copy", "record_stream"] * 2 + ["record_event", "exit"]
    else:
        assert stream.log == [*beside, "copy", "copy", "write cache", "write cache", "record_event", "exit"]
        assert block_bytes(cache, 0, 4) == before
    stream.log.clear()
    transfer.wait()
    transfer.synchronize()
    assert transfer.done
    pool.read([[1]])
    assert stream.log == ["wait", "synchronize", "query", "synchronize"]


class Injected(Exception):
    pass


@pytest.mark.parametrize("layers", LAYERS)
@pytest.mark.parametrize("way", ["swap_out", "swap_in"])
def test_a_swap_that_fails_in_the_middle_has_changed_nothing(layers, way, monkeypatch):
    cache = cache_for(layers, "int8")
    fill(cache)
    pool = HostPool(cache, 4)
    groups = range(len(cache.kv_cache_groups))
    held = [[(block, block) for block in (0, 1)] for _ in groups]
    pool.swap_out(held)
    stored = pool.read([[0, 1]] * len(held))
    fill(cache, seed=1)
    before, copies = every_byte(cache), []
    copy_rows = offload.copy_rows
    fail_at = None

    def failing(*args):
        if len(copies) == fail_at:
            raise Injected
        copies.append(args)
        copy_rows(*args)

    monkeypatch.setattr(offload, "copy_rows", failing)
    pairs = [[(3, 2), (4, 3)] for _ in groups] if way == "swap_out" else held
    for fail_at in range(sum(len(cache.parts(group)) for group in groups)):
        copies.clear()
        with pytest.raises(Injected):
            getattr(pool, way)(pairs)
        assert len(copies) == fail_at
        assert unchanged(cache, before)
        assert [pool.held(group) for group in groups] == [{0, 1}] * len(held)
    for group in groups:
        for now, then in zip(pool.read([[0, 1]] * len(held))[group], stored[group], strict=True):
            assert torch.equal(now.view(torch.uint8), then.view(torch.uint8))
    monkeypatch.undo()
    getattr(pool, way)(pairs)


def test_a_failed_overwrite_leaves_no_half_block_to_be_read(monkeypatch):
    cache = cache_for("gqa")
    pool = HostPool(cache, 2)
    pool.swap_out([[(0, 0), (1, 1)]])

    def failing(*args):
        raise Injected

    monkeypatch.setattr(offload, "copy_rows", failing)
    with pytest.raises(Injected):
        pool.swap_out([[(2, 1)]])
    assert pool.held(0) == {0}
    refused("offload_empty", pool.swap_in, [[(0, 1)]])


def test_what_was_read_can_be_filled_into_other_blocks():
    cache = cache_for("mixed", "fp8_scaled")
    fill(cache)
    pool, other = HostPool(cache, 3), HostPool(cache, 3)
    pool.swap_out([[(1, 0), (4, 2)], [], [(3, 1)]])
    before = [block_bytes(cache, 0, 4), block_bytes(cache, 2, 3)]
    rows = pool.read([[2, 0], [], [1]])
    refused("cache_shape", other.fill, [[2], [], [1]], rows)
    refused("cache_twice", other.fill, [[2, 2], [], [1]], rows)
    refused("offload_each_group", other.fill, [[2, 1], [], [1]], rows[:2])
    refused("cache_pairs", other.fill, [[2, 1], [], [1]], [rows[0][:1], *rows[1:]])
    refused("cache_shape", other.fill, [[2, 1], [], [1]], [[r.float() for r in part] for part in rows])
    refused("cache_shape", other.fill, [[2, 1], [], [1]], [*rows[:2], [r.to("meta") for r in rows[2]]])
    refused("cache_not_a_tensor", other.fill, [[2, 1], [], [1]], [*rows[:2], [r.tolist() for r in rows[2]]])
    assert not any(other.held(group) for group in range(3))
    other.fill([[0, 1], [], [2]], rows)
    fill(cache, seed=2)
    other.swap_in([[(2, 0)], [], [(0, 2)]])
    assert [block_bytes(cache, 0, 2), block_bytes(cache, 2, 0)] == before


def test_filling_leaves_no_graph_behind():
    pool = HostPool(cache_for("gqa"), 1)
    pool.swap_out([[(0, 0)]])
    pool.fill([[0]], [[row.requires_grad_() for row in parts] for parts in pool.read([[0]])])
    assert not pool.read([[0]])[0][0].requires_grad


def test_a_sequence_comes_back_into_other_blocks_as_it_was():
    """With the block manager's own pairs, windows included."""
    cache = cache_for("mixed", "fp32", num_blocks=8)
    pool = HostPool(cache, 8)
    groups = [KVCacheGroup(8, group.layer.window) for group in cache.kv_cache_groups]
    manager = BlockManager(groups, cache.block_size, host_blocks=HostBlocks(8, cache.block_size, len(groups)))
    tokens = list(range(14))
    manager.allocate("a", tokens)
    generator = torch.Generator().manual_seed(12)
    written = {}
    for layer in storing(cache):
        spec = cache.spec.layers[layer]
        written[layer] = torch.randn(14, spec.kv_heads, spec.k_dim, generator=generator)
        v = torch.randn(14, spec.kv_heads, spec.v_dim, generator=generator)
        cache.write(
            layer,
            written[layer],
            v,
            manager.slot_mapping("a", 0, 14, kv_cache_group=cache.kv_cache_group_of(layer)),
        )
    manager.commit("a")
    with manager.swapping_out("a") as swap:
        pool.swap_out(swap.pairs).synchronize()
    manager.allocate("b", [99] * 7)
    fill(cache, seed=5)
    with manager.swapping_in("a") as swap:
        pool.swap_in(swap.pairs).wait()
    for layer in storing(cache):
        group = cache.kv_cache_group_of(layer)
        start = max(0, 14 - (cache.kv_cache_groups[group].layer.window or 14))
        k, _ = cache.gather(layer, manager.block_table("a", group), 14, start)
        assert torch.equal(k, written[layer][start:])


def test_a_swapped_cache_reads_back_as_a_dense_one():
    cache = cache_for("mla", "int8", num_blocks=12)
    beside = Beside(cache, sequences=2, seed=3)
    beside.step()
    beside.step()
    pool = HostPool(cache, 12)
    tables = [beside.tables[number][0] for number in range(2)]
    everywhere = [block for table in tables for block in table]
    pool.swap_out([list(zip(everywhere, range(len(everywhere)), strict=True))])
    fill(cache, seed=4)
    order = np.random.default_rng(1).permutation(12)[: len(everywhere)].tolist()
    pool.swap_in([list(zip(order, range(len(order)), strict=True))])
    moved = dict(zip(everywhere, order, strict=True))
    for number, table in enumerate(tables):
        for layer in storing(cache):
            got = cache.gather(layer, [moved[block] for block in table], beside.lengths[number])
            dense = beside.dense(number, layer, 0, beside.lengths[number])
            for have, want in zip(got, dense, strict=True):
                assert ((have.double() - want).abs() <= cache.codec.error_bound(want)).all()
