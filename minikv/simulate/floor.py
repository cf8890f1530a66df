"""Lower bounds for any number of replicas: each request runs alone, with everything cached that ever could be."""

import numpy as np

from minikv.simulate.fleet import Fleet
from minikv.simulate.hit_rate import cached_tokens
from minikv.simulate.trace import Trace


def ttft_floor(trace: Trace, fleet: Fleet) -> np.ndarray:
    """float64 [requests]: seconds to compute what an unlimited cache lacks of each prompt, in one step.

    Every TTFT under every router is at least that, and so are its percentiles.
    """
    cached = cached_tokens(trace).tolist()
    seconds, known = [], {}
    for request, hits in zip(trace.requests, cached, strict=True):
        chunk = (min(hits, request.prompt_tokens - 1), request.prompt_tokens)
        if chunk not in known:
            known[chunk] = fleet.step_time.seconds(prefill=[chunk])
        seconds.append(known[chunk])
    return np.array(seconds)


def tpot_floor(fleet: Fleet) -> float:
    """Seconds of the shortest decode step: one sequence of one token."""
    return fleet.step_time.seconds(decode=[1])
