"""Exercise 07.5: a cache that allocates only in its constructor, its known mistakes, and how they are found."""

import math
from collections.abc import Callable

import torch

from minikv.course.exercise import Exercise, Misconception

Allocate = Callable[..., torch.Tensor]
COLUMN = 10_000  # difference of two columns of a token, larger than any sum of row, generation and token


class SlotCache:
    """The reference: one tensor [batch, max_seq, width] from ``allocate``, and a length."""

    def __init__(self, allocate: Allocate, batch: int, max_seq: int, width: int):
        self.allocate = allocate
        self.shape = (batch, max_seq, width)
        self.room = allocate(*self.shape)
        self.length = 0

    def append(self, new: torch.Tensor) -> None:
        if self.length == self.shape[1]:
            raise ValueError("full")
        self.room[:, self.length] = new
        self.length += 1

    def read(self) -> torch.Tensor:
        return self.room[:, : self.length]

    def reset(self) -> None:
        self.length = 0


class JoinsTokens(SlotCache):
    """Calls ``torch.cat`` in every step, as DynamicCache does."""

    def reset(self):
        self.length = 0
        self.joined = None

    def append(self, new):
        if self.length == self.shape[1]:
            raise ValueError("full")
        old = getattr(self, "joined", None)
        self.joined = new[:, None] if old is None else torch.cat([old, new[:, None]], 1)
        self.length += 1

    def read(self):
        joined = getattr(self, "joined", None)
        return self.room[:, :0] if joined is None else joined


class AllocatesPerToken(SlotCache):
    def append(self, new):
        if self.length == self.shape[1]:
            raise ValueError("full")
        grown = self.allocate(self.shape[0], self.length + 1, self.shape[2])
        grown[:, : self.length] = self.room[:, : self.length]
        grown[:, self.length] = new
        self.room, self.length = grown, self.length + 1


class AllocatesAtReset(SlotCache):
    def reset(self):
        super().reset()
        self.room = self.allocate(*self.shape)


class ReadsAllRoom(SlotCache):
    def read(self):
        return self.room


class ReadsACopy(SlotCache):
    def read(self):
        return super().read().clone()


class NoGuard(SlotCache):
    """Does not check whether the cache is full: torch's own IndexError appears."""

    def append(self, new):
        self.room[:, self.length] = new
        self.length += 1


class StartsOver(SlotCache):
    """Lets a full cache overwrite its oldest tokens."""

    def append(self, new):
        self.room[:, self.length % self.shape[1]] = new
        self.length += 1

    def read(self):
        return self.room[:, : min(self.length, self.shape[1])]


def run_slots(cache_class, batch: int, max_seq: int, width: int, lengths: list[int]) -> dict:
    """Fill the cache with generations of ``lengths`` tokens, reset it between them, and return what was observed.

    ``allocate`` counts its calls and returns memory full of NaN (shown as None), like memory that was never written.
    The first column of token t of generation g is g * 100 + t, plus 1,000 a row; each further column has ``COLUMN``
    more.
    """
    made: list[torch.Tensor] = []

    def allocate(*shape: int) -> torch.Tensor:
        made.append(torch.full(shape, math.nan))
        return made[-1]

    cache = cache_class(allocate, batch, max_seq, width)
    at_start, seen, changed = len(made), [], 0
    places = 1000.0 * torch.arange(batch)[:, None] + COLUMN * torch.arange(width)
    for generation, length in enumerate(lengths):
        if generation:
            cache.reset()
        before, refused = cache.read().shape[1], 0
        for token in range(length):
            right = places + 100 * generation + token
            given = right.clone()
            try:
                cache.append(given)
            except ValueError:
                refused += 1
            changed += not torch.equal(given, right)
        view = cache.read()
        homes = [tensor.untyped_storage().data_ptr() for tensor in made[:at_start]]
        told = {
            "tokens before the first": before,
            "shape": list(view.shape),
            "tokens": [[_token(columns) for columns in row] for row in view.tolist()],
            "refused": refused,
            "a view of the first memory": view.untyped_storage().data_ptr() in homes,
            "the same memory when read again": cache.read().data_ptr() == view.data_ptr(),
        }
        seen.append(told)
    return {
        "allocated by the constructor": at_start,
        "numbers in it": sum(tensor.numel() for tensor in made[:at_start]),
        "later": len(made) - at_start,
        "changed what it was given": changed,
        "read": seen,
    }


def _token(columns: list[float]) -> int | None:
    """Return the number in the first column, or None if another column does not match it or is NaN."""
    first = columns[0]
    whole = all(value == first + COLUMN * place for place, value in enumerate(columns))
    return int(first) if whole else None


def draw_lengths(rng) -> list[dict]:
    """Draw generations that fill the cache, stay below its room, or need more tokens than it has, small ones first."""
    small = ([1], [2], [3], [1, 2])
    cases = [{"batch": 2, "max_seq": 2, "width": 2, "lengths": lengths} for lengths in small]
    for i in range(32):
        max_seq = (2, 3, 4, 8, 16)[i % 5] + i // 10
        lengths = [rng.randint(1, max_seq - 1), max_seq, max_seq + rng.randint(1, 2)]
        rng.shuffle(lengths)
        cases.append({"batch": 2 + i % 3, "max_seq": max_seq, "width": 2 + i % 4, "lengths": lengths})
    return cases


SLOTS = Exercise(
    id="07.5",
    minutes=6,
    name="slot_cache",
    signature=("batch", "max_seq", "width", "lengths"),
    cases=draw_lengths,
    reference=SlotCache,
    drive=run_slots,
    misconceptions=(
        Misconception("joins_tokens", JoinsTokens),
        Misconception("allocates_per_token", AllocatesPerToken),
        Misconception("allocates_at_reset", AllocatesAtReset),
        Misconception("reads_all_room", ReadsAllRoom),
        Misconception("reads_a_copy", ReadsACopy),
        Misconception("no_guard", NoGuard),
        Misconception("starts_over", StartsOver),
    ),
    limit_s=10.0,
)
