"""The blocks that vLLM makes of its free bytes, and the tokens and the concurrency that it prints.

vLLM has one pool for all layers. A block is ``group_size`` pages, one in each tensor of the pool. A page holds
``block_size`` tokens of one layer. A model with equal layers has one group that holds every layer. A hybrid model
(full + sliding, full + Mamba) has several groups of equal size, which take blocks from the same pool; so all pages
must have the same bytes.

The rules are those of vllm/v1/core/kv_cache_utils.py and vllm/v1/kv_cache_interface.py; each function names
the one that it follows.
"""

import math
from collections import Counter
from dataclasses import dataclass
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal

from minikv.errors import ArgumentError, ConfigError, check_count
from minikv.plan.spec.cache_spec import CacheSpec
from minikv.units import GIB

BLOCK_SIZE = 16  # vLLM's default for most attention backends, and the alignment of a block
BATCHED_TOKENS = 8192  # max_num_batched_tokens of the API server on cards with much memory
# Blocks of a request in each group of recurrent layers, by mamba_cache_mode.
STATE_BLOCKS = {"none": 1, "align": 2}
RULES = ("old", "new")  # how the token count was printed: up to v0.20, from v0.21


@dataclass(frozen=True)
class _Cached:
    """The bytes that one layer needs in the pool. ``kind``: "full", "sliding", "chunked" or "state"."""

    kind: str
    token_bytes: int = 0
    window: int | None = None
    state_bytes: int = 0


@dataclass(frozen=True)
class PoolGroup:
    """Layers that share a block table. ``block_size`` is in tokens; a group of recurrent layers has none."""

    kind: str
    num_layers: int
    block_size: int | None = None
    window: int | None = None

    def blocks_for(self, max_model_len: int, batched_tokens: int, state_blocks: int) -> int:
        """The most blocks that one request of ``max_model_len`` tokens holds in this group.

        Source: ``max_memory_usage_bytes`` of FullAttentionSpec, SlidingWindowSpec, ChunkedLocalAttentionSpec
        and MambaSpec. A sliding layer keeps window - 1 old tokens beside the ``batched_tokens`` of a step,
        and one block more because a window seldom starts at a block's edge.
        """
        if self.block_size is None:
            return state_blocks
        if self.kind == "sliding" and self.window is not None:
            held = min(self.window - 1 + batched_tokens, max_model_len)
            return math.ceil(held / self.block_size) + 1
        held = max_model_len if self.window is None else min(self.window + batched_tokens, max_model_len)
        return math.ceil(held / self.block_size)


