"""Small fleets and loads for tests."""

import dataclasses
import functools

import numpy as np

from minikv.simulate import Fleet, StepTime, Trace, TraceRequest

FIELDS = ("admitted", "first_token", "finish", "replica", "cached_tokens", "host_tokens", "preemptions")


@functools.cache
def clock(model="Llama-3.1-8B", gpu="H200", **options):
    return StepTime.of_model(model, gpu, **options)


def small_fleet(num_blocks=200, block_size=4, **options):
    options = {"max_num_seqs": 8, "max_batched_tokens": 64, **options}
    return Fleet(clock(), num_blocks, block_size, **options)


def sessions(seed, count=60, rate=20.0, hash_block=4, longest=30, whole=False):
    """Poisson arrivals; prompts go on from the one of an earlier request, or begin anew. ``whole``: in whole blocks."""
    random = np.random.default_rng(seed)
    at, fresh, chains, requests = 0.0, 0, [()], []
    for _ in range(count):
        at += float(random.exponential(1 / rate))
        chain = chains[random.integers(len(chains))][: random.integers(8)]
        new = int(random.integers(1, 5))
        chain = (*chain, *range(fresh, fresh + new))
        fresh += new
        chains.append(chain)
        tokens = len(chain) * hash_block - (0 if whole else int(random.integers(hash_block)))
        requests.append(TraceRequest(at, tokens, int(random.integers(1, longest)), chain))
    return Trace("sessions", tuple(requests), hash_block)


def poisson(seed, count, rate, prompt=64, output=1):
    """Requests that are all alike and share nothing."""
    at = np.cumsum(np.random.default_rng(seed).exponential(1 / rate, count))
    return Trace("poisson", tuple(TraceRequest(float(each), prompt, output) for each in at))


def same(one, other):
    """Whether two outcomes are equal to the last bit."""
    equal = all(np.array_equal(getattr(one, name), getattr(other, name)) for name in FIELDS)
    return equal and list(map(dataclasses.asdict, one.replicas)) == list(
        map(dataclasses.asdict, other.replicas)
    )
