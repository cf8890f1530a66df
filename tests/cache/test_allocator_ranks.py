"""allocate_kv_cache on several ranks: the one with the least room decides, and one without any meets the others."""

import pytest
import torch

from minikv.cache import allocate_kv_cache, allocator
from minikv.errors import DoesNotFitError
from tests.cache.test_allocator import refused
from tests.engine.rank_cases import run_ranks
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


def least(rank):
    return {"least": allocator._least_of_ranks([(9, 2), (5, 8)][rank], torch.device("cpu"))}


def test_two_real_ranks_agree(tmp_path):
    ranks = run_ranks(least, 2, tmp_path / "ranks")
    assert [rank["least"] for rank in ranks] == [[[5, 2], 2]] * 2
