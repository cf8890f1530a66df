"""What a scheduler promises, one promise a test; several are mistakes that other engines have made."""

import subprocess
import sys

import pytest

from minikv.blocks import BlockManager, KVCacheGroup
from minikv.engine import (
    EventLog,
    Events,
    Extension,
    FinishReason,
    Rules,
    SamplingParams,
    Scheduler,
    SequenceStatus,
)
from minikv.engine.core.rules import held_blocks, peak_blocks
from minikv.errors import ArgumentError, RequestTooLargeError
from tests.blocks.snapshot import snapshot
from tests.engine.drive import Engine


def refused(call, kind=ArgumentError):
    with pytest.raises(kind) as error:
        call()
    assert error.value.text("en") != error.value.text("zh")
    return error.value


# Progress and fairness


@pytest.mark.parametrize("size", [1, 3, 16])
@pytest.mark.parametrize("above", [0, 1])
def test_the_smallest_pool_makes_progress_with_many_requests(size, above):
    """Each request needs the whole pool, or all but one block of it: they preempt each other, but all of them end."""
    tokens = 5 * size
    engine = Engine([(5 + above, None)], size, max_num_seqs=8, max_batched_tokens=max(8, size))
    for number in range(8):
        engine.add(number, [number + 1] * (2 * size), SamplingParams(max_tokens=tokens - 2 * size + 1))
    engine.run(most=8 * tokens)
    assert engine.check_outputs() == {FinishReason.LENGTH: 8}


def test_every_step_computes_something_and_the_oldest_is_never_preempted():
    engine = Engine([(7, None)], 2, max_num_seqs=6, max_batched_tokens=6)
    for number in range(12):
        engine.add(number, [number, 1, 2], SamplingParams(max_tokens=9, n=1 + number % 3))
    preempted = 0
    while engine.scheduler.has_work:
        oldest = min(seq.order for r in engine.requests.values() for seq in r.sequences if not seq.ended)
        engine.step()
        step = engine.steps[-1]
        preempted += len(step.preempted)
        assert all((seq_id.request, seq_id.sample) > oldest for seq_id in step.preempted)
        assert (step.items[0].id.request, step.items[0].id.sample) == oldest
    assert preempted
    engine.check_outputs()


def test_a_large_request_is_not_passed_by_an_endless_stream_of_small_ones():
    """It gets in as soon as those before it have ended, though small ones would fit all the time."""
    engine = Engine([(8, None)], 4, max_num_seqs=8, max_batched_tokens=16)
    for number in range(4):
        engine.add(number, [number, 2], SamplingParams(max_tokens=6))
    engine.step()
    large = engine.add("large", list(range(28)), SamplingParams(max_tokens=4))
    for number in range(100, 108):
        engine.add(number, [number % 50], SamplingParams(max_tokens=6))
        engine.step()
        waits = large.sequences[0].num_computed == 0
        later = [r for r in engine.requests.values() if isinstance(r.id, int) and r.id >= 100]
        assert not waits or all(seq.admitted_at is None for r in later for seq in r.sequences)
    assert large.sequences[0].admitted_at is not None, (
        "its wait is bounded by the six tokens of the four before it"
    )
    engine.run()
    engine.check_outputs()


def test_a_long_prefill_does_not_stop_the_decodes():
    engine = Engine([(64, None)], 4, max_num_seqs=4, max_batched_tokens=8)
    engine.add("short", [1, 2], SamplingParams(max_tokens=20))
    engine.step()
    engine.add("long", list(range(40)), SamplingParams(max_tokens=2))
    for _ in range(6):
        engine.step()
        by_id = {item.id.request: item for item in engine.steps[-1].items}
        assert by_id["short"].decode
        assert not by_id["long"].decode
        assert engine.steps[-1].num_tokens <= 8
    assert by_id["long"].samples, "39 tokens at 7 a step"


