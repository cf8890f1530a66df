"""An ``LLM`` that launches steps ahead: the same tokens and texts, on a device that is early and on one that is late.

``MINIKV_LONG=n`` runs n times as many.
"""

import os
import random
from itertools import pairwise

import pytest

from minikv.engine import EventLog, FinishReason, SamplingParams
from minikv.plan.preemption import TransferRates
from tests.engine import test_llm_text
from tests.engine.llm_text import byte_tokenizer, word_tokenizer
from tests.engine.llm_world import check_empty, greedy, make, reference, run
from tests.engine.overlap import DEVICES, Late, Prompt, drawn, overlapping, without
from tests.engine.rerun import graphs
from tests.engine.test_llm_random import MODELS, PROFILES, drive
from tests.longer import every_value

LONG = int(os.environ.get("MINIKV_LONG", "1"))
# With the profiles turned by one, other pairs than those that run without.
LOADS = every_value(list(MODELS), [*list(PROFILES)[1:], *list(PROFILES)[:1]])
FEW = 10  # requests of a load


@pytest.fixture(params=DEVICES)
def device(request):
    with overlapping(DEVICES[request.param]()) as device:
        yield device


@pytest.fixture
def model():
    return reference("llama")


def test_the_next_step_is_launched_before_the_tokens_of_this_one_are_read(device, model):
    with make(model.model) as llm:
        params = [greedy(length) for length in (12, 12, 9)]
        for out, wanted in zip(llm.generate(model.prompts[:3], params), params, strict=True):
            model.check(out, wanted)
        check_empty(llm)
    steps, notes = device.launched(), device.notes
    assert [(step.batch.sources is not None) for step in steps] == [False] + [True] * 11, "each but the first"
    for step, behind in pairwise(steps):
        assert notes.index(("launch", behind)) < notes.index(("read", step))
    assert [step for what, step in notes if what == "read"] == steps, "each once, in their order"
    assert [len(step.items) for step in steps] == [3] * 9 + [2] * 3, "no row for nobody"


@pytest.mark.parametrize(("model_type", "profile"), LOADS)
def test_random_loads_have_the_tokens_of_generate(model_type, profile):
    """Arrivals, aborts, forks, prefix hits, preemption, stop tokens, windows."""
    ahead = 0
    for seed in range(LONG):
        with overlapping(Late() if (len(profile) + seed) % 2 else Prompt()) as device:
            model = reference(model_type, **MODELS[model_type])
            drive(model, profile, f"{model_type} {seed} ahead", count=FEW)
        ahead += len(device.ahead())
    assert ahead or profile not in ("roomy", "linear")


@pytest.mark.parametrize(
    ("load", "late"), every_value([("llama", "roomy"), ("gemma3_text", "tight")], [False, True]), ids=str
)
def test_a_captured_step_takes_its_tokens_from_the_device(load, late):
    model_type, profile = load
    with overlapping(Late() if late else Prompt()) as device, graphs(every=3) as capturers:
        drive(reference(model_type), profile, 5, count=FEW, max_model_len=64)
    assert capturers[0].replays >= 10
    assert len(device.ahead()) > 3


@pytest.mark.parametrize("late", [False, True])
def test_blocks_go_to_the_host_and_come_back(late):
    rates = TransferRates(to_host=1e12, to_device=1e12, prefill=1.0)  # a swap is always cheaper
    options = {"cpu_kv_bytes": 2**20, "swap_rates": rates}
    with overlapping(Late() if late else Prompt()) as device:
        log, _, _ = drive(reference("llama"), "tight", 5, **options)
    assert log.of("swap_in")
    assert device.ahead()


def wishes(model, draw, tokenizer):
    """Greedy and drawn, with log-probabilities, several samples, stop texts and stop tokens."""
    for number, _ in enumerate(model.prompts):
        yield SamplingParams(
            temperature=draw.choice([0, 0.7, 1.3]),
            top_k=draw.choice([0, 5]),
            top_p=draw.choice([1, 0.8]),
            max_tokens=draw.randrange(1, 14),
            n=draw.choice([1, 1, 3]),
            seed=number,
            logprobs=draw.choice([None, 2]),
            stop=draw.choice([(), (f"w{draw.randrange(2, 97)}", "w7 ")]) if tokenizer else (),
            stop_token_ids=draw.sample(range(97), draw.choice([0, 0, 8])),
        )


