"""What an LLM that evicts tells the record of its tokens: all of it once, whatever comes in between."""

import random
from collections import deque
from types import SimpleNamespace

import pytest
import torch

from minikv import LLM, SamplingParams
from minikv.engine import factory
from minikv.engine.ext import graphs
from minikv.engine.ext.eviction import EvictionConfig
from minikv.errors import ArgumentError, RequestTooLargeError
from minikv.models import load, recall_documents
from tests.engine.test_eviction import SWAP, nothing_is_held, params_of, said, told
from tests.models.running import World

FEW, LONGER = (SamplingParams(temperature=0, max_tokens=count) for count in (8, 40))
SMALL = {"block_size": 4, "num_blocks": 22, "cpu_kv_bytes": 2**20, "swap_rates": SWAP}


@pytest.fixture(scope="module")
def model():
    return load("tiny-gqa", device="cpu").model


@pytest.fixture(scope="module")
def texts():
    return [[int(token) for token in each.tokens[:12]] for each in recall_documents(3, seed=5)]


@pytest.fixture(scope="module")
def expected(model, texts):
    return said(model, texts[:1], FEW, eviction=params_of())[0][0]


def run(llm, texts, several=1):
    """Ask for all texts, of the first ``several`` times; how often a step has raised."""
    for number, text in enumerate(texts):
        count = several if number == 0 else 1
        llm.add_request(text, SamplingParams(temperature=0, max_tokens=LONGER.max_tokens, n=count))
    raised = 0
    for _ in range(400):
        if not llm.has_work:
            return raised
        try:
            llm.step()
        except KeyboardInterrupt:
            raised += 1
    raise AssertionError("it does not end")


class Interrupted(deque):
    """A log whose first event of ``op`` is interrupted when it has been applied, and before it is taken out."""

    op = None

    def popleft(self):
        if self[0].op == self.op:
            self.op = None
            raise KeyboardInterrupt
        return super().popleft()


def test_who_is_aborted_on_the_host_leaves_no_record_there(model, texts):
    aborted = 0
    with LLM(model, eviction=params_of(), **SMALL) as llm:
        for text in texts:
            llm.add_request(text, LONGER)
        while llm.has_work:
            llm.step()
            swapped = [seq.id.request for seq in llm.snapshot().waiting if seq.swapped]
            aborted += sum(map(llm.abort, swapped))
        nothing_is_held(llm)
    assert aborted


@pytest.mark.parametrize("op", ["add", "fork", "save", "restore", "remove"])
def test_after_an_interrupt_between_two_events_it_says_what_it_always_said(model, texts, expected, op):
    with LLM(model, eviction=params_of(), **SMALL) as llm:
        event_log = Interrupted()
        event_log.op = op
        llm.eviction.event_log = llm.eviction.worker.event_log = event_log
        assert run(llm, texts, several=2) == 1
        outputs = llm.generate(texts[:1], FEW, progress=False)
        assert list(outputs[0].token_ids) == expected
        nothing_is_held(llm)


@pytest.mark.parametrize("what", ["copy", "restore", "fork"])
def test_after_an_error_while_a_record_is_moved_it_says_what_it_always_said(
    model, texts, expected, what, monkeypatch
):
    with LLM(model, eviction=params_of(), **SMALL) as llm:
        records, raised = told(llm), []
        move = getattr(records, what)

        def broken(*args):
            if not raised:
                raised.append(what)
                raise RuntimeError("no room")
            return move(*args)

        monkeypatch.setattr(records, what, broken)
        run(llm, texts, several=2)
        assert raised
        outputs = llm.generate(texts[:1], FEW, progress=False)
        assert list(outputs[0].token_ids) == expected
        nothing_is_held(llm)


@pytest.mark.parametrize(
    ("code", "options"),
    [
        ("eviction_engine", {"reads": "gather"}),
    ],
)
def test_what_can_be_read_off_the_arguments_is_refused_before_there_is_a_cache(
    model, code, options, monkeypatch
):
    def never(*_, **__):
        raise AssertionError("a cache is made")

    monkeypatch.setattr(factory, "allocate_kv_cache", never)
    with pytest.raises(ArgumentError) as refused:
        LLM(model, **{"eviction": params_of(), "num_blocks": 40, **options})
    assert refused.value.code == code


