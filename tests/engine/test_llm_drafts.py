"""Prompt lookup through an LLM: the tokens, texts and log-probabilities of a run without it, in fewer steps."""

import functools
import random

import pytest

from minikv import LLM
from minikv.engine import EventLog, FinishReason, SamplingParams, summary
from minikv.errors import ArgumentError
from tests.engine.llm_text import byte_tokenizer, word_tokenizer
from tests.engine.llm_world import LONGEST, Broken, check_empty, greedy, make, reference, run
from tests.engine.test_llm_random import PROFILES, drive
from tests.longer import usual_if

MODELS = {
    "llama": {},
    "gemma3_text": {"num_hidden_layers": 6},  # the last layer has no window
    "mistral": {},
    "deepseek_v3": {},
    "gpt2": {},
    "bloom": {},  # reads copies
}
MOST = 4


@functools.cache
def known(model_type):
    return reference(model_type, **MODELS[model_type])


class Oracle:
    """Guesses from the reference's answers, each token of them right with the probability ``truth``."""

    def __init__(self, model, truth):
        self.model, self.truth, self.random = model, truth, random.Random(5)

    def __call__(self, seq, most):
        due, _ = self.model.answer(seq.tokens[: seq.num_prompt])
        tokens = due[seq.num_output : seq.num_output + most]
        return [token if self.random.random() < self.truth else (token + 1) % 97 for token in tokens]


def guess_with(monkeypatch, guess):
    monkeypatch.setattr(
        "minikv.engine.ext.drafts.Drafts.draft_tokens", lambda self, seq, most: guess(seq, most)
    )


@pytest.mark.parametrize(
    ("model_type", "profile"),
    [*(("llama", profile) for profile in PROFILES), *((each, "tight") for each in MODELS if each != "llama")],
)
def test_outputs_are_those_of_generate(model_type, profile, monkeypatch):
    model = known(model_type)
    guess_with(monkeypatch, Oracle(model, 0.7))
    ties = model.ties
    few = {"count": 10} if model_type == "llama" else {}  # fewer of the others all fit
    log, _, outputs = drive(model, profile, f"{model_type} drafts", prompt_lookup=MOST, **few)
    told, metrics = [each for out in outputs.values() for each in out.completions], summary(log.events)
    assert 0 < metrics.accepted_tokens < metrics.drafted_tokens
    assert sum(each.num_accepted for each in told) == metrics.accepted_tokens
    assert sum(each.num_drafted for each in told) == metrics.drafted_tokens
    assert model.ties - ties <= len(outputs) // 8, "a tie is rare"
    assert log.of("preempt") or profile != "tight", "the pool was meant to be too small"


@pytest.mark.parametrize(
    "model_type",
    usual_if(["llama", "gemma3_text", "bloom"].__contains__, [each for each in MODELS if each != "mistral"]),
)
def test_what_repeats_itself_takes_fewer_steps(model_type):
    """The answers of small random models run in circles; so does the prompt."""
    model = known(model_type)
    steps, outputs, metrics = {}, {}, {}
    prompts = [prompt * 3 for prompt in model.prompts[:4]]
    for most in (0, 6):
        log = EventLog()
        with make(model.model, num_blocks=200, prompt_lookup=most, emit=log) as llm:
            outputs[most] = [out.token_ids for out in llm.generate(prompts, greedy(40))]
            steps[most], metrics[most] = llm.snapshot().steps, summary(log.events)
            check_empty(llm)
    assert outputs[6] == outputs[0]
    assert steps[6] < steps[0]
    assert metrics[0].acceptance is None
    assert metrics[6].accepted_tokens > 0


