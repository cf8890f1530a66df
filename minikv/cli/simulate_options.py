"""The options of ``minikv simulate``, by what they are about."""

from typing import Annotated

import typer

ASK, FLEET, CLOCK, LOAD = "Questions", "The fleet", "What the clock assumes", "A load of your own"


def _option(panel: str, text: str, *names: str) -> typer.models.OptionInfo:
    return typer.Option(*names, help=text, rich_help_panel=panel)


Trace = Annotated[str | None, typer.Argument(help="JSON lines in Mooncake's form, or a CSV in Azure's.")]
Limit = Annotated[int | None, typer.Option(help="Only the first N requests.")]
HashBlock = Annotated[int, typer.Option(help="Tokens behind each hash id.")]
Write = Annotated[str | None, typer.Option(help="Write the requests as JSON lines to this file.")]

HitRate = Annotated[bool, _option(ASK, "The hit rate of an LRU cache alone.", "--hit-rate")]
NumBlocks = Annotated[int | None, _option(ASK, "Blocks of that cache; without it, no limit.")]
Sweep = Annotated[list[str] | None, _option(ASK, "Several at once: block_size=8,16,32. May be repeated.")]
Plot = Annotated[str | None, _option(ASK, "Draw the sweep into this HTML file.")]
Fewest = Annotated[bool, _option(ASK, "The fewest GPUs that are fast enough.", "--fewest")]
P99Ttft = Annotated[
    float, _option(ASK, "Fast enough: seconds to the first token, for 99 of 100.", "--p99-ttft")
]
P99Tpot = Annotated[float | None, _option(ASK, "And seconds a token after it.", "--p99-tpot")]

Model = Annotated[str | None, _option(FLEET, "A catalogue name, a config.json or a local model folder.")]
Gpu = Annotated[str | None, _option(FLEET, "A GPU of the catalogue, such as H200.")]
Tp = Annotated[int, _option(FLEET, "GPUs of each replica.")]
Replicas = Annotated[int, _option(FLEET, "Copies of the model, each with a cache of its own.")]
Router = Annotated[str, _option(FLEET, "round-robin, least-loaded or prefix.")]
KvDtype = Annotated[str | None, _option(FLEET, "bf16, fp16, fp32, fp8, fp8_e5m2, fp8_scaled or int8.")]
Utilization = Annotated[float, _option(FLEET, "Share of each GPU that may be used.")]
BlockSize = Annotated[int | None, _option(FLEET, "Tokens a block (16; with --hit-rate the trace's).")]
HostKv = Annotated[
    str | None, _option(FLEET, "Host memory of each replica for KV, such as 512GiB.", "--host-kv")
]
MaxNumSeqs = Annotated[int, _option(FLEET, "Sequences that run at once on a replica.")]
MaxBatchedTokens = Annotated[int, _option(FLEET, "The most tokens of one step.")]
WeightBytes = Annotated[str | None, _option(FLEET, "One rank's weights, where they cannot be known.")]

ComputeEfficiency = Annotated[float | None, _option(CLOCK, "Share of the FLOP rate on paper (assumed 0.6).")]
BandwidthEfficiency = Annotated[
    float | None, _option(CLOCK, "Share of the bandwidth on paper (assumed 0.8).")
]
OverheadSeconds = Annotated[float | None, _option(CLOCK, "Seconds more for every step (assumed 0.002).")]
LinkGbS = Annotated[float | None, _option(CLOCK, "GB/s out of each GPU in an all-reduce (assumed 360).")]
HostGbS = Annotated[float | None, _option(CLOCK, "GB/s between a GPU and its host (assumed 50).")]

Synthetic = Annotated[int | None, _option(LOAD, "Make up N requests, instead of a trace.")]
Rate = Annotated[float, _option(LOAD, "Requests a second, on average.")]
Burst = Annotated[float, _option(LOAD, "0: evenly spaced, 1: a Poisson process, 3: bursts.")]
InputLen = Annotated[float, _option(LOAD, "Mean tokens of a message.")]
OutputLen = Annotated[float, _option(LOAD, "Mean tokens of an answer.")]
Spread = Annotated[float, _option(LOAD, "Standard deviation of both over the mean; 0: all alike.")]
Turns = Annotated[float, _option(LOAD, "Mean turns of a session; each repeats what was said before.")]
ThinkSeconds = Annotated[float, _option(LOAD, "Mean seconds from turn to turn.")]
SystemLen = Annotated[int, _option(LOAD, "Tokens of a system prompt.")]
SystemPrompts = Annotated[int, _option(LOAD, "Different system prompts.")]
Seed = Annotated[int, _option(LOAD, "The same seed makes the same load.")]
