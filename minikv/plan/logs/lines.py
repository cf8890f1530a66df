"""Reads vLLM's start-up log: the few messages about available memory and tokens.

A log may be pasted with time stamps and worker names or without, coloured, several ranks mixed, two messages on one
line, a line broken after any word. So the search ignores lines: each fact is found by the words in front of its
number. Every pattern starts with fixed words and repeats nothing inside a repetition, which keeps the search linear
in the length of the log, whatever its contents.
"""

import re
from dataclasses import dataclass

from minikv.plan.logs.vllm_pool import printed_interval

_NUMBER = r"(-?[0-9]{1,12}(?:\.[0-9]{1,9})?)(?![0-9])"
_COUNT = r"([0-9][0-9,]{0,18})(?![0-9])"
_GAP = r"[\s:=]{1,40}"


def _pattern(words: str) -> re.Pattern[str]:
    """``words`` with any white space between them, NUMBER and COUNT for figures, ``~`` for the text before a figure."""
    words = words.replace(" ", r"\s{1,40}").replace("~", _GAP)
    return re.compile(words.replace("NUMBER", _NUMBER).replace("COUNT", _COUNT))


_AVAILABLE = _pattern(
    r"(?:Available KV cache memory|reserved for KV Cache is|kv_cache_size)~NUMBER\s{0,40}GiB"
    r"|available KV cache memory \(NUMBER\s{0,40}GiB\)"
)
_TOKENS = _pattern("GPU KV cache size~COUNT tokens")
_BLOCKS = _pattern("# (?:GPU|CUDA|cuda) blocks~COUNT")
_CONCURRENCY = _pattern("Maximum concurrency for COUNT tokens per request~NUMBERx")
_NEEDED = _pattern(r"max seq len \(COUNT\), \(NUMBER\s{0,40}Gi?B KV cache is needed")
_ESTIMATED = _pattern("estimated maximum model length is COUNT")
_OVERRIDE = _pattern("num_gpu_blocks_override=COUNT")
_FORCED_BLOCK = _pattern("(?:attention|[kK][vV] cache) block size to COUNT")
_ENGINE = re.compile(r"Initializing an? (?:V[01] )?LLM engine(?: \(v([^)\s]{1,60})\))?")
_VERSION = re.compile(r"vLLM (?:API server )?version v?([0-9][^\s,)]{0,60})")
_MODEL = re.compile(r"(?<![\w-])(?:--)?model['\"]?\s{0,4}[=:]\s{0,4}['\"]([^'\"\s]{1,200})['\"]")
_LOADED = re.compile(r"Starting to load model ([^\s]{1,200}?)\.\.\.")
_SERVED = re.compile(r"(?:vllm serve|--model)[\s=]{1,40}([^\s'\"-][^\s'\"]{0,199})")
_ARGUMENTS = re.compile(r"non-default args|vllm serve ")
_SPECULATIVE = re.compile(r"speculative[_-]config['\"]?[\s:=]{1,9}['\"]?(?:SpeculativeConfig|\{)")
# vLLM's names for dtypes that minikv calls otherwise (vllm/config/cache.py).
_KV_DTYPE_NAMES = {"fp8_ds_mla": "fp8", "fp8_per_token_head": "fp8_scaled", "int8_per_token_head": "int8"}
_COLOUR = re.compile(r"\x1b\[[0-9;]{0,20}[A-Za-z]")


@dataclass(frozen=True)
class Refusal:
    """The message of an engine that did not start: the need of its longest request, and the longest that would fit."""

    needed_gib: str
    needed_tokens: int
    estimated_tokens: int | None = None


@dataclass(frozen=True)
class LogFacts:
    """The facts of a log. GiB and concurrency stay text, because their decimals tell how exact they are.

    ``available_gib``, ``tokens`` and ``blocks`` have one entry for each time that they were printed (ranks).
    A fact that the log does not have is None.
    """

    available_gib: tuple[str, ...] = ()
    tokens: tuple[int, ...] = ()
    blocks: tuple[int, ...] = ()
    concurrency: str | None = None
    max_model_len: int | None = None
    refusal: Refusal | None = None
    override_blocks: int | None = None
    model: str | None = None
    tp: int | None = None
    pp: int | None = None
    block_size: int | None = None
    kv_dtype: str | None = None
    batched_tokens: int | None = None
    mamba_mode: str | None = None
    version: str | None = None
    speculative: bool = False

    @property
    def poorest_gib(self) -> str | None:
        """The smallest GiB that the log prints: the pool is the minimum over ranks."""
        return min(self.available_gib, key=float, default=None)

    @property
    def available_bytes(self) -> tuple[int, int] | None:
        """The fewest and most bytes that ``poorest_gib`` can stand for."""
        return printed_interval(self.poorest_gib) if self.poorest_gib else None


