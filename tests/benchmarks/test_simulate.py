"""The simulator's benchmark at a small size: its plain LRU is the pool's, and every claim has a row."""

from dataclasses import replace

import numpy as np
import pytest

from benchmarks import simulate as bench
from minikv.simulate import write_mooncake
from minikv.simulate.hit_rate import block_uses, hit_rate
from tests.simulate.traces import random_trace

SMALL = replace(bench.REAL, num_requests=25).trace()


@pytest.mark.parametrize("seed", range(3))
def test_the_plain_lru_hits_what_the_pool_hits(seed):
    trace = random_trace(seed, hash_block=8, count=60)
    most = int(np.diff(block_uses(trace).starts).max())
    for blocks in (most, 3 * most, None):
        assert bench.plain_lru(trace, blocks) == hit_rate(trace, blocks)


def test_the_load_has_the_statistics_of_the_real_one():
    """Mooncake's conversation trace: 12,035 and 343 tokens a request, 24 blocks, 3.4 requests a second."""
    trace = bench.REAL.trace()
    assert trace.prompt_tokens / len(trace) == pytest.approx(12_035, rel=0.1)
    assert trace.output_tokens / len(trace) == pytest.approx(343, rel=0.1)
    assert len(block_uses(trace).blocks) / len(trace) == pytest.approx(24, rel=0.1)
    assert len(trace) / trace.duration == pytest.approx(3.4, rel=0.1)


def test_every_claim_has_a_row(monkeypatch, tmp_path):
    write_mooncake(SMALL, tmp_path / "small.jsonl")
    monkeypatch.setattr(bench, "CAPACITIES", (1_000, None))
    monkeypatch.setattr(bench, "RESIDENT", (500, 2_000))
    monkeypatch.setattr(bench, "QUEUED", (200, 400))
    monkeypatch.setattr(bench, "beside", lambda resident, count: {500: 10.0, 2_000: 21.0}[resident])
    monkeypatch.setattr(bench, "million_rows", lambda count: iter(()))
    rows = list(bench.rows(True, tmp_path / "small.jsonl"))
    claims = {row.claim.split(",")[0]: row for row in rows}
    assert next(iter(claims)) == "25 requests of small"
    assert claims["Little's law: requests in the system"].holds
    assert claims["hit rate of small"].holds
    assert claims["M/D/1"].unit == "ms"
    assert not rows[-1].holds, "2.1 times as slow is not flat"


def test_short_requests_say_their_seconds_and_their_memory(capsys):
    bench.short_requests(50)
    seconds, gib = map(float, capsys.readouterr().out.split())
    assert seconds > 0
    assert 0 < gib < 64
