"""Exercises B.2 and B.3: a chunk behind a prefix hit that has changed, and namespaces that separate prefixes."""

from collections.abc import Callable

from minikv.course.exercise import Exercise, Misconception

# B.2 -------------------------------------------------------------------------------------------------------


def chunk(num_tokens: int, cached_before: int, cached_now: int, budget: int, block_size: int) -> tuple:
    start = min(cached_now, (num_tokens - 1) // block_size * block_size)
    return start, min(num_tokens, start + budget)


def chunk_stale_end(num_tokens, cached_before, cached_now, budget, block_size):
    """Uses the new start and the old count's length, so the range ends behind the sequence."""
    start = min(cached_now, (num_tokens - 1) // block_size * block_size)
    return start, start + min(num_tokens - cached_before, budget)


def chunk_stale(num_tokens, cached_before, cached_now, budget, block_size):
    return chunk(num_tokens, cached_before, cached_before, budget, block_size)


def chunk_higher_count(num_tokens, cached_before, cached_now, budget, block_size):
    return chunk(num_tokens, 0, max(cached_before, cached_now), budget, block_size)


def chunk_without_query(num_tokens, cached_before, cached_now, budget, block_size):
    return cached_now, min(num_tokens, cached_now + budget)


def chunk_into_a_shared_block(num_tokens, cached_before, cached_now, budget, block_size):
    start = min(cached_now, num_tokens - 1)
    return start, min(num_tokens, start + budget)


def chunk_always_a_block_less(num_tokens, cached_before, cached_now, budget, block_size):
    start = max(0, cached_now - block_size)
    return start, min(num_tokens, start + budget)


def chunk_without_budget(num_tokens, cached_before, cached_now, budget, block_size):
    return chunk(num_tokens, 0, cached_now, num_tokens, block_size)


def draw_chunks(rng) -> list[dict]:
    """Draw lengths on, below and above block multiples; counts that rose, fell and stayed; some full hits."""
    cases = []
    for i in range(60):
        size = (4, 8, 16)[i % 3]
        blocks = 2 + i // 10
        num_tokens = blocks * size + (0, 1, -1, 0, size // 2)[i % 5]
        whole = num_tokens // size
        now = whole if i % 5 in (0, 3) else rng.randint(0, whole)
        before = (0, rng.randint(0, whole), now)[rng.choice([0, 0, 1, 2])]
        if i % 6 == 4:  # the blocks that were counted before have been reused
            before, now = whole, rng.randint(0, whole - 1)
        budget = rng.choice([1, size - 1, 2 * num_tokens, 2 * num_tokens])
        counts = {"cached_before": before * size, "cached_now": now * size}
        cases.append({"num_tokens": num_tokens, **counts, "budget": budget, "block_size": size})
    return cases


CHUNK = Exercise(
    id="B.2",
    minutes=5,
    name="chunk",
    signature=("num_tokens", "cached_before", "cached_now", "budget", "block_size"),
    cases=draw_chunks,
    reference=chunk,
    misconceptions=(
        Misconception("stale_end", chunk_stale_end),
        Misconception("stale", chunk_stale),
        Misconception("higher_count", chunk_higher_count, within=("stale",)),
        Misconception("without_query", chunk_without_query),
        Misconception("into_a_shared_block", chunk_into_a_shared_block),
        Misconception("always_a_block_less", chunk_always_a_block_less),
        Misconception("without_budget", chunk_without_budget),
    ),
)

# B.3 -------------------------------------------------------------------------------------------------------

Names = tuple[str | None, str | None]  # of the adapter and the tenant


def namespace(adapter: str | None, tenant: str | None) -> str:
    return repr((adapter, tenant))


def first_namesakes(fn: Callable, pairs: list[Names]) -> list[int]:
    """Return for each pair the index of the first one with the same name; -1 where ``fn`` returned no text."""
    names = [fn(*pair) for pair in pairs]
    return [names.index(name) if isinstance(name, str) else -1 for name in names]


def named_one_list(adapter, tenant):
    return repr([name for name in (adapter, tenant) if name is not None])


def named_by_adapter(adapter, tenant):
    return repr(adapter)


def named_by_tenant(adapter, tenant):
    return repr(tenant)


def named_glued(adapter, tenant):
    return repr((adapter is None, tenant is None)) + (adapter or "") + (tenant or "")


def named_by_separator(adapter, tenant):
    return f"{'-' if adapter is None else '+' + adapter}/{'-' if tenant is None else '+' + tenant}"


def named_none_as_text(adapter, tenant):
    return repr((str(adapter), str(tenant)))


def named_empty_as_none(adapter, tenant):
    return repr((adapter or None, tenant or None))


def named_in_any_order(adapter, tenant):
    return repr(sorted([repr(adapter), repr(tenant)]))


SEPARATORS = "/|:-"
LETTERS = "ab"


def draw_namespaces(rng) -> list[tuple]:
    """Draw requests that must be kept apart, and some that are equal; names hold any character."""
    cases = []
    for i in range(36):
        name, other = (rng.choice(LETTERS) * rng.randint(1, 3) + str(rng.randint(0, 9)) for _ in range(2))
        joint = rng.choice(SEPARATORS)
        families = (
            [(name, None), (None, name)],
            [(name, other), (name, None), (name, other + "x")],
            [(name, other), (None, other), (name + "x", other)],
            [(name + other, name), (name, other + name)],
            [(f"{name}/+{other}", name), (name, f"{other}/+{name}")],
            [(None, name), ("None", name), (name, "None"), (name, None)],
            [("", name), (None, name), (name, ""), (name, None)],
            [(name, other), (other, name)],
            [(f"{name}{joint}{other}", None), (name, other)],
        )
        pairs = [*families[i % 9], *(families[(i + 4) % 9] if i >= 9 else ())]
        pairs += [rng.choice(pairs), rng.choice(pairs)]  # the same request again may share
        rng.shuffle(pairs)
        cases.append((pairs,))
    return cases


NAMESPACE = Exercise(
    id="B.3",
    minutes=4,
    name="namespace",
    signature=("pairs",),
    cases=draw_namespaces,
    reference=namespace,
    drive=first_namesakes,
    misconceptions=(
        Misconception("one_list", named_one_list),
        Misconception("by_adapter", named_by_adapter),
        Misconception("by_tenant", named_by_tenant),
        Misconception("glued", named_glued),
        Misconception("by_separator", named_by_separator),
        Misconception("none_as_text", named_none_as_text),
        Misconception("empty_as_none", named_empty_as_none),
        Misconception("in_any_order", named_in_any_order),
    ),
)
