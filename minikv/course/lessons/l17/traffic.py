"""Lesson 17: the traffic of its fleets, and a queue simple enough for a formula."""

from dataclasses import replace

from minikv.simulate import Fleet, Load, Outcome, Trace, TraceRequest, simulate

BUSY = Load(
    num_requests=400,
    rate=5.0,
    prompt_tokens=400,
    output_tokens=100,
    spread=0.6,
    turns=3,
    think_seconds=20,
    system_tokens=6144,
    system_prompts=40,
    hash_block=128,
    seed=17,
)
"""The busiest minute of a day: conversations of some three turns about forty documents of 6,144 tokens each."""

ONE_PROMPT = 4096  # tokens of every prompt in the queue with a formula
"""A request of the simple queue: ``ONE_PROMPT`` tokens that no other request has, and one token to generate."""


def md1_wait(utilisation: float, service: float) -> float:
    """Return the mean wait in seconds of the M/D/1 queue: random arrivals, ``service`` seconds each, one at a time.

    ``utilisation`` is the share of the time in which the server is busy, below 1 (Pollaczek 1930, Khinchine 1932).
    """
    return utilisation / (2 * (1 - utilisation)) * service


def one_at_a_time(
    fleet: Fleet, utilisation: float, *, num_requests: int = 2500, seed: int = 1
) -> tuple[Outcome, float]:
    """Run that queue on one replica of ``fleet``, one prompt at a time; return (the outcome, seconds of a prompt).

    Requests arrive at random, at a rate that keeps the replica busy for a share ``utilisation`` of the time.
    """
    alone = replace(
        fleet, replicas=1, router="round-robin", max_num_seqs=1, num_blocks=4, block_size=ONE_PROMPT
    )
    alone = replace(alone, block_bytes=())  # computed anew for this block size
    service = alone.step_time.seconds(prefill=[(0, ONE_PROMPT)])
    load = Load(num_requests=num_requests, rate=utilisation / service, spread=0, seed=seed)
    requests = (TraceRequest(each.arrival, ONE_PROMPT, 1) for each in load.trace().requests)
    return simulate(Trace("one at a time", tuple(requests)), alone), service


def hot_document(*, num_requests: int = 200, rate: float = 24.0) -> Trace:
    """Return requests about one document: one comes first and the others 3 s later, at ``rate`` a second."""
    load = replace(BUSY, num_requests=num_requests, rate=rate, turns=1, system_prompts=1)
    requests = load.trace().requests
    later = tuple(replace(each, arrival=each.arrival + 3) for each in requests[1:])
    return Trace("a hot document", (requests[0], *later), BUSY.hash_block)
