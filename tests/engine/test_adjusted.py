"""Changes of logits: row by row what transformers' processors compute, and in an engine what its generate() answers."""

import random
from collections import Counter

import numpy as np
import pytest
import torch
from transformers import (
    LogitsProcessorList,
    MinNewTokensLengthLogitsProcessor,
    NoBadWordsLogitsProcessor,
    NoRepeatNGramLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
)

from minikv import LLM, SamplingParams
from minikv.engine import GenerationFailedError
from minikv.engine.adjusted import WithHistory, adjusted
from minikv.engine.sampler import Draws, sample
from minikv.errors import ArgumentError
from minikv.models import load

VOCABULARY = 23
PROMPT = "ada paris the old cat sleeps near ben oslo a red door ? ada"


def row(logits, tokens, num_prompt=0, ends=(), **asked):
    history = WithHistory(SamplingParams(**asked), tokens, num_prompt, frozenset(ends))
    return adjusted(logits.unsqueeze(0), [history])[0]


def cases(count=200):
    draw = random.Random(7)
    for number in range(count):
        tokens = [draw.randrange(VOCABULARY) for _ in range(draw.randrange(1, 30))]
        yield draw, tokens, torch.randn(VOCABULARY, generator=torch.Generator().manual_seed(number)) * 4


def test_a_row_is_what_the_processors_of_transformers_make_of_it():
    for draw, tokens, logits in cases():
        ids = torch.tensor([tokens])
        penalty = draw.choice([0.5, 1.0, 1.3, 2.0])
        bias = {draw.randrange(VOCABULARY): draw.uniform(-5, 5) for _ in range(draw.randrange(4))}
        words = [
            [draw.randrange(VOCABULARY) for _ in range(draw.randrange(1, 4))]
            for _ in range(draw.randrange(4))
        ]
        words += [[*tokens[-length:], draw.randrange(VOCABULARY)] for length in (1, 2) if draw.random() < 0.5]
        start, least, end = draw.randrange(len(tokens)), draw.randrange(1, 9), [3, 5]
        theirs = LogitsProcessorList()
        if bias:
            theirs.append(SequenceBiasLogitsProcessor({(token,): value for token, value in bias.items()}))
        if penalty != 1:
            theirs.append(RepetitionPenaltyLogitsProcessor(penalty))
        theirs.append(MinNewTokensLengthLogitsProcessor(start, least, end, device="cpu"))
        if words:
            theirs.append(NoBadWordsLogitsProcessor(words))
        expected = theirs(ids, logits.unsqueeze(0).clone())[0]
        found = row(
            logits,
            tokens,
            start,
            ends=end,
            repetition_penalty=penalty,
            logit_bias=bias,
            bad_words=words,
            min_tokens=least,
            max_tokens=99,
        )
        assert torch.equal(found, expected)


def test_frequency_and_presence_count_the_output_alone():
    for draw, tokens, logits in cases():
        start = draw.randrange(len(tokens) + 1)
        frequency, presence = draw.uniform(-2, 2), draw.uniform(-2, 2)
        counts = Counter(tokens[start:])
        expected = [
            value - frequency * counts[token] - presence * (token in counts)
            for token, value in enumerate(logits.tolist())
        ]
        found = row(logits, tokens, start, frequency_penalty=frequency, presence_penalty=presence)
        torch.testing.assert_close(found, torch.tensor(expected))


def test_a_processor_of_transformers_works_as_it_stands():
    tokens = [4, 5, 6, 4, 5]
    found = row(torch.zeros(VOCABULARY), tokens, logits_processors=[NoRepeatNGramLogitsProcessor(3)])
    assert found[6] == -torch.inf
    assert found.isfinite().sum() == VOCABULARY - 1


def test_other_rows_and_the_given_logits_stay_as_they_are():
    logits = torch.randn(3, VOCABULARY, dtype=torch.bfloat16)
    before = logits.clone()
    plain = SamplingParams()
    history = WithHistory(SamplingParams(repetition_penalty=2.0), [1, 2, 3], 0)
    found = adjusted(logits, [plain, history, plain])
    assert found.dtype == torch.float32
    assert torch.equal(found[0::2], before[0::2].float())
    assert torch.equal(logits, before)
    assert adjusted(logits, [plain] * 3) is logits


