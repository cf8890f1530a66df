"""MemoryStats: the same figures on a CPU and on CUDA, right where they can be checked, and honest where unknown."""

import os
import sys
from types import SimpleNamespace

import psutil
import pytest
import torch

from minikv.errors import ArgumentError
from minikv.memory import MemoryStats, nvml, stats
from minikv.memory.stats import FIGURES

MIB = 2**20
CUDA = MemoryStats(
    device="cuda:0", total=80 * 2**30, free=50 * 2**30, allocated=20 * 2**30, reserved=24 * 2**30,
    peak=23 * 2**30, inactive_split=MIB, others=3 * 2**30,
)  # fmt: skip


def test_the_terms_of_a_gpu_add_up():
    assert CUDA.used == 30 * 2**30
    assert CUDA.non_torch == 6 * 2**30
    assert CUDA.free + CUDA.non_torch + CUDA.reserved == CUDA.total


def test_a_cpu_is_read_as_psutil_and_the_kernel_see_it():
    found = MemoryStats.read()
    assert found.kind == found.device == "cpu"
    assert found.total == psutil.virtual_memory().total
    assert 0 < found.free < found.total
    assert found.used + found.free == found.total
    assert 0 < found.allocated <= found.reserved
    assert found.non_torch == found.used - found.allocated
    assert found.inactive_split is found.others is found.nvml is None
    if sys.platform == "linux":
        assert found.peak >= found.allocated - MIB  # the kernel counts RSS per thread and sums it up late


def test_address_space_is_taken_at_once_and_pages_at_the_first_touch():
    size = 256 * MIB
    start = MemoryStats.read()
    whole = torch.empty(size, dtype=torch.uint8)
    empty = MemoryStats.read()
    whole.fill_(1)
    touched = MemoryStats.read()
    assert empty.reserved - start.reserved >= size
    assert empty.allocated - start.allocated < size / 8
    assert touched.allocated - empty.allocated > 7 * size / 8
    if sys.platform == "linux":
        assert touched.peak >= start.allocated + 7 * size / 8


@pytest.mark.parametrize("lang", ["en", "zh"])
@pytest.mark.parametrize("one", [CUDA, MemoryStats.read()], ids=["cuda", "cpu"])
def test_the_table_has_every_figure_exactly_with_a_meaning(one, lang):
    lines = one.text(lang).splitlines()
    assert one.device in lines[0]
    for name, line in zip(FIGURES, lines[2:], strict=True):
        field, _, number, meaning = line.split(None, 3)
        assert field == name
        value = getattr(one, name)
        assert number == ("-" if value is None else f"{value:,}")
        assert len(meaning) > 5
    assert one.text("en") != one.text("zh")


def test_json_has_the_same_figures():
    assert CUDA.as_dict() == {"device": "cuda:0", "nvml": None} | {n: getattr(CUDA, n) for n in FIGURES}


@pytest.mark.parametrize("device", ["mps", "mps:0"])
def test_apples_gpu_is_refused_by_name_with_the_way_out(device):
    with pytest.raises(ArgumentError) as caught:
        MemoryStats.read(device)
    assert caught.value.code == "device_mps"
    for lang in ("en", "zh"):
        assert all(word in caught.value.text(lang) for word in ("Apple", "float64", 'device="cpu"'))


@pytest.mark.parametrize("device", ["meta", "nonsense", "cuda:99", 7.5, None])
def test_other_devices_are_refused(device):
    with pytest.raises(ArgumentError) as caught:
        MemoryStats.read(device)
    assert caught.value.code == "arena_device"
    assert caught.value.text("zh") != caught.value.text("en")


def test_a_system_without_a_peak_says_none(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "platform", "freebsd")
    assert stats._peak_rss(None, tmp_path / "absent") is None
    (tmp_path / "status").write_text("Name:\tpython\nVmHWM:\t  123 kB\n")
    assert stats._peak_rss(None, tmp_path / "status") == 123 * 1024


