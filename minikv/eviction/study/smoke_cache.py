"""Evictions from a small cache of random keys and values, without a model: the second half of ``smoke``. Lesson 14.

All texts have the same tokens, so a token's K and V follow from its position. After an eviction the cache is compared
with them to the bit, and attention over it with attention over all tokens under a mask.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from minikv.blocks import BlockManager
from minikv.cache import PagedKVCache
from minikv.eviction.paged.eviction import PagedEviction
from minikv.eviction.paged.records import STATE
from minikv.eviction.policies.budget import Budget
from minikv.eviction.policies.literature import H2O, Random, StreamingLLM
from minikv.eviction.policies.policy import Policy
from minikv.kernels import latent_decode, paged_decode
from minikv.plan import CacheSpec, LayerSpec

GQA = LayerSpec("full", kv_heads=2, k_dim=8, v_dim=8, itemsize=4)
MLA = LayerSpec("latent", kv_heads=1, k_dim=16, v_dim=8, itemsize=4)
BLOCK, BLOCKS, MOST = 4, 24, 40  # tokens of a block, blocks, tokens of a text
BUDGET = Budget(n_sink=2, budget=3, n_recent=3, evict_every=3)  # capacity 8, at most 10
EXACT = 1e-5  # attention may differ by this: the same sums in another order
SCALE, GROUP = 0.3, 2


class Texts:
    """A cache of two layers like ``layer``, texts in it, and an eviction of ``BUDGET``."""

    def __init__(self, layer: LayerSpec = GQA, policy: Policy | None = None, **options: Any):
        generator = torch.Generator().manual_seed(0)
        self.cache = PagedKVCache(CacheSpec((layer, layer), name="smoke", kv_dtype="fp32"), BLOCKS, BLOCK)
        self.manager = BlockManager(BLOCKS, BLOCK)
        self.eviction = PagedEviction(
            self.cache, self.manager, policy or Random(), **{"budget": BUDGET, **options}
        )
        self.rows = [
            [
                torch.randn(MOST, layer.kv_heads, dim, generator=generator)
                for dim in (layer.k_dim, layer.v_dim)
            ]
            for _ in self.cache.spec.layers
        ]

    def begin(self, name: str, count: int) -> None:
        """A text of ``count`` tokens; blocks that another text holds already are shared."""
        start = self.manager.allocate(name, [1] * count).num_cached
        self.eviction.add(name)
        self._write(name, start)

    def grow(self, name: str) -> None:
        """One token more."""
        start = self.manager.num_tokens(name)
        for copy in self.manager.append(name, 1):
            self.cache.copy_blocks(copy.kv_cache_group, [copy.src], [copy.dst])
        self._write(name, start)

    def _write(self, name: str, start: int) -> None:
        end = self.manager.num_tokens(name)
        slots = self.manager.slot_mapping(name, start, end)
        for number, (k, v) in enumerate(self.rows):
            self.cache.write(number, k[start:end], v[start:end], slots)
        self.manager.commit(name)

    def table(self, name: str) -> tuple[int, ...]:
        return tuple(self.manager.block_table(name))

    def reads_back(self, name: str) -> bool:
        """Whether every resident token has the K and V of its position, to the bit, in each head."""
        length = self.manager.length(name)
        for number, rows in enumerate(self.rows):
            where = self.eviction.positions(name, number)
            for have, want in zip(self.cache.gather(number, self.table(name), length), rows, strict=True):
                for head, positions in enumerate(where):
                    if not torch.equal(have[:, head], want[positions, head]):
                        return False
        return True

    def bytes(self) -> Tensor:
        """A copy of the cache, in float32."""
        return torch.cat([part.tensor.flatten() for part in self.cache.parts(0)])


def capacity() -> list[int]:
    """The most tokens between two forwards, the fewest and the most after an eviction, and those left in the end."""
    texts, most, after = Texts(policy=StreamingLLM()), 0, []
    texts.begin("a", 1)
    while texts.manager.num_tokens("a") < MOST:
        texts.grow("a")
        if texts.eviction.evict(texts.eviction.due(["a"])):
            after.append(texts.manager.length("a"))
        most = max(most, texts.manager.length("a"))
    return [most, min(after), max(after), *sorted(texts.eviction.positions("a", 0)[0].tolist())]


def blocks() -> list[int]:
    """Blocks in use before an eviction, after it, and when the text has ended."""
    texts, used = Texts(), []
    texts.begin("a", MOST)
    used.append(texts.manager.pools[0].num_used)
    texts.eviction.evict(["a"])
    used.append(texts.manager.pools[0].num_used)
    texts.eviction.remove("a")
    texts.manager.free("a")
    texts.manager.check_invariants()
    return [*used, texts.manager.pools[0].num_used]


def bits() -> bool:
    """Return whether heads that keep different tokens read back right after many evictions."""
    texts = Texts(scope="head")
    texts.begin("a", 20)
    held = []
    for _ in range(MOST - 20):
        texts.eviction.evict(["a"])
        held.append(texts.reads_back("a"))
        texts.grow("a")
    apart = texts.eviction.positions("a", 0)
    return all(held) and apart[0].tolist() != apart[1].tolist()


def records() -> bool:
    """The record of a token moves with it; here each token's score is its position."""
    texts = Texts(policy=H2O())
    texts.begin("a", MOST)
    for number in range(len(texts.rows)):
        scores = (torch.arange(MOST) * 7 % MOST).float().expand(1, GQA.kv_heads, -1)
        texts.eviction.records.write(STATE, number, ["a"], scores)
    texts.eviction.evict(["a"])
    state = texts.eviction.records.read(STATE, 0, ["a"], BUDGET.capacity)
    return torch.equal(state[0], (texts.eviction.positions("a", 0) * 7 % MOST).float())