@pytest.mark.parametrize(
    ("model_type", "tight"), [("llama", False), ("llama", True), ("gemma3_text", True), ("bloom", False)]
)
def test_draws_belong_to_places_so_sampled_tokens_are_the_same(model_type, tight, monkeypatch):
    model, told, draw = known(model_type), {}, random.Random(2)
    params = [
        SamplingParams(temperature=0.5 + number / 4, seed=number, max_tokens=20, n=1 + number % 2, logprobs=3)
        for number in range(4)
    ]
    prompts = model.prompts[4:8]

    def guess(seq, most):
        """What was drawn without drafts, with some errors."""
        due = next(
            out.completions[seq.id.sample].token_ids
            for out in told[0]
            if list(out.prompt_token_ids) == seq.tokens[: seq.num_prompt]
        )
        tokens = due[seq.num_output : seq.num_output + most]
        return [token if draw.random() < 0.8 else (token + 1) % 97 for token in tokens]

    guess_with(monkeypatch, guess)
    for most in (0, 6):
        with make(model.model, num_blocks=22 if tight else 200, prompt_lookup=most) as llm:
            told[most] = llm.generate(prompts, params)
    plain, with_drafts = ([each for out in told[most] for each in out.completions] for most in (0, 6))
    assert sum(each.num_accepted for each in with_drafts) > 30
    assert tight == any(each.num_preemptions for each in with_drafts)
    for due, each in zip(plain, with_drafts, strict=True):
        assert each.token_ids == due.token_ids
        assert len(each.logprobs) == len(each.token_ids)
        for found, meant in zip(each.logprobs, due.logprobs, strict=True):
            assert found.logprob == pytest.approx(meant.logprob, abs=1e-4)
            assert [token for token, _ in found.top] == [token for token, _ in meant.top]


