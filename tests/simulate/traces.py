"""Traces for tests."""

import numpy as np

from minikv.simulate.trace import Trace, TraceRequest


def random_trace(seed, hash_block, count=40):
    """Prompts that branch off one another at random blocks; every fourth has no hash ids."""
    random = np.random.default_rng(seed)
    requests, fresh = [], 0
    chains = [()]
    for index in range(count):
        chain = chains[random.integers(len(chains))]
        chain = chain[: random.integers(len(chain) + 1)]
        new = int(random.integers(1, 6))
        chain = (*chain, *range(fresh, fresh + new))
        fresh += new
        chains.append(chain)
        tokens = len(chain) * hash_block - int(random.integers(hash_block))
        requests.append(TraceRequest(float(index), tokens, 1, chain if index % 4 else ()))
    return Trace("random", tuple(requests), hash_block)
