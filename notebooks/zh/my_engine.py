"""An engine for decoders of transformers: paged K and V, prefix cache, chunks, continuous batching, preemption.

    python my_engine.py FOLDER_OR_HUB_ID "a prompt" --max-tokens 64

Written by my_engine.export() of minikv 0.1.0. It needs torch and transformers.
0 of its 15 parts are yours, and marked so: none yet.
The other lines are minikv's, under the Apache License 2.0.
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from collections import OrderedDict, deque
from collections.abc import Iterator
from collections.abc import Sequence as List
from dataclasses import dataclass, field
from hashlib import sha256
from random import Random
from typing import Any, Self

import torch
from torch import Tensor
from transformers import AttentionInterface, AutoModelForCausalLM, AutoTokenizer

# ------------------------------------------------- sequence -------------------------------------------------
# A request on its way through the engine: its tokens, how far they are computed, and which blocks hold
# them.


@dataclass(frozen=True)
class SamplingParams:
    """How the next token is chosen, and when a sequence ends.

    ``temperature`` 0 takes the likeliest token. Otherwise logits are divided by it, and the token is drawn
    from the fewest likeliest tokens whose probabilities sum to ``top_p``. ``seed`` makes the draws
    repeatable. ``max_tokens`` tokens are generated at most; ``ignore_eos`` goes on past the model's end-of-
    sequence tokens.
    """

    max_tokens: int = 16
    temperature: float = 1.0
    top_p: float = 1.0
    seed: int = 0
    ignore_eos: bool = False

    def __post_init__(self) -> None:
        check_count("max_tokens", self.max_tokens)
        for what, value, low in (("temperature", self.temperature, 0), ("top_p", self.top_p, 1e-9)):
            high = 1 if what == "top_p" else 100
            if not isinstance(value, int | float) or not low <= value <= high:
                raise ArgumentError("sampling_range", what=what, value=value, low=low, high=high)


@dataclass(eq=False)
class Sequence:
    """One prompt and its answer. ``tokens`` holds both, so a preempted sequence loses nothing but K and V.

    ``num_computed`` tokens have their K and V in the cache, in the blocks of ``block_table``. ``num_cached``
    of them were found in the prefix cache when the sequence was last admitted. ``finish_reason`` is "stop" or
    "length".
    """

    id: int
    tokens: list[int]
    num_prompt: int
    params: SamplingParams
    block_table: list[int] = field(default_factory=list)
    num_computed: int = 0
    num_cached: int = 0
    finish_reason: str | None = None

    @property
    def answer(self) -> list[int]:
        """The generated tokens."""
        return self.tokens[self.num_prompt :]

    def append(self, token: int, eos: frozenset[int]) -> None:
        """Add a generated token, and say if the sequence ends with it."""
        self.tokens.append(token)
        if token in eos and not self.params.ignore_eos:
            self.finish_reason = "stop"
        elif len(self.tokens) - self.num_prompt == self.params.max_tokens:
            self.finish_reason = "length"


# ---------------------------------------------- block_manager -----------------------------------------------
# Which block of the cache belongs to which sequence. Pure Python: only numbers of blocks, and no tensor.
#
# The cache is cut into ``num_blocks`` blocks of ``block_size`` tokens. A sequence holds a list of them, its
# block table: token i lies in block ``block_table[i // block_size]``. A full block can stand in the tables of
# several sequences that begin with the same tokens. It is found by its digest, also after its last sequence has
# ended, until the block is needed for something else.


def block_digest(previous: bytes, tokens: List[int]) -> bytes:
    """A full block's name: SHA-256 of the digest before it and its tokens, so of all tokens up to its end.

    K and V depend on every token before, so blocks of equal tokens differ behind other beginnings.
    """
    return sha256(previous + b"".join(token.to_bytes(8, "little") for token in tokens)).digest()


def slot_mapping(block_table: List[int], start: int, end: int, block_size: int) -> list[int]:
    """Slots of tokens ``start`` to ``end - 1``: rows of a cache seen as [num_blocks * block_size, ...]."""
    return [block_table[i // block_size] * block_size + i % block_size for i in range(start, end)]


class BlockManager:
    """The free list, the reference counts and the prefix cache of one pool of blocks.

    ``free_blocks`` is ordered: the block that was freed longest ago is reused first. A free block keeps its
    digest until then, and can be found meanwhile.
    """

    def __init__(self, num_blocks: int, block_size: int):
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.ref_counts = [0] * num_blocks  # how many sequences hold the block
        self.free_blocks = OrderedDict.fromkeys(range(num_blocks))  # used as an ordered set
        self.digests: list[bytes | None] = [None] * num_blocks
        self.cached: dict[bytes, int] = {}  # digest -> a block with these tokens

    def blocks_for(self, num_tokens: int) -> int:
        """How many blocks hold ``num_tokens`` tokens."""
        return -(-num_tokens // self.block_size)

    def find_prefix(self, tokens: List[int]) -> list[int]:
        """The cached blocks that ``tokens`` begin with, in order.

        The last token is never among them: it has to be computed, because its logits choose the next token.
        """
        found: list[int] = []
        digest = b""
        for end in range(self.block_size, len(tokens), self.block_size):
            digest = block_digest(digest, tokens[end - self.block_size : end])
            if digest not in self.cached:
                break
            found.append(self.cached[digest])
        return found

    def allocate(self, seq: Sequence, keep_free: int = 0) -> bool:
        """Give ``seq`` blocks for all its tokens, cached ones first, and leave ``keep_free`` blocks free.

        Returns False, with nothing changed, where blocks are short.
        """
        prefix = self.find_prefix(seq.tokens)
        fresh = self.blocks_for(len(seq.tokens)) - len(prefix)
        reused = sum(block in self.free_blocks for block in prefix)  # free now, but not for `fresh`
        if fresh + reused + keep_free > len(self.free_blocks):
            return False
        for block in prefix:
            self.free_blocks.pop(block, None)
            self.ref_counts[block] += 1
        seq.block_table = prefix + [self._take() for _ in range(fresh)]
        seq.num_computed = seq.num_cached = len(prefix) * self.block_size
        return True

    def append(self, seq: Sequence) -> bool:
        """Make room for the last token of ``seq``. False, with nothing changed, if no block is free."""
        if self.blocks_for(len(seq.tokens)) > len(seq.block_table):
            if not self.free_blocks:
                return False
            seq.block_table.append(self._take())
        return True

    def publish(self, seq: Sequence, end: int) -> None:
        """Note that K and V of tokens up to ``end`` are written: blocks that are full now can be found."""
        size = self.block_size
        for i in range(seq.num_computed // size, end // size):
            previous = self.digests[seq.block_table[i - 1]] if i else b""
            assert previous is not None, "a block is published after the one before it"
            block, digest = seq.block_table[i], block_digest(previous, seq.tokens[i * size : (i + 1) * size])
            self.digests[block] = digest
            self.cached.setdefault(digest, block)
        seq.num_computed = end

    def free(self, seq: Sequence) -> None:
        """Take back the blocks of ``seq``, the last first: a beginning serves more prompts than an end."""
        assert all(self.ref_counts[block] for block in seq.block_table), "a block is freed twice"
        for block in reversed(seq.block_table):
            self.ref_counts[block] -= 1
            if not self.ref_counts[block]:
                self.free_blocks[block] = None
        seq.block_table = []
        seq.num_computed = 0

    def _take(self) -> int:
        """The free block that was used longest ago. What it held cannot be found any more."""
        block, _ = self.free_blocks.popitem(last=False)
        digest = self.digests[block]
        if digest is not None and self.cached.get(digest) == block:  # a twin may have been published first
            del self.cached[digest]
        self.digests[block] = None
        self.ref_counts[block] = 1
        return block


# ------------------------------------------------ scheduler -------------------------------------------------
# Which sequences run in the next step, and with which of their tokens. Pure Python.
#
# A step computes at most ``max_num_batched_tokens`` tokens of at most ``max_num_seqs`` sequences. Each sequence
# brings what it has not computed: one token in decode, a whole prompt or a chunk of it in prefill. Both kinds
# share a step (continuous batching): a sequence enters when there is room and leaves when it ends, and no step
# waits for another.


Step = list[tuple[Sequence, int, int]]  # (sequence, start, end): its tokens start to end - 1 are computed


class Scheduler:
    """A queue of waiting sequences, and a list of running ones, which hold their blocks; the oldest first."""

    def __init__(self, blocks: BlockManager, max_num_seqs: int, max_num_batched_tokens: int):
        self.blocks = blocks
        self.max_num_seqs = max_num_seqs
        self.max_num_batched_tokens = max_num_batched_tokens
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        self.num_preemptions = 0

    def schedule(self) -> Step:
        """Choose the tokens of the next step. Every block that they need is held afterwards."""
        step: Step = []
        budget = self.max_num_batched_tokens
        preemptions = self.num_preemptions
        for seq in list(self.running):  # a copy: preemption shortens the list
            if not budget:
                break
            if self.make_room(seq):
                budget -= self.pack(step, seq, budget)
        while self.waiting and budget and len(self.running) < self.max_num_seqs:
            if self.num_preemptions > preemptions or not self.admit(self.waiting[0]):
                break
            seq = self.waiting.popleft()
            self.running.append(seq)
            budget -= self.pack(step, seq, budget)
        return step

    def admit(self, seq: Sequence) -> bool:
        """Allocate the blocks of a waiting sequence. False where it has to wait.

        One block for each running sequence stays free, or what is admitted now would be preempted at once.
        """
        return self.blocks.allocate(seq, keep_free=len(self.running))

    def pack(self, step: Step, seq: Sequence, budget: int) -> int:
        """Add to ``step`` the next tokens of ``seq``, at most ``budget``; return how many."""
        start = seq.num_computed
        end = min(len(seq.tokens), start + budget)
        step.append((seq, start, end))
        return end - start

    def make_room(self, seq: Sequence) -> bool:
        """Hold a slot for the last token of ``seq``, preempting others where blocks are short.

        False where ``seq`` itself is preempted, by this call or by an older sequence in this step.
        """
        while seq in self.running:
            if self.blocks.append(seq):
                return True
            self.preempt(self.choose_victim())
        return False

    def choose_victim(self) -> Sequence:
        """The running sequence that gives up its blocks: the one that was admitted last.

        So the oldest always goes on, and every request ends.
        """
        return self.running[-1]

    def preempt(self, seq: Sequence) -> None:
        """Free the blocks of ``seq``, and let it wait as the first. K and V of its tokens are computed
        again.
        """
        self.running.remove(seq)
        self.blocks.free(seq)
        self.waiting.appendleft(seq)
        self.num_preemptions += 1

    def abort(self, seq: Sequence) -> None:
        """Take ``seq`` out, wherever it is, and free its blocks."""
        (self.running if seq in self.running else self.waiting).remove(seq)
        self.blocks.free(seq)

    def finish(self, step: Step, next_tokens: list[int], eos: frozenset[int]) -> None:
        """Take in what a step has computed: ``next_tokens[i]`` follows the last computed token of
        ``step[i]``.
        """
        for (seq, _, end), token in zip(step, next_tokens, strict=True):
            self.blocks.publish(seq, end)
            if end < len(seq.tokens):
                continue  # a chunk of a prompt: the token that follows is known already
            seq.append(token, eos)
            if seq.finish_reason:
                self.running.remove(seq)
                self.blocks.free(seq)


# ------------------------------------------------- kv_cache -------------------------------------------------
# K and V of every token, in one pool of blocks for all layers; and the arithmetic of its bytes.


def token_bytes(num_layers: int, num_kv_heads: int, k_dim: int, v_dim: int, itemsize: int) -> int:
    """Bytes that one token takes in the cache: a K and a V for each layer and KV head."""
    return num_layers * num_kv_heads * (k_dim + v_dim) * itemsize


def block_bytes(token_bytes: int, block_size: int) -> int:
    """Bytes of one block of ``block_size`` tokens, all layers together."""
    return token_bytes * block_size


def num_blocks_that_fit(
    total: int, utilization: float, used: int, peak: int, current: int, block_bytes: int
) -> int:
    """Blocks that a GPU has room for, all figures but ``utilization`` in bytes, measured after a warm-up.

    ``used`` is taken now, by anybody; ``current`` of it by torch's live tensors, which were ``peak`` at most.
    So a step needs ``peak - current`` beside what is used, and of ``total * utilization`` the rest is for the
    cache.
    """
    return int(total * utilization - used - (peak - current)) // block_bytes


class KVCache:
    """Two tensors: ``k`` [layers, num_blocks, block_size, kv_heads, k_dim] and ``v`` [..., v_dim]."""

    def __init__(
        self, spec: CacheSpec, num_blocks: int, block_size: int, dtype: torch.dtype, device: torch.device
    ):
        layer = spec.layers[0]
        # How many tokens a query of each layer sees, itself included; the spec counts those before it.
        self.windows = [None if each.window is None else each.window + 1 for each in spec.layers]
        shape = (len(spec.layers), num_blocks, block_size, layer.kv_heads)
        # Zeros, not empty: slots that were never written are masked, and NaN * 0 would still be NaN.
        self.k = torch.zeros(*shape, layer.k_dim, dtype=dtype, device=device)
        self.v = torch.zeros(*shape, layer.v_dim, dtype=dtype, device=device)

    @property
    def nbytes(self) -> int:
        return self.k.nbytes + self.v.nbytes

    def write(self, layer: int, key: Tensor, value: Tensor, slots: Tensor) -> None:
        """Store ``key`` [T, kv_heads, k_dim] and ``value`` [T, kv_heads, v_dim] in ``slots`` [T]."""
        # Views [num_blocks * block_size, kv_heads, dim]: a row for each slot.
        k, v = self.k[layer].flatten(0, 1), self.v[layer].flatten(0, 1)
        k[slots], v[slots] = key.to(k.dtype), value.to(v.dtype)


# -------------------------------------------------- runner --------------------------------------------------
# From a step to tokens: the arrays that a forward needs, the forward, and the choice of the next tokens.


DECODES_AT_ONCE = 16  # in plain torch: sequences whose keys are padded to the longest of them


@dataclass(frozen=True)
class Batch:
    """What a forward over T tokens of B sequences needs. The tokens lie in one row, sequence after sequence.

    ``groups`` are what plain torch computes at once: (sequences [n], rows [n * q], blocks of the longest).
    """

    input_ids: Tensor  # [T]
    positions: Tensor  # [T], each token's place in its sequence
    slots: Tensor  # [T], where its K and V go
    block_tables: Tensor  # [B, W], padded with 0
    lengths: Tensor  # [B], tokens of each sequence that are in the cache after this step
    last: Tensor  # [B], row of the last token of each sequence: its logits choose the next
    groups: list[tuple[Tensor, Tensor, int]]
    is_decode: bool  # every sequence brings one token


def make_batch(step: Step, block_size: int, device: torch.device) -> Batch:
    """The arrays of ``step``. Decodes are sorted by length, so a group has sequences of about one length."""

    def tensor(values: list) -> Tensor:
        return torch.tensor(values, dtype=torch.long, device=device)

    tokens, positions, slots, tables, rows = list[int](), list[int](), [], [], []
    for seq, start, end in step:
        rows.append(list(range(len(tokens), len(tokens) + end - start)))
        tokens += seq.tokens[start:end]
        positions += range(start, end)
        slots += slot_mapping(seq.block_table, start, end, block_size)
        tables.append(seq.block_table[: -(-end // block_size)])
    width = max(map(len, tables))

    decodes = [i for i in range(len(step)) if len(rows[i]) == 1]
    decodes.sort(key=lambda i: len(tables[i]))
    groups = [decodes[i : i + DECODES_AT_ONCE] for i in range(0, len(decodes), DECODES_AT_ONCE)]
    groups += [[i] for i in range(len(step)) if len(rows[i]) > 1]
    return Batch(
        input_ids=tensor(tokens),
        positions=tensor(positions),
        slots=tensor(slots),
        block_tables=tensor([table + [0] * (width - len(table)) for table in tables]),
        lengths=tensor([end for _, _, end in step]),
        last=tensor([own[-1] for own in rows]),
        groups=[
            (
                tensor(group),
                tensor([row for i in group for row in rows[i]]),
                max(len(tables[i]) for i in group),
            )
            for group in groups
        ],
        is_decode=len(decodes) == len(step),
    )


@torch.inference_mode()
def forward(model: Any, batch: Batch, cache: KVCache) -> Tensor:
    """The logits [B, vocabulary] of each sequence's last token. K and V of all T tokens are stored.

    The model keeps no cache of its own (``use_cache=False``): it computes Q, K and V of the new tokens, and
    the attention function, which gets ``batch`` and ``cache`` as they are, does the rest.
    """
    out = model(
        input_ids=batch.input_ids[None],  # [1, T]
        position_ids=batch.positions[None],
        use_cache=False,
        logits_to_keep=batch.last,
        batch=batch,
        cache=cache,
    )
    return out.logits[0]


def sample(logits: Tensor, step: Step) -> list[int]:
    """The next token of every sequence of ``step`` from its row of ``logits`` [B, vocabulary]."""
    tokens = logits.argmax(-1).tolist()
    for row, (seq, _, end) in enumerate(step):
        if seq.params.temperature > 0 and end == len(seq.tokens):
            tokens[row] = draw(logits[row], seq.params, end)
    return tokens


def draw(logits: Tensor, params: SamplingParams, position: int) -> int:
    """A token drawn from ``logits`` [vocabulary]: temperature, then top-p.

    The random number belongs to the seed and the position: a preempted sequence draws as it would have drawn.
    """
    scaled = logits.float() / params.temperature
    probabilities, tokens = scaled.softmax(-1).sort(descending=True, stable=True)
    before = probabilities.cumsum(-1) - probabilities  # the sum of all likelier ones
    kept = probabilities.masked_fill(before >= params.top_p, 0)
    number = Random(f"{params.seed}/{position}").random() * kept.sum().item()
    place = min(
        int((kept.cumsum(-1) <= number).sum()), int((kept > 0).sum()) - 1
    )  # rounding may go past the last
    return int(tokens[place])


# ------------------------------------------------ attention -------------------------------------------------
# Attention over the blocks of the cache: the function that a model of transformers calls once a layer.
#
# `attend` stores the new K and V in their slots, then `paged_attention` lets every query look at its sequence's
# blocks: plain torch, which is the specification. On a GPU, decode steps run `paged_decode_kernel` instead,
# which reads each block where it lies and makes no copy.


try:
    import triton
    import triton.language as tl
except ImportError:  # no Triton on macOS and Windows: plain torch does the same
    triton = None


def attend(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    batch: Batch | None = None,
    cache: KVCache | None = None,
    scaling: float | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attention of a layer, as transformers' ``AttentionInterface`` calls it: [1, T, Hq, Dv].

    ``query`` [1, Hq, T, Dk], ``key`` [1, Hkv, T, Dk] and ``value`` [1, Hkv, T, Dv] are those of the T new
    tokens. The T tokens belong to many sequences, one after the other; ``batch`` says which. A key of an MLA
    layer arrives expanded, one for each head, and is stored so.
    """
    if batch is None or cache is None:
        raise ConfigError("nano_cannot", model=type(module).__name__, why=MiniKVError("nano_no_arguments"))
    if s_aux is not None:
        raise ConfigError("nano_cannot", model=type(module).__name__, why=MiniKVError("nano_sinks"))
    layer = module.layer_idx
    cache.write(layer, key[0].transpose(0, 1), value[0].transpose(0, 1), batch.slots)
    rows = query[0].transpose(0, 1)  # [T, Hq, Dk]
    scale = rows.shape[-1] ** -0.5 if scaling is None else scaling
    run = decode_on_gpu if rows.is_cuda and batch.is_decode else paged_attention
    out = run(rows, cache.k[layer], cache.v[layer], batch, scale, cache.windows[layer], softcap)
    return out.unsqueeze(0), None  # [1, T, Hq, Dv]