# NVML: a false pynvml with the calls that are made of it.


def false_nvml(monkeypatch, compute, graphics=(), **replaced):
    def listed(processes):
        return lambda handle: [SimpleNamespace(pid=pid, usedGpuMemory=used) for pid, used in processes]

    asked, closed = [], []
    calls = {
        "nvmlInit": lambda: None,
        "nvmlShutdown": lambda: closed.append(True),
        "nvmlDeviceGetHandleByUUID": asked.append,
        "nvmlDeviceGetComputeRunningProcesses": listed(compute),
        "nvmlDeviceGetGraphicsRunningProcesses": listed(graphics),
    }
    monkeypatch.setitem(sys.modules, "pynvml", SimpleNamespace(**(calls | replaced)))
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: SimpleNamespace(uuid=f"u{index}"))
    return asked, closed


def test_other_processes_are_counted_once_and_this_one_not(monkeypatch):
    asked, closed = false_nvml(
        monkeypatch, [(os.getpid(), 5 * MIB), (1, 7 * MIB), (2, 11 * MIB)], graphics=[(2, 11 * MIB), (3, MIB)]
    )
    assert nvml.other_processes(4) == (19 * MIB, None)
    assert (asked, closed) == (["GPU-u4"], [True])


def test_alone_on_the_gpu_is_zero_and_not_unknown(monkeypatch):
    false_nvml(monkeypatch, [(os.getpid(), 5 * MIB)])
    assert nvml.other_processes(0) == (0, None)


@pytest.mark.parametrize(
    "processes",
    [[], [(os.getpid() + 1, MIB)], [(os.getpid(), MIB), (1, None)]],
    ids=["none", "hidden", "wddm"],
)
def test_what_nvml_cannot_tell_is_unknown(monkeypatch, processes):
    false_nvml(monkeypatch, processes)
    others, reason = nvml.other_processes(0)
    assert others is None
    assert reason


@pytest.mark.parametrize("call", ["nvmlInit", "nvmlDeviceGetHandleByUUID"])
def test_an_nvml_that_fails_is_said_and_tolerated(monkeypatch, call):
    def fails(*_):
        raise RuntimeError("Driver/library version mismatch\nand more")

    _, closed = false_nvml(monkeypatch, [(os.getpid(), MIB)], **{call: fails})
    assert nvml.other_processes(0) == (None, "RuntimeError: Driver/library version mismatch")
    assert closed == ([] if call == "nvmlInit" else [True])


def test_without_pynvml_a_gpu_is_still_read(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)  # an import of it fails now
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda index: (3 * MIB, 10 * MIB))
    counts = {"allocated_bytes.all.current": 2 * MIB, "reserved_bytes.all.current": 4 * MIB,
              "allocated_bytes.all.peak": 3 * MIB, "inactive_split_bytes.all.current": 512}  # fmt: skip
    monkeypatch.setattr(torch.cuda, "memory_stats", lambda index: counts)
    found = MemoryStats.read("cuda")
    assert (found.device, found.used, found.non_torch) == ("cuda:0", 7 * MIB, 3 * MIB)
    assert (found.allocated, found.reserved, found.peak) == (2 * MIB, 4 * MIB, 3 * MIB)
    assert found.others is None
    for lang in ("en", "zh"):
        assert found.nvml in found.text(lang)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_counts_a_tensor_to_the_byte():
    start = MemoryStats.read("cuda")
    held = torch.empty(3 * MIB + 1, dtype=torch.uint8, device="cuda")
    now = MemoryStats.read("cuda")
    assert now.allocated - start.allocated == 3 * MIB + 512
    assert now.allocated + now.inactive_split <= now.reserved <= now.used
    assert now.peak >= now.allocated
    assert now.total == torch.cuda.mem_get_info()[1]
    del held
    assert MemoryStats.read("cuda").allocated == start.allocated
