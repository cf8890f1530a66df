"""Lesson 08: an engine's life on one GPU, run in the model of the caching allocator. Every figure is the model's.

``Engine`` makes the allocations of a Llama-like decoder in the order of transformers' code: a tensor for every
parameter, then in each step the tensors that a prefill holds at once. ``start_up`` goes through the six moments of
``allocate_kv_cache``. ``serve`` runs steps until the memory runs out.
"""

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from minikv.cache.allocation import AllocationReport
from minikv.memory.allocator.caching_allocator import CachingAllocator, DeviceOutOfMemoryError
from minikv.memory.peak import PeakReport
from minikv.memory.stats import MemoryStats
from minikv.plan.catalog import find_model
from minikv.plan.measured import MeasuredTerms
from minikv.plan.pool import counted_block_bytes
from minikv.plan.spec.cache_spec import CacheSpec
from minikv.plan.spec.config import read_config

MODEL = "Llama-3.1-8B"
TOTAL = 85_061_827_297  # an H100 80GB, as torch prints it (79.22 GiB)
NON_TORCH = 1_922_000_000  # 1.79 GiB, as in the log of vLLM's pull request 10511
CHUNK = 8192  # tokens of the largest step
BF16, FLOAT32 = 2, 4  # bytes
BLOCK_SIZE = 16


@dataclass(frozen=True)
class MemoryMoment:
    """One moment of the start, in bytes, as the driver and torch's allocator would report it."""

    name: str
    total: int
    used: int
    reserved: int
    current: int
    peak: int


@dataclass(frozen=True)
class StartUp:
    """The six moments, the terms and the result of the formula, and the engine, ready to serve."""

    moments: tuple[MemoryMoment, ...]
    terms: MeasuredTerms
    block_bytes: int
    num_blocks: int
    engine: "Engine"


class Engine:
    """A decoder on a modelled device of ``total`` bytes; the CUDA context and others hold ``non_torch`` of them."""

    def __init__(self, total: int = TOTAL, non_torch: int = NON_TORCH):
        self.device = CachingAllocator(total, non_torch=non_torch)
        config = read_config(find_model(MODEL).config)
        get = config.count
        self.layers, self.hidden, self.vocab = get("num_hidden_layers"), get("hidden_size"), get("vocab_size")
        self.mlp = get("intermediate_size")
        spec = CacheSpec.from_config(MODEL)
        head_dim = spec.layers[0].k_dim
        self.q, self.kv = get("num_attention_heads") * head_dim, spec.layers[0].kv_heads * head_dim
        self.block_bytes = counted_block_bytes(spec, BLOCK_SIZE)
        self.loaded: list[int] = []
        self.cache: int | None = None

    def moment(self, name: str) -> MemoryMoment:
        usage, peak = self.device.usage(), self.device.memory_stats()["allocated_bytes.all.peak"]
        total = self.device.capacity or 0
        used = total - (self.device.device_free or 0)
        return MemoryMoment(name, total, used, usage.reserved, usage.allocated, peak)

    def weight_sizes(self) -> list[int]:
        """Return the bytes of every parameter, in the order of the layers."""
        hidden, mlp = self.hidden, self.mlp
        layer = [hidden * self.q, hidden * self.kv, hidden * self.kv, self.q * hidden]
        layer += [hidden * mlp, hidden * mlp, mlp * hidden, hidden, hidden]
        table = self.vocab * hidden
        return [BF16 * size for size in (table, *layer * self.layers, hidden, table)]

    def load(self, staging: int = 0) -> None:
        """Allocate the weights. ``staging`` bytes more are alive meanwhile, as where a loader keeps a shard."""
        shard = self.device.malloc(staging) if staging else None
        self.loaded = [self.device.malloc(size) for size in self.weight_sizes()]
        if shard is not None:
            self.device.free(shard)

    def step(self, tokens: int) -> None:
        """A forward of ``tokens`` tokens without a cache; nothing is kept. Raises ``DeviceOutOfMemoryError``."""
        live: list[int] = []
        try:
            self._forward(tokens, live)
        finally:
            for address in live:
                self.device.free(address)

    def _forward(self, tokens: int, live: list[int]) -> None:
        def new(width: int, itemsize: int = BF16) -> int:
            live.append(self.device.malloc(tokens * width * itemsize))
            return live[-1]

        def drop(*addresses: int) -> None:
            for address in addresses:
                live.remove(address)
                self.device.free(address)

        def norm() -> int:
            wide = new(self.hidden, FLOAT32)
            square = new(self.hidden, FLOAT32)
            normed = new(self.hidden)
            drop(wide, square)
            return normed

        new(self.hidden)  # the embeddings, which the model's forward holds to the end
        stream = new(self.hidden)
        for _ in range(self.layers):
            normed = norm()
            q, k, v = new(self.q), new(self.kv), new(self.kv)
            mixed = new(self.q)
            drop(q, k, v)
            out = new(self.hidden)
            drop(mixed, normed)
            after = new(self.hidden)
            drop(stream, out)
            normed = norm()
            gate, up = new(self.mlp), new(self.mlp)
            product = new(self.mlp)
            drop(gate, up)
            out = new(self.hidden)
            drop(product, normed)
            stream = new(self.hidden)
            drop(after, out)

    def allocate(self, num_blocks: int) -> None:
        """Allocate the cache, in one piece. Raises ``DeviceOutOfMemoryError``."""
        if num_blocks:
            self.cache = self.device.malloc(num_blocks * self.block_bytes)


