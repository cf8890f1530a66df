"""A gauge sees what is taken now, and a peak that is over already."""

import sys

import psutil
import pytest
import torch

from minikv.errors import ArgumentError
from minikv.memory.gauge import ResidentGauge, gauge

MIB = 2**20


def test_a_cpu_s_gauge_reads_the_resident_set():
    found = gauge("cpu")
    assert found.name == "rss"
    assert found.now() == pytest.approx(psutil.Process().memory_info().rss, abs=8 * MIB)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux sets a peak back")
def test_the_peak_of_what_is_over_is_seen_until_the_reset():
    found = gauge("cpu")
    found.reset()
    if found.peak() is None:
        pytest.skip("this container does not set a peak back")
    before = found.now()
    torch.ones(128 * MIB, dtype=torch.uint8)
    assert found.peak() - before >= 120 * MIB
    assert found.now() - before <= 16 * MIB
    found.reset()
    assert found.peak() - before <= 16 * MIB


def test_where_a_peak_cannot_be_set_back_there_is_none(tmp_path):
    found = ResidentGauge(clear=tmp_path / "no" / "such" / "file")
    found.reset()
    assert found.peak() is None
    assert found.now() > 0


def test_other_devices_are_refused():
    with pytest.raises(ArgumentError, match="moon"):
        gauge("moon")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_s_gauge_reads_torch_s_own_count():
    found = gauge("cuda")
    found.reset()
    before = found.now()
    kept = torch.ones(8 * MIB, dtype=torch.uint8, device="cuda")
    torch.ones(32 * MIB, dtype=torch.uint8, device="cuda")
    assert found.now() - before == kept.nbytes
    assert found.peak() - before == 40 * MIB
    found.reset()
    assert found.peak() - before == 8 * MIB