def test_draws_have_the_probabilities_of_the_changed_logits():
    """Chi-square of 20,000 draws, and no token outside the support."""
    logits = torch.randn(VOCABULARY, generator=torch.Generator().manual_seed(3)).double()
    asked = {
        "repetition_penalty": 1.5,
        "frequency_penalty": 0.7,
        "bad_words": [[4], [5]],
        "logit_bias": {7: 1.5},
    }
    history = WithHistory(SamplingParams(**asked), [1, 2, 2, 9, 9, 9], 2)
    draws, count = Draws(11, 0), 20_000
    numbers = [draws[place] for place in range(count)]
    found = sample(logits.expand(count, -1), [history] * count, numbers).token_ids
    expected = torch.softmax(adjusted(logits.unsqueeze(0), [history])[0], -1).numpy() * count
    seen = np.bincount(found, minlength=VOCABULARY)
    assert not seen[expected == 0].any()
    live = expected > 0
    chi_square = float(((seen[live] - expected[live]) ** 2 / expected[live]).sum())
    assert chi_square < 49.7  # 23 - 2 - 1 = 20 degrees of freedom: exceeded once in 4,000 times


def test_log_probabilities_are_those_of_the_model():
    logits = torch.randn(1, VOCABULARY).double()
    history = WithHistory(
        SamplingParams(temperature=0, logprobs=2, bad_words=[[int(logits.argmax())]]), [1], 0
    )
    found = sample(logits, [history], [0.0])
    assert found.token_ids[0] != int(logits.argmax())
    told = found.logprobs[0]
    assert told.rank == 2
    assert told.logprob == pytest.approx(float(logits.log_softmax(-1)[0, found.token_ids[0]]))


@pytest.fixture(scope="module")
def world():
    """tiny-gqa with what its own generate() answers under each set of settings, made before any LLM is bound."""
    loaded = load("tiny-gqa", dtype="fp32")
    ids = loaded.tokenizer(PROMPT, return_tensors="pt")
    oslo = loaded.tokenizer(" oslo", add_special_tokens=False)["input_ids"]
    settings = [
        ({"repetition_penalty": 1.2}, {"repetition_penalty": 1.2}),
        ({"bad_words": ["oslo", [5]]}, {"bad_words_ids": [oslo, [5]]}),
        ({"logit_bias": {9: 6.0}}, {"sequence_bias": {(9,): 6.0}}),
        (
            {"logits_processors": [NoRepeatNGramLogitsProcessor(2)], "repetition_penalty": 1.1},
            {"no_repeat_ngram_size": 2, "repetition_penalty": 1.1},
        ),
        ({}, {}),
    ]
    answers = []
    for ours, theirs in settings:
        out = loaded.model.generate(**ids, max_new_tokens=24, do_sample=False, **theirs)[
            0, ids.input_ids.shape[1] :
        ]
        answers.append((SamplingParams(temperature=0, max_tokens=24, **ours), out.tolist()))
    return loaded, answers


@pytest.mark.parametrize(
    "options",
    [
        {"num_blocks": 64},
        {"num_blocks": 16},  # not enough for all: some are preempted
        {"num_blocks": 64, "prompt_lookup": 4},
        {"num_blocks": 64, "max_batched_tokens": 7, "max_num_seqs": 4},
        {"num_blocks": 64, "overlaps": True},
    ],
    ids=["plain", "preempted", "drafts", "chunks", "overlapping"],
)
def test_an_engine_answers_as_generate_does_whatever_is_around_a_request(world, options):
    loaded, answers = world
    overlaps = options.pop("overlaps", False)
    with LLM(loaded, block_size=4, **options) as llm:
        llm.overlaps = overlaps
        found = llm.generate([PROMPT] * len(answers), [params for params, _ in answers], progress=False)
    for output, (params, expected) in zip(found, answers, strict=True):
        assert list(output.token_ids) == expected, params


def test_neither_a_stop_token_nor_a_stop_text_ends_before_the_least_number_of_tokens(world):
    loaded, answers = world
    free = answers[-1][1]
    with LLM(loaded, num_blocks=64, block_size=4) as llm:
        first = loaded.tokenizer.decode(free[:1]).strip()
        params = SamplingParams(temperature=0, max_tokens=12, stop=[first], min_tokens=6)
        text = llm.generate(PROMPT, params, progress=False)[0]
        assert len(text.token_ids) >= 6
        assert first in text.text
        none = SamplingParams(temperature=0, max_tokens=12, stop_token_ids=free[:1], min_tokens=6)
        ids = list(llm.generate(PROMPT, none, progress=False)[0].token_ids)
        assert len(ids) >= 6
        assert free[0] not in ids[:6]


