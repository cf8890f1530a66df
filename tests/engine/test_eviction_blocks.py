"""An LLM that evicts whole blocks: nothing is moved, nothing is lost, and what requests share they go on sharing."""

import os
import random
from copy import deepcopy

import pytest
import torch

from minikv import LLM, SamplingParams
from minikv.blocks import BlockManager
from minikv.engine import Scheduler
from minikv.engine.ext.eviction import BlockEviction, EvictionConfig
from minikv.errors import ArgumentError
from minikv.eviction.paged.runner import blocks_to_keep, least_capacity
from minikv.eviction.policies.budget import Budget
from minikv.eviction.policies.literature import H2O, KeyDiff
from minikv.models import load, recall_documents
from tests.engine.test_eviction import SWAP, nothing_is_held, said, small, workload  # noqa: F401  (a fixture)
from tests.eviction.paged.reference import Masked
from tests.in_turn import in_turn

LONG = int(os.environ.get("MINIKV_LONG", "1")) > 1
GREEDY = SamplingParams(temperature=0, max_tokens=34)
FEW = SamplingParams(temperature=0, max_tokens=16)
POLICIES = {"decay": H2O(reduce="decay"), "keydiff": KeyDiff()}


@pytest.fixture(scope="module")
def model():
    return load("tiny-gqa", device="cpu").model


@pytest.fixture(scope="module")
def texts():
    lengths = (40, 110, 9)
    documents = recall_documents(len(lengths), seed=5)
    return [[int(token) for token in each.tokens[:n]] for each, n in zip(documents, lengths, strict=True)]


def params_of(policy="keydiff", **changes):
    usual = {"budget": 22, "n_recent": 10, "evict_every": 4, "prefill_chunk": 32, "unit": "block"}
    return EvictionConfig(POLICIES.get(policy, policy), **usual | changes)


@in_turn("seed", range(40))
def test_how_many_stay_is_known_before_anybody_looks(seed):
    draw = random.Random(seed)
    size = draw.choice((1, 2, 3, 4, 8, 16))
    n_sink, n_recent = draw.randrange(6), draw.randrange(1, 9)
    lacking = least_capacity(Budget(n_sink, 0, n_recent), size) - n_sink - n_recent
    budget = Budget(n_sink, lacking + draw.randrange(12), n_recent, draw.randrange(1, 5))
    planned = BlockEviction(budget, 8, shares=True)
    scheduler = Scheduler(BlockManager(9, size), extensions=[planned])
    length = budget.capacity + draw.randrange(1, 60)
    positions = torch.arange(length)[None]
    keep = blocks_to_keep(torch.rand(1, length), positions, budget, size, "max")[0]
    left = int(keep.repeat_interleave(size)[:length].sum())
    assert scheduler.has_gaps
    assert planned.after(length) == left
    assert budget.capacity - size < left <= budget.capacity


@pytest.mark.parametrize("policy", POLICIES)
def test_a_request_says_the_same_alone_in_a_batch_and_after_preemptions(model, texts, policy):
    eviction, preempted = params_of(policy), []

    def log(event):
        if getattr(event, "kind", "") == "preempt":
            preempted.append(event.how)

    short = [text[:12] for text in texts]
    alone = [said(model, [text], GREEDY, eviction=eviction)[0] for text in short]
    few = {"num_blocks": 22, "emit": log}
    assert said(model, short, GREEDY, eviction=eviction, **few) == alone
    assert preempted
    del preempted[:]
    few |= {"cpu_kv_bytes": 2**20, "swap_rates": SWAP}
    assert said(model, short, GREEDY, eviction=eviction, **few) == alone
    assert "swap" in preempted


@pytest.mark.parametrize("policy", POLICIES)
def test_it_says_what_a_dense_cache_with_a_mask_says_and_moves_nothing(model, texts, policy, monkeypatch):
    """The mask is over what the engine's own evictions took; nobody may move or copy a token for them."""
    eviction, text, gone = params_of(policy), texts[1], []

    def never(*_, **__):
        raise AssertionError("something is moved")

    with LLM(model, eviction=eviction, block_size=4, num_blocks=40) as llm:
        monkeypatch.setattr(llm.cache, "move", never)
        monkeypatch.setattr(llm.cache, "copy_blocks", never)
        planned, drop = llm.eviction, llm.eviction.worker.drop_blocks
        records = llm.eviction.worker.runner.records

        def watched(manager, seq_id):
            before, total = llm.manager.length(seq_id), llm.manager.num_tokens(seq_id)
            count = drop(manager, seq_id)
            left = llm.manager.length(seq_id)
            assert before - count == left == planned.after(before) <= eviction.tokens.capacity
            kept = {layer: records.positions(layer, [seq_id], left, [total - left])[0] for layer in (0, 1)}
            gone.append((total, kept))
            return count

        planned.worker.drop_blocks = watched
        (answer,) = llm.generate([text], FEW)
        nothing_is_held(llm)
    reference = Masked(deepcopy(model), POLICIES[policy], eviction.tokens, "layer")
    rest, got, evictions = text[:], [], gone[:]
    while len(got) < FEW.max_tokens:
        if evictions and evictions[0][0] == reference.length:
            for layer, kept in evictions.pop(0)[1].items():
                mask = torch.zeros(len(kept), reference.length, dtype=torch.bool)
                reference.kept[layer] = mask.scatter_(1, kept, True)
        end = evictions[0][0] - reference.length if evictions else len(rest)
        new, rest = rest[:end], rest[end:]
        logits = reference.forward(new)
        if not rest:
            got.append(int(logits.argmax()))
            rest = got[-1:]
    assert tuple(got) == tuple(answer.token_ids)
    assert len(gone) > 4


