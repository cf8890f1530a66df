"""An LLM with a policy that reads queries, against ``generate()`` of the same model with the policy installed."""

import pytest
import torch

from minikv import LLM, SamplingParams, install_kv_eviction
from minikv.engine.ext.eviction import EvictionConfig
from minikv.eviction.policies.echo import Echo
from minikv.eviction.policies.expected import ExpectedAttention
from minikv.eviction.policies.literature import H2O
from minikv.models import load, recall_documents
from minikv.plan.preemption import TransferRates
from tests.engine.test_eviction import nothing_is_held

SWAP = TransferRates(to_host=1e12, to_device=1e12, prefill=1.0)  # a swap is always cheaper
GREEDY = SamplingParams(temperature=0, max_tokens=18, ignore_eos=True)
SIZES = {"budget": 12, "n_sink": 2, "n_recent": 4, "evict_every": 4}
LENGTHS, SHORT = (40, 75, 9), (12, 7, 20)


def texts_of(lengths):
    documents = recall_documents(len(lengths), seed=5)
    return [[int(token) for token in each.tokens[:n]] for each, n in zip(documents, lengths, strict=True)]


def generated(model, texts, policy, chunk):
    with install_kv_eviction(model, policy=policy, prefill_chunk=chunk, **SIZES):
        options = {
            "max_new_tokens": GREEDY.max_tokens,
            "do_sample": False,
            "eos_token_id": None,
            "pad_token_id": 0,
        }
        return [model.generate(torch.tensor([text]), **options)[0, len(text) :].tolist() for text in texts]


def said(model, texts, policy, chunk, **options):
    """The tokens, and how the sequences that lost their blocks got them back."""
    how = []

    def log(event):
        if getattr(event, "kind", "") == "preempt":
            how.append(event.how)

    eviction = EvictionConfig(policy, prefill_chunk=chunk, **SIZES)
    options = {"block_size": 4, "num_blocks": 400, "emit": log} | options
    with LLM(model, eviction=eviction, **options) as llm:
        outputs = llm.generate(texts, GREEDY)
        nothing_is_held(llm)
    return [list(each.token_ids) for each in outputs], how


@pytest.mark.parametrize("policy", [Echo(), H2O(reduce="max", group="max"), ExpectedAttention(64)])
def test_it_says_what_generate_says(policy):
    """The whole prompt is one chunk. Few tokens a step, and few blocks: mixed batches, preemption, swaps."""
    model, texts, short = load("tiny-gqa", device="cpu").model, texts_of(LENGTHS), texts_of(SHORT)
    narrow = {"max_batched_tokens": 85, "max_num_seqs": 8}
    assert said(model, texts, policy, 78, **narrow) == (generated(model, texts, policy, 78), [])
    want, few = generated(model, short, policy, 78), narrow | {"num_blocks": 11}
    got, how = said(model, short, policy, 78, **few)
    assert got == want
    assert how
    got, how = said(model, short, policy, 78, cpu_kv_bytes=2**20, swap_rates=SWAP, **few)
    assert got == want
    assert "swap" in how


@pytest.mark.parametrize(("name", "chunk"), [("tiny-gqa", 11), ("tiny-mla", 32)])
def test_a_chunk_is_computed_whole_whatever_else_is_in_a_step(name, chunk):
    """Echo compares a token with those that come with it, so a part of a chunk would keep others."""
    model, texts, short = load(name, device="cpu").model, texts_of(LENGTHS), texts_of(SHORT)
    want = generated(model, texts, Echo(), chunk)
    for budget in (400, chunk + 3):
        assert said(model, texts, Echo(), chunk, max_batched_tokens=budget, max_num_seqs=4)[0] == want
    few = {"num_blocks": 11, "max_batched_tokens": chunk + 5, "max_num_seqs": 4}
    got, how = said(model, short, Echo(), chunk, **few)
    assert got == generated(model, short, Echo(), chunk)
    assert how


def test_a_step_too_small_for_a_chunk_and_the_others_shortens_the_chunk():
    model, texts = load("tiny-gqa", device="cpu").model, texts_of(LENGTHS)
    want = generated(model, texts, Echo(), 13)
    assert said(model, texts, Echo(), 32, max_batched_tokens=16, max_num_seqs=4)[0] == want


def test_several_answers_are_those_of_several_requests():
    model, (text,) = load("tiny-gqa", device="cpu").model, texts_of((60,))
    eviction = EvictionConfig("echo", prefill_chunk=16, **SIZES)
    drawn = SamplingParams(temperature=1.0, max_tokens=20, n=3, seed=3)
    with LLM(model, eviction=eviction, block_size=4, num_blocks=400) as llm:
        first, again = (llm.generate([text], drawn)[0] for _ in range(2))
    answers = [each.token_ids for each in first.completions]
    assert len(set(map(tuple, answers))) == 3
    assert [each.token_ids for each in again.completions] == answers
    with LLM(
        model, eviction=eviction, block_size=4, num_blocks=60, max_batched_tokens=25, max_num_seqs=8
    ) as llm:
        assert [each.token_ids for each in llm.generate([text], drawn)[0].completions] == answers
