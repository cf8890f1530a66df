"""A step's message: every array comes out as it went in, whatever the step."""

import numpy as np
import pytest

from minikv.blocks import Copy
from minikv.engine import EventLog, SamplingParams, Step, StepArrays
from minikv.engine.ext.tensor_parallel import TensorParallelGroup
from minikv.engine.ext.wire import FRAME, from_words, stop_words, to_words
from tests.engine.llm_world import greedy, make, reference, run
from tests.longer import every_value


def check_same(step, read):
    assert read.number == step.number
    assert read.copies == step.copies
    names = ("token_ids", "positions", "query_starts", "lengths", "slot_mapping", "block_tables", "last")
    for name in names:
        pairs = zip(_listed(getattr(step.batch, name)), _listed(getattr(read.batch, name)), strict=True)
        for sent, got in pairs:
            assert sent.dtype == got.dtype, name
            assert np.array_equal(sent, got), name


def _listed(values):
    return values if isinstance(values, tuple) else (values,)


@pytest.mark.parametrize(
    ("model_type", "prompt_lookup"), every_value(["llama", "gemma2", "deepseek_v3"], [0, 3])
)
def test_what_rank_0_leaves_out_follows_from_what_it_sends(model_type, prompt_lookup):
    """Chunks, decodes, drafts, forks with copies, preemption, cached prefixes, and windows that have moved on."""
    known = reference(model_type)
    steps, log = [], EventLog()
    sizes = {"num_blocks": 24, "max_batched_tokens": 16, "prompt_lookup": prompt_lookup}
    with make(known.model, emit=log, **sizes) as llm:
        compute = llm.runner.compute
        llm.runner.compute = lambda runner, step, sampled: (
            steps.append(step) or compute(runner, step, sampled)
        )
        for number, prompt in enumerate(known.prompts):
            params = (
                greedy(12) if number % 3 else SamplingParams(temperature=1, n=3, max_tokens=12, seed=number)
            )
            llm.add_request(prompt, params)
        run(llm)
        size = llm.cache.block_size
    assert log.of("preempt")
    assert any(step.copies for step in steps)
    assert any(sum(item.unconfirmed for item in step.items) for step in steps) == bool(prompt_lookup)
    for step in steps:
        words = to_words(step)
        assert words.dtype == np.int32
        assert words[0] == len(words)
        check_same(step, from_words(words, size))


def step_of(items, columns):
    """A decode of ``items`` sequences with as many blocks each as there are ``columns``."""
    size, starts = 16, np.arange(items + 1, dtype=np.int32)
    lengths = np.full(items, columns * size, np.int32)
    table = np.arange(items * columns, dtype=np.int32).reshape(items, columns)
    slots = table[:, -1].astype(np.int64) * size + size - 1
    batch = StepArrays(np.arange(items), lengths - np.int64(1), starts, lengths, (slots,), (table,))
    return Step(7, 0.0, (), (Copy(0, 2**31 - 1, 5),), (), batch)


@pytest.mark.parametrize(
    ("items", "columns", "messages"),
    [(1, 1, 1), (64, 28, 1), (1, FRAME - 14, 1), (1, FRAME - 13, 2), (256, 128, 2)],
)
def test_a_step_is_one_message_up_to_8_kib_and_never_more_than_two(items, columns, messages, monkeypatch):
    leader, follower = (TensorParallelGroup(rank, 2, None, [], 1.0) for rank in range(2))
    sent = []
    monkeypatch.setattr(leader, "_broadcast", lambda words: sent.append(words.clone()))
    monkeypatch.setattr(follower, "_broadcast", lambda words: words.copy_(sent.pop(0)))
    step = step_of(items, columns)
    leader.send(step)
    assert len(sent) == leader.messages == messages
    assert leader.num_bytes == sum(part.nbytes for part in sent) == 4 * max(FRAME, len(to_words(step)))
    check_same(step, from_words(follower._receive(), 16))
    assert not sent


def test_a_stop_is_no_step():
    assert from_words(stop_words(), 16) is None
