"""Exercises 05.1 and 05.2: the bytes that views keep alive, and a window that keeps only the bytes that it shows."""

from collections.abc import Callable

import torch

from minikv.course.exercise import Exercise, Misconception
from minikv.memory.ownership import ownership, share_storage

# 05.1


def kept_bytes(tensors: list[torch.Tensor]) -> int:
    return sum({t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}.values())


def on_parts(fn: Callable, dtype: str, sizes: list[int], parts: list[tuple[int, int, int]]) -> object:
    """Return ``fn`` of a list of tensors: part (i, start, stop) is ``whole[i][start:stop]``, or whole[i] itself."""
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
            sizes[1] = sizes[0]  # two storages of equal size still count as two
        parts = []
        # Each storage is used at least once. The first has two different parts.
        for storage in [*range(len(sizes)), 0, *(rng.randrange(len(sizes)) for _ in range(i // 8))]:
            start = rng.randint(1, sizes[storage] - 2)
            parts.append((storage, start, rng.randint(start + 1, sizes[storage] - 1)))
        storage, start, _ = parts[0]
        # This part begins at the same address as the first one.
        parts.append((storage, start, rng.randint(start + 1, sizes[storage] - 1)))
        if i % 2:
            whole = rng.randrange(len(sizes))
            parts.append((whole, 0, sizes[whole]))
        rng.shuffle(parts)
        cases.append({"dtype": rng.choice(["float32", "float16", "int64"]), "sizes": sizes, "parts": parts})
    return cases


KEPT = Exercise(
    id="05.1",
    minutes=4,
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
    """Return what can be observed of the tensor that ``fn`` makes of keys [tokens, heads, dim]."""
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
        # The window is smaller than the cache, just as long, or longer (tokens).
        window = (rng.randint(1, (tokens - 1) // 2), tokens, tokens + rng.randint(1, 9))[(0, 0, 1, 2)[i % 4]]
        case = {"tokens": tokens, "heads": rng.randint(2, 3), "dim": rng.randint(2, 4), "window": window}
        cases.append(case)
    return cases


WINDOW = Exercise(
    id="05.2",
    minutes=4,
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
