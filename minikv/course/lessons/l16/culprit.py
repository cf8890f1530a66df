"""The culprit of lesson 16: an estimate 2.86 times too low makes the batch too big, and the memory does not come back.

One rank of DeepSeek-V3 (tp=8, H200) runs in the model of PyTorch's caching allocator. The weights come first, then a
cache that grows by one token a step as ``DynamicCache`` does (a larger K and V, then the old ones freed). At the last
step a hook keeps one small tensor a layer. After the call the cache is freed and ``empty_cache()`` is called; then an
extraction asks for the memory that the plan had left for it.

A batch that is too large leaves nothing allocated by itself. The segments that hold a kept tensor do not come back, and
they are as large as the cache's tensors were. That is the model's result for this story; the analysis that reports the
6 GB shows no snapshot to prove its own.
"""

from dataclasses import dataclass
from typing import Literal

from minikv.course.widgets.segments_replay import AllocatorStep
from minikv.errors import ArgumentError, check_choice, check_count
from minikv.i18n import text
from minikv.memory import AllocatorSettings, CachingAllocator, DeviceOutOfMemoryError
from minikv.plan import CacheSpec, find_gpu, find_model, weight_bytes
from minikv.units import GIB

MODEL, GPU, TP, BF16 = "DeepSeek-V3", "H200", 8, 2
NON_TORCH = 2 * GIB  # CUDA context and NCCL: given, as a start-up log would state it
# Cache and kept tensors may take a quarter of what the weights leave; the extraction needs the rest.
SHARE = 4
SLACK = 4  # the extraction leaves a quarter of that budget untouched
KEPT_TOKENS = 64  # the hook keeps the bf16 hidden states of the last 64 tokens of every layer
CALCULATORS = ("naive", "plan")
HFLayout = Literal["hf-expanded", "hf"]


@dataclass(frozen=True)
class Culprit:
    """The result of the allocator's model. All sizes in bytes, of one rank; ``token_bytes`` over all layers.

    The batch was computed with ``estimated_token_bytes``; the layout caches ``token_bytes``. ``budget`` was meant for
    cache and kept tensors, ``cache_bytes`` is the full length's cache, ``peak_reserved`` the most that was reserved at
    once. After the call and ``empty_cache()``: ``allocated``, ``reserved``, ``stuck`` (free, but beside a live block)
    and ``free`` on the device. ``expected_free`` would be free if only the hook's tensors had stayed; the extraction
    asks for ``extraction_bytes`` of it. ``generated`` and ``extracted`` are False where memory ran out. ``capacity`` is
    the device's memory, ``non_torch`` the part of it that torch does not hold.
    """

    calculator: str
    layout: HFLayout
    batch: int
    estimated_token_bytes: int
    token_bytes: int
    budget: int
    cache_bytes: int
    peak_reserved: int
    allocated: int
    reserved: int
    stuck: int
    free: int
    expected_free: int
    extraction_bytes: int
    generated: bool
    extracted: bool
    capacity: int
    steps: tuple[AllocatorStep, ...]
    non_torch: int


def naive_token_bytes(config: dict, tp: int = TP) -> int:
    """Return the bytes of a token with head_dim = hidden_size // heads, as the analysed batch calculator has it."""
    head_dim = config["hidden_size"] // config["num_attention_heads"]
    return 2 * config["num_key_value_heads"] // tp * head_dim * BF16 * config["num_hidden_layers"]


