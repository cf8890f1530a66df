"""HostPool: several blocks out of one, a transfer in pieces, and which stream waits for it."""

import torch

from minikv.cache import offload
from minikv.cache.offload import HostPool
from tests.cache.paged_cases import cache_for, fill
from tests.cache.test_offload import Recorder, block_bytes


def test_a_host_block_may_come_back_into_several_blocks():
    """More pairs than the pool has blocks: several sequences load one prefix in one step."""
    cache = cache_for("gqa")
    fill(cache)
    pool = HostPool(cache, 2)
    pool.swap_out([[(0, 0), (1, 1)]])
    due = [block_bytes(cache, 0, block) for block in (0, 1)]
    fill(cache, seed=1)
    pool.swap_in([[(0, 1), (1, 0), (2, 1), (3, 0)]]).wait()
    assert [block_bytes(cache, 0, block) for block in range(4)] == due[::-1] * 2


def test_it_is_the_stream_of_the_caches_device_that_waits(monkeypatch):
    """Another device may be the current one."""
    asked, event = [], Recorder()
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device=None: asked.append(device))
    offload.Transfer(event, torch.device("cuda:1")).wait()
    assert (asked, event.log) == ([torch.device("cuda:1")], ["wait"])


def test_pieces_move_what_one_call_moves(monkeypatch):
    cache = cache_for("mixed", "int8", num_blocks=8)
    fill(cache)
    pairs = [
        [(block, (block * 3) % 8) for block in range(group, 8)] for group in range(len(cache.kv_cache_groups))
    ]
    due, pool = HostPool(cache, 8), HostPool(cache, 8)
    due.swap_out(pairs)
    largest = max(group.block_bytes(cache.block_size) for group in cache.kv_cache_groups)
    monkeypatch.setattr(offload, "PIECE", 3 * largest)
    for piece in pool.pieces(pairs):
        sizes = zip(cache.kv_cache_groups, piece, strict=True)
        assert (
            0 < sum(group.block_bytes(cache.block_size) * len(part) for group, part in sizes) <= 3 * largest
        )
        pool.swap_out(piece)
    blocks = [[host for _, host in of_group] for of_group in pairs]
    for found, expected in zip(pool.read(blocks), due.read(blocks), strict=True):
        assert all(
            torch.equal(a.view(torch.uint8), b.view(torch.uint8))
            for a, b in zip(found, expected, strict=True)
        )
