"""GPUs and models by name, each figure with its source. Nothing is guessed from a name.

The figures are in ``data/gpus.json`` and ``data/models/*.json``. A name matches if it is an entry's own or one of
its aliases. A part of a name never matches, because the missing part may be the one that matters ("H100" is two
cards, Mistral-7B has a window in v0.1 and none in v0.3).
"""

import json
import re
from copy import deepcopy
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import lru_cache
from importlib.resources import files
from typing import Any, TypeVar

from minikv.errors import UnknownNameError


@dataclass(frozen=True)
class GPU:
    """A card. ``total_bytes`` is what torch reports, not the label on the box; None where no source has it.

    ``total_bytes`` is a printed figure turned into bytes, not an exact count. ``total_rounded_to`` is the step
    of its rounding, in bytes (two decimals of a GiB: 10,737,418). nvidia-smi's total is never used instead: it
    includes the driver's own memory, 1 or 2 % more than torch sees.

    ``nominal_gb`` is the label on the box: some vendors mean GB by it and some GiB, so never compute with it.
    ``bandwidth_gb_s`` is in 10**9 bytes a second. TFLOPS are dense, with fp32 accumulation; None where
    the card has no such format (or no source says). ``compute_capability`` is NVIDIA's ("9.0"), else None.
    """

    name: str
    aliases: tuple[str, ...]
    vendor: str
    nominal_gb: int
    total_bytes: int | None
    total_rounded_to: int | None
    total_source: str
    bandwidth_gb_s: float
    bf16_tflops: float | None
    fp16_tflops: float | None
    fp8_tflops: float | None
    compute_capability: str | None
    sources: tuple[str, ...]
    note: str = ""


@dataclass(frozen=True)
class Model:
    """A model: its ``config`` in the shape of its config.json, cut to the fields that bytes depend on.

    ``missing`` names the fields that no source gave; without them the cache can be computed, but not the weights.
    ``layers`` are those of a model_type on no list, in the form of ``CacheSpec.from_layers``: measured on the model
    that transformers builds from ``config``. ``parameters`` counts that model's, its encoders included.
    ``expected`` holds bytes that were verified elsewhere (``hf_bf16``: transformers 5.23, ``vllm_bf16_tp1``), for
    the tests; it is empty where none were.
    """

    name: str
    aliases: tuple[str, ...]
    org: str
    config: dict[str, Any]
    sources: tuple[str, ...]
    missing: tuple[str, ...] = ()
    expected: dict[str, Any] = field(default_factory=dict)
    note: str = ""
    layers: tuple[dict[str, Any], ...] = ()
    parameters: int | None = None

    @property
    def complete(self) -> bool:
        """Whether every field that the weights depend on is known."""
        return not self.missing


Entry = TypeVar("Entry", GPU, Model)


def find_gpu(name: str) -> GPU:
    """The GPU of that name in any spelling: "H200", "rtx-4090", "A100 SXM4 80GB".

    Raises ``UnknownNameError``: ``ambiguous_gpu`` lists the cards that the name could mean, ``unknown_gpu``
    the nearest names.
    """
    return _find(name, _gpus(), kind="gpu")


def find_model(name: str) -> Model:
    """The model of that name in any spelling: "Llama 3.1 8B", "meta-llama/Llama-3.1-8B-Instruct".

    In "org/name" the org has to be the publisher's: "models/Llama-3.1-8B" is more likely a mistyped path.
    The caller gets a copy, config included.

    Raises ``UnknownNameError``: ``ambiguous_model`` lists the models that the name could mean,
    ``unknown_model`` the nearest names.
    """
    return deepcopy(_find(name, _models(), kind="model"))


def gpu_names() -> list[str]:
    """Every GPU's name: NVIDIA's cards with HBM, newest first, then those with GDDR, then others."""
    return [gpu.name for gpu in _gpus()]


def model_names() -> list[str]:
    """Every model's name, by family and, within it, by size."""
    return [model.name for model in _models()]


def _find(name: str, entries: tuple[Entry, ...], kind: str) -> Entry:
    by_key = {_key(spelling): entry for entry in entries for spelling in _spellings(entry)}
    is_text, name = isinstance(name, str), str(name)
    found = by_key.get(_key(name))
    if found is not None and is_text:
        return found
    words = _words(name)
    candidates = [entry.name for entry in entries if words and words <= _words(" ".join(_spellings(entry)))]
    if len(candidates) > 1:
        raise UnknownNameError(f"ambiguous_{kind}", name=name, candidates=", ".join(candidates))
    close = get_close_matches(_key(name), by_key, n=12, cutoff=0.0)
    nearest = candidates or list(dict.fromkeys(by_key[key].name for key in close))[:3]
    raise UnknownNameError(f"unknown_{kind}", name=name, nearest=", ".join(nearest), count=len(entries))


def _spellings(entry: GPU | Model) -> list[str]:
    """The names of an entry, with and without the maker: torch prints "NVIDIA H200", the hub "google/gemma-3-4b-it"."""
    maker = f"{entry.vendor} " if isinstance(entry, GPU) else f"{entry.org}/"
    return [prefix + name for name in (entry.name, *entry.aliases) for prefix in ("", maker)]


def _key(name: str) -> str:
    """A name without case, spaces, dashes and dots: "Llama 3.1-8B" and "llama-3.1-8b" are one. "/" stays."""
    return re.sub(r"[^a-z0-9/]", "", name.lower())


def _words(name: str) -> set[str]:
    return set(re.findall(r"[a-z0-9.]+", name.lower()))


@lru_cache(maxsize=1)
def _gpus() -> tuple[GPU, ...]:
    source = files("minikv.plan") / "data" / "gpus.json"
    return tuple(GPU(**_tuples(entry)) for entry in json.loads(source.read_text(encoding="utf-8")))


@lru_cache(maxsize=1)
def _models() -> tuple[Model, ...]:
    folder = files("minikv.plan") / "data" / "models"
    families = sorted(
        (file for file in folder.iterdir() if file.name.endswith(".json")), key=lambda f: f.name
    )
    entries = [entry for file in families for entry in json.loads(file.read_text(encoding="utf-8"))]
    return tuple(Model(**_tuples(entry)) for entry in entries)


def _tuples(entry: dict[str, Any]) -> dict[str, Any]:
    """The entry with tuples for JSON's lists, so that it can be frozen; the config keeps its lists."""
    return {key: tuple(value) if isinstance(value, list) else value for key, value in entry.items()}
