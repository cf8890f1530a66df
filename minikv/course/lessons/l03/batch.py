"""Exercise 03.4: how many waiting prompts fit at once, with padding, answers and the K and V rebuilt for a layer."""

from minikv.course.exercise import Exercise, Misconception


def _first_that_fit(free_bytes: int, lengths: list[int], need) -> int:
    """Return how many of the first prompts fit; ``need(first)`` is the bytes of a batch of those prompts."""
    return next(
        (n for n in range(len(lengths)) if need(lengths[: n + 1]) > free_bytes),
        len(lengths),
    )


def max_batch(
    free_bytes: int,
    lengths: list[int],
    new_tokens: int,
    layers: int,
    layer_bytes: int,
    rebuilt_bytes: int,
) -> int:
    token_bytes = (layers + 1) * layer_bytes + rebuilt_bytes
    return _first_that_fit(
        free_bytes, lengths, lambda first: len(first) * (max(first) + new_tokens) * token_bytes
    )


def batch_without_padding(free_bytes, lengths, new_tokens, layers, layer_bytes, rebuilt_bytes):
    token_bytes = (layers + 1) * layer_bytes + rebuilt_bytes
    return _first_that_fit(
        free_bytes, lengths, lambda first: (sum(first) + len(first) * new_tokens) * token_bytes
    )


def batch_without_answers(free_bytes, lengths, new_tokens, layers, layer_bytes, rebuilt_bytes):
    return max_batch(free_bytes, lengths, 0, layers, layer_bytes, rebuilt_bytes)


def batch_without_transient(free_bytes, lengths, new_tokens, layers, layer_bytes, rebuilt_bytes):
    return max_batch(free_bytes, lengths, new_tokens, layers - 1, layer_bytes, 0)


def batch_rebuilt_everywhere(free_bytes, lengths, new_tokens, layers, layer_bytes, rebuilt_bytes):
    return max_batch(free_bytes, lengths, new_tokens, layers, layer_bytes, layers * rebuilt_bytes)


def batch_of_one_at_least(free_bytes, lengths, new_tokens, layers, layer_bytes, rebuilt_bytes):
    return max(1, max_batch(free_bytes, lengths, new_tokens, layers, layer_bytes, rebuilt_bytes))


def draw_batches(rng) -> list[dict]:
    cases = []
    for i in range(40):
        case = {
            "lengths": [rng.randint(1, 8 + 12 * i) for _ in range(2 + i // 4)],
            "new_tokens": rng.randint(1, 4 + 4 * i),
            "layers": rng.randint(2, 4 + i),
            "layer_bytes": 2 * rng.randint(10, 40 + 14 * i),
            "rebuilt_bytes": 2 * rng.randint(60, 200 + 500 * i),
        }
        # Free memory that ends within a byte of what some batch needs, or anywhere below the whole queue.
        n = 1 if i % 8 == 5 else rng.randint(1, len(case["lengths"]))
        longest = max(case["lengths"][:n]) + case["new_tokens"]
        edge = n * longest * ((case["layers"] + 1) * case["layer_bytes"] + case["rebuilt_bytes"])
        free_bytes = edge + rng.choice([-1, 0, 1, rng.randint(-edge // 2, edge // 2)])
        if i % 8 == 5:  # not even the first fits
            free_bytes = edge - rng.randint(1, edge // 2)
        cases.append({"free_bytes": free_bytes, **case})
    return cases


BATCH = Exercise(
    id="03.4",
    minutes=6,
    name="max_batch",
    signature=("free_bytes", "lengths", "new_tokens", "layers", "layer_bytes", "rebuilt_bytes"),
    cases=draw_batches,
    reference=max_batch,
    misconceptions=(
        Misconception("no_padding", batch_without_padding),
        Misconception("forgot_answers", batch_without_answers),
        Misconception("forgot_transient", batch_without_transient),
        Misconception("rebuilt_everywhere", batch_rebuilt_everywhere),
        Misconception("at_least_one", batch_of_one_at_least),
    ),
)
