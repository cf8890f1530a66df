"""Exercises 12.1 and 12.2: which KV heads a rank holds, and how many blocks all ranks can have."""

from minikv.course.exercise import Exercise, Misconception

# 12.1 ------------------------------------------------------------------------------------------------------


def kv_heads_of(rank: int, tp: int, query_heads: int, kv_heads: int) -> list[int]:
    per_rank, group = query_heads // tp, query_heads // kv_heads
    first, last = rank * per_rank, (rank + 1) * per_rank - 1
    return list(range(first // group, last // group + 1))


def heads_divided(rank, tp, query_heads, kv_heads):
    """Takes heads // tp, which is 0 with more ranks than heads."""
    count = kv_heads // tp
    return list(range(rank * count, (rank + 1) * count))


def heads_at_least_one(rank, tp, query_heads, kv_heads):
    """Takes at least one head, but counts on past the last one."""
    count = max(1, kv_heads // tp)
    return list(range(rank * count, (rank + 1) * count))


def heads_dealt_round(rank, tp, query_heads, kv_heads):
    return list(range(rank, kv_heads, tp)) if kv_heads >= tp else kv_heads_of(rank, tp, query_heads, kv_heads)


def heads_copied_round(rank, tp, query_heads, kv_heads):
    return [rank % kv_heads] if kv_heads < tp else kv_heads_of(rank, tp, query_heads, kv_heads)


def heads_round(rank, tp, query_heads, kv_heads):
    """Deals the heads out one by one, and copies them one by one."""
    return [rank % kv_heads] if kv_heads < tp else list(range(rank, kv_heads, tp))


def heads_all(rank, tp, query_heads, kv_heads):
    return list(range(kv_heads))


def heads_of_queries(rank, tp, query_heads, kv_heads):
    per_rank = query_heads // tp
    return list(range(rank * per_rank, (rank + 1) * per_rank))


def heads_of_rank_0(rank, tp, query_heads, kv_heads):
    return list(range(max(1, kv_heads // tp)))


def draw_ranks(rng) -> list[dict]:
    """Draw fewer ranks than KV heads, as many, and more; any rank from the first to the last."""
    cases = []
    for i in range(48):
        kv_heads = (2, 4, 8, 3, 6)[i % 5] * (1 + i // 24)
        if i % 2:
            tp = kv_heads * rng.choice([2, 4])
        else:
            tp = rng.choice([count for count in range(2, kv_heads + 1) if kv_heads % count == 0])
        query_heads = max(kv_heads, tp) * rng.choice([1, 2, 4])
        rank = rng.choice([0, tp - 1, rng.randrange(tp), rng.randrange(tp)])
        cases.append({"rank": rank, "tp": tp, "query_heads": query_heads, "kv_heads": kv_heads})
    return cases


HEADS = Exercise(
    id="12.1",
    minutes=4,
    name="kv_heads_of",
    signature=("rank", "tp", "query_heads", "kv_heads"),
    cases=draw_ranks,
    reference=kv_heads_of,
    misconceptions=(
        Misconception("divided", heads_divided),
        Misconception("at_least_one", heads_at_least_one),
        Misconception("dealt_round", heads_dealt_round, within=("round",)),
        Misconception("copied_round", heads_copied_round, within=("round",)),
        Misconception("round", heads_round, within=("dealt_round",)),
        Misconception("all_heads", heads_all),
        Misconception("query_heads", heads_of_queries),
        Misconception("rank_forgotten", heads_of_rank_0),
    ),
)

# 12.2 ------------------------------------------------------------------------------------------------------


def blocks_of_all(
    free: list[int], kv_heads: int, layers: int, head_dim: int, itemsize: int, block_size: int
) -> int:
    return min(free) // _block_bytes(len(free), kv_heads, layers, head_dim, itemsize, block_size)


def _block_bytes(tp, kv_heads, layers, head_dim, itemsize, block_size):
    return 2 * layers * block_size * max(1, kv_heads // tp) * head_dim * itemsize


def blocks_of_rank_0(free, kv_heads, layers, head_dim, itemsize, block_size):
    return free[0] // _block_bytes(len(free), kv_heads, layers, head_dim, itemsize, block_size)


def blocks_of_average(free, kv_heads, layers, head_dim, itemsize, block_size):
    block = _block_bytes(len(free), kv_heads, layers, head_dim, itemsize, block_size)
    return sum(free) // len(free) // block


def blocks_of_most(free, kv_heads, layers, head_dim, itemsize, block_size):
    return max(free) // _block_bytes(len(free), kv_heads, layers, head_dim, itemsize, block_size)


def blocks_added_up(free, kv_heads, layers, head_dim, itemsize, block_size):
    """Adds up the blocks of all ranks."""
    block = _block_bytes(len(free), kv_heads, layers, head_dim, itemsize, block_size)
    return sum(each // block for each in free)


def blocks_of_all_heads(free, kv_heads, layers, head_dim, itemsize, block_size):
    return min(free) // _block_bytes(1, kv_heads, layers, head_dim, itemsize, block_size)


def blocks_of_no_head(free, kv_heads, layers, head_dim, itemsize, block_size):
    """Takes heads // tp, which is 0 with more ranks than heads: a block then has no bytes."""
    return min(free) // (2 * layers * block_size * (kv_heads // len(free)) * head_dim * itemsize)


def blocks_of_a_share(free, kv_heads, layers, head_dim, itemsize, block_size):
    """Divides all heads by all ranks: half a head each with twice as many ranks as heads."""
    whole = _block_bytes(1, kv_heads, layers, head_dim, itemsize, block_size)
    return min(free) * len(free) // whole


def blocks_of_k(free, kv_heads, layers, head_dim, itemsize, block_size):
    return 2 * min(free) // _block_bytes(len(free), kv_heads, layers, head_dim, itemsize, block_size)


def blocks_of_tokens(free, kv_heads, layers, head_dim, itemsize, block_size):
    """Returns the number of tokens that fit instead of blocks."""
    return min(free) // _block_bytes(len(free), kv_heads, layers, head_dim, itemsize, 1)


def draw_pools(rng) -> list[dict]:
    """Draw pools; any rank may have the least memory, sometimes the first; sizes end within a block."""
    cases = []
    for i in range(40):
        tp, kv_heads = ((2, 2), (2, 8), (4, 8), (4, 2), (8, 4), (3, 6), (8, 2), (4, 4))[i % 8]
        layers, head_dim, itemsize = rng.randint(2, 4 + i), rng.choice([32, 64, 128]), rng.choice([1, 2])
        block_size = rng.choice([8, 16, 32])
        block = _block_bytes(tp, kv_heads, layers, head_dim, itemsize, block_size)
        least = rng.randint(3, 40)
        blocks = [least + rng.randint(3, 30) for _ in range(tp)]
        blocks[rng.randrange(1, tp) if i % 5 else 0] = least
        free = [count * block + rng.choice([0, 1, block - 1, block // 2]) for count in blocks]
        case = {"free": free, "kv_heads": kv_heads, "layers": layers, "head_dim": head_dim}
        cases.append({**case, "itemsize": itemsize, "block_size": block_size})
    return cases


BLOCKS = Exercise(
    id="12.2",
    minutes=4,
    name="blocks_of_all",
    signature=("free", "kv_heads", "layers", "head_dim", "itemsize", "block_size"),
    cases=draw_pools,
    reference=blocks_of_all,
    misconceptions=(
        Misconception("rank_0", blocks_of_rank_0),
        Misconception("average", blocks_of_average),
        Misconception("most", blocks_of_most),
        Misconception("added_up", blocks_added_up),
        Misconception("all_heads", blocks_of_all_heads),
        Misconception("no_head", blocks_of_no_head),
        Misconception("half_a_head", blocks_of_a_share),
        Misconception("k_alone", blocks_of_k),
        Misconception("tokens", blocks_of_tokens),
    ),
)
