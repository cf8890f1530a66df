"""The published start-up logs that the pool and log tests share, as data and as a log would print them."""

import json
from pathlib import Path
from typing import Any

CASES: dict[str, dict[str, Any]] = {
    case["id"]: case
    for case in json.loads((Path(__file__).parent / "data" / "vllm_cases.json").read_text())["cases"]
}


def cases_with(*fields: str) -> list[str]:
    """The ids of the cases that have all these fields."""
    return [name for name, case in CASES.items() if all(field in case for field in fields)]


def log_of(case: dict[str, Any]) -> str:
    """The lines that the case's engine printed, as far as the case knows them."""
    lines = []
    if "vllm_version" in case:
        lines.append(
            f"INFO 01-01 12:00:00 [core.py:69] Initializing a V1 LLM engine (v{case['vllm_version']}) with config: "
            f"model='{case['model']}', speculative_config=None, dtype=torch.bfloat16, "
            f"tensor_parallel_size={case['tp']}, pipeline_parallel_size={case.get('pp', 1)}, "
            f"kv_cache_dtype={case.get('kv_dtype', 'auto')}, device_config=cuda"
        )
    if "batched_tokens" in case:
        lines.append(f"Chunked prefill is enabled with max_num_batched_tokens={case['batched_tokens']}.")
    if "mamba_mode" in case:
        lines.append(f"mamba_cache_mode='{case['mamba_mode']}'")
    if "needed_gib" in case:
        estimate = case.get("estimated_tokens")
        longest = f"the estimated maximum model length is {estimate}. " if estimate else ""
        lines.append(
            f"ValueError: To serve at least one request with the models's max seq len ({case['needed_tokens']}), "
            f"({case['needed_gib']} GiB KV cache is needed, which is larger than the available KV cache memory "
            f"({case['available_gib']} GiB). Based on the available memory, {longest}Try increasing"
        )
        return "\n".join(lines)
    if "available_gib" in case:
        lines.append(f"Available KV cache memory: {case['available_gib']} GiB")
    if "blocks" in case:
        lines.append(f"# GPU blocks: {case['blocks']}, # CPU blocks: 2048")
    if "tokens" in case:
        lines.append(
            f"INFO 01-01 12:00:01 [kv_cache_utils.py:634] GPU KV cache size: {case['tokens']:,} tokens"
        )
    if "concurrency" in case:
        length = f"{case['max_model_len']:,}"
        lines.append(f"Maximum concurrency for {length} tokens per request: {case['concurrency']}x")
    return "\n".join(lines)