@pytest.mark.parametrize("make_tokenizer", [word_tokenizer, byte_tokenizer])
def test_whatever_is_asked_for_is_the_same_with_and_without(model, make_tokenizer):
    """All prompts fit, so that the same rows are computed together."""
    draw, tokenizer = random.Random(make_tokenizer.__name__), make_tokenizer()
    params = list(wishes(model, draw, tokenizer))
    options = {"tokenizer": tokenizer, "max_num_seqs": 64, "num_blocks": 600, "max_batched_tokens": 2048}

    def outputs():
        with make(model.model, **options) as llm:
            told = {}
            for token in llm.stream(model.prompts, params):
                told.setdefault((token.request, token.sample), []).append(token)
            return llm.generate(model.prompts, params), told

    due, due_told = outputs()
    for kind in DEVICES.values():
        with overlapping(kind()) as device:
            got, told = outputs()
        assert len(device.ahead()) > 10
        assert told.keys() == due_told.keys()
        for key, tokens in told.items():
            assert [(each.id, each.text, each.finish_reason) for each in tokens] == [
                (each.id, each.text, each.finish_reason) for each in due_told[key]
            ]
        for mine, theirs in zip(got, due, strict=True):
            for one, other in zip(mine.completions, theirs.completions, strict=True):
                assert (one.token_ids, one.text, one.finish_reason) == (
                    other.token_ids,
                    other.text,
                    other.finish_reason,
                )
                assert (one.logprobs is None) == (other.logprobs is None)
                for a, b in zip(one.logprobs or (), other.logprobs or (), strict=True):
                    assert a.logprob == pytest.approx(b.logprob, abs=1e-4)
    reasons = {each.finish_reason for out in due for each in out.completions}
    assert reasons == {FinishReason.STOP, FinishReason.LENGTH}


@pytest.mark.parametrize("stop", range(12))
def test_a_stop_token_ends_a_text_in_every_place(model, stop):
    """The row of the next step is dropped; who stands beside it goes on."""
    due, size = without(model), (1, 4)[stop % 2]
    params = [drawn(stop_token_ids=due[stop : stop + 1]), greedy(12), drawn()]
    with (
        overlapping((Prompt, Late)[stop // 2 % 2]()) as device,
        make(model.model, block_size=size, num_blocks=200, max_batched_tokens=128) as llm,
    ):
        outputs = llm.generate([model.prompts[7], model.prompts[3], model.prompts[7]], params)
        assert outputs[0].token_ids == due[: stop + 1]
        assert outputs[0].finish_reason is FinishReason.STOP
        assert outputs[2].token_ids == due
        model.check(outputs[1], params[1])
        check_empty(llm)
        assert llm.generate(model.prompts[7], drawn())[0].token_ids == due, "nothing wrong is cached"
    rows = [len(step.items) for step in device.launched()[:12]]
    assert rows == [3] * min(12, stop + 2) + [2] * (10 - stop), "one row was dropped"


WITH_TEXT = (
    test_llm_text.test_pieces_are_together_the_text,
    test_llm_text.test_every_stop_text_ends_the_text_where_it_begins,
)


@pytest.mark.parametrize("test", WITH_TEXT)
@pytest.mark.parametrize("make_tokenizer", [word_tokenizer, byte_tokenizer])
def test_texts_are_the_same(model, test, make_tokenizer):
    """Each test on either device, each tokenizer too."""
    late = (test is WITH_TEXT[0]) == (make_tokenizer is word_tokenizer)
    with overlapping(Late() if late else Prompt()) as device:
        test(model, make_tokenizer())
    assert device.ahead()


def test_the_end_of_a_sequence_is_the_same(device, model, monkeypatch):
    test_llm_text.test_a_stop_token_is_kept_and_counts_as_stop(model)
    test_llm_text.test_the_models_end_of_sequence_ends_it_unless_it_is_ignored(model, monkeypatch)


def test_a_prefill_is_timed_alone(device, model):
    """What it took tells how fast a recompute would be: the host's work for another step is no part of it."""
    with make(model.model) as llm:
        timed = []
        llm._engine._plain.after_forward = (lambda step, seconds: timed.append((step, seconds)),)
        llm.add_request(model.prompts[0], greedy(9))
        run(llm)
    steps = device.launched()
    assert [step for step, _ in timed] == steps[:1]
    assert all(seconds > 0 for _, seconds in timed)
    assert [(step.batch.sources is not None) for step in steps] == [False, False] + [True] * 7


def test_drafts_are_not_guessed_ahead(device, model):
    with make(model.model, prompt_lookup=3) as llm:
        for out in llm.generate(model.prompts[:4], greedy(9)):
            model.check(out, greedy(9))
    assert not device.ahead()


def test_events_say_what_ran(device, model):
    log = EventLog()
    with make(model.model, emit=log) as llm:
        llm.generate(model.prompts[:4], greedy(9))
        assert llm.snapshot().steps == len(log.of("step")) == len(device.launched()) == 9
        assert llm.snapshot().generated == 36
    assert [event.step for event in log.of("step")] == list(range(9))
    assert [event.decode_tokens for event in log.of("step")] == [0] + [4] * 8
