"""A step that raises, wherever it does: its requests come back with the error, the others get their tokens, no block is
lost, and the LLM goes on.
"""

import gc

import pytest

import minikv.engine.core.runner
import minikv.kernels.checked
from minikv.engine import EventLog, FinishReason, GenerationFailedError
from minikv.models import ATTENTION
from tests.engine.llm_text import word_tokenizer
from tests.engine.llm_world import Broken, check_between_steps, check_empty, greedy, make, reference, run

LLAMA = "llama"
POOL = {"num_blocks": 11, "max_num_seqs": 5, "max_batched_tokens": 16}


class Fuse:
    """Calls go through, but for the one with the number ``at``, which raises."""

    def __init__(self, at, error=Broken):
        self.at, self.error, self.calls = at, error, 0

    def __call__(self, *args, **kwargs):
        self.calls += 1
        if self.calls == self.at:
            raise self.error

    def before(self, real):
        def guarded(*args, **kwargs):
            self()
            return real(*args, **kwargs)

        return guarded


def place(point, llm, fuse, patch):
    """Put ``fuse`` before every call of one of the things that a step does."""
    layers = llm.model.model.layers
    if point == "first layer":
        patch.setattr(layers[0], "forward", fuse.before(layers[0].forward))
    elif point == "in the middle":
        patch.setattr(layers[1].mlp, "forward", fuse.before(layers[1].mlp.forward))
    elif point == "store":
        patch.setattr(minikv.kernels.checked, "store_kv", fuse.before(minikv.kernels.checked.store_kv))
    elif point == "sampler":
        patch.setattr(minikv.engine.core.runner, "draw", fuse.before(minikv.engine.core.runner.draw))
    elif point == "copy_blocks":
        patch.setattr(llm.cache, "copy_blocks", fuse.before(llm.cache.copy_blocks))
    elif point == "detokenizer":
        patch.setattr(llm.tokenizer, "decode", fuse.before(llm.tokenizer.decode))


POINTS = ("first layer", "in the middle", "store", "sampler", "copy_blocks", "detokenizer")


def crowd(model):
    """(prompt, params) of five requests that do not all run at once: two tenants' prefixes, forks, a stop text."""
    prompts = [model.prompts[number] for number in (4, 5, 8, 2, 0)]
    wishes = [greedy(6), greedy(5, n=3), greedy(6, stop="no such text"), greedy(7, n=2), greedy(3)]
    return list(zip(prompts, wishes, strict=True))


def check_told(tokens, outputs, in_pieces):
    """The tokens that ``step`` gave are those of the outputs, one of them the last; so is their text."""
    for name, out in outputs.items():
        for each in out.completions:
            told = [token for token in tokens if (token.request, token.sample) == (name, each.sample)]
            assert [token.id for token in told if token.id is not None] == list(each.token_ids)
            assert [bool(token.finish_reason) for token in told] == [False] * (len(told) - 1) + [True]
            if in_pieces(name):
                assert "".join(token.text for token in told) == each.text


def attempt(point, at, patch):
    """One run with a fuse: (the fuse, {name: output}, requests of the steps that failed)."""
    model = reference(LLAMA)
    asked, failed, fuse = dict(enumerate(crowd(model))), set(), Fuse(at)
    with make(model.model, tokenizer=word_tokenizer(), **POOL) as llm, patch.context() as within:
        real = llm.scheduler.fail

        def fail(step, error):
            failed.update(item.id.request for item in step.items)
            return real(step, error)

        within.setattr(llm.scheduler, "fail", fail)
        for name, (prompt, params) in asked.items():
            llm.add_request(prompt, params, request_id=name, pieces=bool(name % 2))
        place(point, llm, fuse, within)
        tokens, outputs = run(llm)
        check_empty(llm)
        check_told(tokens, outputs, lambda name: name % 2)
        for name, out in outputs.items():
            model.check(out, asked[name][1])
    assert outputs.keys() == asked.keys()
    return fuse, outputs, failed


