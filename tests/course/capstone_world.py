"""Small tasks and random plans for the tests of the capstone."""

from functools import cache

import numpy as np

from minikv.course.capstone import MOST_DRAFTS, Plan, Task, TaskRequest
from minikv.course.capstone.machine import small_machine
from minikv.engine import EvictionConfig
from minikv.models import load, recall_documents

MODELS = ("tiny-gqa", "tiny-mla")
DTYPES = (None, "bf16", "fp8_e4m3", "fp8_scaled", "int8")


@cache
def loaded(model):
    return load(model, dtype="fp32", device="cpu")


def small_task(seed, model="tiny-gqa", *, requests=8, kv_bytes=150_000, quality=0.0, gap=0.03) -> Task:
    """A few questions about a few documents, some asked twice, in bursts of random size."""
    random = np.random.default_rng(seed)
    documents = recall_documents(3, seed=seed, facts=4, context=40, queries=4, span=12)
    found, at = [], 0.0
    for _ in range(requests):
        document = documents[random.integers(len(documents))]
        question = document.questions[random.integers(4)]
        tokens = tuple(document.tokens[: question.position + 1].tolist())
        if random.random() < 0.2:
            tokens = tokens[: random.integers(1, len(tokens))]
        wanted = int(random.choice([1, 1, 2, 5, 12]))
        at += float(random.choice([0.0, 0.0, gap]))
        answer = (question.answer_id,) if tokens[-1] == document.tokens[question.position] else ()
        found.append(TaskRequest(at, tokens, wanted, answer, temperature=float(random.choice([0, 0.7]))))
    own = loaded(model)
    roof, assumptions = small_machine(own.model.config)
    return Task(model, seed, own.model, tuple(found), kv_bytes, quality, roof, assumptions, own.tokenizer)


def random_plan(random) -> Plan:
    """Any plan that the engine takes; most fit a small task."""
    eviction, drafts = None, 0
    if random.random() < 0.4:
        eviction = EvictionConfig(
            str(random.choice(["streaming", "h2o", "knorm", "keydiff", "tova"])),
            n_sink=int(random.integers(0, 3)),
            budget=int(random.integers(0, 24)),
            n_recent=int(random.integers(16, 24)),
            evict_every=int(random.choice([1, 4, 16])),
            prefill_chunk=int(random.choice([4, 16, 64])),
        )
    elif random.random() < 0.5:
        drafts = int(random.integers(1, MOST_DRAFTS + 1))
    seqs = int(random.choice([1, 3, 8, 16]))
    return Plan(
        block_size=int(random.choice([1, 4, 16, 32])),
        kv_dtype=DTYPES[random.integers(len(DTYPES))],
        max_num_seqs=seqs,
        max_batched_tokens=seqs * int(random.choice([1, 8, 64])),
        eviction=eviction,
        prompt_lookup=drafts,
        cpu_kv_bytes=200_000 if random.random() < 0.2 else None,
    )
