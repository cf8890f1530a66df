"""A trace: what it refuses, and prompts that share exactly what its hash ids say."""

import dataclasses
import math

import numpy as np
import pytest

from minikv.blocks import BlockManager
from minikv.errors import ArgumentError, RequestTooLargeError
from minikv.simulate.trace import LARGEST_HASH_ID, MOST_TOKENS, Trace, TraceRequest
from tests.simulate.traces import random_trace

GOOD = TraceRequest(1.0, 700, 9, (4, 5))


def refused(*requests, **options):
    with pytest.raises(ArgumentError) as caught:
        Trace("bad", requests, **options)
    assert any("\u4e00" <= letter <= "\u9fff" for letter in caught.value.text("zh"))
    return caught.value


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"arrival": -1e-9}, "trace_unsorted"),
        ({"arrival": 0.999}, "trace_unsorted"),
        ({"arrival": math.inf}, "trace_time"),
        ({"arrival": math.nan}, "trace_time"),
        ({"arrival": "2"}, "trace_time"),
        ({"arrival": True}, "trace_time"),
        ({"arrival": None}, "trace_time"),
        ({"prompt_tokens": 0}, "trace_count"),
        ({"prompt_tokens": -700}, "trace_count"),
        ({"prompt_tokens": 700.0}, "trace_count"),
        ({"prompt_tokens": MOST_TOKENS + 1, "hash_ids": ()}, "trace_count"),
        ({"output_tokens": 0}, "trace_count"),
        ({"output_tokens": True}, "trace_count"),
        ({"output_tokens": MOST_TOKENS + 1}, "trace_count"),
        ({"hash_ids": (4,)}, "trace_hash_count"),
        ({"hash_ids": (4, 5, 6)}, "trace_hash_count"),
        ({"prompt_tokens": 512}, "trace_hash_count"),
        ({"prompt_tokens": 1025}, "trace_hash_count"),
        ({"hash_ids": (4, -1)}, "trace_hash_id"),
        ({"hash_ids": (4, 5.0)}, "trace_hash_id"),
        ({"hash_ids": (True, 5)}, "trace_hash_id"),
        ({"hash_ids": (4, "5")}, "trace_hash_id"),
        ({"hash_ids": (4, LARGEST_HASH_ID + 1)}, "trace_hash_id"),
    ],
)
def test_a_request_that_is_none_is_named_by_its_number(changes, code):
    error = refused(GOOD, GOOD, dataclasses.replace(GOOD, **changes), GOOD)
    assert (error.code, error.values["index"], error.values["reason"].code) == ("trace_request", 2, code)


def test_a_first_arrival_before_zero_is_no_time():
    assert refused(dataclasses.replace(GOOD, arrival=-3.0)).values["reason"].code == "trace_time"


def test_a_trace_without_requests_and_a_block_without_tokens_are_refused():
    assert refused().code == "trace_empty"
    assert refused(GOOD, hash_block=0).code == "bad_count"


@pytest.mark.parametrize("tokens", [1, 511, 512, 513, 1024, MOST_TOKENS])
def test_the_lengths_at_the_edges_are_taken(tokens):
    ids = tuple(range(-(-tokens // 512))) if tokens < MOST_TOKENS else ()
    trace = Trace("edge", (TraceRequest(0, tokens, MOST_TOKENS, ids),))
    assert (trace.prompt_tokens, trace.output_tokens, trace.duration) == (tokens, MOST_TOKENS, 0)


def test_a_request_is_placed_by_its_line_where_it_has_one():
    fault = RequestTooLargeError("trace_too_large", tokens=1, blocks=1, total=1, most=1)
    trace = Trace("file.csv", (GOOD, GOOD), first_line=2)
    assert str(trace.at(1, fault)).startswith("Line 3 of file.csv: ")
    assert trace.at(1, fault).text("zh").startswith("file.csv 的第 3 行")
    assert type(trace.at(1, fault)) is RequestTooLargeError
    assert str(Trace("made", (GOOD, GOOD)).at(1, fault)).startswith("Request 1 ")


def test_the_head_is_the_first_requests():
    trace = Trace("x", tuple(dataclasses.replace(GOOD, arrival=float(at)) for at in range(5)), first_line=1)
    assert trace.head(3).requests == trace.requests[:3]
    assert trace.head(3).first_line == 1
    assert trace.head(9) is trace
    with pytest.raises(ArgumentError):
        trace.head(0)


@pytest.mark.parametrize("block_size", [1, 3, 4, 8, 12, 24])
@pytest.mark.parametrize("seed", range(3))
def test_prompts_share_in_the_block_manager_what_the_trace_says(seed, block_size):
    trace = random_trace(seed, hash_block=8)
    manager = BlockManager(4000, block_size)
    for index, request in enumerate(trace.requests):
        prompt = trace.prompt(index)
        assert (prompt.dtype, len(prompt)) == (np.int64, request.prompt_tokens)
        shared = 0
        for other in trace.requests[:index]:
            pairs = list(zip(request.hash_ids, other.hash_ids, strict=False))
            equal = next((at for at, (ours, theirs) in enumerate(pairs) if ours != theirs), len(pairs))
            shared = max(shared, min(equal * 8, request.prompt_tokens, other.prompt_tokens) // block_size)
        shared = min(shared, (request.prompt_tokens - 1) // block_size)
        assert manager.allocate(index, prompt).num_cached == shared * block_size
        manager.commit(index)


def test_no_prompt_and_no_output_has_the_token_of_an_output():
    trace = random_trace(7, hash_block=4, count=60)
    outputs = [trace.output_token(index) for index in range(60)]
    prompts = {int(token) for index in range(60) for token in trace.prompt(index)}
    assert len(set(outputs)) == 60
    assert not prompts & set(outputs)
    assert min(prompts) >= 0
    assert trace.output_token(-1) == outputs[-1]
    alone = [int(trace.prompt(index)[0]) for index in range(0, 60, 4)]
    assert len(set(alone)) == 15, "a request without hash ids shares with nobody"


def test_the_largest_hash_id_is_a_token_id():
    trace = Trace("large", (TraceRequest(0.0, 3, 1, (LARGEST_HASH_ID,)),))
    assert trace.prompt(0).tolist() == [3 * LARGEST_HASH_ID] * 3
    assert BlockManager(2, 4).allocate("a", trace.prompt(0)).num_cached == 0
