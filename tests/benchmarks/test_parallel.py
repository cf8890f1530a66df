"""The benchmark of tensor parallel at tiny sizes: two real processes, and rows that compare what they measured."""

import multiprocessing

import numpy as np
import pytest

from benchmarks import parallel
from benchmarks.engine_cases import ModelShape
from benchmarks.parallel_ranks import Decoding

SHAPE = ModelShape("tiny", 2, 32, 48, 4, 2, 8, 64)
DECODING = Decoding(3, 20, 4, 2)


@pytest.mark.slow
def test_every_decode_step_is_timed_with_and_without_the_engine(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    # torch and transformers are imported once, not by each rank
    server = multiprocessing.get_context("forkserver")
    server.set_forkserver_preload(["tests.engine.rank_cases"])
    monkeypatch.setattr(multiprocessing, "get_context", lambda way: server)
    found = parallel.measure(2, DECODING, SHAPE)
    assert list(found) == [parallel.GQA, parallel.MLA]
    for each in found.values():
        for way in ("engine", "forward", "transformers", "one process"):
            assert len(each[way]) == DECODING.steps * DECODING.rounds
            assert min(each[way]) > 0
        assert [held["kv"] for held in each["held"]] == [each["planned"]] * 2
        assert each["messages"] == 1
    token = SHAPE.token_bytes // 2  # of one of two KV heads
    assert found[parallel.GQA]["planned"] == token * 16 * DECODING.blocks

    monkeypatch.setattr(parallel, "measure", lambda ranks, decoding: found)
    rows = list(parallel.rows(2, DECODING))
    assert [row.holds for row in rows[:2]] == [True, True]
    added = rows[2]
    of = found[parallel.GQA]
    more = np.array(of["engine"]) - np.array(of["forward"])
    assert added.ours == pytest.approx(1e3 * np.median(more))
    assert added.holds == (added.ours <= 0.05 * 1e3 * min(of["transformers"]))
    found[parallel.GQA]["held"][1]["kv"] += 1
    assert not next(iter(parallel.rows(2, DECODING))).holds, "a rank that holds other bytes is seen"
