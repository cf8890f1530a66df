"""Random workloads with host memory: whatever is swapped, saved, loaded, aborted or failed, the tokens are the same.

``MINIKV_LONG=n`` runs n times as many.
"""

import os
from collections import Counter

import pytest

from minikv.engine import FinishReason, summary
from minikv.engine.core import scheduler as scheduler_module
from minikv.plan.preemption import TransferRates
from tests.engine.drive import Engine
from tests.engine.fake_model import Broken, FakeModel
from tests.engine.test_random import PROFILES, run

LONG = int(os.environ.get("MINIKV_LONG", "1"))
SWAP = TransferRates(to_host=1e9, to_device=1e9, prefill=1.0)
RECOMPUTE = TransferRates(to_host=1.0, to_device=1.0, prefill=1e9)
# A block is 101 bytes or so and holds 4 tokens: sequences that share nothing are swapped, the others recompute.
EITHER = TransferRates(to_host=100.0, to_device=100.0, prefill=2.1)
HOSTS = {"roomy host": 200, "tight host": 6, "one block": 1}


@pytest.mark.parametrize("host", HOSTS)
@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("failing", [False, True])
def test_outputs_are_those_of_one_request_at_a_time(profile, failing, host):
    reasons, events, how = Counter(), Counter(), Counter()
    for seed in range(2 * LONG):
        engine = run(profile, seed, failing, host_blocks=HOSTS[host], rates=SWAP)
        reasons += engine.check_outputs()
        events += Counter(event.kind for event in engine.log.events)
        how += Counter(event.how for event in engine.log.of("preempt"))
    assert reasons[FinishReason.LENGTH]
    assert bool(reasons[FinishReason.ERROR]) == failing
    if profile in ("tight", "large blocks", "two groups") and host == "roomy host":
        assert how["swap"]
        assert events["swap_in"]
        assert events["host_hit"]
        assert failing or not how["recompute"]


@pytest.mark.parametrize("profile", ["tight", "two groups", "large blocks"])
def test_rates_that_change_their_mind(profile):
    """Between two steps somebody has measured again."""
    how = Counter()
    for seed in range(6 * LONG):
        every = [SWAP, RECOMPUTE, None, EITHER]

        def change(engine, every=every):
            every.append(every.pop(0))
            engine.offload.rates = every[0]

        engine = run(profile, seed, failing=seed % 2 == 1, host_blocks=20, rates=SWAP, between=change)
        engine.check_outputs()
        how += Counter(event.how for event in engine.log.of("preempt"))
    assert how["swap"]
    assert how["recompute"]


@pytest.mark.parametrize("profile", ["tight", "two groups"])
def test_without_rates_host_blocks_change_no_event(profile):
    plain, idle = run(profile, 1, failing=True), run(profile, 1, failing=True, host_blocks=50)
    assert plain.log.events == idle.log.events


def test_the_same_steps_and_events_again():
    first, second = (run("tight", 1, True, host_blocks=20, rates=SWAP) for _ in range(2))
    assert first.log.events == second.log.events


@pytest.mark.parametrize("profile", PROFILES)
def test_what_the_events_say_adds_up(profile):
    engine = run(profile, 5, host_blocks=30, rates=SWAP)
    log, groups = engine.log, range(len(engine.manager.pools))
    for way, names in (("swap_out", ("swap_out",)), ("swap_in", ("swap_in", "host_hit"))):
        moved = [0 for _ in groups]
        for step in engine.steps:
            for group, pairs in enumerate(step.work.get(way, ())):
                moved[group] += len(pairs)
        told = [sum(event.blocks[group] for name in names for event in log.of(name)) for group in groups]
        assert moved == told
    for event in log.events:
        if event.kind in ("swap_out", "swap_in", "host_hit"):
            assert event.bytes == sum((100 + group) * event.blocks[group] for group in groups)
    figures = summary(log.events)
    assert figures.swaps == sum(event.how == "swap" for event in log.of("preempt"))
    assert figures.lost_tokens == sum(event.tokens for event in log.of("preempt") if event.how != "swap")


@pytest.mark.parametrize("way", ["swap_out", "swap_in"])
@pytest.mark.parametrize("profile", ["tight", "two groups", "large blocks"])
def test_what_a_failed_step_was_to_transfer_is_never_used(profile, way, monkeypatch):
    """Every other transfer breaks off in the middle. Who was swapped out by that step computes its tokens again."""
    real, broken = FakeModel.forward, []

    def forward(model, step, request_of, fail_at=None):
        if step.work.get(way):
            broken.append(len(broken) % 2 == 0)
            fail_at = "transfer" if broken[-1] else fail_at
        return real(model, step, request_of, fail_at)

    monkeypatch.setattr(FakeModel, "forward", forward)
    for seed in range(6 * LONG):
        run(profile, seed, host_blocks=40, rates=SWAP).check_outputs()
    assert sum(broken) >= 3


@pytest.mark.parametrize("profile", ["tight", "two groups", "large blocks"])
def test_a_step_that_is_never_begun_takes_nothing_along(profile, monkeypatch):
    """The arrays of some steps that transfer cannot be packed: all is as if the step had not been planned."""
    real, planned = scheduler_module.pack, []

    def pack(manager, items, *more, **options):
        if manager.host_blocks.pinned:
            planned.append(len(planned) % 2 == 0)
            if planned[-1]:
                raise Broken("pack")
        return real(manager, items, *more, **options)

    monkeypatch.setattr(scheduler_module, "pack", pack)

    def step(engine, *args, **options):
        try:
            return real_step(engine, *args, **options)
        except Broken:
            assert engine.scheduler.open_step is None
            engine.check()

    real_step = Engine.step
    monkeypatch.setattr(Engine, "step", step)
    for seed in range(6 * LONG):
        run(profile, seed, host_blocks=40, rates=SWAP).check_outputs()
    assert sum(planned) >= 3
