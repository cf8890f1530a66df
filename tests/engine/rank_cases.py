"""What one rank of a test does, and ``run_ranks``, which starts several and collects what they have seen.

Ranks are forked from a server that has imported this module once, so a run takes a second and not ten.
"""

import io
import json
import multiprocessing
import os
import shutil
import signal
import sys
import time
import traceback
from contextlib import redirect_stdout
from datetime import timedelta
from pathlib import Path

import pytest
import torch
from torch import distributed
from transformers import LlamaForCausalLM  # noqa: F401 - imported once, before the ranks are forked

import minikv.engine.llm as llm_module
from minikv import LLM, MiniKVError, SamplingParams, cli
from minikv.cache.sharded import local
from minikv.engine import EventLog, factory
from minikv.engine.core.runner import Runner
from minikv.engine.ext.tensor_parallel import TensorParallelGroup
from minikv.errors import DoesNotFitError
from minikv.models import loading

SHARED = [5, 11, 7, 2, 9, 31, 4, 8, 60]
PROMPTS = [[*SHARED, 3], [*SHARED, 1, 44, 90], list(range(2, 31)), [17] * 12, [6]]
PARAMS = [
    SamplingParams(temperature=0, max_tokens=10, n=1 + (each == 2), ignore_eos=True) for each in range(5)
]
# Few blocks and small steps: prompts come in chunks, and sequences are preempted.
SIZES = {"num_blocks": 17, "block_size": 4, "max_num_seqs": 6, "max_batched_tokens": 12}


def answers(llm):
    """The ids of every sequence, greedily."""
    outputs = llm.generate(PROMPTS, PARAMS, progress=False)
    return [[list(each.token_ids) for each in output.completions] for output in outputs]


def generate(rank, folder, **options):
    """Rank 0 tells the answers and the messages; each rank tells what it holds."""
    told, follow = {}, TensorParallelGroup.follow

    def note(adapter):
        cache, weights = adapter.cache, adapter.model.parameters()
        told["kv_bytes"], told["num_blocks"] = cache.nbytes, list(cache.num_blocks)
        told["weight_bytes"] = sum(local(each).nbytes for each in weights)

    def notes(team, runner):
        note(runner.adapter)
        follow(team, runner)

    TensorParallelGroup.follow, log = notes, EventLog()
    try:
        with LLM(folder, tp="auto", emit=log, **(SIZES | options)) as llm:
            note(llm.adapter)
            told["answers"], told["steps"] = answers(llm), llm.snapshot().steps
            told["preempted"] = len(log.of("preempt"))
            told["accepted"] = sum(step.accepted for step in log.of("step"))
            told["messages"], told["num_bytes"] = llm._group.messages, llm._group.num_bytes
            told["allocation"] = [llm.allocation.weight_bytes, llm.allocation.kv_bytes]
            told["own_blocks"], told["ranks"] = llm.allocation.own_blocks, llm.allocation.ranks
    except SystemExit as end:
        told["code"] = end.code
    return told


def command(rank, *arguments):
    """What the command line prints, and its exit code."""
    said = io.StringIO()
    with redirect_stdout(said), pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["minikv", *arguments])
        try:
            cli.main()
        except SystemExit as end:
            return {"printed": said.getvalue(), "code": end.code or 0}


def own_size(rank, folder):
    """Rank 1 has less room than rank 0."""
    return generate(rank, folder, num_blocks=None, kv_bytes=(60_000, 40_000)[rank])


def breaks_off(rank, folder, how):
    """Rank 1 stops taking part in its fourth step, in one way or another; rank 0 tells how that was said."""
    logits, number = Runner.forward, iter(range(100))

    def fails(self, step, *more):
        if rank == 1 and next(number) == 3:
            if how == "raises":
                raise ValueError("rank 1 has had enough")
            os.kill(os.getpid(), {"killed": signal.SIGKILL, "stopped": signal.SIGSTOP}[how])
        return logits(self, step, *more)

    Runner.forward = fails
    with LLM(folder, tp="auto", **SIZES) as llm:
        names = [llm.add_request(prompt, params) for prompt, params in zip(PROMPTS, PARAMS, strict=True)]
        errors = {}
        while llm.has_work:
            for out in llm.step().finished:
                errors[out.request] = out.completions[0].error
        codes = sorted({error.code for error in errors.values()})
        first = errors[names[0]]
        values = {name: value for name, value in first.values.items() if isinstance(value, str | int)}
    return {"codes": codes, "count": len(errors), "said": str(first), "values": values, "free": _free(llm)}


