"""What an LLM that evicts says of itself: room for its records is taken first, and resident lengths are shown."""

import json
import random
from dataclasses import replace

import pytest

from minikv import LLM, SamplingParams
from minikv.course.widgets import EngineWidget
from minikv.engine import EventLog, factory
from minikv.engine.ext.events import Event, StepEvent
from minikv.engine.ext.eviction import EvictionConfig
from minikv.engine.serve.metrics import summary
from minikv.errors import DoesNotFitError
from minikv.eviction.policies.echo import Echo
from minikv.eviction.policies.expected import ExpectedAttention
from minikv.eviction.policies.literature import H2O, TOVA, KeyDiff, StreamingLLM
from minikv.memory import arena
from minikv.models import load
from minikv.plan.preemption import TransferRates
from tests.engine.test_memory_report import GPU
from tests.longer import every_value
from tests.models.running import World

SWAP = TransferRates(to_host=1e12, to_device=1e12, prefill=1.0)
GREEDY = SamplingParams(temperature=0, max_tokens=20)
POLICIES = [StreamingLLM(), H2O(), TOVA(), KeyDiff()]
FIELDS = {StreamingLLM: 0, KeyDiff: 0, H2O: 1, TOVA: 1}


@pytest.fixture(scope="module")
def models():
    return {name: World.bare(name) for name in ("llama", "gpt_oss", "deepseek_v3")}


def evict(policy=None, **changes):
    usual = {"budget": 6, "n_sink": 2, "n_recent": 4, "evict_every": 3, "prefill_chunk": 8}
    return EvictionConfig(H2O() if policy is None else policy, **usual | changes)


def prompts(draw, count):
    return [[draw.randrange(1, 97) for _ in range(draw.randrange(1, 50))] for _ in range(count)]


def records_of(llm):
    return llm.eviction.worker.runner.records


@pytest.mark.parametrize(
    ("name", "policy"),
    every_value(["llama", "gpt_oss", "deepseek_v3"], POLICIES),
    ids=lambda each: each if isinstance(each, str) else type(each).__name__,
)
def test_what_is_reserved_is_what_is_ever_needed(models, name, policy):
    """Prompts that begin alike, several answers, preemptions with and without a swap: no record grows."""
    draw = random.Random(f"{name} {type(policy).__name__}")
    options = {"block_size": 4, "num_blocks": 15, "max_num_seqs": 5, "max_model_len": 90}
    if draw.random() < 0.5:
        options |= {"cpu_kv_bytes": 2**17, "swap_rates": SWAP}
    with LLM(models[name], eviction=evict(policy), max_batched_tokens=20, **options) as llm:
        before = records_of(llm).nbytes
        full = [layer for layer in llm.cache.spec.layers if layer.token_bytes and layer.window is None]
        places = 14 + 8  # the peak and a chunk
        heads = sum(layer.kv_heads for layer in full)
        assert before == 5 * places * heads * (8 + 4 * FIELDS[type(policy)])
        assert llm.allocation.record_bytes == before
        assert llm.allocation.held_bytes == 0
        several = [replace(GREEDY, n=draw.choice((1, 1, 2)), temperature=1.0, max_tokens=9) for _ in range(7)]
        alike = [[3] * draw.randrange(30) + prompt for prompt in prompts(draw, 7)]  # some is found again
        llm.generate(alike, several)
        assert records_of(llm).nbytes == before


@pytest.mark.parametrize("policy", [Echo(), ExpectedAttention(16)], ids=["echo", "expected"])
def test_what_queries_leave_is_reserved_to_the_byte_where_layers_share_k_and_v(policy):
    """A layer that reads another's K and V leaves a query that is compared with the next, but no moments."""
    draw, model = random.Random(3), World.bare("gemma3n_text")
    with LLM(model, eviction=evict(policy), block_size=4, num_blocks=60, max_num_seqs=3) as llm:
        before = records_of(llm).nbytes
        llm.generate(prompts(draw, 2), replace(GREEDY, max_tokens=4))
        assert before < records_of(llm).nbytes == llm.allocation.record_bytes
        layers = llm.cache.spec.layers
    assert any(layer.reads_layer is not None and layers[layer.reads_layer].window is None for layer in layers)