def test_it_ends_at_max_tokens_whatever_was_guessed(monkeypatch):
    model = known("llama")
    guess_with(monkeypatch, Oracle(model, 1))
    with make(model.model, prompt_lookup=MOST) as llm:
        for count in range(1, LONGEST + 1):
            before = llm.snapshot().steps
            model.check(llm.generate(model.prompts[5], greedy(count))[0], greedy(count))
            assert llm.snapshot().steps - before == 1 + -(-(count - 1) // (MOST + 1))
        check_empty(llm)


@pytest.mark.parametrize("what", ["stop_token_ids", "eos", "stop"])
def test_it_ends_inside_accepted_drafts(what, monkeypatch):
    """Wherever the end is: the tokens behind it were right, and are dropped."""
    model, tokenizer = known("llama"), word_tokenizer()
    guess_with(monkeypatch, Oracle(model, 1))
    ended = 0
    with make(model.model, prompt_lookup=MOST, tokenizer=tokenizer) as llm:
        for prompt in model.prompts:
            due, _ = model.answer(prompt)
            for place in range(1, LONGEST):
                if due[place] in due[:place] or due[place] < 2:
                    continue
                if what == "eos":
                    monkeypatch.setattr(llm._engine, "eos", frozenset([due[place]]))
                more = {"stop_token_ids": [due[place]]} if what == "stop_token_ids" else {}
                more |= {"stop": [f"w{due[place]}"]} if what == "stop" else {}
                [out] = llm.generate(prompt, greedy(LONGEST, **more))
                # "w1" is complete with "w12", too.
                first = next(at for at, token in enumerate(due) if f"w{token}".startswith(f"w{due[place]}"))
                end = first if what == "stop" else place
                assert list(out.token_ids) == due[: end + 1]
                assert out.finish_reason is FinishReason.STOP
                assert what != "stop" or f"w{due[place]}" not in out.text
                ended += out.completions[0].num_accepted > 0
        check_empty(llm)
    assert ended > 20


@pytest.mark.parametrize("tokenizer", [word_tokenizer, byte_tokenizer])
def test_pieces_and_ends_are_told_as_without_drafts(tokenizer, monkeypatch):
    model, told = known("llama"), {}
    prompts = model.prompts[::2]
    params = [greedy(LONGEST, n=1 + number % 2, logprobs=0) for number in range(len(prompts))]
    guess_with(monkeypatch, Oracle(model, 0.8))
    for most in (0, MOST):
        with make(model.model, prompt_lookup=most, tokenizer=tokenizer()) as llm:
            streamed = list(llm.stream(prompts, params))
            names = [llm.add_request(prompt, each) for prompt, each in zip(prompts, params, strict=True)]
            stepped, outputs = run(llm)
            assert llm.snapshot().generated == len(streamed) + len(stepped)
        told[most] = {}
        for number, (name, each) in enumerate(zip(names, params, strict=True)):
            for sample in range(each.n):
                mine = [token for token in streamed if token[:2] == (number, sample)]
                assert [token[2:4] for token in mine] == [
                    token[2:4] for token in stepped if token[:2] == (name, sample)
                ]
                reasons = [token.finish_reason for token in mine]
                assert reasons == [None] * (LONGEST - 1) + [FinishReason.LENGTH], (
                    "the end comes once, and last"
                )
                told[most][number, sample] = [token[2:4] for token in mine]
                text = outputs[name].completions[sample].text
                assert text == "".join(token.text for token in mine)
    assert told[MOST] == told[0]


@pytest.mark.parametrize("kv_dtype", ["int8", "fp8_scaled"])
def test_a_quantized_cache_says_the_same(kv_dtype):
    model, outputs = known("llama"), {}
    prompts = [prompt * 2 for prompt in model.prompts[::2]]
    for most in (0, MOST):
        with make(model.model, prompt_lookup=most, kv_dtype=kv_dtype, num_blocks=200) as llm:
            outs = llm.generate(prompts, greedy(20))
            outputs[most] = [out.token_ids for out in outs]
    same = sum(a == b for a, b in zip(outputs[0], outputs[MOST], strict=True))
    assert same >= len(prompts) - 1, "a rounded value may tip a tie"
    assert sum(out.completions[0].num_accepted for out in outs) > 0


def test_a_step_with_drafts_that_fails_gives_everything_back(monkeypatch):
    model = known("gemma3_text")
    guess_with(monkeypatch, Oracle(model, 1))
    with make(model.model, prompt_lookup=MOST) as llm:
        logits, calls = llm.runner.compute, iter(range(100))

        def breaks(runner, step, sampled):
            if next(calls) == 1:
                assert sum(item.unconfirmed for item in step.items)
                raise Broken
            return logits(runner, step, sampled)

        llm.runner.compute = breaks
        llm.add_request(model.prompts[3], greedy(9))
        _, outputs = run(llm)
        assert [out.finish_reason for out in outputs.values()] == [FinishReason.ERROR]
        check_empty(llm)
        model.check(llm.generate(model.prompts[3], greedy(9))[0], greedy(9))


def test_an_abort_inside_of_a_step_tells_none_of_its_tokens(monkeypatch):
    model = known("llama")
    guess_with(monkeypatch, Oracle(model, 1))

    def abort(event):
        if event.kind == "allocate" and llm.snapshot().running[0].num_output:
            llm.abort("a")

    llm = make(model.model, prompt_lookup=MOST, emit=abort)
    with llm:
        llm.add_request(model.prompts[3], greedy(12), request_id="a")
        tokens, outputs = run(llm)
        [each] = outputs["a"].completions
        assert each.finish_reason is FinishReason.ABORT
        assert each.num_accepted < len(each.token_ids)
        assert [token.id for token in tokens] == [*each.token_ids, None]
        assert list(each.token_ids) == model.answer(model.prompts[3])[0][: len(each.token_ids)]
        check_empty(llm)


def test_a_sequence_that_was_told_its_facts_twice_is_not_asked_twice():
    """The tiny model says what its prompt says, so most of what is guessed is right."""
    text = "the old cat ada paris sleeps near a red door ben oslo stands by the small tree " * 6
    steps = {}
    for most in (0, 8):
        with LLM("tiny-gqa", prompt_lookup=most, num_blocks=64, device="cpu") as llm:
            [out] = llm.generate(text, greedy(40), progress=False)
            steps[most] = (llm.snapshot().steps, out.token_ids)
    assert steps[0][1] == steps[8][1]
    assert steps[8][0] < steps[0][0]


@pytest.mark.parametrize("value", [-1, 1.5, None, "2", True])
def test_prompt_lookup_is_a_count(value):
    model = known("llama").model
    own = model.config._attn_implementation
    with pytest.raises(ArgumentError):
        make(model, prompt_lookup=value)
    assert model.config._attn_implementation == own
