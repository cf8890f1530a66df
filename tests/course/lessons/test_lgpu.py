"""The GPU lab: its arithmetic on cards that are not here, what it measures on a CPU, its predictions and questions."""

import math

import pytest
import torch

from minikv import LLM
from minikv.course.lessons import find_lesson
from minikv.course.lessons.lgpu import card as cards
from minikv.course.lessons.lgpu import measure
from minikv.course.lessons.lgpu.card import KNOWN, SMALL_POOL, Card, find_card, gpu_card
from minikv.memory import MemoryStats
from minikv.models import random_model
from minikv.models.random_weights import QWEN3_06B, QWEN3_8B, TOY
from minikv.plan import CacheSpec
from minikv.units import GIB
from tests.course.mutants import assert_prediction, assert_question

LESSON = find_lesson("GPU")
CPU = Card("CPU", None, torch.device("cpu"), torch.float32, TOY)
EVERY = {name: gpu_card(name, *figures) for name, figures in KNOWN.items()}


@pytest.fixture(scope="module")
def model():
    return random_model(TOY, torch.device("cpu"), torch.float32)


@pytest.mark.parametrize("name", EVERY)
def test_the_shares_add_up_to_the_card(name):
    card = EVERY[name]
    shares = card.shares(GIB, 2 * GIB)
    assert sum(shares.values()) == card.total
    assert shares["free"] == card.total - int(card.total * 0.9)
    assert shares["step"] == GIB
    assert shares["outside"] == 2 * GIB


def test_a_card_gets_its_model_and_its_dtype():
    assert EVERY["T4"].shape is QWEN3_06B
    assert EVERY["T4"].dtype is torch.float16
    assert all(EVERY[name].shape is QWEN3_8B for name in KNOWN if name != "T4")
    assert EVERY["H200"].dtype is torch.bfloat16


def test_a_card_without_room_has_no_kv_and_never_less():
    assert EVERY["A100 40GB"].shares(GIB, 60 * GIB)["kv"] == 0


@pytest.mark.parametrize("tokens", [1, 15, 16, 17, 4096])
def test_as_many_sequences_fit_as_whole_blocks_hold(tokens):
    card = EVERY["H100 80GB"]
    spec = CacheSpec.from_config("Qwen3-8B")
    assert card.token_bytes == spec.bytes_for(1)
    blocks, fit = 1000, card.sequences(1000 * spec.block_bytes(16) + 1, tokens)
    assert fit * math.ceil(tokens / 16) <= blocks < (fit + 1) * math.ceil(tokens / 16)


def test_a_card_of_80_gb_holds_what_the_recap_says():
    card = EVERY["H100 80GB"]
    assert card.shape.parameters == 8_190_735_360
    assert card.sequences(card.shares(GIB, GIB)["kv"], 4096) == 96


def test_only_a_machine_without_a_gpu_says_what_is_absent():
    assert CPU.absent("a sentence") == ["a sentence"]
    assert EVERY["T4"].absent("a sentence") == []
    assert CPU.options() == {"kv_bytes": SMALL_POOL}
    assert EVERY["T4"].options() == {}


def test_the_cpu_is_the_card_where_there_is_no_gpu(monkeypatch):
    monkeypatch.setattr(cards.torch.cuda, "is_available", lambda: False)
    assert find_card() == CPU


@pytest.mark.parametrize("options", [{}, {"kv_dtype": "int8"}, {"enforce_eager": True}], ids=str)
def test_a_decode_step_reads_the_weights_and_what_is_cached(model, options):
    found = measure.decode(model, CPU, 3, **options)
    weights = sum(each.nbytes for each in model.parameters()) - model.get_input_embeddings().weight.nbytes
    assert found.num_bytes - weights == 3 * found.resident * found.token_bytes
    assert found.seconds > 0
    assert found.gb_s == pytest.approx(found.num_bytes / found.us / 1e3)


def test_a_tenth_is_kept_by_eviction(model):
    config = measure.tenth(320)
    assert config.n_sink + config.budget + config.n_recent == 32
    found = measure.decode(model, CPU, 2, context=320, eviction=config)
    assert found.resident == config.tokens.peak_resident < 64


def test_an_allocation_that_fails_costs_no_answer(model):
    with LLM(model, num_blocks=16) as llm:
        found = measure.survive(llm, CPU)
    assert found.same
    assert str(found.asked) in found.error
    assert list(found.moments) == ["before", "after", "served"]
    assert found.mib("after")[1:3] == [None, None], "a CPU caches nothing"


def test_a_thread_streams_every_answer_and_can_be_waited_for(model):
    with LLM(model, num_blocks=32) as llm:
        thread = measure.requests_in_thread(llm, measure.prompts_of(CPU, 4, 20, shared=16), tokens=6)
        measure.wait_for(llm, 2, thread)
        assert llm.totals["steps"] >= 2
        thread.join()
        assert llm.totals["finished"] == 4
        measure.wait_for(llm, 10**6, thread)  # it has ended: nothing to wait for


def test_prompts_share_their_beginning_and_nothing_else_by_design():
    prompts = measure.prompts_of(CPU, 8, 40, shared=24)
    assert len({tuple(prompt[:24]) for prompt in prompts}) == 1
    assert len({tuple(prompt[24:]) for prompt in prompts}) == 8


def gpu(allocated, reserved, free):
    return MemoryStats(
        device="cuda:0", total=80 * GIB, free=free, allocated=allocated, reserved=reserved, peak=allocated,
        inactive_split=GIB, others=None,
    )  # fmt: skip


def test_a_gpu_has_three_curves_and_a_cpu_one():
    samples = [(0.0, gpu(GIB, 2 * GIB, 77 * GIB)), (0.5, gpu(3 * GIB, 4 * GIB, 70 * GIB))]
    assert measure.curves(samples) == {
        "allocated": {0.0: 1.0, 0.5: 3.0},
        "reserved": {0.0: 2.0, 0.5: 4.0},
        "used": {0.0: 3.0, 0.5: 10.0},
    }
    assert list(measure.memory_while(CPU, lambda: None)) == ["allocated"]
    assert measure.Survived(1, "", {"before": samples[0][1]}, same=True).mib("before") == [
        1024,
        2048,
        1024,
        77 * 1024,
    ]


def test_the_rates_of_a_swap_are_measured(model):
    rates = measure.transfer_rates(model, CPU)
    assert min(rates.to_host, rates.to_device, rates.prefill) > 0


@pytest.mark.parametrize("before", [None, "1", "values"])
def test_checks_are_left_out_for_a_time(monkeypatch, before):
    if before is None:
        monkeypatch.delenv("MINIKV_CHECKED", raising=False)
    else:
        monkeypatch.setenv("MINIKV_CHECKED", before)
    with measure.unchecked():
        assert measure.os.environ["MINIKV_CHECKED"] == "0"
    assert measure.os.environ.get("MINIKV_CHECKED") == before


@pytest.mark.parametrize("prediction", LESSON.predictions, ids=lambda each: each.key)
def test_predictions(prediction):
    assert_prediction(prediction, "gpu")


@pytest.mark.parametrize("key", LESSON.questions)
def test_questions(key):
    assert_question(key, "gpu")