def masking(layer: LayerSpec, scope: str) -> bool | float:
    """Attention over the packed tokens equals attention over all with the evicted ones masked; else their distance."""
    texts = Texts(layer, scope=scope)
    texts.begin("a", MOST)
    texts.eviction.evict(["a"])
    views, where = texts.cache.layer(0), texts.eviction.positions("a", 0)
    k, v = texts.rows[0]
    dim = layer.k_dim + (layer.v_dim if layer is MLA else 0)
    query = torch.randn(1, layer.kv_heads * GROUP, dim, generator=torch.Generator().manual_seed(1))
    kv = views.paged(torch.tensor([texts.table("a")]), torch.tensor([where.shape[1]]))
    if layer is MLA:
        parts = [part.contiguous() for part in query.split([layer.k_dim, layer.v_dim], -1)]
        out = latent_decode(*parts, kv, scale=SCALE).out[0]
    else:
        out = paged_decode(query, kv, scale=SCALE).out[0]
    keys, values = (torch.cat([k, v], -1), k) if layer is MLA else (k, v)
    far = 0.0
    for row, found in enumerate(out):
        head = row // GROUP
        gone = torch.ones(MOST, dtype=torch.bool).index_fill(0, where[head], False)
        logits = (keys[:, head].double() @ query[0, row].double() * SCALE).masked_fill(gone, -torch.inf)
        far = max(far, float((logits.softmax(0) @ values[:, head].double() - found).abs().max()))
    return True if far <= EXACT else far


def shared() -> bool:
    """Return whether, of two texts with a common prefix, one keeps the tokens that the other has lost."""
    texts = Texts()
    texts.begin("a", 20)
    texts.begin("b", 20)
    before = texts.table("b")
    common = set(texts.table("a")) & set(before)
    texts.eviction.evict(["a"])
    whole = texts.table("b") == before and texts.reads_back("a") and texts.reads_back("b")
    return bool(common) and whole and not set(texts.table("a")) & common


def whole_blocks() -> bool:
    """``unit="block"``: blocks leave the table, but none with a sink or a recent token, and not a byte is written."""
    budget = Budget(n_sink=2, budget=9, n_recent=3)
    texts = Texts(unit="block", budget=budget)
    texts.begin("a", MOST)
    before, table = texts.bytes(), texts.table("a")
    texts.eviction.evict(["a"])
    left, where = texts.table("a"), set(texts.eviction.positions("a", 0)[0].tolist())
    decided = where >= {0, 1, *range(MOST - 3, MOST)} and len(where) <= budget.capacity
    in_order = list(left) == [block for block in table if block in left]
    return decided and in_order and torch.equal(before, texts.bytes()) and texts.reads_back("a")


def enough() -> bool:
    """A budget for all tokens: the block table stays, and not a byte is written."""
    texts = Texts(budget=Budget(n_sink=2, budget=MOST, n_recent=3))
    texts.begin("a", MOST)
    before, table = texts.bytes(), texts.table("a")
    gone = texts.eviction.evict(["a"])
    return not gone and texts.table("a") == table and torch.equal(before, texts.bytes())


CACHE_CHECKS: dict[str, tuple[Callable[[], Any], Any]] = {
    "capacity": (capacity, [BUDGET.peak_resident, *[BUDGET.capacity] * 2, 0, 1, *range(32, MOST)]),
    "blocks": (blocks, [MOST // BLOCK, BUDGET.capacity // BLOCK, 0]),
    "bits": (bits, True),
    "records": (records, True),
    "masking_gqa": (lambda: masking(GQA, "head"), True),
    "masking_mla": (lambda: masking(MLA, "layer"), True),
    "shared": (shared, True),
    "whole_blocks": (whole_blocks, True),
    "enough": (enough, True),
}
"""The checks by the key of their sentence: a function, and its expected result."""