@dataclass(frozen=True)
class VllmPool:
    """The pool of one rank: its groups and the bytes of a block.

    ``page_bytes`` are those of the largest page, ``block_bytes`` those of one block in all tensors of the pool.
    ``padding_layers`` are places in the groups without a layer: memory that no token uses.
    """

    groups: tuple[PoolGroup, ...]
    group_size: int
    page_bytes: int
    block_bytes: int
    state_blocks: int = 1

    @property
    def padding_layers(self) -> int:
        return len(self.groups) * self.group_size - sum(group.num_layers for group in self.groups)

    @property
    def has_windows(self) -> bool:
        return any(group.window is not None for group in self.groups)

    @property
    def has_states(self) -> bool:
        return any(group.block_size is None for group in self.groups)

    def num_blocks(self, available_bytes: int) -> int:
        """Blocks in ``available_bytes``: available // page_bytes // layers of a group (get_num_blocks)."""
        return max(0, available_bytes // self.block_bytes)

    def pool_blocks(self, available_bytes: list[int]) -> int:
        """Blocks of a pool over several ranks: the poorest rank decides (get_kv_cache_configs)."""
        return min(self.num_blocks(num_bytes) for num_bytes in available_bytes)

    def blocks_per_request(self, max_model_len: int, batched_tokens: int = BATCHED_TOKENS) -> int:
        """Blocks that one request of ``max_model_len`` tokens can need, all groups together."""
        return sum(
            group.blocks_for(max_model_len, batched_tokens, self.state_blocks) for group in self.groups
        )

    def needed_bytes(self, max_model_len: int, batched_tokens: int = BATCHED_TOKENS) -> int:
        """Bytes that one request needs: "... GiB KV cache is needed" (_max_memory_usage_bytes_from_groups)."""
        return self.blocks_per_request(max_model_len, batched_tokens) * self.block_bytes

    def concurrency(self, num_blocks: int, max_model_len: int, batched_tokens: int = BATCHED_TOKENS) -> float:
        """Requests of ``max_model_len`` tokens at once (get_max_concurrency_for_kv_cache_config)."""
        return num_blocks / self.blocks_per_request(max_model_len, batched_tokens)

    def tokens_printed(
        self,
        num_blocks: int,
        rule: str = "old",
        max_model_len: int | None = None,
        batched_tokens: int = BATCHED_TOKENS,
    ) -> int:
        """The number in "GPU KV cache size: N tokens".

        "old" (up to v0.20): num_blocks // groups * smallest block size, as if each group had its own share.
        "new" (from v0.21): int(concurrency * max_model_len). The pool is the same (vllm issue 43308), only the
        printed number differs. Needs ``max_model_len`` for "new" and for a model without attention.
        """
        if rule not in RULES:
            raise ArgumentError("unknown_choice", what="rule", value=rule, known=", ".join(RULES))
        if rule == "new" and max_model_len is not None:
            return int(self.concurrency(num_blocks, max_model_len, batched_tokens) * max_model_len)
        # The block of a recurrent layer is as long as the longest request.
        sizes = [size for group in self.groups if (size := group.block_size or max_model_len)]
        if rule == "new" or not sizes:
            raise ArgumentError("log_no_max_model_len")
        return num_blocks // len(self.groups) * min(sizes)

    def blocks_that_print(self, tokens: int, **printing) -> tuple[int, int]:
        """First and last number of blocks for which ``tokens_printed(num_blocks, **printing)`` is ``tokens``.

        The last is smaller than the first where no number of blocks prints it.
        """
        # The count never falls as blocks are added, so both ends are found by halving.
        return self._first_with(tokens, printing), self._first_with(tokens + 1, printing) - 1

    def _first_with(self, tokens: int, printing: dict) -> int:
        low, high = -1, 1
        while self.tokens_printed(high, **printing) < tokens:
            low, high = high, 2 * high
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if self.tokens_printed(middle, **printing) >= tokens else (middle, high)
        return high


def vllm_pool(
    spec: CacheSpec,
    *,
    block_size: int = BLOCK_SIZE,
    hybrid_manager: bool = True,
    mamba_mode: str = "none",
    pp: int = 1,
) -> VllmPool:
    """The pool that vLLM builds for a rank of ``spec`` (``layout="vllm"``).

    ``block_size`` is the attention block in tokens; it grows where a Mamba state would not fit its page.
    ``hybrid_manager=False`` keeps windowed layers whole (unify_hybrid_kv_cache_specs). Prefix caching sets
    ``mamba_mode`` "align". With ``pp`` pipeline stages the pool is that of the stage with the most layers.

    Raises ``ArgumentError`` for an argument; ``ConfigError`` where nothing is cached, where pages cannot be
    made equal, and for cross-attention.
    """
    check_count("block_size", block_size)
    check_count("pp", pp)
    if spec.layout != "vllm":
        raise ArgumentError("unknown_choice", what="layout", value=spec.layout, known="vllm")
    if mamba_mode not in STATE_BLOCKS:
        raise ArgumentError(
            "unknown_choice", what="mamba_mode", value=mamba_mode, known=", ".join(STATE_BLOCKS)
        )
    cached = _cached_layers(spec)
    if not hybrid_manager and any(layer.kind == "full" for layer in cached):
        cached = [layer if layer.window is None else _Cached("full", layer.token_bytes) for layer in cached]
    if len({(layer.kind, layer.window) for layer in cached}) == 1 and cached[0].kind != "state":
        return _one_group(cached, block_size, pp)
    return _equal_groups(cached, block_size, STATE_BLOCKS[mamba_mode], pp, spec.name)


def hybrid_block_size(state_bytes: int, token_bytes: int, block_size: int = BLOCK_SIZE) -> int:
    """The attention block, in tokens, with a page at least as large as a recurrent state.

    A multiple of 16, at least ``block_size``: 784 for Qwen3.5-27B in bf16 on one GPU, 1,568 in fp8 on two.
    Source: _align_hybrid_block_size in vllm/platforms/interface.py, before that
    HybridAttentionMambaModelConfig.verify_and_update_config.
    """
    return max(block_size, BLOCK_SIZE * math.ceil(state_bytes / (BLOCK_SIZE * token_bytes)))


def printed_interval(gib: str) -> tuple[int, int]:
    """All byte counts, first and last, that vLLM would print as ``gib`` GiB.

    Two decimals are printed, and format_gib drops a zero at the end: "24.0" means 24.00.
    """
    value = Decimal(gib)
    half = Decimal(10) ** min(-2, int(value.as_tuple().exponent)) / 2
    first = ((value - half) * GIB).to_integral_value(ROUND_CEILING)
    last = ((value + half) * GIB).to_integral_value(ROUND_FLOOR)
    return max(0, int(first)), max(0, int(last))


def _cached_layers(spec: CacheSpec) -> list[_Cached]:
    """The needs of each layer in the pool: two for a layer with attention and state (Falcon-H1)."""
    cached = []
    for layer in spec.layers:
        if layer.kind == "cross":
            raise ConfigError("pool_cross_attention", name=spec.name)
        if layer.token_bytes:
            kind = layer.kind if layer.window is not None else "full"
            cached.append(_Cached(kind, layer.token_bytes, layer.window))
        if layer.state_bytes:
            cached.append(_Cached("state", state_bytes=layer.state_bytes))
    if not cached:
        raise ConfigError("pool_empty", name=spec.name)
    return cached


def _one_group(cached: list[_Cached], block_size: int, pp: int) -> VllmPool:
    """Layers of one kind, which may differ in bytes: one group, a block is a page of every layer of the stage.

    Source: _get_kv_cache_groups_uniform_spec and _get_kv_cache_groups_uniform_type.
    """
    stage = math.ceil(len(cached) / pp)
    pages = [block_size * layer.token_bytes for layer in cached]
    fullest = max(sum(pages[first : first + stage]) for first in range(0, len(pages), stage))
    group = PoolGroup(cached[0].kind, stage, block_size, cached[0].window)
    return VllmPool((group,), stage, max(pages), fullest)


def _equal_groups(cached: list[_Cached], block_size: int, state_blocks: int, pp: int, name: str) -> VllmPool:
    """Layers of several kinds: each kind is cut into groups of the same number of layers.

    Source: unify_kv_cache_spec_page_size and _get_kv_cache_groups_uniform_page_size. The group is as large as
    the rarest kind; where the most frequent kind is less than 1.5 times as frequent, as large as that one.
    """
    attention = {layer for layer in cached if layer.token_bytes}
    state_bytes = max(layer.state_bytes for layer in cached)
    if attention and state_bytes:
        most = max(layer.token_bytes for layer in attention)
        block_size = hybrid_block_size(state_bytes, most, block_size)
    # A kind with fewer bytes a token gets more tokens a block; a state is padded up to the page.
    page_bytes = max([block_size * layer.token_bytes for layer in attention] or [state_bytes])
    for layer in attention:
        if page_bytes % (block_size * layer.token_bytes):
            raise ConfigError(
                "pool_pages", name=name, page=block_size * layer.token_bytes, largest=page_bytes
            )
    counts = Counter(cached)
    group_size = min(counts.values())
    if max(counts.values()) < 1.5 * group_size:
        group_size = max(counts.values())
    groups = []
    for layer, count in counts.items():
        parts = math.ceil(count / group_size)
        size = page_bytes // layer.token_bytes if layer.token_bytes else None
        # Layers are dealt to the groups in turn, so sizes differ by at most one.
        dealt = [len(range(part, count, parts)) for part in range(parts)]
        groups += [PoolGroup(layer.kind, num_layers, size, layer.window) for num_layers in dealt]
    block_bytes = page_bytes * math.ceil(group_size / pp)
    return VllmPool(tuple(groups), group_size, page_bytes, block_bytes, state_blocks)
