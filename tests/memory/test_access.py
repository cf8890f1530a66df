"""Access patterns: each order reads every element once, and they differ in nothing but the order."""

import weakref

import pytest
import torch

from minikv.errors import ArgumentError
from minikv.memory import access, bandwidth
from minikv.memory.access import PATTERNS, access_patterns, index_order
from minikv.units import KIB, MIB


@pytest.fixture(autouse=True)
def in_a_hurry(monkeypatch):
    """One call each is enough for what is asserted here."""
    monkeypatch.setattr(bandwidth, "SPEND_S", 0.0)


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize(("count", "row"), [(64, 64), (128, 2), (960, 32), (4096, 64)])
def test_every_order_reads_each_element_once(pattern, count, row):
    order = index_order(pattern, count, row=row, seed=count)
    assert order.dtype == torch.int64
    assert torch.equal(order.sort().values, torch.arange(count))


def test_coalesced_is_memory_order():
    assert torch.equal(index_order("coalesced", 640), torch.arange(640))


def test_per_thread_all_threads_step_through_their_own_rows_together():
    threads, row = 37, 16
    order = index_order("per_thread", threads * row, row=row)
    for place, element in enumerate(order.tolist()):
        step, thread = divmod(place, threads)
        assert element == thread * row + step
    # Neighbours in the list are a row apart: no two of a warp's 32 share a line of less than a row.
    assert (order[1:threads] - order[: threads - 1] == row).all()


def test_random_rows_keep_a_row_together_and_shuffle_the_rows():
    order = index_order("random_rows", 50 * 32, row=32, seed=1).view(50, 32)
    assert torch.equal(order - order[:, :1], torch.arange(32).expand(50, 32))
    assert not torch.equal(order[:, 0], torch.arange(0, 50 * 32, 32))


def test_a_seed_gives_one_order_and_another_seed_another():
    for pattern in ("random", "random_rows"):
        first, again, other = (index_order(pattern, 6400, seed=seed) for seed in (3, 3, 4))
        assert torch.equal(first, again)
        assert not torch.equal(first, other)


def test_the_points_differ_in_the_order_alone():
    points = access_patterns("cpu", working_set=64 * KIB, repeats=1)
    assert [one.what for one in points] == list(PATTERNS)
    for one in points:
        assert one.working_set == 64 * KIB
        assert one.bytes_read == 3 * 64 * KIB, "4 bytes of data and 8 of index for each element"
        assert one.bytes_written == 64 * KIB
        assert one.seconds > 0


def test_what_is_timed_is_the_gather_in_that_order(monkeypatch):
    seen = []

    def remember(fn, device, repeats):
        seen.append(fn().clone())
        return 1.0

    monkeypatch.setattr(access, "seconds_of", remember)
    monkeypatch.setattr(access.torch, "ones", lambda count, device: torch.arange(float(count)))
    access_patterns("cpu", working_set=8 * KIB, row_bytes=128)
    for pattern, got in zip(PATTERNS, seen, strict=True):
        assert torch.equal(got, index_order(pattern, 2048, row=32).float())


def test_the_default_set_is_beyond_every_cache(monkeypatch):
    for cache, expected in ((MIB, 64 * MIB), (33 * MIB, 128 * MIB), (600 * MIB, 1024 * MIB)):
        monkeypatch.setattr(access, "cache_sizes", lambda device, cache=cache: (access_cache(cache),))
        assert access._beyond_caches(torch.device("cpu")) == expected
    monkeypatch.setattr(access, "cache_sizes", lambda device: ())
    assert access._beyond_caches(torch.device("cpu")) == 64 * MIB


def access_cache(size):
    from minikv.memory.bandwidth import Cache

    return Cache("L2", size)


def test_bad_patterns_rows_and_sizes_are_refused():
    with pytest.raises(ArgumentError) as refused:
        index_order("zigzag", 64)
    assert refused.value.code == "unknown_choice"
    assert "per_thread" in refused.value.text("zh")
    with pytest.raises(ArgumentError) as refused:
        index_order("coalesced", 100, row=64)
    assert refused.value.code == "access_row"
    for bad in (0, -64, True, 64.0):
        with pytest.raises(ArgumentError):
            index_order("random", bad)
        with pytest.raises(ArgumentError):
            index_order("random", 64, row=bad)
        with pytest.raises(ArgumentError):
            access_patterns("cpu", working_set=bad)
        with pytest.raises(ArgumentError):
            access_patterns("cpu", working_set=64 * KIB, repeats=bad)


def test_nothing_is_allocated_for_a_measurement_that_is_refused(monkeypatch):
    monkeypatch.setattr(access.torch, "ones", lambda *args, **kwargs: pytest.fail("allocated"))
    refusals = (
        ({"patterns": ("coalesced", "zigzag")}, "unknown_choice"),
        ({"working_set": 100, "row_bytes": 64}, "access_row"),
        ({"working_set": 2**55}, "bandwidth_no_room"),
        ({"row_bytes": 3}, "bad_count"),
    )
    for arguments, code in refusals:
        with pytest.raises(ArgumentError) as refused:
            access_patterns("cpu", **({"working_set": 64 * KIB} | arguments))
        assert refused.value.code == code
    with pytest.raises(ArgumentError):
        access_patterns("warehouse")
    for cores in (0, -1, True, 1.0, torch.get_num_threads() + 1):
        with pytest.raises(ArgumentError):
            access_patterns("cpu", working_set=64 * KIB, cores=cores)


def test_as_many_cores_gather_as_were_asked_for(monkeypatch):
    before, seen = torch.get_num_threads(), []
    monkeypatch.setattr(access, "seconds_of", lambda *args: seen.append(torch.get_num_threads()) or 1.0)
    for cores in (1, before, None):
        access_patterns("cpu", patterns=("random",), working_set=8 * KIB, cores=cores)
    assert seen == [1, before, before]
    assert torch.get_num_threads() == before


def test_one_list_of_indices_at_a_time_is_held(monkeypatch):
    lists = []

    def remember(*args, **kwargs):
        assert all(one() is None for one in lists), "the list before takes twice the working set"
        order = index_order(*args, **kwargs)
        lists.append(weakref.ref(order))
        return order

    monkeypatch.setattr(access, "index_order", remember)
    access_patterns("cpu", working_set=8 * KIB, repeats=1)
    assert len(lists) == 2 * len(PATTERNS), "once for the refusals, once for the measurement"


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu_the_points_count_the_same_bytes():
    points = access_patterns("cuda", working_set=MIB, repeats=2)
    assert {(one.bytes_read, one.bytes_written) for one in points} == {(3 * MIB, MIB)}
    order = index_order("random", 4096, device="cuda")
    assert order.is_cuda
    assert torch.equal(order.sort().values.cpu(), torch.arange(4096))