def test_a_preempted_prefill_leaves_the_younger_decodes_their_token():
    engine = Engine([(32, None)], 4, max_num_seqs=4, max_batched_tokens=5)
    long = list(range(10, 18))
    for name, prompt, most in (
        ("old", [1], 76),
        ("brief", [5, 6], 36),
        ("long", long, 30),
        ("young", [2] * 32, 30),
    ):
        engine.add(name, prompt, SamplingParams(max_tokens=most))
    while not engine.log.of("preempt"):
        engine.step()
    pool = engine.manager.pools[0]
    pool.free(pool.allocate(pool.num_free))  # what it had cached is overwritten
    while "long" not in {item.id.request for item in engine.steps[-1].items}:  # "brief" makes room for it
        engine.step()
    for _ in range(7):
        computed = {item.id.request: item.decode for item in engine.steps[-1].items}
        assert computed == {"old": True, "young": True, "long": False}
        assert engine.steps[-1].num_tokens == 5
        engine.step()
    assert [event.request for event in engine.log.of("preempt")] == ["long"]
    engine.run()
    engine.check_outputs()


def test_a_request_is_admitted_when_all_that_it_has_fits():
    """A part of it would fit at once, but then it would hold blocks and wait all the same."""
    engine = Engine([(10, None)], 4, max_num_seqs=4, max_batched_tokens=64)
    first = engine.add("a", [1] * 30, SamplingParams(max_tokens=3))
    engine.step()
    engine.add("b", [2] * 12, SamplingParams(max_tokens=2))
    while not first.ended:
        engine.step()
        assert engine.scheduler.waiting
    engine.step()
    assert engine.steps[-1].num_tokens == 12
    engine.run()
    engine.check_outputs()


def test_the_cheapest_victim_is_preempted():
    """Of two younger ones the one that has computed less, though it is not the youngest."""
    engine = Engine([(12, None)], 4, max_num_seqs=3, max_batched_tokens=64)
    engine.add("old", [1] * 16, SamplingParams(max_tokens=16))
    engine.add("cheap", [2] * 4, SamplingParams(max_tokens=10))
    engine.add("dear", [3] * 16, SamplingParams(max_tokens=10))
    while not engine.log.of("preempt"):
        engine.step()
    assert next(event.request for event in engine.log.of("preempt")) == "cheap"
    engine.run()
    engine.check_outputs()


# The prefix cache


@pytest.mark.parametrize("length", [4, 8, 12])
def test_a_full_prefix_hit_leaves_one_query(length):
    engine = Engine([(16, None)], 4)
    prompt = list(range(length))
    engine.add("first", prompt, SamplingParams(max_tokens=1))
    engine.run()
    request = engine.add("again", prompt, SamplingParams(max_tokens=3))
    engine.step()
    assert engine.steps[-1].num_tokens == 4, "the last block is computed again: blocks are shared whole"
    assert request.sequences[0].num_cached == length - 4
    engine.run()
    engine.check_outputs()


def test_two_salts_never_share_a_block():
    engine = Engine([(64, None)], 4)
    prompt = list(range(13))
    for number in range(6):
        engine.add(number, prompt, SamplingParams(max_tokens=6, n=2), salt=f"tenant {number % 2}")
        engine.step()
        held = [set(), set()]
        for seq_id in engine.scheduler.running:
            held[seq_id.request % 2] |= set(engine.manager.block_table(seq_id))
        assert not held[0] & held[1]
    engine.run()
    engine.check_outputs()
    assert [engine.requests[number].sequences[0].num_cached for number in range(6)] == [0, 0, 12, 12, 12, 12]


def test_blocks_are_published_after_the_forward_and_not_before():
    engine = Engine([(16, None)], 4)
    prompt = list(range(12))
    engine.add("a", prompt, SamplingParams(max_tokens=4))
    step = engine.scheduler.schedule()
    assert engine.manager.match([*prompt, 1]).num_tokens == 0
    engine.scheduler.fail(step, ValueError())
    assert engine.manager.match([*prompt, 1]).num_tokens == 0
    assert engine.manager.pools[0].num_cached == 0
    engine.check_empty()


