"""An LLM that evicts: what it says, how much it holds, and that nothing is lost, whatever happens to it."""

import os
import random
from copy import deepcopy

import pytest
from transformers import BloomConfig, BloomForCausalLM

from minikv import LLM, SamplingParams
from minikv.engine.ext.eviction import EvictionConfig
from minikv.errors import ArgumentError, MiniKVError, RequestTooLargeError
from minikv.eviction.policies.literature import H2O, TOVA, KeyDiff, PyramidKV, StreamingLLM
from minikv.models import load, recall_documents
from minikv.plan.preemption import TransferRates
from tests.eviction.paged.reference import Masked
from tests.longer import every_value
from tests.models.running import World

LONG = int(os.environ.get("MINIKV_LONG", "1")) > 1
SWAP = TransferRates(to_host=1e12, to_device=1e12, prefill=1.0)  # a swap is always cheaper
POLICIES = {
    "streaming": StreamingLLM(),
    "h2o": H2O(),
    "decay": H2O(reduce="decay"),
    "tova": TOVA(),
    "keydiff": KeyDiff(),
}
FEW, GREEDY, LONGER = (SamplingParams(temperature=0, max_tokens=count) for count in (8, 24, 34))
LENGTHS = (40, 150, 9)


@pytest.fixture(scope="module")
def model():
    return load("tiny-gqa", device="cpu").model


@pytest.fixture(scope="module")
def texts():
    documents = recall_documents(len(LENGTHS), seed=5)
    return [[int(token) for token in each.tokens[:n]] for each, n in zip(documents, LENGTHS, strict=True)]


def params_of(policy="h2o", **changes):
    usual = {"budget": 30, "n_recent": 10, "evict_every": 4, "prefill_chunk": 32}
    return EvictionConfig(policy=policy, **usual | changes)


def told(llm):
    """The record, once it knows everything that has happened."""
    runner = llm.eviction.worker
    while runner.event_log:
        runner._apply(runner.event_log.popleft())
    return runner.runner.records


def nothing_is_held(llm):
    llm.manager.check_invariants()
    assert all(pool.num_used == 0 for pool in (*llm.manager.pools, *llm.manager.host_pools))
    assert told(llm).num_sequences == 0
    assert not llm.eviction.worker._saved


def said(model, texts, params=GREEDY, *, eviction, watch=None, **options):
    options = {"block_size": 4, "num_blocks": 400, **options}
    with LLM(model, eviction=eviction, **options) as llm:
        names = [llm.add_request(text, params) for text in texts]
        outputs = {}
        while llm.has_work:
            outputs |= {each.request: each for each in llm.step().finished}
            if watch is not None:
                watch(llm)
        if eviction is not None:
            nothing_is_held(llm)
    return [[list(each.token_ids) for each in outputs[name].completions] for name in names]


@pytest.mark.parametrize("policy", POLICIES if LONG else ["decay", "keydiff"])
def test_a_request_says_the_same_alone_in_a_batch_and_after_preemptions(model, texts, policy):
    eviction, preempted = params_of(POLICIES[policy]), []

    def log(event):
        if getattr(event, "kind", "") == "preempt":
            preempted.append(event.how)

    alone = [said(model, [text], LONGER, eviction=eviction)[0] for text in texts]
    assert said(model, texts, LONGER, eviction=eviction) == alone
    short = [text[:12] for text in texts]  # who is long already grows no more, and is never preempted
    alone = [said(model, [text], LONGER, eviction=eviction)[0] for text in short]
    small = {"num_blocks": 22, "emit": log}
    assert said(model, short, LONGER, eviction=eviction, **small) == alone
    assert preempted
    del preempted[:]
    small |= {"cpu_kv_bytes": 2**20, "swap_rates": SWAP}
    assert said(model, short, LONGER, eviction=eviction, **small) == alone
    assert "swap" in preempted


