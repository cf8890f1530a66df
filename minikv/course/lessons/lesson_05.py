"""Lesson 05: owned and borrowed memory, what a view keeps alive, and an arena that lends."""

from collections.abc import Callable

import torch

from minikv.course.exercise import Exercise, Lesson, Misconception, Prediction
from minikv.course.lessons.live_05 import LIVE
from minikv.memory.arena import arena_bytes
from minikv.memory.ownership import ownership, share_storage

# 05.1


def kept_bytes(tensors: list[torch.Tensor]) -> int:
    return sum({t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}.values())


def on_parts(fn: Callable, dtype: str, sizes: list[int], parts: list[tuple[int, int, int]]) -> object:
    """``fn`` of a list of tensors: part (i, start, stop) is ``whole[i][start:stop]``, or whole[i] itself."""
    wholes = [torch.zeros(size, dtype=getattr(torch, dtype)) for size in sizes]
    tensors = [
        wholes[i] if (start, stop) == (0, sizes[i]) else wholes[i][start:stop] for i, start, stop in parts
    ]
    del wholes
    return fn(tensors)


def draw_parts(rng) -> list[dict]:
    cases = []
    for i in range(40):
        sizes = [rng.randint(10, 20 + 20 * i) for _ in range(2 + i // 10)]
        if i % 4 == 1:
            sizes[1] = sizes[0]  # two storages of one size are two
        parts = []
        # Each storage is used at least once, and one of them by two different parts.
        for storage in [*range(len(sizes)), 0, *(rng.randrange(len(sizes)) for _ in range(i // 8))]:
            start = rng.randint(1, sizes[storage] - 2)
            parts.append((storage, start, rng.randint(start + 1, sizes[storage] - 1)))
        storage, start, _ = parts[0]
        parts.append(
            (storage, start, rng.randint(start + 1, sizes[storage] - 1))
        )  # begins at the same address
        if i % 2:
            whole = rng.randrange(len(sizes))
            parts.append((whole, 0, sizes[whole]))
        rng.shuffle(parts)
        cases.append({"dtype": rng.choice(["float32", "float16", "int64"]), "sizes": sizes, "parts": parts})
    return cases


KEPT = Exercise(
    id="05.1",
    name="kept_bytes",
    signature=("dtype", "sizes", "parts"),
    cases=draw_parts,
    reference=kept_bytes,
    drive=on_parts,
    misconceptions=(
        Misconception("own_bytes", lambda tensors: sum(t.nbytes for t in tensors)),
        Misconception("each_storage", lambda tensors: sum(t.untyped_storage().nbytes() for t in tensors)),
        Misconception(
            "by_data_ptr",
            lambda tensors: sum({t.data_ptr(): t.untyped_storage().nbytes() for t in tensors}.values()),
        ),
        Misconception("views_are_free", lambda tensors: sum(t.nbytes for t in tensors if t._base is None)),
        Misconception("by_size", lambda tensors: sum({t.untyped_storage().nbytes() for t in tensors})),
    ),
)

# 05.2


def keep_window(keys: torch.Tensor, window: int) -> torch.Tensor:
    return keys if window >= keys.shape[0] else keys[-window:].clone()


def on_keys(fn: Callable, tokens: int, heads: int, dim: int, window: int) -> object:
    """What can be seen of the tensor that ``fn`` makes of keys [tokens, heads, dim]."""
    keys = torch.arange(tokens * heads * dim, dtype=torch.float32).view(tokens, heads, dim).clone()
    kept = fn(keys, window)
    if kept is None or kept is ...:
        return kept
    if not isinstance(kept, torch.Tensor):
        return {"type": type(kept).__name__, "shape": (), "storage_bytes": 0, "copied": False, "values": kept}
    return {
        "type": "Tensor",
        "shape": tuple(kept.shape),
        "storage_bytes": ownership(kept).storage_bytes,
        "copied": not share_storage(kept, keys),
        "values": kept,
    }


def draw_windows(rng) -> list[dict]:
    cases = []
    for i in range(40):
        tokens = rng.randint(3, 5 + i)
        # Fewer tokens than the cache has, exactly as many, and more.
        window = (rng.randint(1, (tokens - 1) // 2), tokens, tokens + rng.randint(1, 9))[(0, 0, 1, 2)[i % 4]]
        case = {"tokens": tokens, "heads": rng.randint(2, 3), "dim": rng.randint(2, 4), "window": window}
        cases.append(case)
    return cases


WINDOW = Exercise(
    id="05.2",
    name="keep_window",
    signature=("tokens", "heads", "dim", "window"),
    cases=draw_windows,
    reference=keep_window,
    drive=on_keys,
    misconceptions=(
        Misconception("only_a_view", lambda keys, window: keys[-window:]),
        Misconception("clone_first", lambda keys, window: keys.clone()[-window:]),
        Misconception("always_copies", lambda keys, window: keys[-window:].clone(), within=("clone_first",)),
        Misconception(
            "oldest", lambda keys, window: keys if window >= keys.shape[0] else keys[:window].clone()
        ),
        Misconception(
            "copies_when_equal",
            lambda keys, window: keys if window > keys.shape[0] else keys[-window:].clone(),
            within=("clone_first", "always_copies"),
        ),
    ),
)

# 05.3


def carve(sizes: list[int], align: int) -> tuple[list[int], int]:
    offsets, end = [], 0
    for size in sizes:
        start = -(-end // align) * align
        offsets.append(start)
        end = start + size
    return offsets, end


def carve_tight(sizes: list[int], align: int) -> tuple[list[int], int]:
    return [sum(sizes[:i]) for i in range(len(sizes))], sum(sizes)


def carve_with_tail(sizes: list[int], align: int) -> tuple[list[int], int]:
    offsets, end = carve(sizes, align)
    return offsets, -(-end // align) * align


def carve_one_too_many(sizes: list[int], align: int) -> tuple[list[int], int]:
    offsets, end = [], 0
    for size in sizes:
        start = (end // align + 1) * align if end else 0
        offsets.append(start)
        end = start + size
    return offsets, end


def carve_largest_first(sizes: list[int], align: int) -> tuple[list[int], int]:
    return carve(sorted(sizes, reverse=True), align)


def carve_backwards(sizes: list[int], align: int) -> tuple[list[int], int]:
    offsets, end = [], 0
    for size in sizes:
        start = end // align * align
        offsets.append(start)
        end = start + size
    return offsets, end


def carve_sum_of_sizes(sizes: list[int], align: int) -> tuple[list[int], int]:
    return carve(sizes, align)[0], sum(sizes)


def draw_sizes(rng) -> list[dict]:
    cases = []
    for i in range(40):
        align = 2 ** rng.randint(2, 9)
        # Just below, on and above a multiple of the alignment, so that every rounding shows.
        sizes = [
            max(
                1, align * rng.randint(1, 3) + rng.choice([-1, 0, 0, 1, rng.randint(-align // 2, align // 2)])
            )
            for _ in range(2 + i // 6)
        ]
        cases.append({"sizes": sizes, "align": align})
    return cases


CARVE = Exercise(
    id="05.3",
    name="carve",
    signature=("sizes", "align"),
    cases=draw_sizes,
    reference=carve,
    misconceptions=(
        Misconception("tight", carve_tight),
        Misconception("tail_padding", carve_with_tail),
        Misconception("one_too_many", carve_one_too_many),
        Misconception("largest_first", carve_largest_first),
        Misconception("rounds_down", carve_backwards),
        Misconception("sum_of_sizes", carve_sum_of_sizes),
    ),
)


def _arena_size(vocab: int, tokens: int) -> int:
    requests = [((4, vocab), torch.float32), ((tokens,), torch.int64), ((4, 63), torch.int32)]
    return arena_bytes(requests, align=256)


LESSON = Lesson(
    exercises=(KEPT, WINDOW, CARVE, LIVE),
    predictions=(
        Prediction(
            "ten_percent",
            lambda rng: {"rows": rng.choice([200, 500, 800])},
            how="torch.empty({rows}, 1000)[:{rows} // 10].untyped_storage().nbytes()",
            unit="bytes",
            answer=lambda rows: ownership(torch.empty(rows, 1000)[: rows // 10]).storage_bytes,
        ),
        Prediction(
            "quiz_total",
            lambda rng: {"rows": rng.choice([256, 512, 640])},
            how="1024 * 768 * 2 + {rows} * 768 * 2",
            unit="bytes",
            answer=lambda rows: sum(torch.empty(n, 768, dtype=torch.half).nbytes for n in (1024, rows)),
        ),
        Prediction(
            "expanded",
            lambda rng: {"copies": rng.choice([32, 500, 4096])},
            how="torch.zeros(1, 1024).expand({copies}, 1024).untyped_storage().nbytes()",
            unit="bytes",
            answer=lambda copies: ownership(torch.zeros(1, 1024).expand(copies, 1024)).storage_bytes,
        ),
        Prediction(
            "arena_size",
            lambda rng: {"vocab": rng.choice([1001, 2003, 5003]), "tokens": rng.choice([33, 70, 100])},
            how="arena_bytes([((4, {vocab}), torch.float32), (({tokens},), torch.int64), ((4, 63), torch.int32)])",
            unit="bytes",
            answer=_arena_size,
        ),
    ),
    questions=("owned_or_borrowed", "who_frees", "why_refuse"),
)
