"""One layer's cache: the bytes of a token, the number of tokens, and the bytes at any length."""

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class LayerSpec:
    """The cache of one decoder layer on one rank.

    ``kind`` is "full", "sliding", "chunked", "latent", "linear", "conv", "hybrid", "cross", "compressed", "shared" or
    "none". ``kv_heads`` are the heads on this rank. ``k_dim`` and ``v_dim`` are elements per head and token;
    a latent layer has one head, ``k_dim`` = kv_lora_rank and ``v_dim`` = qk_rope_head_dim. ``itemsize`` is
    bytes an element, ``scale_bytes`` a quantized cache's bytes per (token, head) for K and for V each,
    ``index_bytes`` the indexer key's bytes a token, ``format_bytes`` what a storage format adds to a token.
    ``packed_bytes`` are a token's K and V in a format that has no ``itemsize`` (0 then): ggml's blocks of elements.
    ``window`` is the most tokens that the layer keeps (None: all), ``top_k`` the most of them that a decode step
    reads (sparse attention; None: all). ``state_bytes`` are those of a sequence of any length. A shared layer
    reads K and V of layer ``reads_layer``.

    A compressed layer keeps one entry for every ``rate`` tokens; its ``token_bytes`` and ``top_k`` are an entry's and
    entries. The newest ``num_tokens % rate`` tokens wait with ``waiting_bytes`` each. ``state_bytes`` are the most of
    its buffers: ``rate - 1`` waiting tokens, and what is left of the tokens in the last entry.
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
    rate: int = 1
    waiting_bytes: int = 0

    @property
    def token_bytes(self) -> int:
        """Bytes of one token that the layer keeps: kv_heads * (k_dim + v_dim) * itemsize, scales and indexer.

        ``packed_bytes`` stand in place of the product where there are any.
        """
        elements = self.kv_heads * (self.k_dim + self.v_dim)
        scales = ((self.k_dim > 0) + (self.v_dim > 0)) * self.kv_heads * self.scale_bytes
        return (self.packed_bytes or elements * self.itemsize) + scales + self.index_bytes + self.format_bytes

    @property
    def mean_token_bytes(self) -> int:
        """Bytes that a token adds in the long run: ``token_bytes``, or a share of an entry's, rounded up."""
        return -(-self.token_bytes // self.rate)

    def tokens_kept(self, num_tokens: int) -> int:
        """The number of a sequence's ``num_tokens`` tokens that the layer still has, or of entries made of them."""
        kept = num_tokens // self.rate
        return kept if self.window is None else min(kept, self.window)

    def bytes_for(self, num_tokens: int) -> int:
        """Bytes of one sequence of ``num_tokens`` tokens in this layer; an empty sequence holds nothing."""
        kept = self.tokens_kept(num_tokens)
        if self.rate == 1:
            return kept * self.token_bytes + (self.state_bytes if num_tokens else 0)
        of_the_last_entry = self.state_bytes - (self.rate - 1) * self.waiting_bytes if kept else 0
        return kept * self.token_bytes + num_tokens % self.rate * self.waiting_bytes + of_the_last_entry

    def peak_bytes_for(self, num_tokens: int) -> int:
        """The most bytes of any length up to ``num_tokens``: compressed layers have fewer once an entry is made."""
        last_before_an_entry = num_tokens - (num_tokens + 1) % self.rate
        return max(self.bytes_for(num_tokens), self.bytes_for(max(0, last_before_an_entry)))

    def bytes_read(self, num_tokens: int) -> int:
        """Bytes that a decode step has to read; of sparse attention, every indexer key and ``top_k`` tokens."""
        if self.top_k is None and self.rate == 1:
            return self.bytes_for(num_tokens)
        kept = self.tokens_kept(num_tokens)
        read = kept if self.top_k is None else min(kept, self.top_k)
        return read * (self.token_bytes - self.index_bytes) + kept * self.index_bytes

    def held_bytes_for(self, num_tokens: int, step: int) -> int:
        """Bytes of storage behind the cached tensors after a forward of ``step`` tokens that ended at ``num_tokens``.

        transformers joins old and new tokens and keeps a *view* of the last ones, so a sliding layer holds the
        whole of the joined tensor until the next forward.
        """
        if self.rate > 1:  # waiting tokens are a view of all that were waiting or new
            joined = (num_tokens - step) % self.rate + step
            return self.bytes_for(num_tokens) + (joined - num_tokens % self.rate) * self.waiting_bytes
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
