"""Steps ahead where something goes wrong or goes away: no block is lost, and everybody is told what came of it."""

from contextlib import nullcontext

import pytest

import minikv.engine.core.runner
from minikv.engine import FinishReason, GenerationFailedError
from tests.engine import test_llm_callbacks, test_llm_failures, test_llm_running
from tests.engine.llm_world import Broken, check_empty, greedy, make, reference, run
from tests.engine.overlap import DEVICES, Late, Prompt, drawn, overlapping, without
from tests.engine.test_llm_failures import Fuse, place


@pytest.fixture(params=DEVICES)
def device(request):
    with overlapping(DEVICES[request.param]()) as device:
        yield device


@pytest.fixture
def model():
    return reference("llama")


AGAIN = {
    "emit": (Late, test_llm_callbacks.test_emit_may_add_and_abort_but_not_compute),
    "abort behind": (Prompt, lambda: aborted_behind(0)),
    "emit raises": (Late, test_llm_failures.test_an_emit_that_raises_loses_nothing),
    "clock raises": (Prompt, test_llm_failures.test_a_clock_that_raises_loses_nothing),
    "close": (Late, test_llm_failures.test_llms_of_one_model_go_on_until_the_last_is_closed),
    "attention": (Prompt, test_llm_failures.test_another_attention_under_an_llm_is_an_error_not_an_answer),
    "threads": (Late, test_llm_running.test_each_thread_gets_its_own_outputs_and_a_third_aborts),
}
aborted_behind = test_llm_callbacks.test_what_is_aborted_behind_a_step_keeps_all_that_belongs_to_its_tokens


@pytest.mark.parametrize("name", AGAIN)
def test_what_held_without_holds_with(name):
    kind, test = AGAIN[name]
    with overlapping(kind()):
        test()


