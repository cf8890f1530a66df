"""MemoryReport: the bytes of an LLM's device, part by part. Lesson 11a."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from minikv.cache.linear_pages import LinearPages
from minikv.cache.paged import PagedKVCache
from minikv.cache.sharded import local
from minikv.cache.states import StatePages
from minikv.engine.ext.graph_memory import GraphMemory
from minikv.engine.ext.graphs import DecodeGraphs, Eager
from minikv.engine.host_memory import HostMemory, host_memory
from minikv.i18n import pick_language, text
from minikv.memory.arena import Arena
from minikv.memory.resident import extent_bytes, extents, resident_bytes
from minikv.memory.stats import MemoryStats
from minikv.shown import Shown, html_of, one_line, text_of
from minikv.units import exact_bytes, format_bytes

if TYPE_CHECKING:
    from minikv.engine.llm import LLM


@dataclass(frozen=True)
class MemoryReport:
    """The device between two steps. All sizes are bytes; ``parts`` add up to ``total``, which is measured.

    - ``weight_bytes``: the storages of the model's parameters; ``buffer_bytes``: those of its buffers (mainly the
      frequencies of RoPE) beside them. Each byte counts once, also that of tied parameters.
    - ``kv_bytes``: every block of the cache, in use or not. ``padding_bytes``: the rest of its arena.
    - ``absent_bytes``: the part of the weights that is not in memory now. Weights in a mapped file are loaded page by
      page as they are read. 0 on a GPU; None where the system does not say, and then all of them count as present.
    - ``graphs``: the memory of the captured decode steps. It is None without any, and ``why_eager`` says why;
      ``held_bytes`` were held for them when the cache was measured.
    - ``host``: the use of the host memory for swapped sequences and cached prefixes; None without ``cpu_kv_bytes``.
    - ``record_bytes``: eviction's record of each cached token, its position and its policy's sums; 0 without eviction.
      The room for all of them was taken when the LLM was made.
    - ``state_bytes``: the slots of recurrent layers' states, one a sequence, in use or not; 0 for a model without such
      layers. ``saved_state_bytes``: those that keep copies at the ends of prefixes.
    - ``activation_bytes``: the memory of the largest step while it ran, ``warmup_tokens`` tokens, if the size of the
      cache was measured (else None). It is in no part, since none of it is alive between two steps.
    """

    model: str
    stats: MemoryStats
    weight_bytes: int
    absent_bytes: int | None
    buffer_bytes: int
    kv_bytes: int
    padding_bytes: int
    activation_bytes: int | None = None
    warmup_tokens: int | None = None
    graphs: GraphMemory | None = None
    why_eager: Eager | None = None
    held_bytes: int = 0
    host: HostMemory | None = None
    record_bytes: int = 0
    state_bytes: int = 0
    saved_state_bytes: int = 0

    @property
    def used(self) -> int:
        """Measured. On CUDA: the GPU memory of all processes; on a CPU: this process's resident set (RSS)."""
        return self.stats.used if self.stats.kind == "cuda" else self.stats.allocated

    @property
    def total(self) -> int:
        """``used`` and the free bytes: on CUDA the GPU's memory, on a CPU what this process has or could have."""
        return self.used + self.stats.free

    def parts(self) -> dict[str, int]:
        """The uses of the device's bytes, in order, for a bar; they add up to ``total``.

        ``weights`` (those in memory), ``buffers``, ``kv`` and ``padding`` are known to the byte. So are the ``states``
        of recurrent layers, ``saved_states`` and eviction's ``records``, if there are any. ``graphs``, if any, and
        ``headroom``
        are measured; headroom is what the driver, or on a CPU the system, could still give. The others are the rest
        of a measured figure:

        - on CUDA ``tensors`` (torch's other live tensors in this process, such as cuBLAS workspaces, and its rounding
          to 512 B), ``cached`` (reserved - allocated: torch keeps it for the next step), and outside torch
          ``context`` (the CUDA context and libraries) and ``others`` (other processes, as NVML counts them), or
          ``not_torch`` for both if NVML does not answer;
        - on a CPU ``rest``: Python, torch, other libraries, every other tensor, and memory kept by malloc. ``host`` is
          the present part of the host memory, if there is any.

        A rest may be negative, since some bytes are counted late: the system sums RSS up only now and then.
        """
        stats = self.stats
        known = {
            "weights": self.weight_bytes - (self.absent_bytes or 0),
            "buffers": self.buffer_bytes,
            "kv": self.kv_bytes,
            "padding": self.padding_bytes,
        }
        if self.state_bytes:
            known["states"] = self.state_bytes
        if self.saved_state_bytes:
            known["saved_states"] = self.saved_state_bytes
        if self.record_bytes:
            known["records"] = self.record_bytes
        if self.host is not None and stats.kind == "cpu":
            known["host"] = self.host.present_bytes
        unknown = stats.allocated - sum(known.values())
        if stats.kind == "cpu":
            return known | {"rest": unknown, "headroom": stats.free}
        # The graphs' buffers are allocated, their pool is reserved, and torch does not know the rest.
        graphs = GraphMemory(0, 0, 0, 0) if self.graphs is None else self.graphs
        if self.graphs is not None:
            known["graphs"] = graphs.num_bytes
        parts = known | {
            "tensors": unknown - graphs.buffer_bytes,
            "cached": stats.reserved - stats.allocated - graphs.pool_bytes,
        }
        non_torch = stats.non_torch - graphs.driver_bytes
        if stats.others is None:
            parts["not_torch"] = non_torch
        else:
            parts |= {"context": non_torch - stats.others, "others": stats.others}
        return parts | {"headroom": stats.free}

    def host_parts(self) -> dict[str, int]:
        """The bytes of host memory by use, in order; they add up to it, and to nothing without any."""
        if self.host is None:
            return {}
        host = self.host
        return {"sequences": host.sequence_bytes, "prefixes": host.prefix_bytes, "empty": host.empty_bytes}

    def as_dict(self) -> dict[str, Any]:
        """Return plain JSON values; ``nvml`` is why ``others`` is not among the parts of a GPU."""
        return {
            "model": self.model,
            "device": self.stats.device,
            "parts": self.parts(),
            "used": self.used,
            "total": self.total,
            "weight_bytes": self.weight_bytes,
            "absent_bytes": self.absent_bytes,
            "record_bytes": self.record_bytes,
            "state_bytes": self.state_bytes,
            "saved_state_bytes": self.saved_state_bytes,
            "activation_bytes": self.activation_bytes,
            "warmup_tokens": self.warmup_tokens,
            "graphs": None if self.graphs is None else self.graphs.count,
            "why_eager": None if self.why_eager is None else self.why_eager.reason,
            "host": None if self.host is None else {"bytes": self.host.num_bytes} | self.host_parts(),
            "nvml": self.stats.nvml,
        }

    def shown(self, lang: str = "en") -> Shown:
        """Return a row for each part and the two sums, with their shares of the device; then notes on their limits."""
        lang = pick_language(lang)
        kind, parts = self.stats.kind, self.parts()
        headroom = parts.pop("headroom")
        rows, shares = [], []
        for name, value in (parts | {"used": self.used, "headroom": headroom, "total": self.total}).items():
            own = name in ("used", "headroom", "total")
            meaning = _say(f"row_{name}_{kind}" if own else f"row_{name}", lang)
            rows.append((name, format_bytes(value), f"{value:,}", meaning))
            shares.append(value / self.total)
        for name, value in self.host_parts().items():
            meaning = _say(f"row_host_{name}", lang)
            rows.append((f"host_{name}", format_bytes(value), f"{value:,}", meaning))
            shares.append(0.0)
        head = ("", "", _say("column_bytes", lang), _say("column_meaning", lang))
        title = _say("title", lang, model=self.model, device=self.stats.device)
        return Shown(title, head, rows, (1, 2), self._sentences(lang), shares=shares)

    text = text_of
    _repr_html_ = html_of

    def __repr__(self) -> str:
        sizes = {
            "weights": self.weight_bytes,
            "KV": self.kv_bytes,
            "used": self.used,
            "free": self.stats.free,
        }
        told = (f"{name} {format_bytes(size)}" for name, size in sizes.items())
        return one_line("MemoryReport", f"{self.model} on {self.stats.device}", *told)

    def _sentences(self, lang: str) -> list[str]:
        lines = []
        if self.absent_bytes:
            values = {"absent": exact_bytes(self.absent_bytes), "weights": exact_bytes(self.weight_bytes)}
            lines.append(_say("absent", lang, **values))
        if self.absent_bytes is None:
            lines.append(_say("absent_unknown", lang))
        if self.activation_bytes is not None:
            activations = exact_bytes(self.activation_bytes)
            lines.append(_say("activations", lang, activations=activations, tokens=self.warmup_tokens))
        if self.host is not None:
            lines.append(_say(f"host_{self.stats.kind}", lang, size=exact_bytes(self.host.num_bytes)))
        lines += self._of_graphs(lang)
        if self.stats.nvml is not None:
            lines.append(_say("nvml_silent", lang, reason=self.stats.nvml))
        return lines

    def _of_graphs(self, lang: str) -> list[str]:
        graphs, why = self.graphs, self.why_eager
        if graphs is None:
            if why is None or why.reason == "cpu":
                return []
            return [_say("eager_cpu" if self.stats.kind == "cpu" else "eager", lang, why=why.text(lang))]
        sizes = {"buffers": graphs.buffer_bytes, "pool": graphs.pool_bytes, "driver": graphs.driver_bytes}
        written = {name: exact_bytes(value) for name, value in sizes.items()}
        lines = [
            _say("recorded" if self.stats.kind == "cpu" else "graphs", lang, count=graphs.count, **written)
        ]
        more = graphs.num_bytes - self.held_bytes
        if self.held_bytes and more > 0:
            lines.append(_say("graphs_more", lang, more=exact_bytes(more), held=exact_bytes(self.held_bytes)))
        return lines