def leader_ends(rank, folder):
    """Rank 0 is killed between two steps."""
    with LLM(folder, tp="auto", **SIZES) as llm:
        llm.add_request(PROMPTS[0], PARAMS[0])
        llm.step()
        os.kill(os.getpid(), signal.SIGKILL)


def lost_early(rank, folder, how):
    """Rank 1 has met the others, and is lost before it has its shard ("binding": before it is bound to its cache)."""
    if how == "stopped":
        llm_module.init_tensor_parallel = lambda tp: TensorParallelGroup.join(tp, seconds=2)

    def fails(*arguments, **options):
        if how == "binding":
            raise DoesNotFitError("offload_no_room", need="2 B", free="1 B")
        os.kill(os.getpid(), {"killed": signal.SIGKILL, "stopped": signal.SIGSTOP}[how])

    if rank == 1 and how == "damaged":
        folder = _damaged(folder)
    elif rank == 1 and how == "binding":
        factory.bind_model = fails
    elif rank == 1:
        loading.read_shard = fails
    LLM(folder, tp="auto", **SIZES)


def _damaged(folder):
    """A copy of the model whose weights end too early."""
    copy = Path(folder).with_name("damaged")
    shutil.copytree(folder, copy)
    for file in copy.glob("*.safetensors"):
        file.write_bytes(file.read_bytes()[:-100])
    return str(copy)


def refused(rank, folder, **options):
    LLM(folder, **({"tp": "auto"} | SIZES | options))


def refuses_other_tp(rank, folder):
    from minikv.models import load

    LLM(load(folder, tp=2), **SIZES)


def _free(llm):
    return all(pool.num_free == pool.num_blocks for pool in llm.manager.pools)


def main(case, arguments, rank, size, folder, seconds):
    """One rank: what the case has told, or the error that ended it, in ``folder/rank.json``."""
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(size)}
    torch.set_num_threads(1)
    sys.stderr = open(Path(folder) / f"{rank}.err", "w")  # noqa: SIM115 - until the process ends
    (Path(folder) / f"{rank}.pid").write_text(str(os.getpid()))
    limit = timedelta(seconds=seconds)
    store = distributed.FileStore(str(Path(folder) / "store"), size)
    distributed.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=limit)
    told, code = {}, 0
    try:
        told = case(rank, *arguments[0], **arguments[1]) or {}
    except MiniKVError as error:
        told, code = {"error": error.code, "said": str(error)}, 2
    except BaseException:
        traceback.print_exc()
        code = 1
    (Path(folder) / f"{rank}.json").write_text(json.dumps(told | {"exit": code}))
    sys.stderr.flush()
    os._exit(code or 0)


def start_ranks(case, size, folder, *arguments, seconds=60, **options):
    """``size`` processes that run ``case``; ``collect`` waits for them."""
    folder.mkdir()
    server = multiprocessing.get_context("forkserver")
    server.set_forkserver_preload([__name__])
    ranks = []
    for rank in range(size):
        given = (case, (arguments, options), rank, size, str(folder), seconds)
        ranks.append(server.Process(target=main, args=given))
        ranks[-1].start()
    return ranks


def collect(ranks, folder, seconds=90):
    """What each rank has told, None where it was killed. Whoever does not end soon after rank 0 is ended."""
    try:
        ranks[0].join(seconds)
        until = time.monotonic() + 5
        for process in ranks[1:]:
            process.join(max(0, until - time.monotonic()))
    finally:
        for process in ranks:
            process.kill()
            process.join()
    told = []
    for rank in range(len(ranks)):
        told.append(json.loads(file.read_text()) if (file := folder / f"{rank}.json").is_file() else None)
        if told[-1] is not None and told[-1]["exit"] == 1:
            raise AssertionError((folder / f"{rank}.err").read_text())
    return told


def run_ranks(case, size, folder, *arguments, **options):
    return collect(start_ranks(case, size, folder, *arguments, **options), folder)