def test_what_several_answers_share_they_go_on_sharing(model, texts):
    together = []

    def watch(llm):
        pool, running = llm.manager.pools[0], llm.manager.sequences()
        if len(running) == 3 and all(llm.manager.num_evicted(name) for name in running):
            shared = [pool.ref_count(block) > 1 for block in llm.manager.block_table(running[0])]
            together.append(sum(shared))

    drawn = SamplingParams(temperature=1.0, max_tokens=20, n=3, seed=3)
    answers = said(model, texts[1:2], drawn, eviction=params_of(), watch=watch)
    assert together[-1] > 0, "each has evicted for itself since they began"
    assert answers == said(
        model, texts[1:2], drawn, eviction=params_of(), num_blocks=60, max_batched_tokens=70
    )
    together.clear()
    said(model, texts[1:2], drawn, eviction=params_of(unit="token"), watch=watch)
    assert together[-1] == 0, "tokens that are packed need blocks of their own"


def test_a_fault_while_blocks_are_chosen_loses_nothing(model, texts, monkeypatch):
    eviction = params_of()
    expected = said(model, texts, FEW, eviction=eviction)
    with LLM(model, eviction=eviction, block_size=4, num_blocks=400) as llm:
        records, left = llm.eviction.worker.runner.records, [3, 8]
        keep = records.keep

        def broken(*args):
            left[0] -= 1
            if not left[0]:
                left.pop(0)
                raise RuntimeError("no room")
            return keep(*args)

        monkeypatch.setattr(records, "keep", broken)
        names = [llm.add_request(text, FEW) for text in texts]
        outputs, raised = {}, 0
        while llm.has_work:
            try:
                out = llm.step()
            except RuntimeError:
                raised += 1
                llm.manager.check_invariants()
                if not left:
                    monkeypatch.undo()
                continue
            outputs |= {each.request: each for each in out.finished}
        nothing_is_held(llm)
    assert raised == 2
    assert [[list(each.token_ids) for each in outputs[name].completions] for name in names] == expected


@pytest.mark.parametrize("seed", range(10 if LONG else 2))
def test_whatever_happens_no_block_and_no_record_is_lost(small, seed, monkeypatch):  # noqa: F811
    for number in range(20 if LONG else 3):
        draw = random.Random(7000 * seed + number)
        size = draw.choice((1, 2, 4))
        n_sink, n_recent = draw.randrange(3), draw.randrange(1, 5)
        least = least_capacity(Budget(n_sink, 0, n_recent), size) - n_sink - n_recent
        eviction = EvictionConfig(
            draw.choice(list(POLICIES.values())), budget=least + draw.randrange(5), n_sink=n_sink,
            n_recent=n_recent, evict_every=draw.randrange(1, 6), prefill_chunk=draw.randrange(1, 12),
            unit="block", per_block=draw.choice(["max", "sum"]),
        )  # fmt: skip
        options = {"block_size": size, "num_blocks": 60 // size, "max_num_seqs": 5, "max_model_len": 90}
        options["max_batched_tokens"] = draw.randrange(5, 30)
        if draw.random() < 0.5:
            options |= {"cpu_kv_bytes": 2**17, "swap_rates": SWAP}
        with LLM(small[number % 2], eviction=eviction, seed=seed, **options) as llm:
            llm.overlaps = draw.random() < 0.5
            workload(llm, draw, monkeypatch)
            monkeypatch.undo()
            nothing_is_held(llm)


@pytest.mark.parametrize(
    ("code", "changes"),
    [
        ("unknown_choice", {"unit": "page"}),
        ("unknown_choice", {"per_block": "mean"}),
        ("eviction_blocks_head", {"scope": "head"}),
        ("eviction_blocks_few", {"budget": 0, "n_recent": 2, "n_sink": 1}),
    ],
)
def test_what_blocks_cannot_do_is_refused(model, code, changes):
    own = model.config._attn_implementation
    with pytest.raises(ArgumentError) as refused:
        LLM(model, eviction=params_of(**changes), num_blocks=40, block_size=4)
    assert refused.value.code == code
    assert model.config._attn_implementation == own