def test_no_sequence_is_longer_than_the_model_and_no_chunk_than_a_step(models, monkeypatch):
    monkeypatch.setattr(models["llama"].config, "max_position_embeddings", 1000)
    large = evict(budget=500, prefill_chunk=400)
    for longest, batched, places in ((90, 64, 90), (None, 32, 508 + 32), (1000, 600, 508 + 400)):
        options = {"max_num_seqs": 3, "num_blocks": 40, "max_batched_tokens": batched}
        with LLM(models["llama"], eviction=large, max_model_len=longest, **options) as llm:
            most = llm.cache.spec.max_positions if longest is None else longest
            held = next(iter(records_of(llm)._fields["positions"].values()))
            assert held.shape[0] == 3
            assert held.shape[2] == min(places, most)


def test_the_room_is_held_while_the_size_of_the_cache_is_found(models, monkeypatch):
    seen, allocate = [], factory.allocate_kv_cache

    class Watched(arena.Arena):
        def __init__(self, num_bytes, device="cpu", *, name="arena"):
            seen.append((name, num_bytes))
            super().__init__(num_bytes, device, name=name)

        def close(self):
            seen.append(("closed", 0))
            super().close()

    monkeypatch.setattr("minikv.engine.ext.graph_memory.Arena", Watched)
    monkeypatch.setattr(
        factory, "allocate_kv_cache", lambda *args, **more: seen.append(("cache", 0)) or allocate(*args, **more)
    )  # fmt: skip
    with LLM(models["llama"], eviction=evict(), num_blocks=40) as llm:
        assert seen == [("eviction's records", records_of(llm).nbytes), ("cache", 0), ("closed", 0)]
    with LLM(models["llama"], num_blocks=40):
        assert seen[3:] == [("cache", 0)]


def test_on_a_cpu_cache_and_records_share_what_an_llm_may_take(models, monkeypatch):
    room = 2**20
    monkeypatch.setattr(factory, "MOST_ON_A_CPU", room)
    options = {"max_num_seqs": 64, "max_model_len": 512, "block_size": 4}
    with LLM(models["llama"], **options) as llm:
        plain, block = llm.manager.pools[0].num_blocks, llm.allocation.block_bytes
        assert llm.cache.nbytes <= room < llm.cache.nbytes + block
    with LLM(models["llama"], eviction=evict(), **options) as llm:
        records = records_of(llm).nbytes
        assert llm.cache.nbytes + records <= room < llm.cache.nbytes + records + block
        assert llm.manager.pools[0].num_blocks < plain
    own = models["llama"].config._attn_implementation
    with pytest.raises(DoesNotFitError) as refused:
        LLM(models["llama"], eviction=evict(budget=400), **options | {"max_num_seqs": 2048})
    assert refused.value.code == "eviction_records_room"
    assert "2,048" in refused.value.text("en")
    assert "2,048" in refused.value.text("zh")
    assert models["llama"].config._attn_implementation == own


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_the_reports_show_the_records(models, lang):
    with LLM(models["llama"], eviction=evict(), num_blocks=40) as llm:
        report, size = llm.memory_report(), records_of(llm).nbytes
        assert report.record_bytes == report.parts()["records"] == size
        assert sum(report.parts().values()) == report.total
        assert f"{size:,}" in report.text(lang)
        assert json.loads(json.dumps(report.as_dict()))["record_bytes"] == size
        assert f"{size:,}" in llm.allocation.text(lang)
    with LLM(models["llama"], num_blocks=40) as llm:
        assert "records" not in llm.memory_report().parts()
        assert "records" not in llm.allocation.text(lang)
    gpu = replace(GPU, record_bytes=2**27)
    assert sum(gpu.parts().values()) == gpu.total
    assert GPU.parts()["tensors"] - gpu.parts()["tensors"] == 2**27


def watch(llm, look):
    while llm.has_work:
        llm.step()
        look(llm.snapshot())


