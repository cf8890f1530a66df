"""The measurement of lesson 09: taking a cached block back out of a deque, and out of the package's pool."""

import random
import time
from collections import deque

from minikv.blocks import BlockPool

TAKEN = 200  # blocks taken back in a round
ROUNDS = 5


def taking_back(num_blocks: int) -> tuple[float, float]:
    """Return the microseconds of one ``deque.remove`` and of one ``BlockPool.touch``, the best of five rounds."""
    queue, pool = deque(range(num_blocks)), BlockPool(num_blocks, block_size=1)
    for block in pool.allocate(num_blocks):
        pool.publish(block, block.to_bytes(8, "little"), b"")
    pool.free(list(range(num_blocks))[::-1])
    removing, touching = [], []
    for seed in range(ROUNDS):
        wanted = random.Random(seed).sample(range(num_blocks), TAKEN)
        start = time.perf_counter()
        for block in wanted:
            queue.remove(block)
        middle = time.perf_counter()
        for block in wanted:
            pool.touch([block])
        removing.append(middle - start)
        touching.append(time.perf_counter() - middle)
        queue.extend(wanted)
        pool.free(wanted)
    return min(removing) / TAKEN * 1e6, min(touching) / TAKEN * 1e6