@pytest.mark.parametrize("point", POINTS)
def test_a_step_may_fail_anywhere(point, monkeypatch):
    fuse, outputs, failed = attempt(point, 0, monkeypatch)
    assert not failed
    assert {each.finish_reason for out in outputs.values() for each in out.completions} == {
        FinishReason.LENGTH
    }
    calls, spared = fuse.calls, 0
    for at in range(1, calls + 1, max(1, calls // 6)):
        fuse, outputs, failed = attempt(point, at, monkeypatch)
        for name, out in outputs.items():
            reasons = {each.finish_reason for each in out.completions}
            errors = [each.error for each in out.completions if each.error is not None]
            assert (FinishReason.ERROR in reasons) == (name in failed) == bool(errors)
            assert all(isinstance(error, Broken) for error in errors)
            assert FinishReason.ABORT not in reasons
        spared += len(outputs.keys() - failed)
        assert failed
    assert spared, "some requests were not in a failing step"


def test_an_emit_that_raises_loses_nothing():
    """Before the forward it fails the step; afterwards the tokens are there, and ``step`` raises; the next goes on."""
    model = reference(LLAMA)
    asked = dict(enumerate(crowd(model)))

    def attempt(at):
        log, fuse, raised = EventLog(), Fuse(at), []

        def emit(event):
            log(event)
            fuse()

        with make(model.model, emit=emit, tokenizer=word_tokenizer(), **POOL) as llm:
            outputs, accepted, tokens = {}, set(), []
            for name, (prompt, params) in asked.items():
                try:
                    llm.add_request(prompt, params, request_id=name)
                    accepted.add(name)
                except Broken:
                    raised.append(log.events[fuse.at - 1].kind)
            while llm.has_work:
                try:
                    out = llm.step()
                    tokens += out.tokens
                    outputs |= {each.request: each for each in out.finished}
                except Broken:
                    raised.append(log.events[fuse.at - 1].kind)
                check_between_steps(llm)
            check_empty(llm)
        check_told(tokens, outputs, lambda name: True)
        for name, out in outputs.items():
            model.check(out, asked[name][1])
        assert outputs.keys() == accepted
        errors = {each.error for out in outputs.values() for each in out.completions} - {None}
        assert len(raised) + len(errors) == (at > 0), "it is told exactly once"
        return log, raised

    log, _ = attempt(0)
    kinds = {"arrive", "hit", "allocate", "evict", "preempt", "free", "first", "finish", "step"}
    assert {event.kind for event in log.events} == kinds
    seen, after = {}, set()
    for at, event in enumerate(log.events, 1):
        seen[event.kind] = seen.get(event.kind, 0) + 1
        if seen[event.kind] <= 2:
            after |= set(attempt(at)[1])
    assert after >= {"arrive", "first", "finish", "free", "step"}


def test_a_clock_that_raises_loses_nothing():
    model = reference(LLAMA)
    asked = dict(enumerate(crowd(model)))
    looks, at = 10**9, 0
    while at < looks:
        ticks, outputs, accepted = iter(range(10**9)), {}, set()
        fuse = Fuse(at)
        with make(model.model, clock=fuse.before(lambda ticks=ticks: next(ticks)), **POOL) as llm:
            for name, (prompt, params) in asked.items():
                try:
                    llm.add_request(prompt, greedy(params.max_tokens, n=params.n), request_id=name)
                    accepted.add(name)
                except Broken:
                    assert fuse.calls == fuse.at
            while llm.has_work:
                try:
                    outputs |= {out.request: out for out in llm.step().finished}
                except Broken:
                    assert fuse.calls >= fuse.at, (
                        "what the next step has asked in vain is told when this one is done"
                    )
                check_between_steps(llm)
            check_empty(llm)
        assert outputs.keys() == accepted
        for name, out in outputs.items():
            model.check(out, asked[name][1])
        looks, at = (fuse.calls, 1) if not at else (looks, at + 3)


# generate, stream


def test_generate_fails_with_the_outputs_of_all(monkeypatch):
    model = reference(LLAMA)
    with make(model.model, max_num_seqs=2) as llm:
        with monkeypatch.context() as patch:
            place("first layer", llm, Fuse(3), patch)
            with pytest.raises(GenerationFailedError) as raised:
                llm.generate(model.prompts[:5], greedy(4), progress=False)
        outputs = raised.value.outputs
        assert [out.prompt_token_ids for out in outputs] == [tuple(prompt) for prompt in model.prompts[:5]]
        assert [out.finish_reason for out in outputs] == ["error"] * 2 + ["length"] * 3
        assert isinstance(raised.value.__cause__, Broken)
        assert all(isinstance(out.completions[0].error, Broken) for out in outputs[:2])
        assert [len(out.token_ids) for out in outputs] == [2, 2, 4, 4, 4]
        assert (raised.value.values["failed"], raised.value.values["total"]) == (2, 5)
        assert "Broken" in str(raised.value)
        check_empty(llm)
        model.check(llm.generate(model.prompts[0], greedy())[0], greedy())


def test_a_failed_stream_says_so_and_goes_on(monkeypatch):
    model = reference(LLAMA)
    with make(model.model, max_num_seqs=2) as llm:
        with monkeypatch.context() as patch:
            place("in the middle", llm, Fuse(2), patch)
            told = list(llm.stream(model.prompts[:3], greedy(4)))
        ends = {token.request: token.finish_reason for token in told if token.finish_reason}
        assert ends == {0: "error", 1: "error", 2: "length"}
        assert [token.id for token in told if token.request == 0] == [
            *model.due(model.prompts[0], greedy(1))[0],
            None,
        ]
        check_empty(llm)


def test_ctrl_c_ends_a_generate_and_the_llm_goes_on(monkeypatch):
    """Those in the step fail, whosever they are; the rest of this call is aborted; others' requests go on."""
    model = reference(LLAMA)
    with make(model.model, max_num_seqs=2) as llm:
        inside, waits = [
            llm.add_request(prompt, greedy(6)) for prompt in (model.prompts[0], model.prompts[1])
        ]
        with monkeypatch.context() as patch:
            llm.abort(waits)
            place("in the middle", llm, Fuse(3, KeyboardInterrupt), patch)
            with pytest.raises(KeyboardInterrupt):
                llm.generate(model.prompts[2:6], greedy(6))
        later = llm.add_request(model.prompts[6], greedy(6))
        outputs = run(llm)[1]
        check_empty(llm)
        assert outputs.keys() == {inside, waits, later}
        assert outputs[inside].finish_reason is FinishReason.ERROR
        assert isinstance(outputs[inside].completions[0].error, KeyboardInterrupt)
        model.check(outputs[later], greedy(6))
        model.check(llm.generate(model.prompts[3], greedy())[0], greedy())


def test_llms_of_one_model_go_on_until_the_last_is_closed():
    """They share its attention; whoever is closed last, in whatever order, gives the model its own back."""
    model = reference(LLAMA)
    own, prompts, params = model.model.config._attn_implementation, model.prompts[4:6], greedy(6)
    for order in ((0, 1, 2), (2, 1, 0), (1, 2, 0)):
        llms = [make(model.model) for _ in range(3)]
        for number in order:
            for llm in llms:
                if llm is not None:
                    for out in llm.generate(prompts, params):
                        model.check(out, params)
            assert model.model.config._attn_implementation == ATTENTION
            llms[number].close()
            llms[number].close()
            llms[number] = llm = None
        assert model.model.config._attn_implementation == own


def test_an_llm_that_was_dropped_keeps_no_model():
    model = reference(LLAMA).model
    own = model.config._attn_implementation
    make(model)  # never closed
    gc.collect()
    assert model.config._attn_implementation == ATTENTION
    make(model).close()
    assert model.config._attn_implementation == own


def test_another_attention_under_an_llm_is_an_error_not_an_answer():
    model = reference(LLAMA)
    own = model.model.config._attn_implementation
    with make(model.model) as llm:
        model.model.set_attn_implementation("eager")
        with pytest.raises(GenerationFailedError) as raised:
            llm.generate(model.prompts[:2], greedy())
        assert raised.value.__cause__.code == "llm_attention"
        check_empty(llm)
    assert model.model.config._attn_implementation == own
