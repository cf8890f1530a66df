"""Lesson 07: how long one load takes, by pointer chasing: the address of each load is the result of the one before.

A walk through few bytes stays in the CPU's first cache, a walk through many goes to memory in every step.
"""

import time

import numpy as np

LINE = 64  # bytes that a CPU loads at once, on nearly all of today's
PLACES = LINE // 8  # numbers in them
HOPS = 1024  # of one call: its path, 8 KiB, leaves room for the walk in the first cache


def random_cycle(nbytes: int, seed: int = 0) -> np.ndarray:
    """Return ``nbytes`` of numbers; the first one of each line is the place of another line.

    The walk from place 0 visits every line once, in random order, so that no prefetcher sees the next address, and
    comes back.
    """
    lines = nbytes // LINE
    order = np.random.default_rng(seed).permutation(lines) * PLACES
    places = np.zeros(lines * PLACES, dtype=np.int64)
    places[order] = np.roll(order, -1)
    return places


def follow(places: np.ndarray, path: np.ndarray) -> None:
    """Fill ``path`` behind its first place with the walk from there.

    numpy takes one number after the other. The output begins one place behind the indices, so each index is the number
    that was written just before: a load cannot begin until the last one has ended. Modes but "raise" copy nothing.
    """
    np.take(places, path[:-1], out=path[1:], mode="wrap")


def load_ns(nbytes: int, hops: int = 300 * HOPS, repeats: int = 3) -> float:
    """Return the nanoseconds of one load on a random walk through ``nbytes``; the best of ``repeats``."""
    places, path = random_cycle(nbytes), np.zeros(HOPS + 1, dtype=np.int64)
    best = float("inf")
    for _ in range(repeats + 1):  # the first walk brings the bytes as near as they go
        begin = time.perf_counter()
        for _ in range(hops // HOPS):
            follow(places, path)
            path[0] = path[-1]
        best = min(best, time.perf_counter() - begin)
    return best / (hops // HOPS * HOPS) * 1e9
