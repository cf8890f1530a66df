"""Exercise 13.1: how many tokens a pool holds when each row of a head has its own scale."""

from minikv.course.exercise import Exercise, Misconception


def tokens_that_fit(
    pool_bytes: int,
    layers: int,
    kv_heads: int,
    head_dim: int,
    itemsize: int,
    scale_bytes: int,
    block_size: int,
) -> int:
    return _fit(pool_bytes, layers * kv_heads * 2 * (head_dim * itemsize + scale_bytes), block_size)


def _fit(pool_bytes: int, token_bytes: int, block_size: int) -> int:
    return pool_bytes // (token_bytes * block_size) * block_size


def fit_without_scales(pool_bytes, layers, kv_heads, head_dim, itemsize, scale_bytes, block_size):
    return _fit(pool_bytes, layers * kv_heads * 2 * head_dim * itemsize, block_size)


def fit_one_scale_for_both(pool_bytes, layers, kv_heads, head_dim, itemsize, scale_bytes, block_size):
    return _fit(pool_bytes, layers * kv_heads * (2 * head_dim * itemsize + scale_bytes), block_size)


def fit_one_scale_a_layer(pool_bytes, layers, kv_heads, head_dim, itemsize, scale_bytes, block_size):
    return _fit(pool_bytes, layers * 2 * (kv_heads * head_dim * itemsize + scale_bytes), block_size)


def fit_a_scale_an_element(pool_bytes, layers, kv_heads, head_dim, itemsize, scale_bytes, block_size):
    return _fit(pool_bytes, layers * kv_heads * 2 * head_dim * (itemsize + scale_bytes), block_size)


def fit_keys_only(pool_bytes, layers, kv_heads, head_dim, itemsize, scale_bytes, block_size):
    return _fit(pool_bytes, layers * kv_heads * (head_dim * itemsize + scale_bytes), block_size)


def fit_parts_of_blocks(pool_bytes, layers, kv_heads, head_dim, itemsize, scale_bytes, block_size):
    return pool_bytes // (layers * kv_heads * 2 * (head_dim * itemsize + scale_bytes))


def fit_blocks(pool_bytes, layers, kv_heads, head_dim, itemsize, scale_bytes, block_size):
    return pool_bytes // (layers * kv_heads * 2 * (head_dim * itemsize + scale_bytes) * block_size)


# itemsize and scale_bytes of int8, int8 with scales of 16 bits, plain fp8, and bf16.
_STORED = ((1, 4), (1, 2), (1, 0), (2, 0))


def draw_pools(rng) -> list[dict]:
    """Draw all four ways to store a row; pools that are a whole number of blocks, a byte less, or any size."""
    cases = []
    for i in range(48):
        itemsize, scale_bytes = _STORED[i % 4]
        layers, kv_heads = rng.randint(2, 4 + i), rng.choice([2, 4, 8])
        head_dim, block_size = rng.choice([16, 32, 64, 128]), rng.choice([4, 8, 16, 32])
        block = layers * kv_heads * 2 * (head_dim * itemsize + scale_bytes) * block_size
        pool = block * rng.randint(40, 90 + 5 * i)
        pool += (0, -1, rng.randrange(block))[i % 3]
        shape = {"layers": layers, "kv_heads": kv_heads, "head_dim": head_dim, "itemsize": itemsize}
        cases.append({"pool_bytes": pool, **shape, "scale_bytes": scale_bytes, "block_size": block_size})
    return cases


FIT = Exercise(
    id="13.1",
    minutes=4,
    name="tokens_that_fit",
    signature=("pool_bytes", "layers", "kv_heads", "head_dim", "itemsize", "scale_bytes", "block_size"),
    cases=draw_pools,
    reference=tokens_that_fit,
    misconceptions=(
        Misconception("no_scales", fit_without_scales),
        Misconception("one_for_both", fit_one_scale_for_both),
        Misconception("one_a_layer", fit_one_scale_a_layer),
        Misconception("one_an_element", fit_a_scale_an_element),
        Misconception("keys_only", fit_keys_only),
        Misconception("parts_of_blocks", fit_parts_of_blocks),
        Misconception("blocks", fit_blocks),
    ),
)
