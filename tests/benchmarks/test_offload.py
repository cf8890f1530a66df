"""The benchmark of host memory at a tiny size: every run is made, and its rows follow from what was measured."""

from dataclasses import replace

import pytest
import torch

from benchmarks import offload
from benchmarks.engine_cases import ModelShape, random_model

SIZE = offload.Size(ModelShape("tiny", 2, 32, 48, 4, 2, 8, 64), 6, 16, 32, 24, 3, 1, 128)


@pytest.fixture(scope="module")
def model():
    return random_model(SIZE.shape, torch.device("cpu"), torch.float32)


@pytest.fixture(scope="module")
def runs(model):
    return {name: offload.run(model, SIZE.load(), SIZE, rates) for name, rates in offload.RATES.items()}


def test_rows_say_what_was_measured(model, runs, monkeypatch):
    assert set(runs["swap"].how) == {"swap"}
    assert set(runs["recompute"].how) == {"recompute"}
    assert runs["swap"].moved_bytes > 0
    assert runs["recompute"].moved_bytes == 0
    assert runs["recompute"].computed > runs["swap"].computed
    touched = {place for one in runs.values() for place, step in enumerate(one.steps) if step[2]}
    differ = {
        place
        for place, steps in enumerate(zip(*(one.steps for one in runs.values()), strict=True))
        if len({step[1] for step in steps}) > 1
    }
    assert touched

    def told(**seconds):
        """The rows, if every step of a way took so long."""
        given = {
            rates: replace(runs[name], steps=tuple((seconds[name], *step[1:]) for step in runs[name].steps))
            for name, rates in offload.RATES.items()
        }
        monkeypatch.setattr(offload, "run", lambda model, load, size, rates: given[rates])
        return list(offload.preemption_rows(model, SIZE))

    costs = runs["decided"].costs
    swaps = sorted(cost[0] for cost in costs) < sorted(cost[1] for cost in costs)
    fast, slow = ("swap", "recompute") if swaps else ("recompute", "swap")
    good = told(**{fast: 1.0, slow: 2.0, "decided": 1.05})
    assert [row.holds for row in good] == [True, True, True]
    assert min(good[1].ours, good[1].peer) == len(touched | differ)
    bad = told(**{fast: 2.0, slow: 1.0, "decided": 1.2})
    assert [row.holds for row in bad] == [True, False, False]


def test_prefixes_from_the_host(model):
    row = offload.prefix_row(model, SIZE)
    assert row.details["from the host"] > 0.5


def test_transfers_are_measured_each_way_and_beside_a_step():
    """On a CPU a transfer is a copy, so the figures say nothing there; but every block moves, and comes back."""
    found = offload.measure_transfers(SIZE.shape, torch.device("cpu"), num_bytes=2**18, side=32)
    assert 0 < found.nbytes <= 2**18
    assert min(found.out, found.back, found.pinned_out, found.pinned_back, found.step, found.both) > 0


@pytest.mark.parametrize(("both", "hidden"), [(8.0, 1.0), (11.0, 0.0), (9.5, 0.5)])
def test_what_is_hidden_is_the_time_that_two_save_at_once(both, hidden):
    found = offload.Transfers(8 * 10**9, 2.0, 3.0, 1.9, 1.0, 8.0, both)
    assert found.hidden == hidden
    out, back, behind = offload.transfer_rows("x", found)
    assert (out.ours, out.holds) == (4.0, True)
    assert (back.peer, back.holds) == (8.0, False)
    assert (behind.ours, behind.holds) == (hidden, hidden >= offload.HIDDEN)


def test_only_a_gpu_measures_transfers(monkeypatch):
    monkeypatch.setattr(offload, "random_model", lambda *given: None)
    for kind, first in (("cpu", "preemption"), ("cuda", "transfers")):
        assert next(iter(offload.rows(SIZE, torch.device(kind)))).name == first
