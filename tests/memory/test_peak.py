"""measure_peak: what was alive at once, to the byte."""

import pytest
import torch

from minikv.errors import ArgumentError
from minikv.memory import PeakReport, measure_peak

KIB, MIB = 2**10, 2**20


def work(device):
    """4 MiB and 2 MiB together, then 1 MiB alone: the peak is 6 MiB and nothing stays."""

    def run():
        first = torch.empty(4 * MIB, dtype=torch.uint8, device=device)
        second = torch.empty(2 * MIB, dtype=torch.uint8, device=device)
        del first, second
        return torch.empty(MIB, dtype=torch.uint8, device=device)

    return run


def test_the_peak_of_a_cpu_is_exact():
    found = measure_peak(work("cpu"), "cpu")
    assert found == PeakReport("cpu", before=0, peak=6 * MIB, after=0)
    assert (found.extra, found.kept) == (6 * MIB, 0)


def test_what_the_function_keeps_is_told():
    kept = []
    found = measure_peak(lambda: kept.append(torch.empty(KIB)), "cpu")
    assert (found.extra, found.kept) == (4 * KIB, 4 * KIB)


def test_temporaries_inside_an_operation_are_seen():
    """The copy has no name in Python."""
    x = torch.rand(64, 64).t()
    assert measure_peak(lambda: x.contiguous().neg(), "cpu").extra == 2 * x.nbytes


def test_no_work_needs_nothing():
    assert measure_peak(lambda: None, "cpu") == PeakReport("cpu", 0, 0, 0)


def test_what_the_work_raises_goes_on_and_the_next_measurement_works():
    def fails():
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        measure_peak(fails, "cpu")
    assert measure_peak(work("cpu"), "cpu").extra == 6 * MIB


def test_a_profile_that_runs_is_not_spoilt():
    with torch.autograd.profiler.profile(use_kineto=True) as outer:
        with pytest.raises(ArgumentError) as caught:
            measure_peak(work("cpu"), "cpu")
        torch.ones(3)
    assert caught.value.code == "peak_profiler_on"
    assert any(event.name == "aten::ones" for event in outer.function_events)


def test_what_is_no_function_is_refused():
    with pytest.raises(ArgumentError) as caught:
        measure_peak(torch.empty(3), "cpu")
    assert caught.value.code == "peak_not_callable"


@pytest.mark.parametrize("device", ["cpu", "cuda:0"])
def test_the_words_have_every_number(device):
    report = PeakReport(device, before=10_000_000, peak=16_000_001, after=10_000_512)
    for lang in ("en", "zh"):
        said = report.text(lang)
        for number in ("6,000,001 B", "512 B", "10,000,000", "16,000,001", "10,000,512"):
            assert number in said


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_the_peak_of_a_gpu_is_exact():
    held = torch.empty(MIB, dtype=torch.uint8, device="cuda")
    start = torch.cuda.memory_allocated()
    found = measure_peak(work("cuda"))
    assert (found.before, found.after) == (start, start)
    assert found.extra == 6 * MIB
    del held