def memory_report(llm: "LLM") -> MemoryReport:
    """Measure the device of ``llm``, which is open, now."""
    cache = llm.cache
    capacity = 0 if isinstance(cache, StatePages) else _arena_of(cache).capacity
    found = [local(each) for each in llm.model.parameters() if each.device == cache.device]
    parameters = [each for each in found if each.layout is not torch._mkldnn]
    # A weight that oneDNN has packed (minikv.models.cpu_modules) has no address, and no view shares it.
    packed = sum(each.nbytes for each in found if each.layout is torch._mkldnn)
    buffers = [each for each in llm.model.buffers() if each.device == cache.device]
    weights = extents(parameters)
    plain = extent_bytes(weights)
    present = resident_bytes(weights) if cache.device.type == "cpu" else plain
    allocation, graphs, eviction = llm.allocation, llm.graphs, llm.eviction
    peak = None if allocation is None else allocation.peak
    return MemoryReport(
        model=llm.cache.spec.name,
        stats=MemoryStats.read(cache.device),
        weight_bytes=plain + packed,
        absent_bytes=None if present is None else plain - present,
        buffer_bytes=extent_bytes(extents(parameters + buffers)) - plain,
        kv_bytes=cache.nbytes,
        padding_bytes=capacity - cache.nbytes,
        activation_bytes=None if peak is None else peak.extra,
        warmup_tokens=None if peak is None or allocation is None else allocation.warmup_tokens,
        graphs=graphs.memory if isinstance(graphs, DecodeGraphs) else None,
        why_eager=graphs if isinstance(graphs, Eager) else None,
        held_bytes=0 if allocation is None else allocation.held_bytes,
        host=None if llm.host is None else host_memory(llm.host.pool, llm.manager.host_pools),
        state_bytes=0 if llm.states is None else llm.states.nbytes - llm.states.saved_bytes,
        saved_state_bytes=0 if llm.states is None else llm.states.saved_bytes,
        record_bytes=0 if eviction is None else eviction.record_bytes,
    )


def _arena_of(cache: PagedKVCache | LinearPages) -> Arena:
    return cache.linear.arena if isinstance(cache, LinearPages) else cache.arena


def _say(key: str, lang: str, **values: Any) -> str:
    return text(f"engine.memory_{key}", lang, **values)
