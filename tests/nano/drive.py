"""Random workloads for nano: too few blocks, shared beginnings, prompts longer than a step; checked at every step."""

import random
from collections import Counter
from dataclasses import dataclass, field

from minikv.nano import LLM, SamplingParams

REQUESTS = 8


@dataclass
class Seen:
    """What happened in a run."""

    preemptions: int = 0
    hits: int = 0
    chunks: int = 0
    mixed_steps: int = 0
    answers: list = field(default_factory=list)  # (prompt, params, output)


def make_llm(model, draw: random.Random, longest: int) -> LLM:
    """Blocks for the longest request and hardly more, so never for all."""
    block_size = draw.choice([1, 2, 4, 8])
    return LLM(
        model,
        num_blocks=-(-longest // block_size) + draw.choice([0, 0, 2]),
        block_size=block_size,
        max_num_seqs=draw.choice([2, 3, 8]),
        max_num_batched_tokens=draw.choice([4, 7, 16]),
    )


def run(model, prompts, seed: object) -> Seen:
    """Answer some of ``prompts`` greedily, some of them twice, arriving at different steps."""
    draw = random.Random(str(seed))
    asked = [
        (draw.choice(prompts), SamplingParams(draw.choice([1, 6, 12, 12]), temperature=0))
        for _ in range(REQUESTS)
    ]
    llm = make_llm(model, draw, max(len(prompt) + params.max_tokens for prompt, params in asked))
    seen, seqs = Seen(), []
    for prompt, params in asked:
        for _ in range(draw.choice([0, 0, 1, 4])):
            take_step(llm, seen)
        seqs.append((prompt, params, llm.add_request(prompt, params)))
    while llm.scheduler.waiting or llm.scheduler.running:
        take_step(llm, seen)
    seen.preemptions = llm.scheduler.num_preemptions
    seen.hits = sum(seq.num_cached > 0 for *_, seq in seqs)
    assert len(llm.scheduler.blocks.free_blocks) == llm.scheduler.blocks.num_blocks, "a block is lost"
    seen.answers = [(prompt, params, llm.output(seq)) for prompt, params, seq in seqs]
    return seen


def take_step(llm: LLM, seen: Seen) -> None:
    if not (llm.scheduler.waiting or llm.scheduler.running):
        return
    step = llm.step()
    counts = [end - start for _, start, end in step]
    assert step
    assert sum(counts) <= llm.scheduler.max_num_batched_tokens
    assert len(llm.scheduler.running) <= llm.scheduler.max_num_seqs
    seen.chunks += sum(end < seq.num_prompt for seq, _, end in step)
    seen.mixed_steps += min(counts) == 1 < max(counts)
    check_blocks(llm.scheduler)


def check_blocks(scheduler) -> None:
    """Every block is free or held as often as it is counted; what can be found is full and computed."""
    blocks = scheduler.blocks
    held = Counter(block for seq in scheduler.running for block in seq.block_table)
    assert blocks.ref_counts == [held[block] for block in range(blocks.num_blocks)]
    assert set(blocks.free_blocks) == {block for block in range(blocks.num_blocks) if not held[block]}
    for digest, block in blocks.cached.items():
        assert blocks.digests[block] == digest
    for seq in scheduler.running:
        assert len(set(seq.block_table)) == len(seq.block_table)
        assert seq.num_computed < len(seq.tokens) <= (len(seq.block_table) + 1) * blocks.block_size
    assert all(not seq.block_table and not seq.num_computed for seq in scheduler.waiting)
