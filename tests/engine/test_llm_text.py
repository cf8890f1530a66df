"""Text: stop texts, stop tokens, end of sequence, special tokens, and pieces that are together the whole."""

import pytest

from minikv.engine import FinishReason, SamplingParams
from tests.engine.llm_text import EOS, WHOLE, byte_tokenizer, word_tokenizer
from tests.engine.llm_world import check_empty, greedy, make, reference, run

TOKENIZERS = {"words": word_tokenizer, "bytes": byte_tokenizer}


@pytest.fixture(params=TOKENIZERS)
def tokenizer(request):
    return TOKENIZERS[request.param]()


@pytest.fixture
def model():
    return reference("llama")


def text_of(tokenizer, prompt, tokens):
    """What decoding prompt and answer has after the prompt's text."""

    def decode(ids):
        return tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)

    return decode([*prompt, *tokens])[len(decode(prompt)) :]


def pieces(tokens, request, sample=0):
    return "".join(token.text for token in tokens if (token.request, token.sample) == (request, sample))


def test_pieces_are_together_the_text(model, tokenizer):
    params = SamplingParams(temperature=1.5, max_tokens=12, n=2, seed=5, ignore_eos=True)
    prompts = [[*prompt, WHOLE] for prompt in model.prompts]
    with make(model.model, tokenizer=tokenizer) as llm:
        whole = llm.generate(prompts, params)
        told = list(llm.stream(prompts, params))
        names = [llm.add_request(prompt, params) for prompt in prompts]
        stepped, outputs = run(llm)
    assert any(EOS in each.token_ids for out in whole for each in out.completions), "a special token to skip"
    for number, out in enumerate(whole):
        for each in out.completions:
            assert each.text == text_of(tokenizer, prompts[number], each.token_ids)
            assert each.text == pieces(told, number, each.sample)
            assert each.text == pieces(stepped, names[number], each.sample)
            assert each.text == outputs[names[number]].completions[each.sample].text
    assert len({each.text for out in whole for each in out.completions}) > 20


def test_prompts_may_be_text(model):
    tokenizer = word_tokenizer()
    prompt = model.prompts[4]
    words = tokenizer.decode(prompt)
    with make(model.model, tokenizer=tokenizer) as llm:
        by_text, by_ids = llm.generate([words, prompt], greedy())
        assert by_text.token_ids == by_ids.token_ids
        assert by_text.text == by_ids.text
        assert (by_text.prompt, by_ids.prompt) == (words, None)
        assert by_text.prompt_token_ids == by_ids.prompt_token_ids == tuple(prompt)
        assert llm.generate(words, greedy())[0].text == by_text.text


def test_without_a_tokenizer_there_is_no_text(model):
    with make(model.model) as llm:
        assert llm.generate(model.prompts[0], greedy())[0].text is None
        assert {token.text for token in llm.stream(model.prompts[0], greedy())} == {None}


def test_whoever_asked_for_no_pieces_gets_none(model):
    with make(model.model, tokenizer=word_tokenizer()) as llm:
        name = llm.add_request(model.prompts[0], greedy(stop="nothing"), pieces=False)
        tokens, outputs = run(llm)
    assert {token.text for token in tokens} == {None}
    assert outputs[name].text == text_of(word_tokenizer(), model.prompts[0], outputs[name].token_ids)


