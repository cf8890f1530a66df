"""What happens while an LLM runs: other threads, streams that are closed, aborts, snapshots, times."""

import threading

import pytest

from minikv.engine import FinishReason, summary
from tests.engine.llm_world import check_between_steps, check_empty, greedy, make, reference, run

LLAMA = "llama"


# Threads


def test_each_thread_gets_its_own_outputs_and_a_third_aborts():
    model = reference(LLAMA)
    got, aborted, ready = {}, [], threading.Event()

    with make(model.model, num_blocks=110, emit=lambda event: event.kind == "first" and ready.set()) as llm:

        def generate(name, prompts):
            got[name] = llm.generate(prompts, greedy(12))

        def abort():
            assert ready.wait(60)
            aborted.append(llm.abort("victim"))

        llm.add_request(model.prompts[0], greedy(400), request_id="victim")
        threads = [
            threading.Thread(target=generate, args=("even", model.prompts[::2])),
            threading.Thread(target=generate, args=("odd", model.prompts[1::2])),
            threading.Thread(target=abort),
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
        assert aborted == [True]
        victim = llm.step().finished[0]
        check_empty(llm)
    assert victim.finish_reason is FinishReason.ABORT
    assert 0 < len(victim.token_ids) < 400
    for name, prompts in (("even", model.prompts[::2]), ("odd", model.prompts[1::2])):
        assert [list(out.prompt_token_ids) for out in got[name]] == prompts
        for out in got[name]:
            model.check(out, greedy(12))


def test_nobody_waits_longer_than_a_step():
    """A thread that computes step after step lets another one in after the step that it is in."""
    model = reference(LLAMA)
    inside = threading.Event()
    sizes = {"max_model_len": 512, "num_blocks": 512, "block_size": 1}
    with make(model.model, emit=lambda event: event.kind == "allocate" and inside.set(), **sizes) as llm:
        thread = threading.Thread(target=lambda: llm.generate(model.prompts[0], greedy(450)))
        thread.start()
        for _ in range(60):
            inside.clear()
            assert inside.wait(60), "a forward begins now"
            before = llm._engine.steps
            assert llm.snapshot().steps - before <= 2
        assert llm.abort("request 0")
        thread.join(60)
        assert llm.snapshot().steps < 450


# While it runs


def test_step_gives_only_what_was_added_for_it():
    model = reference(LLAMA)
    with make(model.model) as llm:
        stream = llm.stream(model.prompts[:2], greedy(6))
        first = next(stream)
        mine = llm.add_request(model.prompts[2], greedy(4))
        tokens, outputs = run(llm)
        assert {token.request for token in tokens} == set(outputs) == {mine}
        assert [token.id for token in tokens] == list(outputs[mine].token_ids)
        rest = [first, *stream]
        assert {token.request for token in rest} == {0, 1}
        for number in (0, 1):
            due, reason = model.due(model.prompts[number], greedy(6))
            assert [token.id for token in rest if token.request == number] == due
            assert [token.finish_reason for token in rest if token.request == number] == [None] * 5 + [reason]
        check_empty(llm)


@pytest.mark.parametrize("taken", [0, 1, 5])
def test_a_stream_that_is_closed_early_frees_its_blocks(taken):
    model = reference(LLAMA)
    with make(model.model) as llm:
        other = llm.add_request(model.prompts[4], greedy(12))
        stream = llm.stream(model.prompts[:3], greedy(12))
        for _ in range(taken):
            next(stream)
        stream.close()
        check_between_steps(llm)
        assert {seq.id.request for seq in (*llm.snapshot().running, *llm.snapshot().waiting)} == {other}
        model.check(run(llm)[1][other], greedy(12))
        abandoned = llm.stream(model.prompts[:3], greedy(12))
        assert llm.has_work
        del abandoned
        check_empty(llm)


def test_an_abort_ends_a_request_wherever_it_is():
    model = reference(LLAMA)
    for steps in range(14):
        with make(model.model, max_batched_tokens=8) as llm:
            names = [llm.add_request(prompt, greedy(4, n=2)) for prompt in model.prompts[5:9]]
            before = [llm.step() for _ in range(steps)]
            gone = any(out.request == names[1] for step in before for out in step.finished)
            assert llm.abort(names[1]) == (not gone)
            assert not llm.abort(names[1])
            check_between_steps(llm)
            outputs = {out.request: out for step in before for out in step.finished} | run(llm)[1]
            check_empty(llm)
            assert outputs.keys() == set(names)
            for name in names:
                model.check(outputs[name], greedy(4))
            reasons = {each.finish_reason for each in outputs[names[1]].completions}
            assert gone or FinishReason.ABORT in reasons
    assert not llm.scheduler.has_work


def test_times_and_events_agree():
    model = reference(LLAMA)
    with make(model.model, num_blocks=16, max_batched_tokens=16) as llm:
        outputs = llm.generate(model.prompts[:8], greedy(9))
        log = llm.scheduler.extensions[-1].emit
    times = [event.time for event in log.events]
    assert times == sorted(times)
    for out in outputs:
        of = {
            event.kind: event.time for event in log.events if getattr(event, "request", None) == out.request
        }
        timing = out.timing
        assert 0 <= timing.queued < timing.ttft < timing.total
        assert timing.ttft == of["first"] - of["arrive"]
        assert timing.total == of["finish"] - of["arrive"]
        assert timing.tpot == (of["finish"] - of["first"]) / 8
    figures = summary(log.events)
    assert figures.finished == len(outputs)
    assert figures.generated_tokens == sum(len(out.token_ids) for out in outputs) == 72
    assert figures.ttft.count == 8
    assert figures.preemptions == sum(out.completions[0].num_preemptions for out in outputs)
    assert figures.preemptions
    # Every token is computed once, but for the last of each sequence; what was lost is found again or computed again.
    once = sum(len(out.prompt_token_ids) + len(out.token_ids) - 1 for out in outputs)
    assert (
        figures.computed_tokens + sum(event.tokens for event in log.of("hit")) == once + figures.lost_tokens
    )


def test_a_snapshot_shows_who_runs_and_who_waits():
    model = reference(LLAMA)
    seen = []
    with make(model.model, max_num_seqs=2, emit=lambda event: seen.append(llm.snapshot())) as llm:
        for number, prompt in enumerate(model.prompts[:4]):
            llm.add_request(prompt, greedy(3), request_id=number)
        llm.step()
        view = llm.snapshot()
        assert [seq.id.request for seq in view.running] == [0, 1]
        assert [seq.id.request for seq in view.waiting] == [2, 3]
        for seq in view.running:
            assert (seq.num_prompt, seq.num_output) == (len(model.prompts[seq.id.request]), 1)
            assert len(seq.tables[0]) == -(-seq.num_computed // 4)
        assert all(seq.tables == () for seq in view.waiting)
        assert view.pools[0].used == sum(len(seq.tables[0]) for seq in view.running)
        run(llm)
        assert (llm.snapshot().finished, llm.snapshot().generated) == (4, 12)
    assert len(seen) > 20
