"""Lesson 09: block tables, ref counts and the prefix cache. Each exercise has a file, such as ``slot_mapping.py``."""

from minikv.blocks import BlockManager
from minikv.course.exercise import Lesson, Prediction
from minikv.course.lessons.l09.allocate import ALLOCATE
from minikv.course.lessons.l09.append import APPEND_TOKEN
from minikv.course.lessons.l09.behind_window import WINDOW
from minikv.course.lessons.l09.block_digest import DIGEST
from minikv.course.lessons.l09.frame import FRAME
from minikv.course.lessons.l09.free import FREE
from minikv.course.lessons.l09.refcounts import APPEND
from minikv.course.lessons.l09.slot_mapping import SLOTS

BLOCK_SIZE = 16  # of the predictions


def _cached_the_second_time(num_tokens: int) -> int:
    manager = BlockManager(num_tokens, BLOCK_SIZE)
    prompt = list(range(num_tokens))
    manager.allocate("first", prompt)
    manager.commit("first")
    manager.free("first")
    return manager.allocate("second", prompt).num_cached


def _blocks_together(shared: int, own: int, requests: int) -> int:
    manager = BlockManager(shared + own * requests, BLOCK_SIZE)
    for request in range(requests):
        first = shared + own * request
        manager.allocate(request, [*range(shared), *range(first, first + own)])
        manager.commit(request)
    return manager.stats().pools[0].used


def _evictable(total: int, prompt: int, rng) -> dict:
    return {"total": total, "prompt": prompt, "other": total - rng.randint(13, prompt - 3)}


def _blocks_still_found(total: int, prompt: int, other: int) -> int:
    manager = BlockManager(total, BLOCK_SIZE)
    tokens = list(range(prompt * BLOCK_SIZE))
    manager.allocate("first", tokens)
    manager.commit("first")
    manager.free("first")
    manager.allocate("second", range(len(tokens), len(tokens) + other * BLOCK_SIZE))
    return manager.match([*tokens, 0]).num_tokens // BLOCK_SIZE


def _blocks_after_forks(num_tokens: int, children: int) -> int:
    manager = BlockManager(num_tokens, BLOCK_SIZE)
    manager.allocate(0, list(range(num_tokens)))
    for child in range(1, children + 1):
        manager.fork(0, child)
    for sequence in range(children + 1):
        manager.append(sequence, num_tokens + sequence)
    return manager.stats().pools[0].used


def _mean_waste(block_size: int) -> float:
    """Return the mean over every length of the last block."""
    wasted = []
    for num_tokens in range(1, block_size + 1):
        manager = BlockManager(2, block_size)
        manager.allocate("one", list(range(num_tokens)))
        wasted.append(manager.stats().wasted_slots[0])
    return sum(wasted) / len(wasted)


LESSON = Lesson(
    exercises=(SLOTS, FREE, DIGEST, APPEND, WINDOW, ALLOCATE, APPEND_TOKEN, FRAME),
    predictions=(
        Prediction(
            "second_time",
            lambda rng: {"num_tokens": rng.choice([256, 512, 1024, 2048])},
            how="({num_tokens} - 1) // 16 * 16",
            unit="tokens",
            answer=_cached_the_second_time,
        ),
        Prediction(
            "shared_blocks",
            lambda rng: {
                "shared": 16 * rng.randint(20, 40) + rng.randint(1, 15),
                "own": 16 * rng.randint(1, 3),
                "requests": rng.randint(5, 9),
            },
            how="{shared} // 16 + {requests} * (({shared} % 16 + {own} + 15) // 16)",
            unit="blocks",
            answer=_blocks_together,
        ),
        Prediction(
            "still_found",
            lambda rng: _evictable(rng.randint(80, 99), rng.randint(24, 40), rng),
            how="{total} - {other}",
            unit="blocks",
            answer=_blocks_still_found,
        ),
        Prediction(
            "forked_blocks",
            lambda rng: {
                "num_tokens": 16 * rng.randint(20, 40) + rng.randint(1, 15),
                "children": rng.randint(3, 7),
            },
            how="{num_tokens} // 16 + 1 + {children}",
            unit="blocks",
            answer=_blocks_after_forks,
        ),
        Prediction(
            "mean_waste",
            lambda rng: {"block_size": rng.choice([32, 64, 128])},
            how="({block_size} - 1) / 2",
            unit="slots",
            answer=_mean_waste,
            tolerance=1.1,
        ),
    ),
    questions=("owners", "why_commit", "why_parent", "which_size"),
)
