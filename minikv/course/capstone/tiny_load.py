"""tiny_task: the load of lesson 18, questions about shared and single documents, for a tiny model on a small machine.

In each burst several requests ask about one document, for a word or two. The other requests have a document each, and
let the model go on behind its answer. Prompts are those of ``minikv.models.recall``: the model has never seen these
documents, and the right word is in them. The seed decides all of it.
"""

from collections.abc import Iterator

import numpy as np

from minikv.course.capstone.machine import LIKE_GPU, LIKE_MODEL, small_machine
from minikv.course.capstone.task import Task, TaskRequest
from minikv.errors import ArgumentError, check_count
from minikv.models import Document, Question, load, recall_documents
from minikv.models.recall import TRAINING_SEEDS
from minikv.units import KIB

KV_BYTES = 512 * KIB
BAR = 0.9
BURSTS, BURST_S = 3, 0.125  # so many at once, so many seconds apart
SHARED_TOKENS = (1, 1, 1, 1, 4, 16)  # of the outputs about a shared document, in any order
SINGLES = 6  # requests in a burst with a document of their own
SINGLE_TOKENS = (16, 40)  # of the output of each, at least and at most
CONTEXTS = (64, 128, 192)  # tokens of a document before its questions
TEMPERATURE = 0.7  # a greedy model of this size soon repeats the same few words
SPAN = 64  # tokens behind the context, the questions among them
SEEDS = TRAINING_SEEDS // 1000  # documents of larger ones may have been seen in training


def tiny_task(seed: int = 0, model: str = "tiny-gqa") -> Task:
    """The load of lesson 18 for ``model``, "tiny-gqa" or "tiny-mla", in float32 on the CPU.

    Raises ``ArgumentError`` for a seed that is no count from 0 to 4,294,966, and what ``load`` raises.
    """
    check_count("seed", seed, 0)
    if seed >= SEEDS:
        raise ArgumentError("out_of_range", what="seed", value=seed, low=0, high=SEEDS - 1)
    loaded = load(model, dtype="fp32", device="cpu")
    roof, assumptions = small_machine(loaded.model.config)
    random = np.random.default_rng([seed, 18])
    requests = []
    for burst in range(BURSTS):
        asked = list(_burst(random, seed, burst))
        requests += [asked[place] for place in random.permutation(len(asked))]
    return Task(
        name=model,
        seed=seed,
        model=loaded.model,
        tokenizer=loaded.tokenizer,
        requests=tuple(requests),
        kv_bytes=KV_BYTES,
        quality=BAR,
        roof=roof,
        assumptions=assumptions,
        machine=("machine_small", {"gpu": LIKE_GPU, "model": LIKE_MODEL}),
    )


def _burst(random: np.random.Generator, seed: int, burst: int) -> Iterator[TaskRequest]:
    """The requests of one burst: first those about the shared document."""
    group = burst * (1 + SINGLES)
    shared = _document(seed, group, CONTEXTS[-1], len(SHARED_TOKENS))
    for question, tokens in zip(shared.questions, random.permutation(SHARED_TOKENS).tolist(), strict=True):
        yield _request(burst, shared, question, tokens, group)
    for number in range(1, 1 + SINGLES):
        context, tokens = random.choice(CONTEXTS), random.integers(SINGLE_TOKENS[0], SINGLE_TOKENS[1] + 1)
        own = _document(seed, group + number, int(context), 1)
        yield _request(burst, own, own.questions[0], int(tokens), group + number)


def _document(seed: int, group: int, context: int, questions: int) -> Document:
    """A document with a fact every 8 tokens; the span behind the context has room for different questions."""
    return recall_documents(
        1, seed=1000 * seed + group, facts=context // 8, context=context, queries=questions, span=SPAN
    )[0]


def _request(burst: int, document: Document, question: Question, max_tokens: int, group: int) -> TaskRequest:
    prompt = document.tokens[: question.position + 1].tolist()
    return TaskRequest(
        arrival_s=burst * BURST_S,
        tokens=tuple(prompt),
        max_tokens=max_tokens,
        answer=(question.answer_id,),
        group=group,
        temperature=TEMPERATURE if max_tokens > 1 else 0.0,
    )