def test_several_samples_of_a_prompt_have_their_own_histories(world):
    loaded, _ = world
    params = SamplingParams(
        temperature=1.0, seed=3, n=3, max_tokens=8, frequency_penalty=2.0, repetition_penalty=1.3
    )
    with LLM(loaded, num_blocks=64, block_size=4) as llm:
        together = llm.generate(PROMPT, params, progress=False)[0].completions
        again = llm.generate([PROMPT, PROMPT], [params, SamplingParams()], progress=False)[0].completions
    assert [each.token_ids for each in together] == [each.token_ids for each in again]
    assert len({each.token_ids for each in together}) > 1


def test_a_processor_that_breaks_fails_its_step_and_says_why(world):
    loaded, _ = world
    with LLM(loaded, num_blocks=64, block_size=4) as llm:
        wrong = SamplingParams(logits_processors=[lambda ids, logits: logits[0, :5]])
        with pytest.raises(GenerationFailedError, match=r"\[5\]"):
            llm.generate(PROMPT, wrong, progress=False)
        assert llm.generate(PROMPT, SamplingParams(max_tokens=1), progress=False)[0].token_ids


@pytest.mark.parametrize(
    "asked",
    [
        {"repetition_penalty": 0},
        {"repetition_penalty": -1.0},
        {"presence_penalty": 2.5},
        {"frequency_penalty": -2.1},
        {"min_tokens": 17},
        {"min_tokens": -1},
        {"logit_bias": {-1: 2.0}},
        {"logit_bias": {1: float("nan")}},
        {"logit_bias": 5},
        {"bad_words": "oslo"},
        {"bad_words": [""]},
        {"bad_words": [[-1]]},
        {"bad_words": [5]},
        {"logits_processors": [5]},
        {"logits_processors": print},
    ],
    ids=str,
)
def test_what_cannot_be_is_refused_by_name(asked):
    (name,) = asked
    with pytest.raises(ArgumentError) as error:
        SamplingParams(**asked)
    assert name in error.value.text("en")
    assert name in error.value.text("zh")


def test_ids_outside_the_vocabulary_and_words_without_a_tokenizer_are_refused(world):
    loaded, _ = world
    with LLM(loaded, num_blocks=64) as llm:
        for asked in ({"logit_bias": {10**6: 1.0}}, {"bad_words": [[10**6]]}):
            with pytest.raises(ArgumentError, match="1,000,000"):
                llm.generate(PROMPT, SamplingParams(**asked), progress=False)
    with LLM(loaded.model, num_blocks=64) as llm, pytest.raises(ArgumentError, match="bad_words"):
        llm.generate([[1, 2]], SamplingParams(bad_words=["oslo"]), progress=False)


def test_equal_params_are_equal_and_nothing_can_be_changed():
    one = SamplingParams(logit_bias={3: 1.0, 2: 0.5}, bad_words=["a", [1, 2]])
    assert one == SamplingParams(logit_bias={2: 0.5, 3: 1.0}, bad_words=("a", (1, 2)))
    assert hash(one) == hash(SamplingParams(logit_bias=((2, 0.5), (3, 1.0)), bad_words=["a", [1, 2]]))
    assert one.adjusts
    assert not SamplingParams(temperature=0.5, stop=["a"]).adjusts


TEMPLATE = (
    "{% for each in messages %}{{ each.content }} {% endfor %}{% if add_generation_prompt %}? ada{% endif %}"
)


def test_a_conversation_is_answered_by_the_tokenizers_template(world, monkeypatch):
    loaded, _ = world
    talk = [{"role": "user", "content": "ada paris"}, {"role": "user", "content": "ben oslo"}]
    asked = SamplingParams(temperature=0, max_tokens=1)
    with LLM(loaded, num_blocks=64) as llm:
        with pytest.raises(ArgumentError, match="no chat template"):
            llm.chat(talk, asked)
        assert llm.chat(talk, asked, chat_template=TEMPLATE, progress=False)[0].text == " paris"
        monkeypatch.setattr(loaded.tokenizer, "chat_template", TEMPLATE)
        assert [each.text for each in llm.chat([talk, talk], asked, progress=False)] == [" paris"] * 2
        for wrong in ("ada", [[]], ["ada"], [{"content": "x"}], None):
            with pytest.raises(ArgumentError, match="messages"):
                llm.chat(wrong, asked)
        assert llm.chat([], asked, progress=False) == []
        refusing = "{{ raise_exception('roles must alternate') }}"
        with pytest.raises(ArgumentError, match="roles must alternate"):
            llm.chat(talk, asked, chat_template=refusing)
