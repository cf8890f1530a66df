"""Computes the right values of the errata from their inputs: with the planner where it can, else by plain sums.

``VALUES["003-01"]()`` is a number, or a tuple where the claim holds several. The stated values stand in
``data/errata_*.toml``; a test compares the two.
"""

from collections.abc import Callable

from minikv.course.errata import Number
from minikv.plan import CacheSpec, find_gpu, find_model
from minikv.plan.spec.cache_spec import Layout
from minikv.units import GIB, KIB, MIB

MB, GB = 10**6, 10**9
BLOCK_SIZE = 16  # tokens; both guides use it


def dense(layers: int, kv_heads: int, head_dim: int, tp: int = 1) -> CacheSpec:
    """The spec of a model that exists in a document only, in bf16, on one of ``tp`` ranks.

    The cache does not depend on the number of query heads; four a KV head, so that every ``tp`` divides them.
    """
    config = {
        "model_type": "llama",
        "num_hidden_layers": layers,
        "num_attention_heads": 4 * kv_heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "hidden_size": 4 * kv_heads * head_dim,
        "dtype": "bfloat16",
    }
    return CacheSpec.from_config(config, tp=tp)


def guide_block() -> int:
    """Bytes of a block in the guide of 80 layers, 64 KV heads of 64, at TP 8."""
    return dense(80, 64, 64, tp=8).block_bytes(BLOCK_SIZE)


def breakdown_block(tp: int = 1) -> int:
    """Bytes of a block in the breakdown of 28 layers, 8 KV heads of 128."""
    return dense(28, 8, 128, tp=tp).block_bytes(BLOCK_SIZE)


def available(total: Number, utilization: float, used: Number, peak: Number, current: Number) -> Number:
    """The memory that an engine gives to the cache, in the unit of its terms."""
    return round(total * utilization) - used - peak + current


def breakdown_pool() -> int:
    """The breakdown's 32 GiB: 80 GiB at 0.9, with 5 used, 40 at the peak, 5 now."""
    return int(available(80 * GIB, 0.9, 5 * GIB, 40 * GIB, 5 * GIB))


def config_of(model: str, *fields: str) -> tuple[int, ...]:
    """Fields of a catalogue model's config."""
    config = find_model(model).config
    return tuple(config[field] for field in fields)


def quotient(model: str) -> int:
    """hidden_size // num_attention_heads, which is head_dim in some models only."""
    hidden, heads = config_of(model, "hidden_size", "num_attention_heads")
    return hidden // heads


def mla_naive(model: str) -> int:
    """Bytes a token and layer as the script of 2.86x estimates them."""
    (kv_heads,) = config_of(model, "num_key_value_heads")
    return 2 * kv_heads * quotient(model) * 2


def mla_layer(model: str, layout: Layout) -> int:
    """Bytes a token and layer that transformers caches: "hf" since 5.15, "hf-expanded" before."""
    return CacheSpec.from_config(model, layout=layout).layers[0].token_bytes


def table_row(num_blocks: int) -> tuple[int, int]:
    """Bytes of a sequence of so many blocks, and how many such sequences 10,800 blocks hold."""
    return num_blocks * guide_block(), 10_800 // num_blocks


def mean_waste(block_size: int) -> float:
    """Tokens that a sequence leaves empty in its last block, averaged over all lengths modulo a block."""
    return sum(-length % block_size for length in range(block_size)) / block_size


