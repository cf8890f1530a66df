"""Lesson 08: ``allocate_kv_cache`` step by step, from its own source, with an explanation beside each step.

The lesson reads the code with ``inspect``. An annotation knows its first and last line, and a digest of the code
that it was written for. A test compares the digests and names each annotation that no longer fits.
"""

import hashlib
import html
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from minikv.cache import allocator, binding
from minikv.course.show_source import coloured
from minikv.i18n import pick_language, text
from minikv.memory import peak
from minikv.plan import measured
from minikv.shown import shown_html


@dataclass(frozen=True)
class Annotation:
    """One step: a key, and the lines of ``of`` from ``first`` to ``last``, without their indent.

    ``first`` has two lines where its first line alone would occur twice. The words are the lesson's sentences
    ``step.<key>.title`` and ``step.<key>.text``.
    """

    key: str
    of: Callable[..., Any]
    first: str
    last: str
    code: str  # 8 hex digits of the SHA-256 of the lines that the words were written for

    def lines(self) -> list[str]:
        """Return the lines of the installed package. Raises ``LookupError`` if they are not there."""
        source = inspect.getsource(self.of).splitlines()
        bare = [line.strip() for line in source]
        first = self.first.splitlines()
        starts = [i for i in range(len(bare)) if bare[i : i + len(first)] == first]
        if len(starts) != 1 or self.last not in bare[starts[0] :]:
            name = self.of.__name__
            raise LookupError(
                f"annotation {self.key!r}: {name} has no lines from {self.first!r} to {self.last!r}"
            )
        found = source[starts[0] : bare.index(self.last, starts[0]) + 1]
        indent = min(len(line) - len(line.lstrip()) for line in found if line.strip())
        return [line[indent:] for line in found]

    def digest(self) -> str:
        """Return the digest of today's code; it equals ``code`` if the words fit."""
        return hashlib.sha256("\n".join(self.lines()).encode()).hexdigest()[:8]


_ALLOCATE = allocator.allocate_kv_cache
_TERMS = vars(measured.MeasuredTerms)
_WARM_UP = (
    "peak, out_of_memory = _warmup_peak(model, warmup_tokens, device) if warmup_tokens else (None, None)"
)
_MEET = (
    "# Every rank comes here, also one that has no room: "
    "a rank that raised before would leave the others waiting."
)

ANNOTATIONS = (
    Annotation(
        "signature",
        _ALLOCATE,
        '@own_keywords("allocate_kv_cache")\ndef allocate_kv_cache(',
        ") -> tuple[PagedKVCache, AllocationReport]:",
        "edcc3c24",
    ),
    Annotation(
        "check",
        _ALLOCATE,
        "device = _device_of(model)",
        'raise ArgumentError("allocator_size_needed", device=device)',
        "154c5584",
    ),
    Annotation(
        "spec",
        _ALLOCATE,
        "spec = CacheSpec.from_config(config_of(model), tp=tp, kv_dtype=kv_dtype or kv_dtype_of(model))",
        "warmup_tokens = min(DEFAULT_WARMUP, spec.max_positions or DEFAULT_WARMUP)",
        "ff03cd04",
    ),
    Annotation("peak", _ALLOCATE, _WARM_UP, _WARM_UP, "0ac0a127"),
    Annotation(
        "forward",
        allocator.warmup,
        'values: dict[str, Any] = {"use_cache": False}',
        "model(input_ids=torch.zeros(1, max_tokens, dtype=torch.long, device=device), **values)",
        "d071e0f6",
    ),
    Annotation(
        "reset",
        peak._measure_cuda,
        "torch.cuda.synchronize(device)\ntorch.cuda.empty_cache()",
        "return PeakReport(str(device), before, peak, after)",
        "c63ae2a0",
    ),
    Annotation(
        "terms",
        _ALLOCATE,
        "stats = MemoryStats.read(device)",
        "terms = MeasuredTerms(stats.total, utilization, stats.used, peak.peak, stats.allocated)",
        "b3d92fa8",
    ),
    Annotation(
        "limit",
        _TERMS["limit"].fget,
        "def limit(self) -> int:",
        "return int(self.total * self.utilization)",
        "beebc24f",
    ),
    Annotation(
        "formula",
        _TERMS["available"].fget,
        "def available(self) -> int:",
        "return self.limit - self.used - self.peak + self.current",
        "1330d6db",
    ),
    Annotation(
        "size",
        _ALLOCATE,
        "if out_of_memory is not None:\nsize = NO_BLOCKS",
        "size = size_for_bytes(spec, room, block_size=block_size, context=context, batch=batch)",
        "06433801",
    ),
    Annotation(
        "ranks",
        _ALLOCATE,
        _MEET,
        "blocks, ranks = _least_of_ranks(size.blocks or (0,) * len(pool.kv_cache_groups(spec)), device)",
        "25d581c9",
    ),
    Annotation(
        "least",
        allocator._least_of_ranks,
        "if not distributed.is_available() or not distributed.is_initialized():",
        "return tuple(counts.tolist()), distributed.get_world_size()",
        "9cb2a88a",
    ),
    Annotation(
        "refuse",
        _ALLOCATE,
        "if out_of_memory is not None:\nraise DoesNotFitError(",
        "_check_room(spec, blocks, block_size, stats)",
        "588058fe",
    ),
    Annotation(
        "cache",
        _ALLOCATE,
        "cache = PagedKVCache(spec, blocks, block_size, device=device)",
        "return cache, report",
        "0c479c68",
    ),
    Annotation(
        "bind",
        binding.bind,
        "for module, layer in zip(modules, layers, strict=True):",
        "return len(modules)",
        "39dae82e",
    ),
)


class SourceView:
    """The annotated source as a page of two columns, and as plain text, in ``lang``."""

    def __init__(self, lang: str = "en", annotations: tuple[Annotation, ...] = ANNOTATIONS):
        lang = pick_language(lang)
        self._steps = [
            (
                f"{number}. {_say(annotation.key, 'title', lang)}",
                _say(annotation.key, "text", lang),
                f"{annotation.of.__module__}: {annotation.of.__qualname__}",
                annotation.lines(),
            )
            for number, annotation in enumerate(annotations, 1)
        ]

    def text(self) -> str:
        """Return title, explanation and code of every step, in order."""
        blocks = []
        for title, words, place, lines in self._steps:
            code = "\n".join(f"    {line}".rstrip() for line in lines)
            blocks.append(f"{title}\n{words}\n  [{place}]\n{code}")
        return "\n\n".join(blocks)

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        return {"text/html": shown_html(self._html(), "source"), "text/plain": self.text()}

    def _html(self) -> str:
        rows = "".join(
            f"<tr><td><b>{html.escape(title)}</b><br>{html.escape(words)}</td>"
            f"<td><p>{html.escape(place)}</p><pre>{chr(10).join(coloured(code))}</pre></td></tr>"
            for title, words, place, lines in self._steps
            for code in (chr(10).join(lines),)
        )
        return f"<table>{rows}</table>"


def _say(key: str, part: str, lang: str) -> str:
    return text(f"lesson_08.step.{key}.{part}", lang)
