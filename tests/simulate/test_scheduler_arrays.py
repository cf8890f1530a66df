"""What a simulation asks of the scheduler: prompts that stay arrays, and steps without arrays. It decides the same."""

import random
from array import array

from minikv.blocks import BlockManager
from minikv.engine import EventLog, Events, SamplingParams, Scheduler
from minikv.engine.core.step import NOT_PACKED
from tests.engine.drive import Clock


def run(seed, as_array, packs):
    """(events, outputs, types of the prompts): crowded enough to preempt."""
    draw, log = random.Random(seed), EventLog()
    scheduler = Scheduler(
        BlockManager(14, 4),
        max_num_seqs=6,
        max_batched_tokens=16,
        clock=Clock(),
        extensions=[Events(log)],
        packs=packs,
    )
    stem, requests = [draw.randrange(50) for _ in range(9)], {}
    for name in range(20):
        prompt = stem[: draw.randrange(10)] + [draw.randrange(50) for _ in range(draw.randrange(1, 12))]
        params = SamplingParams(max_tokens=draw.randrange(1, 20), n=draw.choice([1, 1, 2]))
        requests[name] = scheduler.add(name, array("q", prompt) if as_array else prompt, params)
    while scheduler.has_work:
        step = scheduler.schedule()
        assert (step.batch is NOT_PACKED) == (not packs)
        assert step.batch.sources is None
        assert packs is False or step.num_tokens == len(step.batch.token_ids)
        scheduler.finish(step, [(7 * len(step.items) + seq_id.request) % 50 for seq_id in step.sampled])
    scheduler.manager.check_invariants()
    outputs = {seq.id: seq.output for request in requests.values() for seq in request.sequences}
    return log.events, outputs, {type(request.prompt) for request in requests.values()}


def test_prompts_that_are_arrays_and_steps_that_are_not_packed_change_no_decision():
    for seed in range(5):
        events, outputs, types = run(seed, as_array=False, packs=True)
        assert types == {tuple}
        assert {"preempt", "hit"} <= {event.kind for event in events}
        assert all(type(output) is list for output in outputs.values())
        for as_array, packs in ((True, True), (True, False), (False, False)):
            others = run(seed, as_array, packs)
            assert others[0] == events
            assert others[1] == outputs
            assert others[2] == {array if as_array else tuple}


def test_an_array_that_was_given_is_not_the_schedulers():
    prompt = array("q", range(8))
    scheduler = Scheduler(BlockManager(8, 4))
    request = scheduler.add("a", prompt)
    prompt[0] = 99
    assert request.prompt[0] == request.sequences[0].tokens[0] == 0
