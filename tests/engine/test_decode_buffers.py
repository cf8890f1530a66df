"""The buffers of captured decode steps: a step and padding, at places that never change; and which steps fit."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from minikv.blocks import UNKNOWN
from minikv.engine.core.step import StepArrays
from minikv.engine.ext.decode_buffers import DecodeBuffers, DecodeSizes
from minikv.engine.ext.graphs import DecodeGraphs, buckets


class Pages(SimpleNamespace):
    """As much of a cache as the buffers look at."""


def pages(groups=2):
    return Pages(device=torch.device("cpu"), kv_cache_groups=[None] * groups)


def step_of(tables, groups=1, queries=1, longest=None):
    """A step of one sequence for each row of ``tables``."""
    rows = len(tables)
    random = np.random.default_rng(rows)
    table = np.array(tables, np.int32)
    return StepArrays(
        token_ids=random.integers(1, 97, rows * queries),
        positions=np.full(rows * queries, 3 if longest is None else longest - 1),
        query_starts=np.arange(0, rows * queries + 1, queries, dtype=np.int32),
        lengths=np.full(rows, 4, np.int32),
        slot_mapping=tuple(random.permutation(200)[: rows * queries] for _ in range(groups)),
        block_tables=tuple(table + group for group in range(groups)),
    )


@pytest.mark.parametrize("seed", range(5))
def test_a_fill_writes_the_step_and_padding_and_leaves_no_row_of_the_step_before(seed):
    draw = np.random.default_rng(seed)
    groups, most = int(draw.integers(1, 4)), int(draw.integers(3, 20))
    buffers = DecodeBuffers(pages(groups), DecodeSizes(most, 9, groups, 11, torch.float32))
    for _ in range(10):
        rows, columns = int(draw.integers(1, most + 1)), int(draw.integers(1, 10))
        step = step_of(draw.integers(-1, 50, (rows, columns)), groups)
        assert buffers.takes(step)
        buffers.fill(step)
        bucket = min(size for size in buckets(most) if size >= rows)
        batch, ids = buffers.batch(bucket), buffers.token_ids(bucket)
        assert ids.tolist() == step.token_ids.tolist() + [0] * (bucket - rows)
        assert batch.positions.tolist() == step.positions.tolist() + [0] * (bucket - rows)
        assert batch.query_starts.tolist() == list(range(bucket + 1))
        assert batch.last.tolist() == list(range(bucket))
        for group in range(groups):
            assert batch.slots[group].tolist() == step.slot_mapping[group].tolist() + [-1] * (bucket - rows)
            assert batch.lengths[group].tolist() == [4] * rows + [0] * (bucket - rows)
            assert batch.block_tables[group][:rows, :columns].tolist() == step.block_tables[group].tolist()
        tensors = (ids, batch.positions, *batch.slots, *batch.lengths, *batch.block_tables)
        assert all(tensor.data_ptr() % 16 == 0 for tensor in tensors)
        assert len(batch.block_tables[0]) == bucket


def test_a_step_ahead_takes_its_tokens_from_the_device():
    draw = np.random.default_rng(7)
    buffers = DecodeBuffers(pages(2), DecodeSizes(12, 9, 2, 11, torch.float32))
    for _ in range(10):
        rows, columns = int(draw.integers(1, 13)), int(draw.integers(1, 10))
        step = step_of(draw.integers(-1, 50, (rows, columns)), 2)
        sources = np.sort(draw.permutation(20)[:rows])
        ahead = replace(step, token_ids=np.full(rows, UNKNOWN), sources=sources)
        sampled = torch.from_numpy(draw.integers(0, 97, 20))
        assert buffers.takes(ahead)
        buffers.fill(ahead, sampled)
        assert buffers.token_ids(12).tolist() == sampled[sources].tolist() + [0] * (12 - rows)
        batch = buffers.batch(rows)
        assert batch.positions.tolist() == step.positions.tolist()
        assert [slots.tolist() for slots in batch.slots] == [slots.tolist() for slots in step.slot_mapping]
        buffers.fill(step)
        assert buffers.token_ids(rows).tolist() == step.token_ids.tolist()


def test_only_decodes_that_fit_are_replayed():
    adapter = SimpleNamespace(position_limit=None)
    held = object.__new__(DecodeGraphs)
    held.adapter, held.buffers = (
        adapter,
        DecodeBuffers(pages(1), DecodeSizes(4, 3, 1, 11, torch.float32)),
    )
    held.buckets, held.capturer = (4,), SimpleNamespace(holds=lambda: True, renew=lambda: False)
    held._replays, held._holds = {4: lambda: None}, False
    assert held.takes(step_of([[0, 1, 2]] * 4))
    assert not held.takes(step_of([[0]] * 5)), "more sequences"
    assert not held.takes(step_of([[0] * 4])), "more blocks"
    assert not held.takes(step_of([[0]], queries=2)), "a prefill"
    adapter.position_limit = 12
    assert held.takes(step_of([[0, 1, 2]], longest=12))
    assert not held.takes(step_of([[0, 1, 2]], longest=13)), "a position that the model does not have"


@pytest.mark.parametrize("rows", [1, 5, 8, 17, 64])
def test_the_arena_is_as_large_as_the_plan_says(rows):
    for groups in (1, 2):
        sizes = DecodeSizes(rows, 33, groups, 97, torch.bfloat16)
        buffers = DecodeBuffers(pages(groups), sizes)
        report = buffers.arena.report()
        assert buffers.arena.capacity == sizes.num_bytes == report.used + report.padding
        assert buffers.logits.shape[0] == sizes.rows >= rows
        buffers.close()
        buffers.close()
