"""The answers of ``minikv simulate --json`` as plain values. Times are seconds, sizes bytes."""

from dataclasses import asdict, fields
from typing import Any

from minikv.cli.simulate_run import Setup
from minikv.simulate import Answers, Fewest, Fleet, SweepRow, Trace, bottleneck


def trace_dict(trace: Trace, shared: float | None) -> dict[str, Any]:
    return {
        "name": trace.name,
        "requests": len(trace),
        "seconds": trace.duration,
        "prompt_tokens": trace.prompt_tokens,
        "output_tokens": trace.output_tokens,
        "hash_block": trace.hash_block,
        "hit_rate": shared,
    }


def fleet_dict(setup: Setup, fleet: Fleet) -> dict[str, Any]:
    return {
        "model": setup.options["model"],
        "gpu": fleet.step_time.roof.name,
        "tp": fleet.tp,
        "replicas": fleet.replicas,
        "gpus": fleet.gpus,
        "router": fleet.router,
        "kv_dtype": setup.options["kv_dtype"],
        "utilization": setup.options["utilization"],
        "block_size": fleet.block_size,
        "num_blocks": list(fleet.blocks),
        "host_blocks": fleet.host_blocks,
        "max_num_seqs": fleet.max_num_seqs,
        "max_batched_tokens": fleet.max_batched_tokens,
    }


def answers_dict(answers: Answers) -> dict[str, Any]:
    """Every figure, and the one that limits the fleet."""
    plain = {field.name: getattr(answers, field.name) for field in fields(answers)}
    for name in ("ttft", "tpot", "e2e", "queued", "littles_law"):
        plain[name] = None if plain[name] is None else asdict(plain[name])
    plain["limits"] = dict(answers.limits)
    plain["tiers"] = [asdict(tier) for tier in answers.tiers]
    return plain | {"bottleneck": bottleneck(answers)}


def run_dict(
    trace: Trace, setup: Setup, fleet: Fleet, answers: Answers, assumed: list[str]
) -> dict[str, Any]:
    return {
        "trace": trace_dict(trace, None),
        "fleet": fleet_dict(setup, fleet),
        "answers": answers_dict(answers),
        "assumptions": asdict(fleet.step_time.assumptions),
        "assumed": assumed,
    }


def row_dict(row: SweepRow, lang: str) -> dict[str, Any]:
    answers = None if row.answers is None else answers_dict(row.answers)
    refused = None if row.refused is None else row.refused.text(lang)
    return {"settings": row.settings, "answers": answers, "refused": refused}


def fewest_dict(setup: Setup, fleet: Fleet, found: Fewest, assumed: list[str]) -> dict[str, Any]:
    return {
        "fleet": fleet_dict(setup, fleet),
        "replicas": found.replicas,
        "gpus": found.gpus,
        "target": asdict(found.target),
        "steady": found.steady,
        "tried": {number: answers_dict(answers) for number, answers in found.tried.items()},
        "assumptions": asdict(fleet.step_time.assumptions),
        "assumed": assumed,
    }
