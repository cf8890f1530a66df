"""On a GPU: decoders with states, with an indexer, and on no list, with the tokens that a CPU's ``generate`` gives."""

import copy

import pytest
import torch

from minikv.engine import SamplingParams
from tests.engine.llm_world import Reference, check_empty, greedy, make, run
from tests.engine.test_llm_indexed import SIZES
from tests.engine.test_llm_indexed import of as indexed
from tests.engine.test_llm_states import of as recurrent
from tests.engine.test_llm_states import poisoned

DEVICE = "cuda"
NEAR = 1e-3  # of two logits: rounding may take either
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]


@pytest.fixture(autouse=True)
def _float32(monkeypatch):
    """Convolutions are cut to tf32 by default."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)


def check(mine: Reference, out, count: int) -> None:
    due, logits = mine.answer(list(out.prompt_token_ids), count)
    for each in out.completions:
        pairs = enumerate(zip(each.token_ids, due, strict=True))
        differs = next((place for place, (ours, theirs) in pairs if ours != theirs), None)
        if differs is not None:
            best = logits[differs].topk(2).values
            assert best[0] - best[1] < NEAR, (list(out.prompt_token_ids), differs)


def answered(mine: Reference, **options) -> None:
    """Answer every prompt with preemptions, chunks, and decodes beside them."""
    model = copy.deepcopy(mine.model).to(DEVICE)
    with make(model, num_blocks=16, max_batched_tokens=24, **options) as llm:
        assert llm.cache.device.type == DEVICE
        if llm.states is not None:
            poisoned(llm)
            assert {llm.states.tensor(shape).device.type for shape in llm.states.shapes} == {DEVICE}
        for number, prompt in enumerate(mine.prompts):
            llm.add_request(prompt, greedy(12, n=1 + (number % 5 == 0)), request_id=number)
        outputs = run(llm)[1]
        check_empty(llm)
    for out in outputs.values():
        check(mine, out, 12)


@pytest.mark.parametrize("model_type", ["jamba", "lfm2", "mamba2", "qwen3_next"])
def test_a_recurrent_model_gives_what_a_cpu_gives(model_type):
    answered(recurrent(model_type))


@pytest.mark.parametrize("model_type", SIZES)
def test_a_model_with_an_indexer_gives_what_a_cpu_gives(model_type):
    answered(indexed(model_type))


@pytest.mark.parametrize("model_type", ["afmoe", "jetmoe"])
def test_a_decoder_on_no_list_is_measured_and_gives_what_a_cpu_gives(model_type):
    answered(Reference(model_type, num_hidden_layers=5))


def test_biases_penalties_and_bans_give_what_a_cpu_gives():
    """A penalty reads a token's history, so these rows keep the engine from computing ahead."""
    mine = Reference("llama", answers=False)
    params = [
        SamplingParams(temperature=0, max_tokens=10, repetition_penalty=1.3),
        SamplingParams(temperature=0, max_tokens=10, frequency_penalty=0.7, presence_penalty=0.4),
        SamplingParams(temperature=0, max_tokens=10, logit_bias={5: 4.0, 9: -8.0}),
        SamplingParams(temperature=0, max_tokens=10),
    ]
    tokens = {}
    for device in ("cpu", DEVICE):
        with make(copy.deepcopy(mine.model).to(device), max_model_len=64) as llm:
            outputs = llm.generate(mine.prompts[4:8], params)
            tokens[device] = [out.completions[0].token_ids for out in outputs]
    assert tokens["cpu"] == tokens[DEVICE]


@pytest.mark.parametrize("expands", [False, True])
def test_latents_give_the_same_expanded_and_absorbed(monkeypatch, expands):
    monkeypatch.setattr("minikv.kernels.expanding.expanding_pays", lambda *given: expands)
    answered(Reference("deepseek_v3"))
