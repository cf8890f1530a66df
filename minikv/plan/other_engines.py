"""The memory fraction of other engines: its name, its base, and the pool that it gives. Appendix D.

    o  in use before the engine first looks: other processes, its own CUDA context, its communicators
    w  weights      a  activations: added by the largest forward       T  all memory of the GPU      f  the fraction

    minikv         utilization                f T - o - w - a      of all memory, for all processes on the card
    vllm           gpu_memory_utilization     f T - w - a          of all memory, for this process; f T must be free
    sglang         mem_fraction_static        f (T - o) - w        of what was free, for weights and cache
    tensorrt-llm   free_gpu_memory_fraction   f (T - o - w - a)    of what is free in the end, for the cache

Sources, read in 2026: vLLM, ``vllm/v1/worker/gpu_worker.py`` (``requested_memory``, taken after NCCL has started, and
``determine_available_memory``); SGLang, ``model_runner_kv_cache_mixin.py`` (what is available after loading, less
``1 - f`` of what was available before) and ``docs/advanced_features/hyperparameter_tuning.md``; TensorRT-LLM,
``tensorrt_llm/_torch/pyexecutor/_util.py`` (``_cal_max_memory``: ``(total - peak + allocated) * fraction``). The sum of
nano-vllm is that of minikv. The formulas leave out memory outside torch that grows during the warm-up, CUDA graphs, and
the states of a hybrid model.
"""

from dataclasses import dataclass

from minikv.errors import ArgumentError, DoesNotFitError, check_count
from minikv.plan.budget import MemoryBudget
from minikv.units import format_bytes

OPTIONS = {
    "minikv": "utilization",
    "vllm": "gpu_memory_utilization",
    "sglang": "mem_fraction_static",
    "tensorrt-llm": "free_gpu_memory_fraction",
}
"""Each engine that we know, and its name for the fraction."""


@dataclass(frozen=True)
class Startup:
    """The contents of a GPU when an engine sizes its cache: T, o, w and a of the formulas above, bytes of one rank.

    Raises ``ArgumentError`` for what is no count, and where ``outside_bytes`` exceeds the GPU's memory.
    """

    total_bytes: int
    outside_bytes: int
    weight_bytes: int
    activation_bytes: int

    def __post_init__(self) -> None:
        check_count("total_bytes", self.total_bytes)
        for what in ("outside_bytes", "weight_bytes", "activation_bytes"):
            check_count(what, getattr(self, what), least=0)
        if self.outside_bytes > self.total_bytes:
            raise ArgumentError(
                "out_of_range",
                what="outside_bytes",
                value=self.outside_bytes,
                low=-1,
                high=self.total_bytes,
            )

    @classmethod
    def of(cls, budget: MemoryBudget, others_bytes: int = 0) -> "Startup":
        """The start-up of a plan, beside ``others_bytes`` of other processes."""
        check_count("others_bytes", others_bytes, least=0)
        return cls(
            budget.total_bytes,
            budget.cuda_context_bytes + others_bytes,
            budget.weight_bytes,
            budget.activation_bytes + budget.workspace_bytes,
        )

    @property
    def free_bytes(self) -> int:
        """Bytes that are free when the engine first looks."""
        return self.total_bytes - self.outside_bytes

    def left_bytes(self, pool_bytes: int) -> int:
        """Bytes still free in the largest forward beside a pool; negative where that forward does not fit."""
        return self.free_bytes - self.weight_bytes - self.activation_bytes - pool_bytes


def pool_bytes(engine: str, startup: Startup, fraction: float) -> int:
    """The bytes that ``engine`` gives its KV cache if its fraction is ``fraction``; negative where nothing is left.

    Raises ``ArgumentError`` for an unknown engine and for a fraction outside 0 and 1, and ``DoesNotFitError``
    ("vllm_not_free") where vLLM refuses to start because that share of the card is not free.
    """
    _check(engine, fraction)
    total, outside, weights, activations = _terms(startup)
    match engine:
        case "minikv":
            return int(total * fraction) - outside - weights - activations
        case "vllm":
            requested = int(total * fraction)
            if requested > startup.free_bytes:
                values = {"free": startup.free_bytes, "asked": requested, "total": total}
                most = int(100 * startup.free_bytes / total) / 100
                said = {name: format_bytes(value) for name, value in values.items()}
                raise DoesNotFitError("vllm_not_free", fraction=fraction, most=most, **said)
            return requested - weights - activations
        case "sglang":
            return int((total - outside) * fraction) - weights
        case _:
            return int((total - outside - weights - activations) * fraction)


def fraction_for(engine: str, startup: Startup, wanted_bytes: int) -> float:
    """The fraction that gives ``engine`` a pool of ``wanted_bytes``: the inverse of ``pool_bytes``.

    Raises ``ArgumentError`` for an unknown engine, and where no fraction up to 1 gives so much.
    """
    check_count("wanted_bytes", wanted_bytes)
    _check(engine, 1.0)
    total, outside, weights, activations = _terms(startup)
    share, whole = {
        "minikv": (wanted_bytes + outside + weights + activations, total),
        "vllm": (wanted_bytes + weights + activations, total),
        "sglang": (wanted_bytes + weights, total - outside),
        "tensorrt-llm": (wanted_bytes, total - outside - weights - activations),
    }[engine]
    if share > whole:
        most = max(0, whole - share + wanted_bytes)
        raise ArgumentError("out_of_range", what="wanted_bytes", value=wanted_bytes, low=0, high=most)
    return share / whole


def _terms(startup: Startup) -> tuple[int, int, int, int]:
    return startup.total_bytes, startup.outside_bytes, startup.weight_bytes, startup.activation_bytes


def _check(engine: str, fraction: float) -> None:
    if engine not in OPTIONS:
        raise ArgumentError("unknown_choice", what="engine", value=engine, known=", ".join(OPTIONS))
    number = isinstance(fraction, int | float) and not isinstance(fraction, bool)
    if not number or not 0 < fraction <= 1:
        raise ArgumentError("out_of_range", what=OPTIONS[engine], value=fraction, low=0, high=1)