@pytest.mark.parametrize("point", test_llm_failures.POINTS)
def test_a_step_may_fail_anywhere(point, monkeypatch):
    """At the launch of a step or of the one behind it, at the reading of either, in the text of a token."""
    with overlapping(Late() if len(point) % 2 else Prompt()):
        fuse, _, _ = test_llm_failures.attempt(point, 0, monkeypatch)
        calls = fuse.calls
        for at in range(1, calls + 1, max(1, calls // 4)):
            fuse, outputs, failed = test_llm_failures.attempt(point, at, monkeypatch)
            assert failed
            for name, out in outputs.items():
                reasons = {each.finish_reason for each in out.completions}
                assert (FinishReason.ERROR in reasons) == (name in failed)
                assert FinishReason.ABORT not in reasons


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("at", range(1, 8))
def test_the_launch_of_the_step_behind_fails_that_step_alone(model, late, at, monkeypatch):
    """The tokens of the step before it count, and are told; then its error is."""
    with overlapping(Late() if late else Prompt()) as device, make(model.model) as llm:
        names = [llm.add_request(prompt, greedy(8)) for prompt in model.prompts[:2]]
        with monkeypatch.context() as patch:
            place("first layer", llm, Fuse(at), patch)
            told, outputs = run(llm)
        check_empty(llm)
        for name in names:
            assert outputs[name].finish_reason is FinishReason.ERROR
            assert isinstance(outputs[name].completions[0].error, Broken)
            assert len(outputs[name].token_ids) == at - 1
            model.check(outputs[name], greedy(8))
            ids = [token.id for token in told if token.request == name]
            assert ids == [*outputs[name].token_ids, None]
        assert sum(event.failed for event in llm.scheduler.extensions[-1].emit.of("step")) >= 1
        assert llm.snapshot().steps == len(device.launched())
        model.check(llm.generate(model.prompts[3], greedy())[0], greedy())


def test_an_answer_that_is_no_number_fails_both(device, model, monkeypatch):
    """The step behind goes on from a token that means nothing; its rows are forgotten with it."""
    with make(model.model) as llm:
        draw, calls = minikv.engine.core.runner.draw, iter(range(100))

        def spoiled(logits, params, draws):
            return draw(logits * float("nan") if next(calls) == 3 else logits, params, draws)

        with monkeypatch.context() as patch:
            patch.setattr(minikv.engine.core.runner, "draw", spoiled)
            llm.add_request(model.prompts[0], greedy(8))
            _, outputs = run(llm)
        (out,) = outputs.values()
        assert out.completions[0].error.code == "sampler_not_finite"
        assert len(out.token_ids) == 3
        check_empty(llm)
        model.check(llm.generate(model.prompts[0], greedy())[0], greedy())


@pytest.mark.parametrize("at", range(1, 10))
def test_ctrl_c_at_any_launch_loses_no_block(device, model, at, monkeypatch):
    with make(model.model, max_num_seqs=2) as llm:
        names = [llm.add_request(prompt, greedy(4)) for prompt in model.prompts[:4]]
        outputs, interrupted = {}, 0
        with monkeypatch.context() as patch:
            place("in the middle", llm, Fuse(at, KeyboardInterrupt), patch)
            while llm.has_work:
                try:
                    outputs |= {out.request: out for out in llm.step().finished}
                except KeyboardInterrupt:
                    interrupted += 1
        assert interrupted == (at <= 8)
        check_empty(llm)
        assert list(outputs) == names
        failed = [name for name in names if outputs[name].finish_reason is FinishReason.ERROR]
        assert len(failed) == 2 * interrupted
        for name in names:
            model.check(outputs[name], greedy(4))
        model.check(llm.generate(model.prompts[3], greedy())[0], greedy())


@pytest.mark.parametrize("point", ["open", "finish"])
def test_ctrl_c_in_the_scheduler_fails_what_is_in_flight(device, model, point, monkeypatch):
    with make(model.model) as llm:
        name = llm.add_request(model.prompts[0], greedy(8))
        llm.step()
        with monkeypatch.context() as patch:
            patch.setattr(llm.scheduler, point, Fuse(1, KeyboardInterrupt))
            with pytest.raises(KeyboardInterrupt):
                llm.step()
        _, outputs = run(llm)
        assert outputs[name].finish_reason is FinishReason.ERROR
        check_empty(llm)


def test_who_is_aborted_between_two_steps_gives_everything_back_at_once(device, model):
    """Also where a step is in flight that nobody waits for any more."""
    for steps in range(1, 6):
        with make(model.model) as llm:
            names = [llm.add_request(prompt, greedy(9)) for prompt in model.prompts[:2]]
            for _ in range(steps):
                llm.step()
            assert llm.scheduler.open_step is not None, "it is in flight"
            assert llm.abort(names[0])
            assert llm.manager.sequences()
            assert llm.abort(names[1])
            assert not llm.manager.sequences()
            assert llm.scheduler.open_step is None
            told = llm.step()
            assert [out.request for out in told.finished] == names
            for out in told.finished:
                assert len(out.token_ids) == steps
                model.check(out, greedy(9))
            check_empty(llm)


def test_a_name_may_be_used_again_while_its_row_is_in_flight(device, model):
    other, due = model.prompts[2], without(model)
    with make(model.model) as llm:
        llm.add_request(other, greedy(9), request_id="beside")
        llm.add_request(model.prompts[7], drawn(stop_token_ids=due[2:3]), request_id="a")
        outputs = []
        while not outputs:
            outputs = [out for out in llm.step().finished if out.request == "a"]
        assert llm.scheduler.open_step is not None
        llm.add_request(other, greedy(7), request_id="a")
        _, rest = run(llm)
        check_empty(llm)
    assert outputs[0].token_ids == due[:3]
    model.check(rest["a"], greedy(7))
    model.check(rest["beside"], greedy(9))


@pytest.mark.parametrize("kind", [None, *DEVICES])
def test_a_clock_that_raises_again_while_a_step_fails_hides_no_error(kind, model):
    """The step stays open, and fails with its own error when it can."""
    looks = broken = 0
    within = nullcontext() if kind is None else overlapping(DEVICES[kind]())
    with within:
        for at in range(4, 22):
            ticks = iter(range(10**9))

            def clock(at=at, ticks=ticks):
                now = next(ticks)
                if now in (at, at + 1):
                    raise Broken
                return now

            with make(model.model, clock=clock) as llm:
                names = [llm.add_request(prompt, greedy(5)) for prompt in model.prompts[:3]]
                outputs = {}
                while llm.has_work:
                    try:
                        outputs |= {out.request: out for out in llm.step().finished}
                    except Broken:
                        looks += 1
                check_empty(llm)
            assert list(outputs) == names
            for out in outputs.values():
                model.check(out, greedy(5))
                errors = {type(each.error) for each in out.completions} - {type(None)}
                assert errors <= {Broken}
                broken += len(errors)
    assert looks
    assert broken


@pytest.mark.parametrize("kind", ["fail", "step", "free"])
def test_an_emit_that_raises_while_a_step_fails_leaves_nothing_in_flight(device, model, kind, monkeypatch):
    """The step has failed once, and the next one is another."""
    hot = []

    def emit(event):
        if hot and event.kind == kind:
            hot.clear()
            raise Broken

    with make(model.model, emit=emit, max_num_seqs=2) as llm:
        names = [llm.add_request(prompt, greedy(6)) for prompt in model.prompts[:4]]
        outputs, raised, fail = {}, 0, llm.scheduler.fail

        def failing(step, error):
            hot.append(step)
            return fail(step, error)

        with monkeypatch.context() as patch:
            place("sampler", llm, Fuse(2), patch)
            patch.setattr(llm.scheduler, "fail", failing)
            while llm.has_work:
                try:
                    outputs |= {out.request: out for out in llm.step().finished}
                except Broken:
                    raised += 1
        assert raised == 1
        assert not llm._engine._plain.in_flight
        check_empty(llm)
    assert [outputs[name].finish_reason for name in names] == ["error"] * 2 + ["length"] * 2
    for out in outputs.values():
        model.check(out, greedy(6))


def test_a_snapshot_shows_nobody_whose_row_is_in_flight_for_nothing(device, model):
    """Not who has ended, and not whoever has its name by then, who waits and has one sample less."""
    with make(model.model) as llm:
        llm.overlaps = False
        both = llm.generate(model.prompts[7], drawn(n=2))[0].completions
        llm.overlaps = True
        llm.add_request(model.prompts[2], greedy(9), request_id="beside")
        ends = (both[0].token_ids[2], both[1].token_ids[4])
        llm.add_request(model.prompts[7], drawn(n=2, stop_token_ids=ends), request_id="a")
        seen = []
        while True:
            done = [out.request for out in llm.step().finished]
            view = llm.snapshot()
            assert {seq.status for seq in view.running} == {"running"}
            seen.append([seq.id.sample for seq in view.running if seq.id.request == "a"])
            if done:
                break
        assert done == ["a"]
        assert seen[-3:] == [[1], [1], []]
        assert ("a", 1) in llm.manager.sequences(), "its row is in flight"
        llm.add_request(model.prompts[2], greedy(7), request_id="a")
        view = llm.snapshot()
        assert [seq.id for seq in view.running] == [("beside", 0)]
        assert [seq.id for seq in view.waiting] == [("a", 0)]
        _, rest = run(llm)
        check_empty(llm)
    model.check(rest["a"], greedy(7))


def test_whoever_comes_while_a_step_is_in_flight_is_admitted_behind_it(device, model):
    with make(model.model) as llm:
        first = llm.add_request(model.prompts[0], greedy(12))
        outputs = {}
        for number in range(5):
            llm.step()
            llm.add_request(model.prompts[number], greedy(6), request_id=number)
        _, outputs = run(llm)
        check_empty(llm)
    model.check(outputs[first], greedy(12))
    for number in range(5):
        model.check(outputs[number], greedy(6))


def test_an_llm_may_be_closed_with_a_step_in_flight(device, model):
    llm = make(model.model)
    llm.add_request(model.prompts[0], greedy(9))
    llm.step()
    assert llm.scheduler.open_step is not None
    llm.close()
    assert not llm.manager.sequences()
    assert llm.scheduler.open_step is None
    assert device.notes[-1] == ("read", device.launched()[-1]), "nothing is left to run on the device"


def test_a_stream_that_is_closed_leaves_nothing_in_flight(device, model):
    with make(model.model) as llm:
        stream = llm.stream(model.prompts[:2], greedy(9))
        for _ in range(5):
            next(stream)
        stream.close()
        check_empty(llm)
        assert llm.scheduler.open_step is None


def test_an_emit_that_raises_while_an_unwanted_step_ends_is_heard_once_and_all_are_told(device, model):
    due, raised = without(model), []
    device.notes.clear()

    def emit(event):
        if event.kind == "step" and event.step == 4 and not raised:
            raised.append(event)
            raise Broken

    with make(model.model, emit=emit) as llm:
        name = llm.add_request(model.prompts[7], drawn(stop_token_ids=due[3:4]))
        for _ in range(3):
            llm.step()
        with pytest.raises(Broken):
            llm.step()
        assert llm.has_work, "its output is to be fetched"
        (out,) = llm.step().finished
        assert (out.request, out.token_ids) == (name, due[:4])
        check_empty(llm)
        assert [step.number for step in device.launched()] == [0, 1, 2, 3, 4]


def test_a_generate_that_fails_has_the_outputs_of_all(device, model, monkeypatch):
    with make(model.model, max_num_seqs=2) as llm, monkeypatch.context() as patch:
        place("first layer", llm, Fuse(3), patch)
        with pytest.raises(GenerationFailedError) as raised:
            llm.generate(model.prompts[:5], greedy(4), progress=False)
        assert [out.finish_reason for out in raised.value.outputs] == ["error"] * 2 + ["length"] * 3
        check_empty(llm)
