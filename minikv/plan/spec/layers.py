"""One layer's cache: the bytes of a token, the number of tokens, and the bytes at any length."""

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class LayerSpec:
    """The cache of one decoder layer on one rank.

    ``kind`` is "full", "sliding", "chunked", "latent", "linear", "conv", "hybrid", "cross", "shared" or
    "none". ``kv_heads`` are the heads on this rank. ``k_dim`` and ``v_dim`` are elements per head and token;
    a latent layer has one head, ``k_dim`` = kv_lora_rank and ``v_dim`` = qk_rope_head_dim. ``itemsize`` is
    bytes an element, ``scale_bytes`` a quantized cache's bytes per (token, head) for K and for V each,
    ``index_bytes`` the indexer key's bytes a token, ``format_bytes`` what a storage format adds to a token.
    ``packed_bytes`` are a token's K and V in a format that has no ``itemsize`` (0 then): ggml's blocks of elements.
    ``window`` is the most tokens that the layer keeps (None: all), ``top_k`` the most of them that a decode step
    reads (sparse attention; None: all). ``state_bytes`` are those of a sequence of any length. A shared layer
    reads K and V of layer ``reads_layer``.
    """

    kind: str
    kv_heads: int = 0
    k_dim: int = 0
    v_dim: int = 0
    itemsize: int = 2
    scale_bytes: int = 0
    index_bytes: int = 0
    format_bytes: int = 0
    packed_bytes: int = 0
    top_k: int | None = None
    window: int | None = None
    state_bytes: int = 0
    reads_layer: int | None = None

    @property
    def token_bytes(self) -> int:
        """Bytes of one token that the layer keeps: kv_heads * (k_dim + v_dim) * itemsize, scales and indexer.

        ``packed_bytes`` stand in place of the product where there are any.
        """
        elements = self.kv_heads * (self.k_dim + self.v_dim)
        # A layer with only one cached tensor a head would have one scale; there is none here.
        scales = 2 * self.kv_heads * self.scale_bytes if elements else 0
        return (self.packed_bytes or elements * self.itemsize) + scales + self.index_bytes + self.format_bytes

    def tokens_kept(self, num_tokens: int) -> int:
        """The number of a sequence's ``num_tokens`` tokens that the layer still has."""
        return num_tokens if self.window is None else min(num_tokens, self.window)

    def bytes_for(self, num_tokens: int) -> int:
        """Bytes of one sequence of ``num_tokens`` tokens in this layer; an empty sequence holds nothing."""
        return self.tokens_kept(num_tokens) * self.token_bytes + (self.state_bytes if num_tokens else 0)

    def bytes_read(self, num_tokens: int) -> int:
        """Bytes that a decode step has to read; of sparse attention, every indexer key and ``top_k`` tokens."""
        if self.top_k is None:
            return self.bytes_for(num_tokens)
        read = min(num_tokens, self.top_k) * (self.token_bytes - self.index_bytes)
        return read + num_tokens * self.index_bytes

    def held_bytes_for(self, num_tokens: int, step: int) -> int:
        """Bytes of storage behind the cached tensors after a forward of ``step`` tokens that ended at ``num_tokens``.

        transformers joins old and new tokens and keeps a *view* of the last ones, so a sliding layer holds the
        whole of the joined tensor until the next forward.
        """
        before = self.tokens_kept(num_tokens - step)
        joined = before + step
        return joined * self.token_bytes + (self.state_bytes if num_tokens else 0)

    def blocks_for(self, num_tokens: int, block_size: int) -> int:
        """Blocks of ``block_size`` tokens that one sequence needs in this layer.

        A window seldom starts at a block's edge, so it can touch one block more than it fills.
        """
        whole = math.ceil(num_tokens / block_size)
        if self.window is None or num_tokens <= self.window:
            return whole
        return min(whole, math.ceil((self.window - 1) / block_size) + 1)