def start_up(
    utilization: float = 0.9,
    *,
    total: int = TOTAL,
    non_torch: int = NON_TORCH,
    warmup_tokens: int = CHUNK,
    staging: int = 0,
    reset_peak: bool = True,
    empty_cache: bool = True,
    num_blocks: int | None = None,
) -> StartUp:
    """Run the start: load, reset_peak, warm-up, empty_cache, allocate. A step left out keeps the figures before it.

    With ``num_blocks`` None the formula says how many. Raises ``DeviceOutOfMemoryError`` if a given number does not
    fit.
    """
    engine = Engine(total, non_torch)
    moments = [engine.moment("start")]
    engine.load(staging)
    moments.append(engine.moment("load"))
    if empty_cache:
        engine.device.empty_cache()
    if reset_peak:
        engine.device.reset_peak_stats()
    moments.append(engine.moment("reset_peak"))
    engine.step(warmup_tokens)
    moments.append(engine.moment("warm_up"))
    if empty_cache:
        engine.device.empty_cache()
    now = engine.moment("empty_cache")
    moments.append(now)
    terms = MeasuredTerms(total, utilization, now.used, now.peak, now.current)
    if num_blocks is None:
        num_blocks = max(0, terms.available) // engine.block_bytes
    engine.allocate(num_blocks)
    moments.append(engine.moment("allocate"))
    return StartUp(tuple(moments), terms, engine.block_bytes, num_blocks, engine)


@dataclass(frozen=True)
class Served:
    """The result of ``serve``: ``survived`` of ``steps`` steps, and ``used`` bytes on the GPU after each, by all.

    ``asked`` is the request in bytes that found no memory (0: none). ``retries`` counts how often the allocator had to
    release its cached segments first, which waits for the GPU.
    """

    steps: int
    survived: int
    used: tuple[int, ...]
    asked: int
    retries: int

    @property
    def outcome(self) -> str:
        """The end in a few letters: "ok", "ok +2" after two releases, "OOM @97" where step 97 found no memory."""
        if self.asked:
            return f"OOM @{self.survived + 1}"
        return f"ok +{self.retries}" if self.retries else "ok"


def serve(started: StartUp, steps: Sequence[int], growth: Iterable[int] = ()) -> Served:
    """Run ``steps`` (tokens each). ``growth``: bytes that another process takes before each step, as far as they are
    free.
    """
    device = started.engine.device
    others, used, asked = iter(growth), [], 0
    for tokens in steps:
        device.non_torch += min(next(others, 0), device.device_free or 0)
        try:
            started.engine.step(tokens)
        except DeviceOutOfMemoryError as error:
            asked = int(str(error.values["requested"]))
            break
        used.append(started.engine.moment("step").used)
    retries = device.usage().num_alloc_retries
    return Served(len(steps), len(used), tuple(used), asked, retries)


def mixed_steps(count: int = 100, longest: int = CHUNK, seed: int = 0) -> list[int]:
    """Draw steps of an engine with chunked prefill: decodes of a batch, and chunks of every length."""
    rng = random.Random(seed)
    return [rng.randint(8, 256) if rng.random() < 0.5 else rng.randint(256, longest) for _ in range(count)]


def report_of(started: StartUp, warmup_tokens: int = CHUNK) -> AllocationReport:
    """Return the report of ``allocate_kv_cache`` for this start, with the model's figures in place of a GPU's."""
    terms, (*_, before, _allocated) = started.terms, started.moments
    name, context = "cuda:model", 4096
    held = started.num_blocks * started.block_bytes
    return AllocationReport(
        spec=CacheSpec.from_config(MODEL),
        device=name,
        how="measured",
        block_size=BLOCK_SIZE,
        block_bytes=started.block_bytes,
        num_blocks=started.num_blocks,
        own_blocks=started.num_blocks,
        ranks=1,
        blocks=(started.num_blocks,),
        windows=(None,),
        batch=started.num_blocks * BLOCK_SIZE // context,
        context=context,
        weight_bytes=sum(started.engine.weight_sizes()),
        buffer_bytes=0,
        kv_bytes=held,
        padding_bytes=0,
        warmup_tokens=warmup_tokens,
        peak=PeakReport(name, terms.current, terms.peak, before.current),
        stats=MemoryStats(
            name, terms.total, terms.total - terms.used, terms.current, before.reserved, terms.peak, 0
        ),
        terms=terms,
    )
