"""``check_log``: do the GiB and the tokens of a vLLM start-up log belong together, and if not, why?

>>> print(check_log(open("vllm.log").read(), model="Llama-3.1-8B", tp=1).text())  # doctest: +SKIP
The log agrees with the model.
...
"""

import re
from dataclasses import replace
from typing import Any

from minikv.errors import ArgumentError, ConfigError, UnknownNameError, check_count
from minikv.plan.logs.judge import LogVerdict, judge
from minikv.plan.logs.lines import read_log
from minikv.plan.logs.setup import Setup
from minikv.plan.logs.vllm_pool import BATCHED_TOKENS, BLOCK_SIZE
from minikv.plan.spec.cache_spec import CacheSpec

__all__ = ["LogVerdict", "check_log"]

_SAME_CACHE_ENDINGS = re.compile(
    r"[-_](?:instruct|it|chat|fp8|fp4|nvfp4|mxfp4|awq|gptq|int4|int8|w4a16|w8a8|4bit|8bit|bnb|dynamic|[0-9]{4})$",
    re.IGNORECASE,
)


def check_log(
    text: str | bytes,
    *,
    model: Any = None,
    tp: int | None = None,
    pp: int | None = None,
    block_size: int | None = None,
    kv_dtype: str | None = None,
    max_model_len: int | None = None,
    max_num_batched_tokens: int | None = None,
) -> LogVerdict:
    """Judge the log of one vLLM start. Arguments override the log; None takes the log's value.

    ``model`` is anything that ``CacheSpec.from_config`` takes.

    Raises ``ArgumentError`` where a fact is missing (the sentence names the option that supplies it),
    ``UnknownNameError`` and ``ConfigError`` for a model that minikv does not know.
    """
    given = {"tp": tp, "pp": pp, "block_size": block_size, "max_model_len": max_model_len}
    for what, value in (given | {"max_num_batched_tokens": max_num_batched_tokens}).items():
        if value is not None:
            check_count(what, value)
    facts = read_log(text)
    facts = replace(
        facts,
        tp=tp or facts.tp,
        pp=pp or facts.pp or 1,
        block_size=block_size or facts.block_size,
        kv_dtype=kv_dtype or facts.kv_dtype,
        max_model_len=max_model_len or facts.max_model_len,
        batched_tokens=max_num_batched_tokens or facts.batched_tokens,
    )
    if not (facts.tokens or facts.blocks or facts.refusal):
        raise ArgumentError("log_no_tokens")
    if not (facts.available_gib or facts.refusal or (facts.concurrency and facts.max_model_len)):
        raise ArgumentError("log_no_gib")
    if facts.tp is None:
        raise ArgumentError("log_no_tp")
    if model is None:
        if facts.model is None:
            raise ArgumentError("log_no_model")
        model = _model_of_log(facts.model, facts.tp)
    setup = Setup(
        tp=facts.tp,
        pp=facts.pp or 1,
        kv_dtype=facts.kv_dtype,
        block_size=facts.block_size or BLOCK_SIZE,
        max_model_len=facts.max_model_len,
        batched_tokens=facts.batched_tokens or BATCHED_TOKENS,
    )
    return judge(facts, model, setup)


def _model_of_log(name: str, tp: int) -> str:
    """A name that ``CacheSpec.from_config`` knows, from a hub name, a path, or a path into the hub's cache.

    Endings that change the weights but not the cache ("-Instruct", "-FP8") may be left off.
    """
    cached = re.search(r"models--([^/]{1,100})--([^/]{1,100})", name)
    short = cached[2] if cached else name.rstrip("/").rsplit("/", 1)[-1]
    candidates = [name, short]
    while _SAME_CACHE_ENDINGS.search(short):
        short = _SAME_CACHE_ENDINGS.sub("", short)
        candidates.append(short)
    for candidate in candidates:
        try:
            CacheSpec.from_config(candidate, tp=tp, layout="vllm")
        except UnknownNameError:
            continue
        except ConfigError as error:
            # A folder of that name without a config does not rule out the catalogue.
            if error.code not in ("no_config_json", "no_file"):
                raise
        else:
            return candidate
    raise UnknownNameError("log_unknown_model", name=name)