def test_the_hit_count_is_that_of_the_admission_and_not_of_an_earlier_search():
    """The queue's head found its prefix while it had to wait; by the time it gets in, the blocks are overwritten."""
    engine = Engine([(8, None)], 4, max_num_seqs=4)
    prompt = list(range(20))
    engine.add("warm", prompt, SamplingParams(max_tokens=1))
    engine.run()
    assert engine.manager.match(prompt).num_tokens == 16
    engine.add("big", [7] * 16, SamplingParams(max_tokens=14))
    engine.step()
    engine.add("late", prompt, SamplingParams(max_tokens=3))
    found = []
    while engine.scheduler.waiting:
        found.append(engine.manager.match(prompt).num_tokens)
        engine.step()
    late = engine.requests["late"].sequences[0]
    assert max(found) > late.num_cached
    engine.run()
    engine.check_outputs()


def test_a_preempted_sequence_finds_its_own_blocks_again():
    engine = Engine([(10, None)], 4, max_num_seqs=2, max_batched_tokens=40)
    engine.add("a", list(range(16)), SamplingParams(max_tokens=12))
    engine.add("b", list(range(30, 46)), SamplingParams(max_tokens=12))
    engine.run()
    hits = [event for event in engine.log.of("hit") if event.request == "b"]
    assert engine.log.of("preempt")
    assert hits, "what nobody has overwritten need not be computed again"
    assert engine.requests["b"].sequences[0].num_cached == 0, "the prompt itself was not cached"
    engine.check_outputs()


def test_the_sequences_of_a_request_share_its_prompt():
    engine = Engine([(64, None)], 4)
    request = engine.add("a", list(range(18)), SamplingParams(max_tokens=5, n=4))
    engine.step()
    assert [len(step.sampled) for step in engine.steps] == [4]
    assert engine.manager.stats().pools[0].used == 5, "the prompt is there once"
    step = engine.scheduler.schedule()
    assert len(step.copies) == 3, "the last one to write keeps the block that all shared"
    engine.scheduler.finish(step, engine.model.forward(step, engine.requests.__getitem__))
    engine.run()
    engine.check_outputs()
    assert len({tuple(seq.output) for seq in request.sequences}) > 1


# What is refused


@pytest.mark.parametrize("groups", [[(5, None)], [(5, None), (9, 6)], [(9, None), (3, 9)], [(2, 9)]])
@pytest.mark.parametrize("size", [1, 4])
def test_a_request_is_refused_exactly_if_it_could_never_run_alone(groups, size):
    engine = Engine(groups, size, max_num_seqs=2, max_batched_tokens=16)
    accepted, refusals = 0, []
    for prompt in [1, 2, size, 3 * size, 5 * size, 9 * size + 1]:
        for max_tokens in [1, 2, 2 * size + 1, 20]:
            before = snapshot(engine.manager)
            params = SamplingParams(max_tokens=max_tokens)
            try:
                engine.add("a", [3] * prompt, params)
            except RequestTooLargeError as error:
                refusals.append((prompt + max_tokens, error.values["fits"]))
                assert snapshot(engine.manager) == before
                assert not engine.scheduler.has_work
            else:
                accepted += 1
                engine.run()
    assert accepted
    assert refusals
    assert all(asked > fits for asked, fits in refusals)
    fits = refusals[0][1]
    engine.add("exactly", [3] * (fits - 1), SamplingParams(max_tokens=1))
    engine.run()
    error = refused(
        lambda: engine.add("over", [3] * fits, SamplingParams(max_tokens=1)), RequestTooLargeError
    )
    assert error.values["asked"] > error.values["total"]


@pytest.mark.parametrize("window", [None, 1, 2, 5, 8, 9])
@pytest.mark.parametrize("size", [1, 3, 4])
def test_the_peak_is_what_a_sequence_holds_token_by_token(window, size):
    manager = BlockManager([KVCacheGroup(40, window)], size)
    most = 0
    for count in range(1, 33):
        if count == 1:
            manager.allocate("a", [1])
        else:
            manager.append("a", 1)
        held = manager.pools[0].num_used
        assert held == held_blocks(count, count - 1, window, size)
        most = max(most, held)
        assert most == peak_blocks(count, window, size)
        manager.commit("a")


