"""The LLM that the options of ``minikv generate`` and ``minikv bench`` make."""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from minikv.errors import check_count
from minikv.extras import require_engine

if TYPE_CHECKING:
    from minikv.engine import LLM
    from minikv.engine.ext.events import Emit
    from minikv.models import Loaded


_USED = ("AutoConfig", "AutoModelForCausalLM", "AutoTokenizer", "GenerationMixin", "PreTrainedTokenizerFast")


def started() -> tuple[int, int]:
    """(rank of this process, number of processes) under torchrun, without importing torch; else (0, 1)."""
    return int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))


@dataclass(frozen=True)
class Engine:
    """The options of an LLM, as ``minikv.LLM`` has them. Raises ``ArgumentError`` for a bad count, and
    ``MissingPackageError`` where torch is not installed."""

    model: str
    dtype: str
    device: str
    cache: str
    block_size: int
    num_blocks: int | None
    kv_bytes: int | None
    kv_dtype: str | None
    max_num_seqs: int
    max_batched_tokens: int
    seed: int | None
    tp: int = 1
    cpu_kv_bytes: int | None = None
    prefix_dir: str | None = None
    prompt_lookup: int = 0
    saved_states: int | None = None
    layers: str | None = None

    def __post_init__(self):
        counts = (
            "block_size",
            "num_blocks",
            "kv_bytes",
            "max_num_seqs",
            "max_batched_tokens",
            "cpu_kv_bytes",
        )
        for what in counts:
            if getattr(self, what) is not None:
                check_count(what, getattr(self, what))
        for what in ("prompt_lookup", "saved_states", "seed"):
            if getattr(self, what) is not None:
                check_count(what, getattr(self, what), least=0)
        require_engine()  # before a command opens its files

    def prepare(self) -> None:
        """Import the modules of ``load`` and ``start`` first, so that their seconds do not count as loading weights."""
        import transformers

        import minikv.engine
        import minikv.models

        for name in _USED:
            getattr(transformers, name)  # transformers imports a class on its first access
        for room, name in ((minikv.engine, "LLM"), (minikv.models, "load")):
            getattr(room, name)

    def load(self) -> "Loaded":
        """The model and its tokenizer."""
        from minikv.models import load

        return load(self.model, dtype=self.dtype, device=self.device, tp=self.tp)

    @property
    def follows(self) -> bool:
        """Whether this process is a rank above 0: rank 0 reads, schedules and prints."""
        return self.tp > 1 and started()[0] > 0

    def start(
        self, loaded: "Loaded", emit: "Emit | None", clock: Callable[[], float] = time.monotonic
    ) -> "LLM":
        """The LLM of the loaded model."""
        from minikv.engine import LLM

        own = ("model", "dtype", "device", "layers")
        options = {name: value for name, value in vars(self).items() if name not in own}
        return LLM(loaded, spec=self.layers, emit=emit, clock=clock, **options)