def too_many_blocks(outside_torch_gib: float) -> int:
    """Blocks that total * util - peak grants beyond what used - current leaves room for."""
    return int(outside_torch_gib * GIB // guide_block())


def eviction_peak(capacity: int, every: int, steps: int = 100) -> int:
    """The most tokens in a cache when each step appends one and every ``every``-th evicts to ``capacity``."""
    held = most = capacity
    for step in range(1, steps + 1):
        held += 1
        most = max(most, held)
        if step % every == 0:
            held = capacity
    return most


def intensity(query_heads: int, kv_heads: int, itemsize: int = 2) -> float:
    """FLOP a byte of decode attention: a multiplication and an addition an element and query head."""
    return 2 * query_heads / kv_heads / itemsize


def lines_touched(stride: int, threads: int = 32, itemsize: int = 4, line: int = 128) -> int:
    """Cache lines that a warp touches in one step where thread t reads element t * stride."""
    return len({thread * stride * itemsize // line for thread in range(threads)})


def linear_element(layer: int, row: int, position: int, batch: int = 2) -> int:
    """The first element of K's head 0 there, in a cache [layers, batch, 2, 8 heads, 4096 positions, 128]."""
    return (layer * batch + row) * 2 * 8 * 4096 * 128 + position * 128


def whole_block_slots(table: list[int], num_tokens: int, block_size: int, num_cached: int) -> list[int]:
    """The slots of the tokens behind ``num_cached`` from a loop over whole blocks."""
    first = num_cached // block_size
    return [
        table[place // block_size] * block_size + place % block_size
        for place in range(first * block_size, num_tokens)
    ]


def stuck_after_empty_cache(live_each: int, segments: int = 256) -> int:
    """Reserved bytes of 5 GiB in segments of 20 MiB, after ``live_each`` blocks of 2 MiB stay live in each."""
    from minikv.memory import CachingAllocator

    model = CachingAllocator()
    blocks = [model.malloc(2 * MIB) for _ in range(10 * segments)]
    for place, block in enumerate(blocks):
        if place % 10 >= live_each:
            model.free(block)
    model.empty_cache()
    return model.usage().reserved


VALUES: dict[str, Callable[[], Number | tuple[Number, ...]]] = {
    "000-01": lambda: 18 - 5.5,
    "000-02": lambda: (mla_layer("DeepSeek-V3", "hf-expanded"), mla_layer("DeepSeek-V3", "hf")),
    "000-03": lambda: tuple(
        wrong / mla_layer("DeepSeek-V3", "hf")
        for wrong in (mla_naive("DeepSeek-V3"), mla_layer("DeepSeek-V3", "hf-expanded"))
    ),
    "000-04": lambda: (
        CacheSpec.from_config("DeepSeek-V3", layout="hf-expanded").bytes_for(100),
        mla_naive("DeepSeek-V3") * 61 * 100,
    ),
    "000-05": lambda: 2 * 128 * config_of("DeepSeek-V3", "qk_rope_head_dim")[0] * 2,
    "000-06": lambda: (
        mla_naive("Kimi-K2"),
        mla_layer("Kimi-K2", "hf-expanded"),
        mla_layer("Kimi-K2", "hf-expanded") / mla_naive("Kimi-K2"),
    ),
    "001-02": lambda: (4096 // 64, config_of("Llama-3.1-70B", "num_key_value_heads")[0]),
    "001-03": lambda: 12 * 80 * 4096**2,
    "001-04": lambda: guide_block() // (BLOCK_SIZE * 8 * 64 * 2),
    "001-05": guide_block,
    "001-06": lambda: 70 * GB * 2 / 8 / GB,
    "001-07": lambda: (27_000 * MB // guide_block(), 27_000 * MIB // guide_block()),
    "001-08": lambda: _guide_pool(),
    "001-09": lambda: 10_800 * guide_block(),
    "001-10": lambda: (10_800 * guide_block(), 10_800 * guide_block() * 4 // 2),
    "001-12": lambda: tuple(dense(80, 64, 64, tp=tp).layers[0].kv_heads for tp in (1, 8)),
    "001-13": lambda: guide_block() / dense(80, 64, 64).block_bytes(BLOCK_SIZE),
    "001-14": lambda: (
        dense(28, 8, 128, tp=16).layers[0].kv_heads,
        CacheSpec.from_config("DeepSeek-V3", tp=16).layers[0].kv_heads,
    ),
    "001-15": lambda: tuple(
        CacheSpec.from_config(model).layers[0].k_dim
        for model in ("Qwen3-0.6B", "Qwen3-4B", "Gemma-3-27B", "gpt-oss-20b")
    ),
    "001-18": lambda: table_row(4096 // BLOCK_SIZE),
    "001-19": lambda: table_row(32 * KIB // BLOCK_SIZE),
    "001-20": lambda: table_row(128 * KIB // BLOCK_SIZE),
    "001-21": lambda: table_row(10_800),
    "001-22": lambda: (mean_waste(16), mean_waste(32)),
    "001-24": lambda: 35 + 10,
    "001-25": lambda: 35 + 10,
    "001-26": lambda: available(80, 0.9, used=35, peak=35 + 10, current=35),
    "001-27": lambda: (62 * GB // guide_block(), 27 * GB // guide_block()),
    "001-28": lambda: (too_many_blocks(1.79), too_many_blocks(3.58)),
    "001-30": lambda: (10 // 1, 2000 // 1),
    "001-31": lambda: round(80 * 0.9),
    "001-32": lambda: (10_800 * BLOCK_SIZE, CacheSpec.from_config("Llama-3.1-70B").max_positions or 0),
    "001-33": lambda: (35 - 35, max(35, 35 + 10, 35) - 35),
    "001-34": lambda: (stuck_after_empty_cache(live_each=1), stuck_after_empty_cache(live_each=0)),
    "001-35": lambda: (len(whole_block_slots([0, 1, 2], 10, 4, num_cached=6)), 10 - 6),
    "001-36": lambda: (len({*range(11)} | {*range(11, 21)}), len({*range(11)} & {*range(11, 21)})),
    "001-37": lambda: 10 + sum((8, 4, 4, 5, 11, 8)),
    "002-01": lambda: 256 * 6_400 * MB / 8 / GB,
    "002-03": lambda: (65_536 * 4, 164 * KIB),
    "002-04": lambda: round(100 * dense(32, 8, 128).bytes_for(4096) / (8.5 * GB), 1),
    "002-05": lambda: tuple(dense(1, heads, 128).bytes_for(1) for heads in (4096 // 128, 8)),
    "002-06": lambda: (32 * 4 * 1, 32 * 4 * dense(1, 8, 128).bytes_for(1024) // MIB),
    "002-07": lambda: (
        dense(32, 8, 128).bytes_for(4096),
        CacheSpec.from_config("Llama-2-7B").bytes_for(4096),
    ),
    "002-08": lambda: (1024 * 768 * 2, (1024 + 512) * 768 * 2),
    "002-09": lambda: (2048 * 4096 * 2, 512 * MIB),
    "002-10": lambda: 0.5 * GB / (16 * MB),
    "002-12": lambda: (MB, MIB),
    "002-13": lambda: (intensity(32, 32), intensity(32, 8)),
    "002-16": lambda: (100 + 50, 1 + 50),
    "002-18": lambda: tuple(100 - 100 * flop_per_byte / 200 for flop_per_byte in (10, intensity(32, 32))),
    "002-19": lambda: (lines_touched(stride=1024), lines_touched(stride=1)),
    "002-20": lambda: (
        linear_element(layer=1, row=1, position=5),
        linear_element(layer=1, row=0, position=5),
    ),
    "003-01": lambda: breakdown_block(tp=8),
    "003-02": lambda: tuple(dense(28, 8, 128, tp=tp).layers[0].kv_heads for tp in (1, 8)),
    "003-03": lambda: (breakdown_pool() // 114_688, breakdown_pool() // breakdown_block(tp=8)),
    "003-04": lambda: breakdown_pool() // breakdown_block(tp=8) * BLOCK_SIZE,
    "003-05": lambda: 299_680 * breakdown_block(tp=8),
    "003-06": breakdown_block,
    "003-07": lambda: _breakdown_tokens(),
    "003-08": lambda: 37_449 * breakdown_block(),
    "003-09": lambda: (80 - 5) * GIB,
    "003-10": lambda: tuple(dense(28, 8, 128, tp=tp).layers[0].kv_heads for tp in (1, 8)),
    "003-11": lambda: tuple(len(CacheSpec.from_config(model).layers) for model in ("Qwen3-8B", "Qwen3-0.6B")),
    "003-12": lambda: (
        quotient("Qwen3-0.6B"),
        quotient("Qwen3-32B"),
        CacheSpec.from_config("Qwen3-32B").layers[0].k_dim,
    ),
    "003-15": lambda: 34 - 5,
    "003-16": lambda: (round(80 * 0.9), round(80 * 0.9) - 34 - 10),
    "003-17": lambda: breakdown_block() // dense(1, 8, 128).block_bytes(BLOCK_SIZE),
    "003-18": lambda: 72 - 34 - 10 - available(80, 0.9, used=34, peak=34 + 10, current=34),
    "003-19": lambda: find_gpu("A100 SXM 80GB").total_bytes or 0,
    "003-21": lambda: (8 // 16, dense(28, 8, 128, tp=16).layers[0].kv_heads),
    "003-22": lambda: tuple(tp * dense(28, 8, 128, tp=tp).layers[0].kv_heads for tp in (1, 8)),
    "003-23": lambda: (_breakdown_tokens()[1], CacheSpec.from_config("Qwen3-8B").max_positions or 0),
    "003-24": lambda: (34 + 32 + 10, round(80 * 0.9)),
    "003-25": lambda: _breakdown_weights(),
    "004-02": lambda: _latent_widths(),
    "004-03": lambda: (*(eviction_peak(324, every) for every in (1, 8, 16)), max(4096, 324)),
    "004-05": lambda: (100, 4 + 8 + 12),
    "004-08": lambda: (8 - 0, 8 - 7),
}


def _guide_pool() -> tuple[int, int, int]:
    """MB for the cache, blocks and tokens: 80 GiB at 0.9, weights 35 GB, activations 10 GB."""
    pool = int(80 * GIB * 0.9) - (35 + 10) * GB
    blocks = pool // guide_block()
    return pool // MB, blocks, blocks * BLOCK_SIZE


def _breakdown_tokens() -> tuple[int, int, int, int]:
    """Blocks and tokens of the breakdown on one GPU, and tokens for each of 8 and of 32 sequences."""
    blocks = breakdown_pool() // breakdown_block()
    tokens = blocks * BLOCK_SIZE
    return blocks, tokens, tokens // 8, tokens // 32


def _latent_widths() -> tuple[int, int]:
    layer = CacheSpec.from_config("DeepSeek-V3").layers[0]
    return layer.k_dim, layer.v_dim


def _breakdown_weights() -> tuple[int, int, int]:
    """Bytes in bf16 of 28 layers of 4096 by the rule 12 * layers * hidden^2, of the embeddings, and of both."""
    (vocabulary,) = config_of("Qwen3-8B", "vocab_size")
    layers, embeddings = 12 * 28 * 4096**2 * 2, 2 * vocabulary * 4096 * 2
    return layers, embeddings, layers + embeddings