def read_log(text: str | bytes) -> LogFacts:
    """The facts of the last engine start in a log. Never raises: an absent fact is None."""
    if isinstance(text, bytes):
        text = text.decode("utf-8", errors="replace")
    text = _COLOUR.sub("", text)
    run = _last_run(text)
    concurrency = [(found[2], _count(found[1])) for found in _CONCURRENCY.finditer(run)]
    poorest, max_model_len = min(concurrency, key=lambda pair: float(pair[0]), default=(None, None))
    return LogFacts(
        available_gib=tuple(found[1] or found[2] for found in _AVAILABLE.finditer(run)),
        tokens=tuple(_count(found[1]) for found in _TOKENS.finditer(run)),
        blocks=tuple(_count(found[1]) for found in _BLOCKS.finditer(run)),
        concurrency=poorest,
        max_model_len=max_model_len
        or _integer(run, text, "max_model_len")
        or _integer(run, text, "max_seq_len"),
        refusal=_refusal(run),
        override_blocks=_first_count(_OVERRIDE, run),
        model=_model(run, text),
        tp=_parallel(run, text, "tensor_parallel_size", "-tp"),
        pp=_parallel(run, text, "pipeline_parallel_size", "-pp"),
        block_size=_first_count(_FORCED_BLOCK, text) or _integer(run, text, "block_size"),
        kv_dtype=_kv_dtype(run, text),
        batched_tokens=_integer(run, text, "max_num_batched_tokens"),
        mamba_mode=_word(run, text, "mamba_cache_mode"),
        version=_version(run, text),
        speculative=bool(_SPECULATIVE.search(text)),
    )


def _refusal(run: str) -> Refusal | None:
    found = _NEEDED.search(run)
    if not found or _TOKENS.search(run) or _BLOCKS.search(run):
        return None
    return Refusal(found[2], _count(found[1]), _first_count(_ESTIMATED, run))


def _last_run(text: str) -> str:
    """The part of the log from the last engine start that printed its cache on; all of it where none did."""
    end = len(text)
    for found in reversed(list(_ENGINE.finditer(text))):
        run = text[found.start() : end]
        if any(pattern.search(run) for pattern in (_TOKENS, _BLOCKS, _NEEDED)):
            return run
        end = found.start()
    return text


def _setting(run: str, text: str, name: str, value: str) -> str | None:
    """The value of an engine argument: ``name=value``, ``'name': 'value'`` or ``--name value``."""
    option = name.replace("_", "-")
    pattern = re.compile(rf"(?:{name}|{option})(?<!_{name})(?<!\w-{option})['\"]?{_GAP}['\"]?({value})")
    found = pattern.search(run) or pattern.search(text)
    return found[1] if found else None


def _integer(run: str, text: str, name: str) -> int | None:
    """A positive integer; 0, -1 and None stand for a default in vLLM's arguments."""
    found = _setting(run, text, name, r"[0-9]{1,15}(?![0-9]|\.[0-9])")
    return int(found) or None if found else None


def _word(run: str, text: str, name: str) -> str | None:
    return _setting(run, text, name, r"[A-Za-z][A-Za-z0-9_.]{0,60}")


def _parallel(run: str, text: str, name: str, short: str) -> int | None:
    found = _integer(run, text, name)
    if found is None:
        flag = re.search(rf"(?<=\s){short}[\s=]([0-9]{{1,5}})(?![0-9])", text)
        found = int(flag[1]) if flag else None
    # An engine prints its arguments, or those that differ from the default, which is 1.
    return found or (1 if _ARGUMENTS.search(text) or _ENGINE.search(text) else None)


def _model(run: str, text: str) -> str | None:
    for pattern in (_MODEL, _LOADED, _SERVED):
        found = pattern.search(run) or pattern.search(text)
        if found:
            return found[1]
    return None


def _kv_dtype(run: str, text: str) -> str | None:
    """The dtype of the cache; "auto" is the model's own, which an engine's ``dtype`` may replace."""
    found = _word(run, text, "kv_cache_dtype")
    if found in (None, "auto"):
        own = _word(run, text, "dtype")
        return own if own in ("torch.float32", "float32") else None
    return _KV_DTYPE_NAMES.get(found, found)


def _version(run: str, text: str) -> str | None:
    engine = _ENGINE.search(run)
    if engine and engine[1]:
        return engine[1]
    found = _VERSION.search(text)
    return found[1] if found else None


def _first_count(pattern: re.Pattern[str], text: str) -> int | None:
    found = pattern.search(text)
    return _count(found[1]) if found else None


def _count(digits: str) -> int:
    return int(digits.replace(",", "") or 0)