def test_every_stop_text_ends_the_text_where_it_begins(model, tokenizer):
    """All texts of one to eight characters in an answer, wherever tokens are cut."""
    prompt = [*model.prompts[6], WHOLE]
    params = SamplingParams(temperature=1.2, max_tokens=12, seed=11)
    with make(model.model, tokenizer=tokenizer, max_num_seqs=32) as llm:
        whole = llm.generate(prompt, params)[0]
        text = whole.text
        stops = sorted({text[at : at + size] for at in range(len(text)) for size in (1, 2, 5, 8)})
        assert len(stops) > 20
        wishes = [SamplingParams(temperature=1.2, max_tokens=12, seed=11, stop=stop) for stop in stops]
        outputs = llm.generate([prompt] * len(stops), wishes)
        told = list(llm.stream([prompt] * len(stops), wishes))
        check_empty(llm)
    assert any(out.token_ids != whole.token_ids for out in outputs)
    for number, (stop, out) in enumerate(zip(stops, outputs, strict=True)):
        assert out.text == text[: text.find(stop)] == pieces(told, number), stop
        assert out.finish_reason is FinishReason.STOP
        assert out.token_ids == whole.token_ids[: len(out.token_ids)]
        assert stop in text_of(tokenizer, prompt, out.token_ids), "not before it is complete"
    some = next(stop for stop in stops if len(stop) > 1 and text.find(stop) > 0)
    with make(model.model, tokenizer=tokenizer) as llm:
        both = SamplingParams(temperature=1.2, max_tokens=12, seed=11, stop=("no such text", some))
        assert llm.generate(prompt, both)[0].text == text[: text.find(some)]


def test_a_stop_token_is_kept_and_counts_as_stop(model):
    prompt = model.prompts[7]
    due, _ = model.due(prompt, greedy(12))
    for place, token in enumerate(due):
        first = due.index(token)
        with make(model.model, tokenizer=word_tokenizer()) as llm:
            held = f"w{token} and no more"  # its beginning is kept back until the end is sure
            out = llm.generate(prompt, greedy(12, stop_token_ids=(token,), stop=held))[0]
        assert list(out.token_ids) == due[: first + 1]
        assert out.finish_reason is FinishReason.STOP
        assert out.text.endswith(f"w{token}") or token < 2
        assert first <= place


def test_the_models_end_of_sequence_ends_it_unless_it_is_ignored(model, monkeypatch):
    """As ``generate`` does, with one id or several; the generation config says it, whatever the config says."""
    prompt = model.prompts[7]
    due, _ = model.due(prompt, greedy(12))
    assert model.model.config.eos_token_id is not None
    assert model.model.generation_config.eos_token_id is None, "so nothing above stopped"
    for eos in (due[3], [due[3]], [96, due[3], due[5]]):
        monkeypatch.setattr(model.model.generation_config, "eos_token_id", eos)
        first = min(due.index(token) for token in ([eos] if isinstance(eos, int) else eos) if token in due)
        with make(model.model) as llm:
            stops, goes_on = llm.generate([prompt] * 2, [greedy(12), greedy(12, ignore_eos=True)])
        assert (list(stops.token_ids), stops.finish_reason) == (due[: first + 1], "stop")
        assert (list(goes_on.token_ids), goes_on.finish_reason) == (due, "length")


def test_an_aborted_sequence_keeps_the_text_that_was_certain(model):
    tokenizer = word_tokenizer()
    with make(model.model, tokenizer=tokenizer) as llm:
        names = [llm.add_request(model.prompts[0], greedy(12), pieces=asked) for asked in (True, False)]
        seen = [token for _ in range(5) for token in llm.step().tokens]
        for name in names:
            llm.abort(name)
        tokens, outputs = run(llm)
    assert [token.finish_reason for token in tokens] == ["abort"] * 2
    for name in names:
        assert len(outputs[name].token_ids) == 5
        assert outputs[name].text == text_of(tokenizer, model.prompts[0], outputs[name].token_ids)
    assert pieces([*seen, *tokens], names[0]) == outputs[names[0]].text
    assert [token.text for token in tokens] == ["", None]


def test_a_tokenizer_that_fails_at_once_leaves_nothing_behind(model, monkeypatch):
    tokenizer = word_tokenizer()
    with make(model.model, tokenizer=tokenizer) as llm:
        with monkeypatch.context() as patch:
            patch.setattr(tokenizer, "decode", lambda *args, **kwargs: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                llm.add_request(model.prompts[3])
        check_empty(llm)
        name = llm.add_request(model.prompts[3], greedy())
        model.check(run(llm)[1][name], greedy())
