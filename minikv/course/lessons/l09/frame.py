"""Exercise 09.8: what a widget draws after a number of calls; and nano's manager under names, for the reader's own."""

import random
from collections.abc import Callable, Sequence
from typing import Any

from minikv.blocks import BlockManager
from minikv.course.exercise import Exercise, Misconception
from minikv.nano import block_manager
from minikv.nano.sequence import SamplingParams
from minikv.nano.sequence import Sequence as NanoSequence

SYSTEM = list(range(1, 9))
# What the exercise's Play steps through, on 12 blocks of 4 tokens.
STORY = (
    ("allocate", "A", [*SYSTEM, 50, 51]),
    ("commit", "A"),
    ("allocate", "B", [*SYSTEM, 60]),
    ("append", "A", 52),
    ("append", "A", 53),
    ("append", "A", 54),
    ("commit", "A"),
    ("allocate", "C", [70, 71, 72]),
    ("free", "A"),
    ("append", "C", 73),
    ("append", "C", 74),
    ("allocate", "D", [*SYSTEM, 50, 51, 52, 53, 80]),
    ("free", "B"),
    ("free", "C"),
)


class ByName:
    """A block manager of ``minikv.nano`` with names for its sequences, called as ``minikv.blocks.BlockManager`` is."""

    def __init__(self, books: block_manager.BlockManager):
        self._books = books
        self._sequences: dict[str, NanoSequence] = {}

    def allocate(self, name: str, tokens: Sequence[int]) -> bool:
        seq = NanoSequence(0, list(tokens), len(tokens), SamplingParams())
        if not self._books.allocate(seq):
            return False
        self._sequences[name] = seq
        return True

    def append(self, name: str, token: int) -> bool:
        self._sequences[name].tokens.append(token)
        return self._books.append(self._sequences[name])

    def commit(self, name: str) -> None:
        self._books.publish(self._sequences[name], len(self._sequences[name].tokens))

    def free(self, name: str) -> None:
        self._books.free(self._sequences.pop(name))

    def sequences(self) -> list[str]:
        return list(self._sequences)

    def block_table(self, name: str) -> list[int]:
        return list(self._sequences[name].block_table)


def all_frames(
    fn: Callable, num_blocks: int, block_size: int, calls: list[tuple], steps: list[int]
) -> list[Any]:
    """Draw the frames of ``steps`` in this order, each with the same calls."""

    def make() -> BlockManager:
        return BlockManager(num_blocks, block_size)

    return [fn(make, [*calls], num_blocks, step) for step in steps]


def frame(make, calls, num_blocks, step):
    manager = make()
    for name, *arguments in calls[:step]:
        getattr(manager, name)(*arguments)
    return [
        [name for name in manager.sequences() if block in manager.block_table(name)]
        for block in range(num_blocks)
    ]


def one_call_more(make, calls, num_blocks, step):
    return frame(make, calls, num_blocks, step + 1)


def one_call_less(make, calls, num_blocks, step):
    return frame(make, calls, num_blocks, max(0, step - 1))


def never_freed(make, calls, num_blocks, step):
    return frame(make, [call for call in calls[:step] if call[0] != "free"], num_blocks, step)


def last_holder(make, calls, num_blocks, step):
    return [holders[-1:] for holders in frame(make, calls, num_blocks, step)]


def first_table_only(make, calls, num_blocks, step):
    """Draws the first block of each sequence alone."""
    manager = make()
    for name, *arguments in calls[:step]:
        getattr(manager, name)(*arguments)
    return [
        [name for name in manager.sequences() if manager.block_table(name)[:1] == [block]]
        for block in range(num_blocks)
    ]


def tables(make, calls, num_blocks, step):
    manager = make()
    for name, *arguments in calls[:step]:
        getattr(manager, name)(*arguments)
    return [list(manager.block_table(name)) for name in manager.sequences()]


def _cases(rng: random.Random) -> list[tuple]:
    small = [("allocate", "A", [1, 2, 3]), ("append", "A", 4), ("append", "A", 5), ("free", "A")]
    return [(4, 2, small, [0, 1]), (4, 2, small, [4, 3, 0]), *(_story(rng) for _ in range(38))]


def _story(rng: random.Random) -> tuple:
    """Calls of up to four sequences, which begin alike, on as many blocks as all of them could ever need."""
    size, common = rng.choice([2, 4]), [rng.randrange(90) for _ in range(8)]
    calls: list[tuple] = []
    alive: list[str] = []
    waiting = ["A", "B", "C", "D"]
    while len(calls) < 14:
        kind = rng.choice(["allocate", "append", "append", "free"])
        if kind == "allocate" and waiting:
            name = waiting.pop(0)
            own = [rng.randrange(100, 200) for _ in range(rng.randint(1, 5))]
            calls += [("allocate", name, common[: rng.choice([4, 8])] + own), ("commit", name)]
            alive.append(name)
        elif kind == "append" and alive:
            calls.append(("append", rng.choice(alive), rng.randrange(200, 300)))
        elif kind == "free" and len(alive) > 1:
            calls.append(("free", alive.pop(rng.randrange(len(alive)))))
    steps = rng.sample(range(1, len(calls) + 1), 3)
    return 60 // size, size, calls, steps


FRAME = Exercise(
    id="09.8",
    minutes=5,
    name="frame",
    signature=("num_blocks", "block_size", "calls", "steps"),
    cases=_cases,
    reference=frame,
    drive=all_frames,
    misconceptions=(
        Misconception("one_call_more", one_call_more),
        Misconception("one_call_less", one_call_less),
        Misconception("never_freed", never_freed),
        Misconception("last_holder", last_holder),
        Misconception("first_table_only", first_table_only),
        Misconception("tables", tables),
    ),
)