def test_what_is_no_request_is_refused_and_changes_nothing():
    engine = Engine([(8, None)], 4, max_num_seqs=2, max_model_len=20)
    engine.add("a", [1, 2], SamplingParams(max_tokens=2))
    refused(lambda: engine.add("a", [1], SamplingParams()))
    refused(lambda: engine.add("b", [], SamplingParams()))
    refused(lambda: engine.add("b", [1.5], SamplingParams()))
    refused(lambda: engine.add("b", "text", SamplingParams()))
    refused(lambda: engine.add("b", [1], {"n": 2}))
    refused(lambda: engine.add("b", [1], SamplingParams(), salt=5))
    refused(lambda: engine.add(True, [1], SamplingParams()))
    refused(lambda: engine.add(["b"], [1], SamplingParams()))
    refused(lambda: engine.add("b", [1], SamplingParams(n=3)), RequestTooLargeError)
    refused(lambda: engine.add("b", [1] * 15, SamplingParams(max_tokens=6)), RequestTooLargeError)
    refused(lambda: engine.scheduler.request("b"))
    assert engine.scheduler.waiting == (("a", 0),)
    assert not engine.scheduler.abort("b")
    assert not engine.scheduler.abort(["b"])
    engine.run()


def test_a_step_is_finished_once_with_its_tokens_and_before_the_next():
    engine = Engine([(8, None)], 4)
    scheduler = engine.scheduler
    engine.add("a", [1, 2], SamplingParams(max_tokens=3))
    step = scheduler.schedule()
    before = snapshot(engine.manager)
    refused(scheduler.schedule)
    for tokens in ([], [1, 2], ["x"], "a", None, [1.5]):
        refused(lambda tokens=tokens: scheduler.finish(step, tokens))
    refused(lambda: scheduler.finish(step, [1], stopped=[("b", 0)]))
    refused(lambda: scheduler.finish(None, [1]))
    assert snapshot(engine.manager) == before
    scheduler.finish(step, [5])
    refused(lambda: scheduler.finish(step, [5]))
    refused(lambda: scheduler.fail(step, ValueError()))
    assert scheduler.sequence(scheduler.running[0]).output == [5]


def test_a_stop_text_ends_a_sequence_with_its_token():
    engine = Engine([(8, None)], 4)
    engine.add("a", [1, 2], SamplingParams(max_tokens=9, n=2))
    step = engine.scheduler.schedule()
    ended = engine.scheduler.finish(step, [5, 6], stopped=[step.sampled[0]])
    assert [(seq.output, seq.finish_reason, seq.status) for seq in ended] == [
        ([5], FinishReason.STOP, SequenceStatus.FINISHED)
    ]
    engine.check()
    assert engine.scheduler.running == (step.sampled[1],), "the other one goes on with the blocks"


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_num_seqs": 0},
        {"max_num_seqs": True},
        {"max_batched_tokens": 0},
        {"max_num_seqs": 8, "max_batched_tokens": 7},
        {"max_model_len": 0},
        {"clock": 5},
        {"rules": Rules},
        {"rules": 5},
        {"extensions": [Extension]},
        {"extensions": [5]},
    ],
)
def test_a_scheduler_refuses_what_it_cannot_use(wrong):
    refused(lambda: Scheduler(BlockManager(8), **wrong))


@pytest.mark.parametrize(("emit", "block_bytes"), [(5, None), (print, [1, 2]), (print, [0]), (print, 4)])
def test_events_refuse_what_they_cannot_use(emit, block_bytes):
    refused(lambda: Scheduler(BlockManager(8), extensions=[Events(emit, block_bytes)]))


def test_a_scheduler_wants_a_manager_of_its_own():
    used = BlockManager(8)
    used.allocate("mine", [1])
    refused(lambda: Scheduler(used))
    refused(lambda: Scheduler(8))


def test_an_empty_step_computes_nothing():
    scheduler = Scheduler(BlockManager(8), extensions=[Events(EventLog())])
    step = scheduler.schedule()
    assert (step.items, step.copies, step.num_tokens) == ((), (), 0)
    assert scheduler.finish(step, []) == ()
    assert not scheduler.has_work


def test_the_engine_without_a_model_needs_no_torch():
    code = "import minikv.engine, sys; print([m for m in ('torch', 'transformers') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