def test_a_request_that_never_fits_hears_what_of_eviction_would_make_it_fit(model, texts):
    text, options = texts[0] * 20, {"num_blocks": 22, "block_size": 4}
    long = {"prefill_chunk": 64, "evict_every": 4}
    with LLM(model, eviction=params_of(**long), **options) as llm:
        with pytest.raises(RequestTooLargeError) as refused:
            llm.add_request(text, FEW)
        most = llm.eviction.peak
        assert refused.value.code == "request_never_fits_at_once"
        assert refused.value.values["most"] == most > 22 * 4
        for lang in ("en", "zh"):
            assert "prefill_chunk" in refused.value.text(lang)
            assert str(most) in refused.value.text(lang)
    smaller = EvictionConfig("h2o", budget=30, n_recent=10, evict_every=4, prefill_chunk=64 - (most - 22 * 4))
    with LLM(model, eviction=smaller, **options) as llm:
        assert llm.generate([text], FEW, progress=False)[0].num_cached == 0


@pytest.mark.parametrize("asked", [False, True])
def test_why_nothing_is_captured_is_eviction_and_no_wish(model, asked, monkeypatch):
    def capture(adapter, *sizes, **options):
        on_a_gpu = SimpleNamespace(reads="paged", cache=SimpleNamespace(device=torch.device("cuda")))
        return graphs.capture_decodes(on_a_gpu, *sizes, **options)

    monkeypatch.setattr(factory, "capture_decodes", capture)
    with LLM(model, eviction=params_of(), num_blocks=40, enforce_eager=asked) as llm:
        assert llm.graphs == graphs.Eager("asked" if asked else "evicts")
        assert all(llm.graphs.text(lang) for lang in ("en", "zh"))


def test_prefixes_that_nobody_could_find_are_not_kept_for_the_next_run(model, texts, tmp_path):
    own = model.config._attn_implementation
    options = SMALL | {"prefix_dir": tmp_path / "prefixes"}
    with pytest.raises(ArgumentError) as refused:
        LLM(model, eviction=params_of("tova"), **options)
    assert refused.value.code == "eviction_prefix_dir"
    assert "TOVA" in refused.value.text("en")
    assert "TOVA" in refused.value.text("zh")
    assert model.config._attn_implementation == own
    assert not options["prefix_dir"].exists()
    found = []
    for _ in range(2):
        with LLM(model, eviction=params_of("keydiff"), **options) as llm:
            found.append(llm.generate(texts[0], FEW, progress=False)[0].num_cached)
    assert found[0] == 0 < found[1]


def test_who_evicts_and_is_aborted_before_the_step_begins_breaks_nobody_elses():
    """It evicts, finds no block in the windowed layers, and ``emit`` aborts it: the step is open, and has it not."""
    model, made, aborted = World.bare("gpt_oss"), [], []

    def emit(event):
        if getattr(event, "kind", "") != "forget":
            return
        step = made[0].scheduler.open_step
        served = {item.id for item in step.items}
        for name in {plan.seq_id for plan in step.work.get("evictions", ())} - served:
            aborted.append(made[0].abort(name.request))

    for seed in range(3):
        draw = random.Random(seed)
        eviction = EvictionConfig("keydiff", budget=0, n_sink=1, n_recent=2, evict_every=1, prefill_chunk=6)
        sizes = {"num_blocks": 24, "block_size": 1, "max_num_seqs": 5, "max_batched_tokens": 28}
        with LLM(model, eviction=eviction, emit=emit, max_model_len=90, seed=seed, **sizes) as llm:
            made[:] = [llm]
            for _ in range(6):
                text = [draw.randrange(1, 97) for _ in range(draw.randrange(1, 30))]
                most, answers = draw.randrange(1, 30), draw.choice((1, 2))
                llm.add_request(text, SamplingParams(temperature=1, max_tokens=most, n=answers))
            while llm.has_work:
                for output in llm.step().finished:
                    assert all(each.finish_reason != "error" for each in output.completions), seed
            nothing_is_held(llm)
    assert any(aborted)


@pytest.mark.parametrize("num_blocks", [400, 40, 22])
def test_a_long_prefix_on_the_host_is_used_up_to_the_first_eviction(num_blocks, tmp_path, model):
    """It was kept by an LLM that does not evict, and more of it is found than a small pool has room for."""
    text = [int(token) for token in recall_documents(1, seed=5)[0].tokens[:150]]
    options = {"block_size": 4, "cpu_kv_bytes": 2**22, "swap_rates": SWAP, "prefix_dir": tmp_path / "kept"}
    with LLM(model, num_blocks=400, **options) as llm:
        llm.generate([text], FEW, progress=False)
    with LLM(model, eviction=params_of("keydiff"), num_blocks=400, block_size=4) as llm:
        due = llm.generate([text], FEW, progress=False)[0].token_ids
    with LLM(model, eviction=params_of("keydiff"), num_blocks=num_blocks, **options) as llm:
        llm.add_request(text, FEW)
        outputs = [out for _ in range(100) if llm.has_work for out in llm.step().finished]
        [out] = outputs
        assert out.token_ids == due
        assert out.num_cached > 0
