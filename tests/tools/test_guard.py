"""The guard: two records of one commit are equal, a change shows, and the corpus holds what it is meant to hold."""

import pytest

from minikv.blocks import BlockManager
from minikv.engine import Rules
from tools.guard import cases, differences, record

SMALL = ("blocks host", "replica swap", "llm tiny-gqa preempted", "llm failing", "cli plan")


@pytest.fixture(scope="module")
def before():
    return record(SMALL)


def test_a_second_record_is_equal(before):
    assert set(before) == set(SMALL)
    assert differences(before, record(SMALL)) == []


def test_the_corpus_preempts_swaps_evicts_and_fails(before):
    kinds = {
        name: {line.get("kind") for line in lines if isinstance(line, dict)} for name, lines in before.items()
    }
    assert {"preempt", "evict", "hit", "finish"} <= kinds["llm tiny-gqa preempted"]
    assert {"preempt", "swap_out", "swap_in"} <= kinds["replica swap"]
    assert {"forget", "fail", "finish"} <= kinds["llm failing"]
    done = {
        line[0] for line in before["blocks host"] if isinstance(line[0], str) and isinstance(line[2], str)
    }
    assert {
        "allocate",
        "fork",
        "reserve_slot",
        "fill_slot",
        "compact",
        "drop_blocks",
        "plan_swap_in",
        "truncate",
    } <= done


def test_another_victim_and_another_block_show(before, monkeypatch):
    names = ("llm tiny-gqa preempted", "blocks host")
    monkeypatch.setattr(Rules, "choose_victim", lambda self, scheduler, candidates, asked: candidates[0])
    append = BlockManager.append_tokens
    monkeypatch.setattr(
        BlockManager, "append_tokens", lambda self, seq, tokens: append(self, seq, list(tokens)[::-1])
    )
    told = differences({name: before[name] for name in names}, record(names))
    assert [line.split(":")[0] for line in told if "the first is line" in line] == sorted(names)


def test_a_case_that_is_gone_is_told(before):
    assert differences(before, {}) == [f"{name}: only before" for name in sorted(SMALL)]
    assert set(SMALL) < set(cases())
