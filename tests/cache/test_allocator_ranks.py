"""allocate_kv_cache on several ranks: the one with the least room decides, and one without any meets the others."""

import subprocess
import sys

import pytest
import torch

from minikv.cache import allocate_kv_cache, allocator
from minikv.errors import DoesNotFitError
from tests.cache.test_allocator import refused
from tests.plan.small_models import small_config, small_model


@pytest.fixture(scope="module")
def llama():
    return small_model(small_config("llama"), torch.bfloat16)


def test_the_smallest_rank_sets_the_number(llama, monkeypatch):
    monkeypatch.setattr(allocator, "_least_of_ranks", lambda blocks, device: ((7,), 4))
    cache, report = allocate_kv_cache(llama, num_blocks=20)
    assert cache.num_blocks == (7,)
    assert (report.num_blocks, report.own_blocks, report.ranks) == (7, 20, 4)
    assert "20" in report.text("zh")
    monkeypatch.setattr(allocator, "_least_of_ranks", lambda blocks, device: ((0,), 4))
    refused(lambda: allocate_kv_cache(llama, num_blocks=20), "allocator_other_rank", DoesNotFitError)


def test_a_rank_without_room_still_meets_the_others(llama, monkeypatch):
    met = []
    monkeypatch.setattr(
        allocator, "_least_of_ranks", lambda blocks, device: met.append(blocks) or (blocks, 2)
    )
    refused(lambda: allocate_kv_cache(llama, kv_bytes=1), "allocator_kv_bytes")
    assert met == [(0,)]


RANK = """
import sys, torch
from torch import distributed
from minikv.cache.allocator import _least_of_ranks
rank, path = int(sys.argv[1]), sys.argv[2]
distributed.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=2)
print(_least_of_ranks([(9, 2), (5, 8)][rank], torch.device("cpu")))
distributed.destroy_process_group()
"""


def test_two_real_ranks_agree(tmp_path):
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", RANK, str(rank), str(tmp_path / "store")],
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        assert [rank.communicate(timeout=120)[0].strip() for rank in ranks] == ["((5, 2), 2)"] * 2
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
