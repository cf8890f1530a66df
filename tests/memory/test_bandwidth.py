"""Bandwidth: what a point counts is what was read, the sizes that are refused, and who holds which working set.

No test here asserts a speed. What is slow or fast is the benchmark's business.
"""

import pytest
import torch

from minikv.errors import ArgumentError
from minikv.memory import bandwidth
from minikv.memory.bandwidth import (
    BandwidthPoint,
    Cache,
    bandwidth_curve,
    cache_sizes,
    copy_bandwidth,
    levels,
    matmul_rate,
    read_bandwidth,
    repeated,
    seconds_of,
)
from minikv.units import GIB, KIB, MIB

CPU = torch.device("cpu")
SIZES = (4 * KIB, 5000, 16 * KIB, 3 * MIB, 40 * MIB)


def point(working_set: int, gb_s: float = 1.0) -> BandwidthPoint:
    return BandwidthPoint("read", "cpu", working_set, working_set, 0, working_set / gb_s / 1e9)


def test_a_point_counts_every_pass_over_the_working_set():
    for size, measured in zip(SIZES, bandwidth_curve("cpu", sizes=SIZES, repeats=1), strict=True):
        assert measured.working_set == size // 4 * 4
        passes, rest = divmod(measured.bytes_read, measured.working_set)
        assert rest == 0
        assert passes == max(1, 64 * MIB // size)
        assert measured.bytes_written == 0
        assert measured.seconds > 0
        assert measured.gb_s == pytest.approx(measured.bytes_read / measured.seconds / 1e9)
        assert (measured.what, measured.device) == ("read", "cpu")


def test_of_several_rounds_each_size_keeps_its_best(monkeypatch):
    seconds = iter([4.0, 1.0, 2.0, 3.0, 3.0, 2.0])  # three rounds over two sizes
    monkeypatch.setattr(bandwidth, "seconds_of", lambda fn, device, repeats: next(seconds))
    assert [one.seconds for one in bandwidth_curve("cpu", sizes=(4 * KIB, 8 * KIB))] == [2.0, 1.0]


def test_every_pass_reads_the_first_and_the_last_element_of_the_set_and_none_behind_it(monkeypatch):
    results = []
    monkeypatch.setattr(bandwidth, "seconds_of", lambda fn, device, repeats: results.append(fn()) or 1.0)
    for marked in (0, 1023, 2047):
        buffer = torch.ones(4096, dtype=torch.int32)
        buffer[marked], buffer[2048:] = 7, 99
        measured = bandwidth._read(buffer, 2048 * 4, repeats=1)
        assert results[-1].tolist() == [7] * (measured.bytes_read // measured.working_set)


@pytest.mark.parametrize(("num_bytes", "pieces"), [(4096, 1), (4096, 4), (8 * KIB, 3), (8 * KIB, 528)])
def test_a_repeated_view_has_each_element_once_a_pass_and_takes_no_memory(num_bytes, pieces):
    buffer = torch.randperm(3000, generator=torch.Generator().manual_seed(pieces))
    again = repeated(buffer, num_bytes, pieces, passes=5)
    covered = num_bytes // 8 // pieces * pieces
    assert 0 <= num_bytes // 8 - covered < pieces
    for one in range(5):
        assert torch.equal(again[:, one].reshape(-1), buffer[:covered])
    assert again.untyped_storage().data_ptr() == buffer.untyped_storage().data_ptr()


def test_a_copy_writes_as_much_as_it_reads():
    measured = copy_bandwidth(2 * MIB, "cpu", repeats=1)
    assert measured.what == "copy"
    assert (measured.working_set, measured.bytes_read, measured.bytes_written) == (2 * MIB, MIB, MIB)
    assert measured.gb_s == pytest.approx(2 * MIB / measured.seconds / 1e9)


def test_a_matrix_product_counts_two_flops_a_multiplication():
    rate = matmul_rate("cpu", side=24, repeats=2)
    assert (rate.flops, rate.dtype, rate.device) == (2 * 24**3, "float32", "cpu")
    assert rate.tflops == pytest.approx(rate.flops / rate.seconds / 1e12)
    assert matmul_rate("cpu", side=8, dtype=torch.bfloat16, repeats=1).dtype == "bfloat16"


def test_of_several_rounds_of_a_product_the_fastest_counts(monkeypatch):
    threads = torch.get_num_threads()
    seconds = iter([3.0, 1.0, 2.0] if threads == 1 else [3.0, 4.0, 2.0, 5.0, 1.0, 6.0])
    monkeypatch.setattr(bandwidth, "seconds_of", lambda fn, device, repeats: next(seconds))
    rate = matmul_rate("cpu")
    assert next(seconds, None) is None
    assert torch.get_num_threads() == threads
    side = round((rate.flops / 2) ** (1 / 3))
    assert (rate.flops, rate.seconds) == (2 * side**3, 1.0)
    assert side % 128 == 0
    assert side >= 256 * threads**0.5


@pytest.fixture(autouse=True)
def in_a_hurry(monkeypatch):
    """One call each is enough for what is asserted here."""
    monkeypatch.setattr(bandwidth, "SPEND_S", 0.0)


def test_calls_go_on_until_they_have_taken_long_enough(monkeypatch):
    monkeypatch.setattr(bandwidth, "SPEND_S", 10.0)
    calls, now = [], iter([0.0, 4.0, 5.0, 8.0, 9.0, 14.0, 100.0, 101.0])
    monkeypatch.setattr(bandwidth.time, "perf_counter", lambda: next(now))
    assert seconds_of(lambda: calls.append(1), CPU, repeats=1) == 3.0
    assert len(calls) == 1 + 3


def test_the_clock_takes_the_fastest_call_and_leaves_the_first_out(monkeypatch):
    calls, times = [], [0.0, 5.0, 10.0, 11.0, 20.0, 23.0]
    now = iter(times)
    monkeypatch.setattr(bandwidth.time, "perf_counter", lambda: next(now))
    assert seconds_of(lambda: calls.append(1), CPU, repeats=3) == 1.0
    assert len(calls) == 4


def test_a_clock_that_stands_still_gives_no_infinite_bandwidth(monkeypatch):
    monkeypatch.setattr(bandwidth.time, "perf_counter", lambda: 1.0)
    assert seconds_of(lambda: None, CPU, repeats=3) > 0


@pytest.mark.parametrize("size", [0, -1, 4 * KIB - 1, 1.5e6, True, None, "1 MiB"])
def test_a_working_set_that_is_no_size_is_refused(size):
    for measure in (
        read_bandwidth,
        copy_bandwidth,
        lambda size, device: bandwidth_curve(device, sizes=[MIB, size]),
    ):
        with pytest.raises(ArgumentError) as refused:
            measure(size, "cpu")
        assert refused.value.code == "bad_count"
        assert refused.value.values["least"] == 4 * KIB


def test_the_number_of_threads_is_what_was_asked_and_put_back_after_an_error_too(monkeypatch):
    before, seen = torch.get_num_threads(), []

    def look(fn, device, repeats):
        seen.append(torch.get_num_threads())
        if len(seen) > 3:
            raise RuntimeError("broken off")
        return 1.0

    monkeypatch.setattr(bandwidth, "seconds_of", look)
    read_bandwidth(MIB, "cpu", cores=1)
    assert seen == [1, 1, 1]
    assert torch.get_num_threads() == before
    with pytest.raises(RuntimeError):
        read_bandwidth(MIB, "cpu")
    assert seen[-1] == before
    assert torch.get_num_threads() == before
    for cores in (0, -1, before + 1, True, 1.0):
        with pytest.raises(ArgumentError):
            read_bandwidth(MIB, "cpu", cores=cores)
        with pytest.raises(ArgumentError):
            copy_bandwidth(MIB, "cpu", cores=cores)


def test_no_sizes_no_repeats_and_no_such_device_are_refused():
    with pytest.raises(ArgumentError) as refused:
        bandwidth_curve("cpu", sizes=())
    assert refused.value.code == "bad_count"
    for repeats in (0, -3, 2.0, True):
        for measure in (read_bandwidth, copy_bandwidth):
            with pytest.raises(ArgumentError):
                measure(MIB, "cpu", repeats=repeats)
        with pytest.raises(ArgumentError):
            matmul_rate("cpu", repeats=repeats)
    for device in ("meta", "warehouse", 3.5, "cuda:4096"):
        with pytest.raises(ArgumentError) as refused:
            read_bandwidth(MIB, device)
        assert refused.value.code == "arena_device"
        with pytest.raises(ArgumentError):
            cache_sizes(device)
    with pytest.raises(ArgumentError):
        matmul_rate("cpu", side=0)


def test_more_than_there_is_is_refused_before_anything_is_allocated(monkeypatch):
    def never(*args, **kwargs):
        raise AssertionError("allocated")

    monkeypatch.setattr(bandwidth.torch, "ones", never)
    for measure in (read_bandwidth, copy_bandwidth):
        with pytest.raises(ArgumentError) as refused:
            measure(2**55, "cpu")
        assert refused.value.code == "bandwidth_no_room"
        assert "cpu" in refused.value.text("zh")
    with pytest.raises(ArgumentError):
        matmul_rate("cpu", side=2**24)


def test_a_point_belongs_to_the_smallest_cache_that_holds_it():
    caches = (Cache("L1", 48 * KIB), Cache("L2", MIB), Cache("L3", 32 * MIB))
    points = [point(size) for size in (32 * KIB, 48 * KIB, 48 * KIB + 1, MIB, 33 * MIB, GIB)]
    held = {level.name: [one.working_set for one in level.points] for level in levels(points, caches)}
    assert held == {
        "L1": [32 * KIB, 48 * KIB],
        "L2": [48 * KIB + 1, MIB],
        "memory": [33 * MIB, GIB],  # nothing was measured in L3, so there is no such level
    }


def test_without_known_caches_everything_is_memory_and_a_level_is_its_median():
    points = [point(MIB, gb_s) for gb_s in (10, 100, 30)]
    (level,) = levels(points, ())
    assert level.name == "memory"
    assert level.points == tuple(points)
    assert level.gb_s == pytest.approx(30)
    assert levels([], ()) == ()


def test_linux_says_its_caches_in_files(tmp_path):
    told = [
        ("1", "Data", "48K"),
        ("1", "Instruction", "32K"),
        ("3", "Unified", "32768K"),
        ("2", "Unified", "1M"),
    ]
    for number, values in enumerate(told):
        entry = tmp_path / f"index{number}"
        entry.mkdir()
        for name, value in zip(("level", "type", "size"), values, strict=True):
            (entry / name).write_text(value + "\n")
    (tmp_path / "index7").mkdir()  # a folder without figures, as some virtual machines have it
    (tmp_path / "index8").mkdir()
    for name, value in (("level", "4"), ("type", "Unified"), ("size", "?")):
        (tmp_path / "index8" / name).write_text(value)
    assert bandwidth._cpu_caches(tmp_path) == (Cache("L1", 48 * KIB), Cache("L2", MIB), Cache("L3", 32 * MIB))
    assert bandwidth._cpu_caches(tmp_path / "nowhere") == ()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu_the_same_code_counts_the_same_bytes():
    before = torch.cuda.memory_allocated()
    (cache,) = cache_sizes("cuda")
    assert cache.size > 0
    sizes = (16 * KIB, MIB, 256 * MIB)
    for size, measured in zip(sizes, bandwidth_curve("cuda", sizes=sizes), strict=True):
        assert size * 0.99 < measured.working_set <= size
        assert measured.bytes_read % measured.working_set == 0
        assert measured.device == "cuda:0"
    assert copy_bandwidth(64 * MIB, "cuda").bytes_written == 32 * MIB
    assert matmul_rate("cuda", side=1024).flops == 2 * 1024**3
    assert torch.cuda.memory_allocated() == before
