"""Text that nobody waits for is made while the device computes the next tokens, and is the same text."""

from types import SimpleNamespace

import pytest

import minikv.engine.core.runner
from minikv.engine import FinishReason
from tests.engine.llm_text import byte_tokenizer, word_tokenizer
from tests.engine.llm_world import Broken, check_empty, greedy, make, reference, run
from tests.engine.test_llm_text import text_of


@pytest.fixture
def model():
    return reference("llama")


@pytest.fixture
def order(monkeypatch):
    """What happens in which order: "queued", the ids of each ``decode``, "tokens"."""
    noted, draw = [], minikv.engine.core.runner.draw

    def spied(logits, params, draws):
        noted.append("queued")
        drawing = draw(logits, params, draws)
        return SimpleNamespace(read=lambda: noted.append("tokens") or drawing.read())

    monkeypatch.setattr(minikv.engine.core.runner, "draw", spied)
    return noted


def spying(order):
    tokenizer = word_tokenizer()
    decode = tokenizer.decode
    tokenizer.decode = lambda ids, **more: order.append("decode") or decode(ids, **more)
    return tokenizer


def test_texts_are_made_after_a_step_is_queued_and_before_its_tokens_are_asked_for(model, order):
    with make(model.model, tokenizer=spying(order)) as llm:
        llm.add_request(model.prompts[0], greedy(6), pieces=False)
        order.clear()
        run(llm)
    steps = " ".join(order).split("queued")[1:]
    assert len(steps) == 6
    for number, step in enumerate(steps[:-1]):
        before, after = step.split("tokens")
        assert ("decode" in before) == (number > 0), "the token of the step before"
        assert "decode" not in after
    assert "decode" in steps[-1].split("tokens")[1], "the last token's text is part of the output"


@pytest.mark.parametrize("asks", [{"pieces": True}, {"stop": "w7 w8"}])
def test_what_is_waited_for_is_made_at_once(model, order, asks):
    stop = {name: value for name, value in asks.items() if name == "stop"}
    with make(model.model, tokenizer=spying(order)) as llm:
        llm.add_request(model.prompts[0], greedy(6, **stop), pieces="pieces" in asks)
        order.clear()
        run(llm)
    for step in " ".join(order).split("queued")[1:]:
        before, after = step.split("tokens")
        assert "decode" not in before
        assert "decode" in after


@pytest.mark.parametrize("make_tokenizer", [word_tokenizer, byte_tokenizer])
@pytest.mark.parametrize("steps", range(1, 6))
def test_an_aborted_request_has_the_text_of_its_tokens(model, make_tokenizer, steps):
    tokenizer = make_tokenizer()
    outputs = []
    for pieces in (True, False):
        with make(model.model, tokenizer=tokenizer) as llm:
            name = llm.add_request(model.prompts[2], greedy(9), pieces=pieces)
            for _ in range(steps):
                llm.step()
            llm.abort(name)
            outputs.append(run(llm)[1][name].completions[0])
    now, later = outputs
    assert now.finish_reason == later.finish_reason == FinishReason.ABORT
    assert (now.token_ids, now.text) == (later.token_ids, later.text)
    if make_tokenizer is word_tokenizer:
        assert later.text == text_of(tokenizer, model.prompts[2], later.token_ids) != ""


def test_a_tokenizer_that_fails_later_fails_a_step_and_no_more(model):
    tokenizer = word_tokenizer()
    decode, broken = tokenizer.decode, []

    def fails(ids, **more):
        if broken:
            raise Broken
        return decode(ids, **more)

    tokenizer.decode = fails
    with make(model.model, tokenizer=tokenizer, max_num_seqs=2) as llm:
        names = [llm.add_request(prompt, greedy(6), pieces=False) for prompt in model.prompts[:4]]
        llm.step()
        broken.append(True)
        out = llm.step()
        broken.clear()
        assert [each.request for each in out.finished] == names[:2]
        assert all(isinstance(each.completions[0].error, Broken) for each in out.finished)
        _, outputs = run(llm)
        assert [outputs[name].completions[0].error for name in names[2:]] == [None, None]
        check_empty(llm)


def test_a_request_that_ends_between_steps_is_given_back_whatever_its_tokenizer_does(model):
    tokenizer = word_tokenizer()
    with make(model.model, tokenizer=tokenizer) as llm:
        name = llm.add_request(model.prompts[0], greedy(6), pieces=False)
        llm.step()

        def fails(*_, **__):
            raise Broken

        tokenizer.decode = fails
        assert llm.abort(name)
        (out,) = llm.step().finished
        assert (len(out.token_ids), out.text) == (1, "")
        check_empty(llm)
