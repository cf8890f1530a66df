"""Drafts in the scheduler: right, wrong and mixed ones change no token, cost nobody a block, and leave nothing behind.

``MINIKV_LONG=n`` runs n times as many.
"""

import os
import random
from collections import Counter

import pytest

from minikv.blocks import BlockManager
from minikv.engine import FinishReason, SamplingParams, Scheduler, summary
from minikv.engine.core.rules import peak_blocks
from minikv.engine.ext.drafts import Drafts
from minikv.errors import ArgumentError
from tests.engine.drive import Engine
from tests.engine.fake_model import generate
from tests.engine.test_random import PROFILES, workload

LONG = int(os.environ.get("MINIKV_LONG", "1"))
MOST = 5


class Oracle:
    """Draft tokens that are right, each with the probability ``truth``; the others are wrong for sure."""

    def __init__(self, engine, truth, seed=0):
        self.engine, self.truth, self.random = engine, truth, random.Random(seed)
        self.due = {}

    def __call__(self, seq, most):
        request = self.engine.requests[seq.id.request]
        if seq.id not in self.due:
            windows = self.engine.model.windows
            # Stop tokens are not looked at, so that there is always a next token.
            params = SamplingParams(max_tokens=seq.params.max_tokens, seed=seq.params.seed)
            self.due[seq.id] = generate(request.prompt, params, request.salt, seq.id.sample, windows)
        due = self.due[seq.id]
        assert seq.output == due[: seq.num_output]
        tokens = due[seq.num_output : seq.num_output + self.random.randint(most // 2, most)]
        return [token if self.random.random() < self.truth else token + 1 for token in tokens]


def engine_of(profile, truth, seed=0, most=MOST):
    groups, size, seqs, budget = PROFILES[profile]
    engine = Engine(groups, size, max_num_seqs=seqs, max_batched_tokens=budget, prompt_lookup=most)
    engine.drafts.draft_tokens = Oracle(engine, truth, seed)
    return engine


def check_spare(engine, step):
    """Where drafts took blocks, the next token of everybody who runs still has one."""
    manager, size = engine.manager, engine.manager.block_size
    running = [engine.scheduler.sequence(seq_id) for seq_id in engine.scheduler.running]
    drafts = {item.id: item.unconfirmed for item in step.items}
    for group, pool in enumerate(manager.pools):
        tables = {seq.id: len(manager.block_table(seq.id, group)) for seq in running}
        took = sum(
            columns - -(-len(seq.tokens) // size)
            for seq in running
            if drafts.get(seq.id) and (columns := tables[seq.id])
        )
        window = manager.kv_cache_groups[group].window
        if took and window is None:
            missing = (-(-(len(seq.tokens) + 1) // size) - tables[seq.id] for seq in running)
            assert sum(max(0, each) for each in missing) <= pool.num_free, "a draft took somebody's block"


def run(profile, truth, seed, failing=False):
    """A random load: (engine, steps with drafts)."""
    engine, draw = engine_of(profile, truth, seed), random.Random(f"{profile} {seed}")
    groups, size, _, _ = PROFILES[profile]

    def inside():
        check_spare(engine, engine.scheduler.open_step)
        if draw.random() < 0.05:
            engine.scheduler.abort(draw.choice(list(engine.requests)))

    def step():
        broken = failing and draw.random() < 0.1
        engine.step(draw.choice(["copy", "store", "forward", "sample"]) if broken else None, inside)

    for number, (wait, prompt, params, salt) in enumerate(workload(draw, 20)):
        for _ in range(wait):
            if engine.scheduler.has_work:
                step()
        stored = len(prompt) + params.max_tokens - 1
        if all(peak_blocks(stored, window, size) <= blocks for blocks, window in groups):
            engine.add(number, prompt, params, salt)
    for _ in range(5000):
        if not engine.scheduler.has_work:
            break
        step()
    assert not engine.scheduler.has_work, "a livelock"
    engine.check_empty()
    return engine


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("truth", [0, 0.6, 1])
def test_outputs_are_those_of_one_request_at_a_time(profile, truth):
    reasons, events, drafted, accepted = Counter(), Counter(), 0, 0
    for seed in range(3 * LONG):
        engine = run(profile, truth, seed, failing=seed % 3 == 2)
        reasons += engine.check_outputs()
        events += Counter(event.kind for event in engine.log.events)
        metrics = summary(engine.log.events)
        drafted, accepted = drafted + metrics.drafted_tokens, accepted + metrics.accepted_tokens
        told = [seq for request in engine.requests.values() for seq in request.sequences]
        assert sum(seq.figures.get("num_accepted", 0) for seq in told) == metrics.accepted_tokens
        rolled_back = sum(event.tokens for event in engine.log.of("rollback"))
        failed = sum(step.drafted for step in engine.log.of("step") if step.failed)
        assert rolled_back == metrics.drafted_tokens - failed - metrics.accepted_tokens
    assert reasons[FinishReason.LENGTH]
    assert drafted > (9 if profile == "tiny chunks" else 99)
    assert bool(accepted) == bool(truth)
    assert events["preempt"] or profile not in ("tight", "two groups"), "the pool was meant to be too small"


@pytest.mark.parametrize("profile", ["roomy", "two groups", "windows only", "block of one"])
def test_wrong_drafts_leave_every_step_as_it_was(profile):
    """Prompts have nothing in common; up to the first preemption (after it an own block may be found, or not)."""
    steps = {}
    for most in (0, MOST):
        engine, draw = engine_of(profile, 0, most=most), random.Random(3)
        for number in range(8):
            prompt = [100 * number + place for place in range(draw.randint(1, 15))]
            engine.add(number, prompt, SamplingParams(max_tokens=draw.randint(2, 15)))
        engine.run()
        engine.check_outputs()
        end = next((at for at, step in enumerate(engine.steps) if step.preempted), len(engine.steps))
        assert bool(sum(sum(item.unconfirmed for item in step.items) for step in engine.steps)) == bool(most)
        steps[most] = [
            (
                [
                    (item.id, item.start, item.tokens[: len(item.tokens) - item.unconfirmed])
                    for item in step.items
                ]
            )
            for step in engine.steps[: end + 1]
        ]
    assert steps[0] == steps[MOST]
    assert len(steps[0]) > 5


def test_right_drafts_save_steps_and_no_more_than_they_are():
    for most, due in ((0, 13), (1, 7), (3, 4), (20, 2)):
        engine = Engine([(40, None)], 4, prompt_lookup=most)
        engine.drafts.draft_tokens = lambda seq, most, engine=engine: truth(engine, seq, most)
        engine.add("a", [1, 2, 3], SamplingParams(max_tokens=13))
        engine.run()
        engine.check_outputs()
        assert len(engine.steps) == due
        metrics = summary(engine.log.events)
        assert metrics.acceptance == (1.0 if most else None)
        assert metrics.generated_tokens == 13
        assert metrics.computed_tokens == 3 + 12, "whatever was right is computed once"


def truth(engine, seq, most):
    request = engine.requests[seq.id.request]
    due = generate(request.prompt, request.params, request.salt, seq.id.sample, engine.model.windows)
    return due[seq.num_output : seq.num_output + most]


def test_a_refused_draft_is_never_found_as_a_prefix():
    for groups in ([(60, None)], [(60, None), (60, 5)]):
        engine, refused = Engine(groups, 2, max_num_seqs=4, prompt_lookup=MOST), []

        def wrong_at_the_end(seq, most, engine=engine, refused=refused):
            drafts = truth(engine, seq, most)
            drafts = [*drafts[: len(drafts) // 2], *(token + 1 for token in drafts[len(drafts) // 2 :])]
            refused.append((seq.salt, seq.tokens + drafts, len(seq.tokens) + len(drafts) // 2))
            return drafts

        engine.drafts.draft_tokens = wrong_at_the_end
        for number in range(6):
            engine.add(number, [number, 1, 2, 3], SamplingParams(max_tokens=20), salt=str(number % 2))
        while engine.scheduler.has_work:
            engine.step()
            for salt, tokens, right in refused:
                assert engine.manager.match([*tokens, 0], salt).num_tokens <= right
        engine.check_outputs()
        longest = max(engine.manager.match([*tokens, 0], salt).num_tokens for salt, tokens, _ in refused)
        assert longest > 8, "what was right can be found"


def test_a_draft_ends_before_a_stop_token():
    engine = Engine([(40, None)], 4, prompt_lookup=MOST)
    due = generate((1, 2), SamplingParams(max_tokens=12), "", 0, [None])
    stop = due[4]
    assert stop not in due[:4]
    engine.drafts.draft_tokens = lambda seq, most: due[seq.num_output :][:most]
    request = engine.add("a", [1, 2], SamplingParams(max_tokens=12, stop_token_ids=[stop]))
    engine.run()
    assert request.sequences[0].output == due[:5]
    assert [sum(item.unconfirmed for item in step.items) for step in engine.steps] == [0, 3]


def test_drafts_take_the_budget_that_prefills_leave():
    engine = Engine([(90, None)], 4, max_num_seqs=4, max_batched_tokens=8, prompt_lookup=MOST)
    engine.drafts.draft_tokens = lambda seq, most: [1] * most
    engine.add("a", [1, 2, 3], SamplingParams(max_tokens=30))
    engine.step()
    engine.add("b", list(range(19)), SamplingParams(max_tokens=30))
    engine.run()
    counts = [[(len(item.tokens), item.unconfirmed) for item in step.items] for step in engine.steps[:6]]
    assert counts[1:4] == [[(1, 0), (7, 0)], [(1, 0), (7, 0)], [(3, 2), (5, 0)]]
    assert counts[4] == [(6, 5), (2, 1)], "the oldest first"


def test_an_abort_in_the_step_gives_the_blocks_of_drafts_back():
    engine = Engine([(40, None), (40, 5)], 2, prompt_lookup=MOST)
    engine.drafts.draft_tokens = lambda seq, most: truth(engine, seq, most)
    engine.add("a", [1, 2, 3], SamplingParams(max_tokens=30))
    engine.step()
    engine.step(inside=lambda: engine.scheduler.abort("a"))
    engine.check_empty()


@pytest.mark.parametrize(
    "wrong", [[[1, 2, 1, 9]], [[]], [[2, True]], [[2, 1.0]], [[1, 9]], [[2, 9], [1]], [2, 1]]
)
def test_what_cannot_have_been_accepted_is_refused(wrong):
    scheduler = Scheduler(BlockManager(8, 4), extensions=[Drafts(2)])
    request = scheduler.add("a", [1, 2, 1, 2], SamplingParams(max_tokens=9))
    name = request.sequences[0].id
    scheduler.finish(scheduler.schedule(), [1])
    step = scheduler.schedule()
    assert [(item.tokens, item.unconfirmed) for item in step.items] == [((1, 2, 1), 2)]
    with pytest.raises(ArgumentError) as error:
        scheduler.finish(step, wrong)
    assert error.value.text("zh") != error.value.text("en")
    assert scheduler.open_step is step
    scheduler.finish(step, [[2, 9]])
    assert request.sequences[0].output == [1, 2, 9]
    assert scheduler.manager.num_tokens(name) == 6, "the newest token has no K and V yet"


def test_a_finish_that_names_no_drafts_accepts_none():
    scheduler = Scheduler(BlockManager(8, 4), extensions=[Drafts(2)])
    request = scheduler.add("a", [1, 2, 1, 2], SamplingParams(max_tokens=9))
    scheduler.finish(scheduler.schedule(), [1])
    scheduler.finish(scheduler.schedule(), [2])
    assert request.sequences[0].output == [1, 2]
    scheduler.manager.check_invariants()


@pytest.mark.parametrize("value", [-1, 1.5, None, True])
def test_prompt_lookup_is_a_count(value):
    with pytest.raises(ArgumentError):
        Drafts(value)