def paged_attention(
    query: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    batch: Batch,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
) -> Tensor:
    """Attention of ``query`` [T, Hq, Dk] over the blocks of its sequences: [T, Hq, Dv].

    ``k_cache`` [num_blocks, block_size, Hkv, Dk], ``v_cache`` [..., Dv]. A query at position p sees positions
    0 to p, or with a ``window`` the last ``window`` of them. ``softcap`` c bends a logit x into
    c * tanh(x / c), as in Gemma 2.
    """
    out = query.new_empty(*query.shape[:2], v_cache.shape[-1])
    for sequences, rows, columns in batch.groups:  # n sequences with q queries each
        blocks = batch.block_tables[sequences, :columns]  # [n, W]
        k = k_cache[blocks].flatten(1, 2)  # [n, S, Hkv, Dk], S = W * block_size
        v = v_cache[blocks].flatten(1, 2)  # [n, S, Hkv, Dv]
        n, length, heads, _ = k.shape
        q = query[rows].view(n, -1, heads, query.shape[1] // heads, query.shape[2])  # [n, q, Hkv, G, Dk]
        logits = torch.einsum("nqhgd,nshd->nhgqs", q, k).float() * scale
        if softcap is not None:
            logits = softcap * torch.tanh(logits / softcap)
        query_at = batch.positions[rows].view(n, 1, 1, -1, 1)
        key_at = torch.arange(length, device=query.device)  # padding lies behind every query
        hidden = key_at > query_at  # [n, 1, 1, q, S]
        if window is not None:
            hidden |= key_at <= query_at - window
        weights = logits.masked_fill(hidden, -torch.inf).softmax(-1).to(v.dtype)
        out[rows] = torch.einsum("nhgqs,nshd->nqhgd", weights, v).reshape(-1, *out.shape[1:])
    return out


def decode_on_gpu(
    query: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    batch: Batch,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
) -> Tensor:
    """`paged_attention` where every sequence has one query, as one launch of the Triton kernel."""
    num_seqs, query_heads, k_dim = query.shape
    _, block_size, heads, v_dim = v_cache.shape
    group = query_heads // heads
    out = query.new_empty(num_seqs, query_heads, v_dim)
    paged_decode_kernel[(num_seqs, heads)](
        query.contiguous(), k_cache, v_cache, batch.block_tables, batch.lengths, out, scale,
        window or 0, softcap or 0.0, batch.block_tables.stride(0), block_size, heads,
        group, k_dim, v_dim,
        GROUP=max(16, triton.next_power_of_2(group)),  # tl.dot wants 16 rows
        K_DIM=max(16, triton.next_power_of_2(k_dim)), V_DIM=max(16, triton.next_power_of_2(v_dim)), TILE=32,
    )  # fmt: skip
    return out


if triton is not None:

    @triton.jit
    def paged_decode_kernel(
        query, k_cache, v_cache, block_tables, lengths, out, scale,
        window, softcap, table_stride, block_size, heads,
        group, k_dim, v_dim,
        GROUP: tl.constexpr, K_DIM: tl.constexpr, V_DIM: tl.constexpr, TILE: tl.constexpr,
    ):  # fmt: skip
        """One program for a sequence and a KV head: ``group`` queries, which share the head, over all tokens.

        The constants are sizes rounded up to powers of two, as Triton wants them; masks cut off the surplus.
        """
        seq, head = tl.program_id(0), tl.program_id(1)
        length = tl.load(lengths + seq).to(tl.int32)
        rows, dk, dv = tl.arange(0, GROUP), tl.arange(0, K_DIM), tl.arange(0, V_DIM)
        first_row = (seq * heads + head) * group  # of query seen as [B * Hq, Dk]
        real = (rows < group)[:, None]
        q = tl.load(query + (first_row + rows)[:, None] * k_dim + dk, mask=real & (dk < k_dim), other=0.0)

        best = tl.full([GROUP], -float("inf"), tl.float32)  # the largest logit so far
        total = tl.zeros([GROUP], tl.float32)  # the sum of exp(logit - best)
        summed = tl.zeros([GROUP, V_DIM], tl.float32)  # the same sum, each term times its value
        first = tl.where(window > 0, tl.maximum(length - window, 0), 0)
        for start in range(first, length, TILE):
            at = start + tl.arange(0, TILE)  # positions of this tile's keys
            seen = at < length
            block = tl.load(block_tables + seq * table_stride + at // block_size, mask=seen, other=0)
            slot = block.to(tl.int64) * block_size + at % block_size
            token = (slot * heads + head)[:, None]  # row of the cache seen as [slots * Hkv, D]
            k = tl.load(k_cache + token * k_dim + dk, mask=seen[:, None] & (dk < k_dim), other=0.0)
            v = tl.load(v_cache + token * v_dim + dv, mask=seen[:, None] & (dv < v_dim), other=0.0)

            logits = tl.dot(q, tl.trans(k), input_precision="ieee") * scale  # [GROUP, TILE]
            if softcap > 0:
                bent = tl.exp(-2 * tl.abs(logits) / softcap)  # tanh(x) = (1 - e^-2x) / (1 + e^-2x) for x >= 0
                logits = tl.where(logits < 0, -softcap, softcap) * (1 - bent) / (1 + bent)
            logits = tl.where(seen, logits, -float("inf"))
            # Online softmax: where a larger logit turns up, what was summed is scaled down to it.
            better = tl.maximum(best, tl.max(logits, 1))
            shrink = tl.exp(best - better)
            weights = tl.exp(logits - better[:, None])
            total = total * shrink + tl.sum(weights, 1)
            summed = summed * shrink[:, None] + tl.dot(weights.to(v.dtype), v, input_precision="ieee")
            best = better
        row = out + (first_row + rows)[:, None] * v_dim + dv
        tl.store(row, (summed / total[:, None]).to(out.dtype.element_ty), mask=real & (dv < v_dim))


# --------------------------------------------------- llm ----------------------------------------------------
# LLM: prompts in, answers out. The loop that puts scheduler, forward and sampler together.


ATTENTION = "minikv_nano"  # the name of `attend` in transformers' AttentionInterface


@dataclass(frozen=True)
class RequestOutput:
    """The answer to one prompt. ``num_cached`` prompt tokens came from the prefix cache."""

    text: str
    token_ids: list[int]
    finish_reason: str
    num_cached: int


class LLM:
    """A decoder of transformers with a paged cache and continuous batching.

    ``model``: "tiny-gqa", "tiny-mla", a folder, a hub id, or a model of transformers with its ``tokenizer``.
    ``num_blocks``: blocks of the cache, of ``block_size`` tokens each; None measures on a GPU how many fit. A
    step computes at most ``max_num_batched_tokens`` tokens of at most ``max_num_seqs`` sequences.

    Raises ``ConfigError`` for a model with anything but plain attention in all layers.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any = None,
        *,
        num_blocks: int | None = None,
        block_size: int = 16,
        max_num_seqs: int = 64,
        max_num_batched_tokens: int = 2048,
        gpu_memory_utilization: float = 0.9,
    ):
        sizes = {
            "block_size": block_size,
            "max_num_seqs": max_num_seqs,
            "num_blocks": 1 if num_blocks is None else num_blocks,
        }
        for name, value in (sizes | {"max_num_batched_tokens": max_num_batched_tokens}).items():
            check_count(name, value)
        self.model, self.tokenizer = load(model) if isinstance(model, str) else (model, tokenizer)
        self.device = self.model.device
        self.block_size = block_size
        self.spec = check_model(self.model)
        AttentionInterface.register(ATTENTION, attend)
        own = self.model.config._attn_implementation
        self.model.set_attn_implementation(ATTENTION)
        try:  # with one token: what a layer cannot do, it says now
            self.cache = self.make_cache(1)
            self.run(self.warm_up(1))
        except ConfigError:
            self.model.set_attn_implementation(own)
            raise
        if num_blocks is None:
            num_blocks = self.measure_num_blocks(max_num_batched_tokens, gpu_memory_utilization)
        self.cache = self.make_cache(num_blocks)
        self.scheduler = Scheduler(BlockManager(num_blocks, block_size), max_num_seqs, max_num_batched_tokens)
        eos = self.model.generation_config.eos_token_id
        self.eos = frozenset([eos] if isinstance(eos, int) else eos or [])
        self.num_requests = 0

    def generate(self, prompts: Any, params: Any = None) -> list[RequestOutput]:
        """Answer ``prompts``, texts or lists of token ids, one or many. ``params`` is for all, or a list."""
        if not isinstance(prompts, str | list | tuple):
            raise ArgumentError("llm_prompts", value=type(prompts).__name__)
        one = isinstance(prompts, str) or (bool(prompts) and isinstance(prompts[0], int))
        prompts = [prompts] if one else list(prompts)
        each = params if isinstance(params, list) else [params or SamplingParams()] * len(prompts)
        if len(each) != len(prompts):
            raise ArgumentError("llm_one_each", what="params", given=len(each), count=len(prompts))
        seqs = [self.make_sequence(prompt, wanted) for prompt, wanted in zip(prompts, each, strict=True)]
        self.scheduler.waiting.extend(seqs)
        while self.scheduler.waiting or self.scheduler.running:
            self.step()
        return [self.output(seq) for seq in seqs]

    def stream(self, prompt: Any, params: SamplingParams | None = None) -> Iterator[str]:
        """The answer to one prompt, piece by piece, as its tokens are made."""
        seq = self.add_request(prompt, params or SamplingParams())
        told = ""
        try:
            while not seq.finish_reason:
                self.step()
                text = self.text(seq)
                if seq.finish_reason or not text.endswith("\ufffd"):  # half a character is no text yet
                    yield text[len(told) :]
                    told = text
        finally:
            if not seq.finish_reason:  # the caller has stopped reading
                self.scheduler.abort(seq)

    def add_request(self, prompt: Any, params: SamplingParams) -> Sequence:
        """Let a request wait for its turn. ``step`` serves it."""
        seq = self.make_sequence(prompt, params)
        self.scheduler.waiting.append(seq)
        return seq

    def make_sequence(self, prompt: Any, params: SamplingParams) -> Sequence:
        """Tokenize ``prompt``. Raises ``RequestTooLarge`` for what the whole cache could not hold."""
        tokens = list(self.tokenizer(prompt)["input_ids"] if isinstance(prompt, str) else prompt)
        if not tokens:
            raise ArgumentError("nano_empty")
        vocabulary = self.model.get_input_embeddings().num_embeddings
        for token in tokens:
            if type(token) is not int:
                raise ArgumentError("bad_tokens", value=type(token).__name__)
            if not 0 <= token < vocabulary:
                raise ArgumentError("llm_token", token=token, last=vocabulary - 1)
        stored = len(tokens) + params.max_tokens - 1  # the last token is never read, so it needs no K and V
        blocks, most = self.scheduler.blocks, self.spec.max_positions or stored
        if blocks.blocks_for(stored) > blocks.num_blocks or stored > most:
            most = min(most, blocks.num_blocks * blocks.block_size)
            raise RequestTooLarge("nano_too_large", stored=stored, most=most)
        seq = Sequence(self.num_requests, tokens, len(tokens), params)
        self.num_requests += 1
        return seq

    def step(self) -> Step:
        """One forward: every sequence in it computes its next tokens, and most of them get a new one."""
        step = self.scheduler.schedule()
        next_tokens = sample(self.run(step), step)
        self.scheduler.finish(step, next_tokens, self.eos)
        return step

    def run(self, step: Step) -> torch.Tensor:
        """The logits [B, vocabulary] behind the last token of each sequence of ``step``."""
        return forward(self.model, make_batch(step, self.block_size, self.device), self.cache)

    def text(self, seq: Sequence) -> str:
        return self.tokenizer.decode(seq.answer, skip_special_tokens=True) if self.tokenizer else ""

    def output(self, seq: Sequence) -> RequestOutput:
        assert seq.finish_reason is not None
        return RequestOutput(self.text(seq), seq.answer, seq.finish_reason, seq.num_cached)

    def make_cache(self, num_blocks: int) -> KVCache:
        return KVCache(self.spec, num_blocks, self.block_size, self.model.dtype, self.device)

    def warm_up(self, num_tokens: int) -> Step:
        """A step of ``num_tokens`` tokens that stand for nothing, in the first blocks of the cache."""
        longest = self.spec.max_positions or num_tokens
        step: Step = []
        for first in range(0, num_tokens, longest):
            tokens = [0] * min(longest, num_tokens - first)
            blocks = list(range(-(-len(tokens) // self.block_size)))
            step.append((Sequence(-1, tokens, len(tokens), SamplingParams(), blocks), 0, len(tokens)))
        return step

    def measure_num_blocks(self, num_tokens: int, utilization: float) -> int:
        """How many blocks the GPU has room for, beside the weights and the largest step."""
        if self.device.type != "cuda":
            raise ArgumentError("nano_num_blocks", device=self.device.type)
        self.cache = self.make_cache(-(-num_tokens // self.block_size))
        torch.cuda.reset_peak_memory_stats()
        self.run(self.warm_up(num_tokens))
        peak = torch.cuda.max_memory_allocated() - self.cache.nbytes
        del self.cache
        torch.cuda.empty_cache()
        free, total = torch.cuda.mem_get_info()
        layer, itemsize = self.spec.layers[0], self.model.dtype.itemsize
        token = token_bytes(len(self.spec.layers), layer.kv_heads, layer.k_dim, layer.v_dim, itemsize)
        block, current = block_bytes(token, self.block_size), torch.cuda.memory_allocated()
        num_blocks = num_blocks_that_fit(total, utilization, total - free, peak, current, block)
        if num_blocks < 1:
            raise DoesNotFitError(
                "nano_no_blocks", total=total, used=total - free, peak=peak, current=current
            )
        return num_blocks


def check_model(model: Any) -> CacheSpec:
    """The cache that ``model`` needs. Raises ``ConfigError`` for what nano does not do.

    The layout is "hf-expanded": an MLA layer keeps a K and a V for each head, as the attention function gets
    them. The latent that `minikv.LLM` keeps is many times smaller, but takes a projection absorbed into query
    and output.
    """
    spec = CacheSpec.from_config(model.config, layout="hf-expanded", kv_dtype=model.dtype)
    rope = getattr(model.config, "rope_parameters", None) or {}
    if model.training:
        raise refusal(spec.name, "nano_training")
    if not type(model)._can_set_attn_implementation():
        raise refusal(spec.name, "nano_own_attention")
    if rope.get("rope_type") in ("longrope", "dynamic"):
        raise refusal(spec.name, "nano_rope", kind=rope["rope_type"])
    for layer in spec.layers:
        if layer.kind not in ("full", "sliding") or layer.index_bytes:
            raise refusal(spec.name, "nano_layers", kind="indexed" if layer.index_bytes else layer.kind)
        if len({(each.kv_heads, each.k_dim, each.v_dim) for each in (layer, spec.layers[0])}) > 1:
            raise refusal(spec.name, "nano_sizes")
    return spec


def refusal(model: str, why: str, **values: object) -> ConfigError:
    """The error that says what nano does not do; ``why`` is the code of a half sentence."""
    return ConfigError("nano_cannot", model=model, why=MiniKVError(why, **values))


# -------------------------------------------------- alone ---------------------------------------------------
# In place of minikv.


SENTENCES = {  # the code of an error: its sentence
    "bad_count": "{what} is {value!r}; it must be a whole number of at least {least}.",
    "bad_tokens": (
        "Token ids must be whole numbers of at most 64 bits, in one dimension (a list, a tuple, an "
        "array); this is {value}."
    ),
    "count_too_large": "{what} has {digits} digits; the most that is understood is {most:,}.",
    "llm_one_each": "{given:,} {what} for {count:,} prompts: give one for all, or a list with one each.",
    "llm_prompts": "These prompts are {value}: give a text, a list of token ids, or a list of such.",
    "llm_token": (
        "Token id {token:,} is not in the model's vocabulary: ids go from 0 to {last:,}. Does the "
        "tokenizer belong to another model?"
    ),
    "nano_cannot": "minikv.nano does not run {model}: {why}. minikv.LLM runs more models.",
    "nano_empty": "A prompt needs at least one token.",
    "nano_layers": "nano has no {kind} layers, only full and sliding attention",
    "nano_model_type": "this file does not know the layers of a {model_type}",
    "nano_no_arguments": "its class passes no arguments on to the attention function",
    "nano_no_blocks": (
        "No block fits: of {total:,} B, {used:,} B are used, and a step adds {peak:,} - {current:,}"
        " B. Use a smaller max_num_batched_tokens or a larger gpu_memory_utilization."
    ),
    "nano_num_blocks": "On a {device} minikv.nano does not measure how many blocks fit. Say it: num_blocks=256.",
    "nano_own_attention": "its class computes attention by itself",
    "nano_rope": "with RoPE of type {kind} an angle depends on the longest sequence of the batch",
    "nano_sinks": "its attention has sinks",
    "nano_sizes": "its layers have K and V of different sizes, and nano keeps them all in one pool",
    "nano_too_large": (
        "The request needs {stored:,} tokens in the cache, and a sequence can have {most:,}. Use a "
        "shorter prompt, a smaller max_tokens, or more num_blocks."
    ),
    "nano_training": "it is in training mode, call model.eval()",
    "sampling_range": "{what} is {value!r}; it must be at least {low} and at most {high}.",
}


class MiniKVError(Exception):
    """Anything that the engine refuses. ``code`` names the sentence, ``values`` are the numbers in it."""

    def __init__(self, code: str, **values: object):
        self.code, self.values = code, values
        super().__init__(SENTENCES[code].format(**values))


LARGEST_COUNT = 2**62  # above it, a product of two counts no longer means bytes of anything


class ArgumentError(MiniKVError, ValueError):
    """A value that the caller gave cannot be used."""


class ConfigError(MiniKVError, ValueError):
    """A model's config is missing a field, contradicts itself, or is of a kind that minikv does not know."""


class DoesNotFitError(MiniKVError):
    """The model does not fit the memory: the terms of the budget are in ``values``."""


class RequestTooLarge(MiniKVError):
    """A sequence that the whole pool could not hold: waiting does not help."""


def check_count(what: str, value: Any, least: int = 1) -> None:
    """Raise ``ArgumentError`` unless ``value`` is an int of at least ``least``, and no larger than any memory."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ArgumentError("bad_count", what=what, value=value, least=least)
    if value > LARGEST_COUNT:
        digits = value.bit_length() * 3 // 10 + 1
        raise ArgumentError("count_too_large", what=what, digits=digits, most=LARGEST_COUNT)


# Decoders whose layers `CacheSpec` reads. Some of them are refused for another reason, by name.
MODEL_TYPES = set(
    """arcee bloom cohere cohere2 deepseek_v2 deepseek_v3 ernie4_5 ernie4_5_moe exaone4 gemma gemma2 gemma3_text
    glm glm4 glm4_moe glm4_moe_lite gpt2 gpt_bigcode gpt_neox gpt_oss gptj granite granitemoe helium
    hunyuan_v1_dense hunyuan_v1_moe llama minicpm3 minimax_m2 ministral ministral3 mistral mixtral mpt nemotron olmo
    olmo2 olmo3 olmoe opt persimmon phi phi3 phimoe qwen2 qwen2_5_vl_text qwen2_moe qwen2_vl_text qwen3 qwen3_moe
    qwen3_vl_moe_text qwen3_vl_text seed_oss smollm3 solar_open stablelm starcoder2 youtu""".split()
)


@dataclass(frozen=True)
class Layer:
    """What a layer keeps of a token. ``window``: how many earlier tokens a query sees; None: all."""

    kind: str
    kv_heads: int
    k_dim: int
    v_dim: int
    window: int | None
    index_bytes: int = 0  # no layer of `MODEL_TYPES` has an indexer


@dataclass(frozen=True)
class CacheSpec:
    """The cache that a model needs, layer by layer."""

    name: str
    layers: list[Layer]
    max_positions: int | None

    @classmethod
    def from_config(cls, config: Any, **how_minikv_counts: object) -> Self:
        """The layers that ``config`` describes, a config of transformers. Raises ``ConfigError``."""
        name = config._name_or_path or config.model_type
        if config.model_type not in MODEL_TYPES:
            why = MiniKVError("nano_model_type", model_type=config.model_type)
            raise ConfigError("nano_cannot", model=name, why=why)
        heads = config.num_attention_heads
        if getattr(config, "kv_lora_rank", None):  # MLA: a K and a V for each head
            sizes = heads, config.qk_nope_head_dim + config.qk_rope_head_dim, config.v_head_dim
        else:
            dim = getattr(config, "head_dim", None) or config.hidden_size // heads
            sizes = getattr(config, "num_key_value_heads", None) or heads, dim, dim
        window: Any = getattr(config, "sliding_window", None)
        all_alike = ["sliding_attention" if window else "full_attention"] * config.num_hidden_layers
        kinds = [
            kind.removesuffix("_attention") for kind in getattr(config, "layer_types", None) or all_alike
        ]
        layers = [Layer(kind, *sizes, window - 1 if kind == "sliding" else None) for kind in kinds]
        return cls(name, layers, getattr(config, "max_position_embeddings", None))


def load(name: str) -> tuple[Any, Any]:
    """A model and its tokenizer from a folder or the hub: safetensors only, and none of its own code."""
    options = {"trust_remote_code": False}
    dtype = "auto" if torch.cuda.is_available() else torch.float32  # a CPU computes 16 bits slowly
    model = AutoModelForCausalLM.from_pretrained(name, dtype=dtype, use_safetensors=True, **options)
    tokenizer = AutoTokenizer.from_pretrained(name, **options)
    return model.to("cuda" if torch.cuda.is_available() else "cpu").eval(), tokenizer


def main() -> None:
    """Answer one prompt, greedily, and print the answer as it is made."""
    parser = ArgumentParser(description="Answer a prompt with the engine in this file.")
    parser.add_argument("model", metavar="FOLDER_OR_HUB_ID")
    parser.add_argument("prompt")
    parser.add_argument("--max-tokens", type=int, default=64)
    given = parser.parse_args()
    try:
        params = SamplingParams(given.max_tokens, temperature=0)
        model, tokenizer = load(given.model)
        num_tokens = len(tokenizer(given.prompt)["input_ids"]) + given.max_tokens
        # A GPU is measured. A CPU has more memory than one prompt needs.
        num_blocks = None if model.device.type == "cuda" else -(-num_tokens // 16)
        llm = LLM(model, tokenizer, num_blocks=num_blocks, block_size=16)
        for piece in llm.stream(given.prompt, params):
            print(piece, end="", flush=True)
        print()
    except (MiniKVError, OSError, ValueError) as error:  # the last two are transformers', of a model's files
        print(str(error).strip().splitlines()[0], file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