@pytest.mark.parametrize("name", ["llama", "gpt_oss"])
def test_a_view_says_what_is_held_beside_how_long_it_is(models, name):
    draw, shorter, swapped = random.Random(name), [], []

    def look(view):
        for seq in view.running:
            held = llm.manager.length(seq.id, group)
            assert seq.num_resident == held <= llm.eviction.peak
            shorter.append(seq.num_resident < seq.num_computed)
        for seq in view.waiting:
            assert 0 < seq.num_resident <= seq.num_computed if seq.swapped else seq.num_resident == 0
            swapped.append(seq.swapped and seq.num_resident < seq.num_computed)

    options = {
        "block_size": 4,
        "num_blocks": 20,
        "max_num_seqs": 6,
        "cpu_kv_bytes": 2**18,
        "swap_rates": SWAP,
    }
    with LLM(models[name], eviction=evict(prefill_chunk=30), **options) as llm:
        group = [pool.window for pool in llm.manager.kv_cache_groups].index(None)
        for prompt in prompts(draw, 8):
            llm.add_request(prompt, GREEDY)
        watch(llm, look)
    assert any(shorter)
    assert not all(shorter)


def test_without_eviction_all_that_is_computed_is_held(models):
    def look(view):
        assert all(seq.num_resident == seq.num_computed for seq in (*view.running, *view.waiting))

    with LLM(models["llama"], num_blocks=40, block_size=4) as llm:
        for prompt in prompts(random.Random(1), 5):
            llm.add_request(prompt, GREEDY)
        watch(llm, look)


def test_metrics_say_how_long_the_sequences_were_and_what_they_held(models, tmp_path):
    log, given = EventLog(), prompts(random.Random(2), 6)
    with LLM(models["llama"], eviction=evict(), num_blocks=60, block_size=4, emit=log) as llm:
        llm.generate(given, GREEDY)
    steps = log.of("step")
    assert all(0 < step.resident <= step.tokens for step in steps)
    assert all(step.resident <= step.running * 22 for step in steps)
    metrics = summary(log.events)
    assert metrics.evicted_tokens == sum(event.tokens for event in log.of("forget")) > 0
    assert metrics.resident < metrics.length
    log.write(tmp_path / "log")
    assert EventLog.read(tmp_path / "log").events == log.events
    plain = EventLog()
    with LLM(models["llama"], num_blocks=200, block_size=4, emit=plain) as llm:
        llm.generate(given, GREEDY)
    metrics = summary(plain.events)
    assert metrics.evicted_tokens == 0
    assert metrics.resident == metrics.length


def test_the_mean_length_by_hand():
    def step(time, seconds, running, tokens, resident):
        counts = {"prefill_tokens": 0, "decode_tokens": running, "running": running, "waiting": 0}
        blocks = {"used": (1,), "cached": (0,), "total": (4,), "wasted_slots": (0,), "block_size": 4}
        return StepEvent(time, 0, seconds, tokens=tokens, resident=resident, **counts, **blocks)

    events = [step(1, 1.0, 2, 20, 20), Event("forget", 1, "a", 0, 6, (1,)), step(4, 3.0, 1, 16, 4)]
    metrics = summary(events)
    assert metrics.length == pytest.approx((1 * 20 + 3 * 16) / (1 * 2 + 3 * 1))
    assert metrics.resident == pytest.approx((1 * 20 + 3 * 4) / (1 * 2 + 3 * 1))
    assert metrics.evicted_tokens == 6
    silent = summary([step(1, 1.0, 2, 0, 0)])
    assert (silent.length, silent.resident) == (None, None)


def test_the_engine_widget_shows_a_run_that_evicts():
    model, given = load("tiny-gqa", device="cpu").model, prompts(random.Random(3), 4)
    options = {"eviction": evict(), "num_blocks": 16, "block_size": 4, "max_num_seqs": 3}
    with LLM(model, **options) as llm:
        expected = [out.token_ids for out in llm.generate(given, GREEDY)]
    with LLM(model, **options) as llm:
        widget = EngineWidget(llm, given, GREEDY)
        while widget.step():
            rows = {row["name"]: row["parts"] for row in widget.view["rows"]}
            assert all(count >= 0 for parts in rows.values() for count in parts)
        assert [out.token_ids for out in widget.outputs] == expected
        assert [sum(row["parts"][:3]) for row in widget.view["rows"]] == [len(prompt) for prompt in given]