def culprit(
    calculator: str,
    layout: HFLayout = "hf-expanded",
    *,
    num_layers: int = 61,
    prompt: int = 1000,
    new_tokens: int = 8,
    settings: AllocatorSettings | None = None,
    lang: str = "en",
) -> Culprit:
    """Choose the batch with ``calculator`` ("naive" or "plan"), generate, call ``empty_cache()``, extract.

    ``layout`` "hf-expanded" is the cache of transformers <= 5.14.1, "hf" the latent of later versions. With fewer than
    61 layers the GPU, the weights and non-torch memory shrink in proportion: 4 layers and 4 new tokens make a list of
    ``steps`` short enough for the widget. Notes are in ``lang``. Raises ``ArgumentError``.
    """
    check_choice("calculator", calculator, CALCULATORS)
    check_choice("layout", layout, HFLayout)
    for what, count in (("num_layers", num_layers), ("prompt", prompt), ("new_tokens", new_tokens)):
        check_count(what, count)
    whole = find_model(MODEL).config
    if num_layers > whole["num_hidden_layers"]:
        raise ArgumentError("out_of_range", what="num_layers", value=num_layers, low=0, high=61)
    share = (num_layers, whole["num_hidden_layers"])
    total = find_gpu(GPU).total_bytes
    assert total is not None
    capacity = _part(total, share)
    non_torch, weights = _part(NON_TORCH, share), _part(weight_bytes(MODEL, tp=TP).total, share)
    config = {**whole, "num_hidden_layers": num_layers}
    spec = CacheSpec.from_config(config, tp=TP, layout=layout)
    real = spec.bytes_for(1)
    estimated = naive_token_bytes(config) if calculator == "naive" else real
    rest = capacity - non_torch - weights
    budget, tokens = rest // SHARE, prompt + new_tokens
    kept = KEPT_TOKENS * config["hidden_size"] * BF16  # per sequence and layer
    batch = budget // (estimated * tokens + kept * num_layers)
    device = CachingAllocator(capacity, settings=settings, non_torch=non_torch)
    tape = _Tape(device, lang)
    tape.malloc("weights", weights, note="weights", size_text=weights)
    generated = _generate(tape, spec, batch, (prompt, new_tokens), batch * kept)
    peak = device.memory_stats()["reserved_bytes.all.peak"]
    tape.empty_cache()
    usage, free = device.usage(), device.device_free
    assert free is not None
    expected = rest - batch * kept * num_layers
    extraction = expected - budget // SLACK
    extracted = tape.malloc("extraction", extraction, note="extraction", size_text=extraction)
    return Culprit(
        calculator=calculator,
        layout=layout,
        batch=batch,
        estimated_token_bytes=estimated,
        token_bytes=real,
        budget=budget,
        cache_bytes=spec.bytes_for(tokens, batch),
        peak_reserved=peak,
        allocated=usage.allocated,
        reserved=usage.reserved,
        stuck=usage.reserved - usage.allocated,
        free=free,
        expected_free=expected,
        extraction_bytes=extraction,
        generated=generated,
        extracted=extracted,
        capacity=capacity,
        steps=tuple(tape.steps),
        non_torch=non_torch,
    )


def _part(num_bytes: int, share: tuple[int, int]) -> int:
    return num_bytes * share[0] // share[1]


def _generate(tape: "_Tape", spec: CacheSpec, batch: int, tokens: tuple[int, int], kept: int) -> bool:
    """Prefill, then allocate a larger K and V a layer and step; the hook's tensors stay. False where memory ran out."""
    prompt, new_tokens = tokens
    held: list[str] = []
    fits = True
    for length in range(prompt, prompt + new_tokens + 1):
        last = length == prompt + new_tokens
        for index, layer in enumerate(spec.layers):
            for part, width in (("K", layer.k_dim), ("V", layer.v_dim)):
                size = batch * layer.kv_heads * width * layer.itemsize * length
                name, old = f"{part}{index} x{length}", f"{part}{index} x{length - 1}"
                note = ("prefill" if length == prompt else "grow") if (part, index) == ("K", 0) else ""
                fits = tape.malloc(name, size, note=note, length=length, batch=batch)
                if not fits:
                    break
                held.append(name)
                if length > prompt:
                    held.remove(old)
                    tape.free(old)
            if last and fits:
                note = "hook" if index == 0 else ""
                fits = tape.malloc(f"kept {index}", kept, note=note)
            if not fits:
                break
        if not fits:
            break
    for place, name in enumerate(held):
        tape.free(name, note="" if place else "returned")
    return fits


class _Tape:
    """Runs operations on the model and records them as the widget's steps."""

    def __init__(self, device: CachingAllocator, lang: str):
        self.device, self.lang = device, lang
        self.addresses: dict[str, int] = {}
        self.steps: list[AllocatorStep] = []

    def malloc(self, name: str, size: int, note: str = "", **values: int) -> bool:
        """Allocate ``size`` bytes; True if there was memory for them."""
        self.steps.append(AllocatorStep("malloc", name, size, self._say(note, **values)))
        try:
            self.addresses[name] = self.device.malloc(size)
        except DeviceOutOfMemoryError:
            return False
        return True

    def free(self, name: str, note: str = "") -> None:
        self.steps.append(AllocatorStep("free", name, note=self._say(note)))
        self.device.free(self.addresses.pop(name))

    def empty_cache(self) -> None:
        self.steps.append(AllocatorStep("empty_cache", note=self._say("empty")))
        self.device.empty_cache()

    def _say(self, note: str, **values: int) -> str:
        shown = {key: f"{value:,}" for key, value in values.items()}
        return text(f"culprit.{note}", self.lang, **shown) if note else ""