@pytest.mark.parametrize(("name", "policy"), every_value(["tiny-gqa", "tiny-mla"], list(POLICIES)))
def test_it_says_what_a_dense_cache_with_a_mask_says(name, texts, policy):
    """The same model with everything cached and what is evicted masked, at the same moments."""
    model = load(name, device="cpu").model
    params, copy = params_of(POLICIES[policy]), deepcopy(model)
    peak, chunk = params.tokens.peak_resident, params.chunk
    for text, got in zip(texts, said(model, texts, eviction=params), strict=True):
        reference, resident, rest, answer = (
            Masked(copy, POLICIES[policy], params.tokens, "layer"),
            0,
            text[:],
            [],
        )
        while len(answer) < GREEDY.max_tokens:
            if resident > peak:
                reference.evict()
                resident = params.tokens.capacity
            new, rest = rest[: peak + chunk - resident], rest[peak + chunk - resident :]
            logits = reference.forward(new)
            resident += len(new)
            if not rest:
                answer.append(int(logits.argmax()))
                rest = answer[-1:]
        assert got == [answer]


def test_a_budget_for_everything_changes_nothing(model, texts):
    everything = params_of(budget=2000)
    assert said(model, texts, eviction=everything) == said(model, texts, eviction=None)


@pytest.mark.parametrize("every", [1, 4])
def test_no_sequence_ever_holds_more_than_it_may_and_a_long_one_needs_no_large_pool(model, texts, every):
    eviction, most = params_of(evict_every=every), []

    def watch(llm):
        most.extend(llm.manager.length(name) for name in llm.manager.sequences())

    long = [text * 3 for text in texts]
    said(model, long, eviction=eviction, watch=watch, num_blocks=22)
    assert eviction.tokens.capacity + every - 1 < max(most) <= eviction.tokens.peak_resident + eviction.chunk
    assert max(map(len, long)) > 22 * 4
    with (
        LLM(model, eviction=eviction, block_size=4, num_blocks=15) as llm,
        pytest.raises(RequestTooLargeError),
    ):
        llm.add_request(long[1], GREEDY)


def test_several_answers_to_one_prompt_are_those_of_several_requests(model, texts):
    drawn = SamplingParams(temperature=1.0, max_tokens=20, n=3, seed=3)
    together = said(model, texts, drawn, eviction=params_of())
    assert together == [said(model, [text], drawn, eviction=params_of())[0] for text in texts]
    assert together == said(model, texts, drawn, eviction=params_of(), num_blocks=90, max_batched_tokens=64)


def test_a_policy_on_keys_shares_prefixes_and_one_on_attention_does_not(model, texts):
    for policy, shares in (("keydiff", True), ("h2o", False)):
        with LLM(model, eviction=params_of(policy, prefill_chunk=64), block_size=4, num_blocks=400) as llm:
            short = texts[0][:30]  # an eviction of 44 tokens takes the digests of those that stay with it
            (first,) = llm.generate([short], FEW)
            (second,) = llm.generate([short], FEW)
            assert first.token_ids == second.token_ids
            assert (second.num_cached > 0) == shares


