"""Sliding windows: a request holds what the plan says and no more, and what it gives back is there for another."""

import functools

import numpy as np
import pytest

from minikv.blocks import NULL_BLOCK
from minikv.engine import SequenceId
from minikv.engine.core.rules import peak_blocks
from minikv.models import seen_window
from minikv.plan import CacheSpec
from minikv.plan.pool import kv_cache_groups, sequence_bytes
from tests.engine.llm_world import TINY, Reference, check_empty, greedy, make, run
from tests.longer import every_value
from tests.models.running import World

WINDOW = 20
# Real patterns: five layers of six, every other one, all of them.
PATTERNS = {"gemma3_text": {"num_hidden_layers": 6}, "gpt_oss": {}, "mistral": {}}
CASES = every_value(list(PATTERNS), [1, 16])
LENGTHS = [times * WINDOW for times in (1, 2, 3, 4)]  # tokens that are stored


class Windowed(Reference):
    """A model with windows of ``WINDOW`` tokens; nothing is answered before it is asked."""

    def __init__(self, model_type):
        self.model = World.bare(model_type, **{**TINY, **PATTERNS[model_type], "sliding_window": WINDOW})
        self.ties, self._known = 0, {}


@functools.cache
def model_of(model_type):
    return Windowed(model_type)


def prompt_of(number, length):
    return np.random.default_rng([number, length]).integers(1, 97, length).tolist()


class Watch:
    """An ``emit`` that looks at a request's tables once it took a block, while the step is still to be computed."""

    def __init__(self):
        self.llm = None
        self.most: dict[tuple, int] = {}  # (request, group): blocks held at once
        self.holds: dict[tuple, set[int]] = {}  # (request, group): when it last took one
        self.owner: dict[tuple, SequenceId] = {}  # (kv_cache_group, block): who took it last
        # Groups in which a block of a request that still runs served another one
        self.handed_on: set[int] = set()

    def __call__(self, event):
        if event.kind != "allocate":
            return
        seq, manager = SequenceId(event.request, event.sample), self.llm.manager
        for group in range(len(manager.pools)):
            key = (event.request, group)
            live = {block for block in manager.block_table(seq, group) if block != NULL_BLOCK}
            self.most[key] = max(self.most.get(key, 0), len(live))
            for block in live - self.holds.get(key, set()):
                if self.owner.get((group, block), seq) in set(manager.sequences()) - {seq}:
                    self.handed_on.add(group)
                self.owner[group, block] = seq
            self.holds[key] = live


def windows_of(llm):
    return [seen_window(llm.cache, group) for group in range(len(llm.cache.kv_cache_groups))]


@pytest.mark.parametrize(("model_type", "size"), CASES)
def test_a_request_holds_at_most_and_at_some_time_what_is_planned(model_type, size):
    model, watch = model_of(model_type), Watch()
    with make(model.model, block_size=size, num_blocks=len(LENGTHS) * 4 * WINDOW, emit=watch) as llm:
        watch.llm, windows = llm, windows_of(llm)
        for length in LENGTHS:
            llm.add_request(prompt_of(0, length - 15), greedy(16), request_id=length)
        run(llm)
        groups, vllm = (
            llm.cache.kv_cache_groups,
            CacheSpec.from_config(llm.model.config, layout="vllm", kv_dtype="fp32"),
        )
        check_empty(llm)
    assert any(windows)
    for length in LENGTHS:
        held = 0
        for group, window in enumerate(windows):
            # A chunk's queries look back from the first of them.
            chunk = min(length - 15, 64)
            assert watch.most[length, group] <= peak_blocks(length, window and window + chunk - 1, size)
            held += groups[group].block_bytes(size) * peak_blocks(length, window, size)
        assert held == sequence_bytes(vllm, length, size), "the engine and the planner count alike"


@pytest.mark.parametrize(("model_type", "size"), CASES)
def test_token_by_token_the_plan_is_exact(model_type, size):
    """From a short prompt on: never more blocks than planned, and at some time as many."""
    model, watch = model_of(model_type), Watch()
    with make(model.model, block_size=size, num_blocks=len(LENGTHS) * 4 * WINDOW, emit=watch) as llm:
        watch.llm, windows = llm, windows_of(llm)
        for length in LENGTHS:
            llm.add_request(prompt_of(0, 8), greedy(length - 7), request_id=length)
        run(llm)
        check_empty(llm)
    for length in LENGTHS:
        for group, window in enumerate(windows):
            assert watch.most[length, group] == peak_blocks(length, window, size)


@pytest.mark.parametrize(("model_type", "size"), CASES)
def test_what_a_window_gave_back_serves_another_request_and_no_token_changes(model_type, size):
    """Few blocks: those of the windows go round several times while one long request runs beside short ones."""
    model, watch = model_of(model_type), Watch()
    long, short = (
        (prompt_of(1, 8), greedy(4 * WINDOW - 7)),
        [(prompt_of(n, 11), greedy(12)) for n in range(2, 8)],
    )
    requests = [long, *short]
    for prompt, params in requests:
        model.answer(prompt, params.max_tokens)
    # What the long one and one of the short ones take, of layers without a window, or of nothing but windows.
    tokens = 2 * (WINDOW + 11) if model_type == "mistral" else 4 * WINDOW + 22
    options = {"num_blocks": -(-tokens // size) + 1, "max_num_seqs": 2, "max_batched_tokens": 11}
    with make(model.model, block_size=size, emit=watch, **options) as llm:
        watch.llm, windows = llm, windows_of(llm)
        for number, (prompt, params) in enumerate(requests):
            llm.add_request(prompt, params, request_id=number)
        _, outputs = run(llm)
        pools = [pool.num_blocks for pool in llm.manager.pools]
        check_empty(llm)
    assert not any(each.num_preemptions for out in outputs.values() for each in out.completions)
    for number, (_, params) in enumerate(requests):
        model.check(outputs[number], params)
    windowed = {group for group, window in enumerate(windows) if window is not None}
    for group in windowed:
        stored = sum(len(prompt) + params.max_tokens - 1 for prompt, params in requests)
        assert stored > pools[group] * size, "more tokens went through than the windows' blocks hold"
    assert watch.handed_on == windowed


@pytest.mark.parametrize("model_type", PATTERNS)
def test_windows_take_less_memory_from_the_same_sequences(model_type):
    """Pools for eight sequences of four windows' tokens, beside what the layers would take without windows."""
    model = model_of(model_type).model
    with make(model, block_size=4, num_blocks=8 * WINDOW, max_num_seqs=8, max_batched_tokens=8) as llm:
        groups, blocks = llm.cache.kv_cache_groups, llm.cache.num_blocks
        held = llm.cache.nbytes
    assert held == sum(group.block_bytes(4) * count for group, count in zip(groups, blocks, strict=True))
    full = 8 * WINDOW * sum(group.block_bytes(4) for group in groups)
    windowed = [count for group, count in zip(groups, blocks, strict=True) if group.layer.window is not None]
    if len(groups) > 1:
        assert held < full
        assert max(windowed) < 8 * WINDOW
    assert kv_cache_groups(llm.cache.spec) == groups
