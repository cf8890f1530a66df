"""What ``emit`` may call from inside a step, and what an error keeps alive."""

import gc
import random

import pytest
import torch

from minikv.engine import FinishReason
from minikv.errors import ArgumentError
from tests.engine.llm_text import word_tokenizer
from tests.engine.llm_world import Broken, check_empty, greedy, make, reference, run

LLAMA = "llama"


def test_emit_may_add_and_abort_but_not_compute():
    model = reference(LLAMA)
    refused, left = [], []

    def emit(event):
        if event.kind == "first" and event.request == "a":
            for call in (llm.step, lambda: llm.generate([1]), lambda: next(llm.stream([1])), llm.close):
                try:
                    call()
                except ArgumentError as error:
                    refused.append(error.code)
            llm.add_request(model.prompts[3], greedy(4), request_id="d")
        if event.kind == left[0] and (event.kind != "arrive" or event.request == "b"):
            llm.abort("b")
            assert "b" not in {seq.id.request for seq in llm.snapshot().running}

    kinds = ("arrive", "allocate", "step", "first", "finish", "free")
    for kind in kinds:
        left[:] = [kind]
        with make(model.model, emit=emit, max_num_seqs=4) as llm:
            for name, params in {"a": greedy(3), "b": greedy(4, n=2), "c": greedy(5)}.items():
                llm.add_request(model.prompts[ord(name) - ord("a")], params, request_id=name)
            outputs = run(llm)[1]
            check_empty(llm)
        assert outputs.keys() == {"a", "b", "c", "d"}
        model.check(outputs["b"], greedy(4, n=2))
        for name, count in {"a": 3, "c": 5, "d": 4}.items():
            assert outputs[name].finish_reason is FinishReason.LENGTH
            model.check(outputs[name], greedy(count))
        assert FinishReason.ABORT in {each.finish_reason for each in outputs["b"].completions}
    assert refused == ["llm_inside_step"] * 4 * len(kinds)


@pytest.mark.parametrize("drafts", [0, 4])
def test_what_is_aborted_behind_a_step_keeps_all_that_belongs_to_its_tokens(drafts):
    """``emit`` hears of a step when its tokens are there, and may abort any request: ids, logprobs, text must agree."""
    model, rng, aborted = reference(LLAMA), random.Random(3), 0
    for _ in range(8):

        def emit(event):
            running = llm.snapshot().running if rng.random() < 0.06 else ()
            if running:
                llm.abort(rng.choice(running).id.request)

        options = dict(prompt_lookup=drafts, num_blocks=rng.choice([24, 64]), max_num_seqs=4)
        with make(model.model, emit=emit, tokenizer=word_tokenizer(), **options) as llm:
            for name in range(5):
                params, pieces = greedy(12, logprobs=1, n=rng.choice([1, 2])), rng.random() < 0.5
                llm.add_request(rng.choice(model.prompts), params, request_id=name, pieces=pieces)
            told, outputs = run(llm)
            check_empty(llm)
        for name, output in outputs.items():
            for each in output.completions:
                own = [token for token in told if (token.request, token.sample) == (name, each.sample)]
                assert [token.id for token in own if token.id is not None] == list(each.token_ids)
                assert len(each.logprobs) == len(each.token_ids) == len(each.text.split())
                assert [token.finish_reason for token in own if token.finish_reason] == [each.finish_reason]
                assert (own[-1].id is None) == (each.finish_reason is FinishReason.ABORT)
                aborted += each.finish_reason is FinishReason.ABORT and len(each.token_ids) > 0
    assert aborted > 3


def test_an_error_does_not_keep_the_cache_alive(monkeypatch):
    """Its traceback holds the frames of the forward, with views of the cache among their variables."""
    model = reference(LLAMA)
    llm = make(model.model)

    def attend(*args, **kwargs):
        layer = llm.cache.layer(0)
        assert layer.k.numel()
        raise Broken

    with monkeypatch.context() as patch:
        patch.setattr(model.model.model.layers[1].mlp, "forward", attend)
        out = llm.add_request(model.prompts[0], greedy())
        out = llm.step().finished[0]
    error = out.completions[0].error
    assert error.__traceback__ is not None, "where it was raised can still be read"
    frames, trace = [], error.__traceback__
    while trace is not None:
        frames.append(trace.tb_frame)
        trace = trace.tb_next
    assert frames[-1].f_code.co_name == "attend"
    gc.collect()
    tensors = [
        value for frame in frames for value in frame.f_locals.values() if isinstance(value, torch.Tensor)
    ]
    assert not tensors
    llm.close()
    assert isinstance(error, Broken)
