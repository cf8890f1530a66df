"""Live monitors for any notebook: the memory, an LLM's cache or an evicting model while cells run.

    from minikv.course import monitor, show

    seen = monitor.cache(llm)          # looks from now on, 5 times a second, in a thread of its own
    show(seen)                         # live, on the page
    llm.generate(prompts)              # any cell
    seen.stop()                        # or the button, or `with monitor.cache(llm) as seen: ...`
    show(seen)                         # the picture that stays, and its text: on GitHub, too

A monitor imports only what it needs: torch comes with the object that it watches.
"""

from typing import TYPE_CHECKING, Any

from minikv.errors import ArgumentError
from minikv.extras import require_engine

if TYPE_CHECKING:
    from minikv.course.widgets.monitor_cache import CacheMonitor
    from minikv.course.widgets.monitor_eviction import EvictionMonitor
    from minikv.course.widgets.monitor_memory import MemoryMonitor
    from minikv.engine.llm import LLM

HZ = 5  # looks a second, the most


def memory(
    device: Any = None, *, llm: "LLM | None" = None, lang: str = "en", hz: float = HZ
) -> "MemoryMonitor":
    """The bytes of ``device`` by kind, now and over time; the free ones are in the bar alone.

    ``device`` None: the first GPU, without one the host. With ``llm`` its device, in the parts of its
    ``memory_report()``: weights, KV, and so on. On a GPU the figures are torch's, the driver's and NVML's
    (``MemoryStats``), on the host those of this process. It keeps 121 points however long it runs. When two neighbours
    become one the larger stays, so a peak that was seen is never lost. A peak between two looks is not seen.

    Raises ``ArgumentError`` for both a device and an LLM, a device without memory to read, a closed LLM, and a bad
    language or ``hz``.
    """
    require_engine()
    from minikv.course.widgets.monitor_memory import MemoryMonitor

    if llm is not None and device is not None:
        raise ArgumentError("monitor_device", device=device)
    if device is None and llm is None:
        import torch

        device = "cuda" if torch.cuda.is_available() else "cpu"
    return MemoryMonitor(device, llm, lang, hz)


def cache(llm: "LLM", *, lang: str = "en", hz: float = HZ) -> "CacheMonitor":
    """The blocks of ``llm`` with their sequences, the sequences that have not ended, prefix hits and evicted blocks.

    It works with ``generate``, ``stream`` and ``step``: a look waits for the end of the running step. Hits and
    evictions are counted in blocks, since the LLM was built. Raises ``ArgumentError`` for another object than an LLM, a
    closed one, and a bad language or ``hz``.
    """
    from minikv.course.widgets.monitor_cache import CacheMonitor

    return CacheMonitor(llm, lang, hz)


def eviction(model: Any, *, lang: str = "en", hz: float = HZ) -> "EvictionMonitor":
    """The resident tokens of each layer of ``model``, their places in the text, and the faults of ``eviction_report``.

    ``model``: one with ``install_kv_eviction``, or its ``EvictionHandle``. Until ``close()`` two hooks on the model
    keep looks out of a forward. Or an ``LLM(eviction=...)``: then the resident tokens of each sequence. Raises
    ``ArgumentError`` for a model or an LLM without eviction, and a bad language or ``hz``.
    """
    require_engine()
    from minikv.course.widgets.monitor_eviction import EvictionMonitor

    return EvictionMonitor(model, lang, hz)