REFUSED = {
    "what is no EvictionConfig": ("eviction_params", {"eviction": {"budget": 5}}),
    "drafts": ("eviction_engine", {"prompt_lookup": 2}),
    "copies": ("eviction_engine", {"reads": "gather"}),
    "rows": ("eviction_not_paged", {"cache": "linear", "num_blocks": 4, "max_model_len": 64}),
    "a pyramid": ("eviction_paged_layers", {"eviction": EvictionConfig(policy=PyramidKV(), budget=30)}),
    "layers of their own": ("eviction_paged_layers", {"eviction": EvictionConfig("echo-layers", budget=30)}),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_does_not_go_with_eviction_is_refused_and_the_model_is_as_before(model, what):
    code, options = REFUSED[what]
    own = model.config._attn_implementation
    with pytest.raises(ArgumentError) as caught:
        LLM(model, **{"eviction": params_of(), "num_blocks": 40, "block_size": 4, **options})
    assert caught.value.code == code
    assert model.config._attn_implementation == own


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_a_refusal_names_what_the_caller_has_set(lang):
    """Latents of one byte are read as copies, which nobody asked for: the dtype is what has to change."""
    own = {"dtype": "fp32", "device": "cpu", "num_blocks": 40, "max_model_len": 256, "eviction": params_of()}
    for dtype in ("fp8", "int8"):
        with pytest.raises(ArgumentError) as caught:
            LLM("tiny-mla", kv_dtype=dtype, **own)
        assert caught.value.code == "eviction_latent_dtype"
        said_so = caught.value.text(lang)
        assert dtype in said_so
        assert "kv_dtype" in said_so
        assert "gather" not in said_so
    LLM("tiny-mla", kv_dtype="bf16", **own).close()
    LLM("tiny-gqa", kv_dtype="fp8", **own).close()


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_a_model_that_reads_copies_is_named(lang):
    config = BloomConfig(vocab_size=64, hidden_size=32, n_layer=2, n_head=4)
    bloom = BloomForCausalLM(config).eval()
    with pytest.raises(ArgumentError) as caught:
        LLM(bloom, eviction=params_of(), num_blocks=40, block_size=4, max_model_len=64)
    assert caught.value.code == "eviction_model_copies"
    assert "BloomForCausalLM" in caught.value.text(lang)
    assert "reads='gather'" not in caught.value.text(lang)


@pytest.mark.parametrize(
    "wrong",
    [
        *({"budget": -1}, {"n_recent": 0}, {"evict_every": 0}, {"prefill_chunk": 0}),
        *({"scope": "laier"}, {"unit": "page"}, {"per_block": "mean"}),
    ],
    ids=str,
)
def test_counts_and_words_are_checked_early(wrong):
    with pytest.raises(MiniKVError):
        EvictionConfig("h2o", **wrong)


class Broken(Exception):
    pass


@pytest.fixture(scope="module")
def small():
    """One whose layers all see everything, and one with windows besides."""
    return [World.bare("llama"), World.bare("gpt_oss")]


@pytest.mark.parametrize("seed", range(10 if LONG else 2))
def test_whatever_happens_no_block_and_no_record_is_lost(small, seed, monkeypatch):
    """Requests at any time, several answers, aborts, swaps, steps ahead and faults. ``MINIKV_LONG=2``: 200 times."""
    for number in range(20 if LONG else 3):
        draw = random.Random(1000 * seed + number)
        eviction = EvictionConfig(
            draw.choice(list(POLICIES.values())), budget=draw.randrange(9), n_sink=draw.randrange(3),
            n_recent=draw.randrange(1, 5), evict_every=draw.randrange(1, 6), prefill_chunk=draw.randrange(1, 12),
            scope=draw.choice(["layer", "head"]),
        )  # fmt: skip
        size = draw.choice((1, 2, 4))
        options = {"block_size": size, "num_blocks": 60 // size, "max_num_seqs": 5, "max_model_len": 90}
        options["max_batched_tokens"] = draw.randrange(5, 30)
        if draw.random() < 0.5:
            options |= {"cpu_kv_bytes": 2**17, "swap_rates": SWAP}
        with LLM(small[number % 2], eviction=eviction, seed=seed, **options) as llm:
            llm.overlaps = draw.random() < 0.5
            workload(llm, draw, monkeypatch)
            monkeypatch.undo()
            nothing_is_held(llm)


def workload(llm, draw, monkeypatch):
    bound = llm.eviction.peak
    faults = draw.random() < 0.4

    def perhaps(call):
        def broken(*args, **kwargs):
            if faults and draw.random() < 0.05:
                raise Broken
            return call(*args, **kwargs)

        return broken

    monkeypatch.setattr(
        llm.eviction.worker.runner, "carry_out", perhaps(llm.eviction.worker.runner.carry_out)
    )
    monkeypatch.setattr(type(llm.adapter), "forward", perhaps(type(llm.adapter).forward))
    left, names = draw.randrange(3, 8), []
    while left or llm.has_work:
        if left and (draw.random() < 0.4 or not llm.has_work):
            left -= 1
            same, own = draw.randrange(20), draw.randrange(1, 20)
            text = [draw.choice((3, 5))] * same + [draw.randrange(1, 97) for _ in range(own)]
            most, answers, heat = draw.randrange(1, 30), draw.choice((1, 1, 2)), draw.choice((0, 1))
            params = SamplingParams(temperature=heat, max_tokens=most, n=answers)
            try:
                names.append(llm.add_request(text, params))
            except RequestTooLargeError:
                continue
        if names and draw.random() < 0.05:
            llm.abort(draw.choice(names))
        llm.step()
        llm.manager.check_invariants()
        for name in llm.manager.sequences():
            assert llm.manager.length(name) <= bound
