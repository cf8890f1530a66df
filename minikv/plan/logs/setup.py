"""A setup of vLLM, the pool that it gives, and the setups one change away from it.

The numbers of a log often depend on more than the log says. Each such fact is a field of ``Setup``, so that another
value can be tried by replacing one field.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from minikv.errors import ArgumentError
from minikv.plan.logs.lines import LogFacts
from minikv.plan.logs.vllm_pool import BATCHED_TOKENS, BLOCK_SIZE, STATE_BLOCKS, VllmPool, vllm_pool
from minikv.plan.spec.cache_spec import CacheSpec, Layout

NEW_RULE_SINCE = (0, 21)


@dataclass(frozen=True)
class Setup:
    """Everything that the printed numbers depend on besides the model and the free bytes.

    ``expanded`` means that an MLA model caches every head's K and V, as vLLM does without its MLA kernels.
    ``draft_layers`` are the layers of a speculative decoder that draw on the same pool.
    """

    tp: int
    pp: int = 1
    kv_dtype: str | None = None
    block_size: int = BLOCK_SIZE
    expanded: bool = False
    draft_layers: int = 0
    hybrid_manager: bool = True
    mamba_mode: str = "none"
    batched_tokens: int = BATCHED_TOKENS
    rule: str = "old"
    max_model_len: int | None = None

    @property
    def printing(self) -> dict[str, Any]:
        """The arguments of ``VllmPool.tokens_printed``."""
        return {"rule": self.rule, "max_model_len": self.max_model_len, "batched_tokens": self.batched_tokens}


def setup_pool(model: Any, setup: Setup) -> tuple[CacheSpec, VllmPool]:
    """The spec of ``model`` (see ``CacheSpec.from_config``) on one rank in this setup, and its pool."""
    layout: Layout = "hf-expanded" if setup.expanded else "vllm"
    spec = CacheSpec.from_config(model, tp=setup.tp, kv_dtype=setup.kv_dtype, layout=layout)
    if setup.expanded:
        # vLLM pads V to the width of K, because one attention kernel serves both (deepseek_v2.py).
        layers = tuple(replace(layer, v_dim=layer.k_dim) for layer in spec.layers)
        spec = replace(spec, layers=layers, layout="vllm")
    if setup.draft_layers:
        own = next(layer for layer in reversed(spec.layers) if layer.token_bytes)
        spec = replace(spec, layers=spec.layers + setup.draft_layers * (own,))
    pool = vllm_pool(
        spec,
        block_size=setup.block_size,
        hybrid_manager=setup.hybrid_manager,
        mamba_mode=setup.mamba_mode,
        pp=setup.pp,
    )
    return spec, pool


def readings(facts: LogFacts, pool: VllmPool, setup: Setup) -> list[Setup]:
    """The setup with each rule of printing that the log leaves open and that matters for this pool; likeliest first.

    Raises ``ArgumentError`` where the rule needs the longest request and the log does not say it.
    """
    version = re.match(r"([0-9]{1,4})\.([0-9]{1,4})", facts.version or "")
    rules = ["old", "new"]
    if version:
        rules = ["new" if (int(version[1]), int(version[2])) >= NEW_RULE_SINCE else "old"]
    if setup.max_model_len is None:
        if rules == ["new"] and len(pool.groups) > 1:
            raise ArgumentError("log_no_max_model_len")
        rules = ["old"]  # with one group the two rules differ by less than a block
    modes = list(STATE_BLOCKS) if pool.has_states else [setup.mamba_mode]
    if facts.mamba_mode in STATE_BLOCKS:
        modes = [facts.mamba_mode]
    batched = [setup.batched_tokens]
    if pool.has_windows and facts.batched_tokens is None:
        batched += [2048, 16384]  # vLLM's other defaults
    return [
        replace(setup, rule=rule, mamba_mode=mode, batched_tokens=tokens)
        for rule in rules
        for mode in modes
        for tokens in batched
    ]


def alternatives(
    facts: LogFacts, setup: Setup, spec: CacheSpec, pool: VllmPool
) -> Iterator[tuple[str, Setup]]:
    """Setups that differ in one thing, each with the key of the sentence that names it."""
    if setup.pp > 1 and facts.refusal:
        yield "other_pp", replace(setup, pp=1)
    for dtype in ("bf16", "fp8", "fp8_scaled", "fp32"):
        yield "other_kv_dtype", replace(setup, kv_dtype=dtype)
    if pool.has_windows and len(pool.groups) > 1:
        yield "other_manager", replace(setup, hybrid_manager=False)
    if any(layer.kind == "latent" for layer in spec.layers):
        yield "other_expanded", replace(setup, expanded=True)
    for tp in (1, 2, 4, 8, 16):
        yield "other_tp", replace(setup, tp=tp)
    if facts.speculative:
        for draft_layers in (1, 2, 3, 4):
            yield "other_draft", replace(setup, draft_layers=draft_layers)
    if facts.block_size is None:
        for block_size in (32, 64, 128, 256):
            yield "other_block_size", replace(setup, block_size=block_size)
