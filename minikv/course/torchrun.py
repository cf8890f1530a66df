"""Ranks started from a notebook: several processes of one module on this machine, as torchrun starts them.

A notebook is one process, and a rank has to be one of its own. ``run_ranks`` starts them without a shell, gives them
a time limit, ends all of them when it is over, and says in words what went wrong.
"""

import importlib.util
import os
import re
import subprocess
import sys

import psutil

from minikv.errors import ArgumentError, RankLostError, check_count

LOOPBACK = "127.0.0.1"
_REPORT = re.compile(r"^E\d{4} [\d:.]+ \d+ torch/distributed", re.MULTILINE)  # where torchrun begins to tell
_ERROR = re.compile(r"[\w.]+(Error|Exception): ")


def run_ranks(module: str, *arguments: str, ranks: int = 2, seconds: float = 120.0) -> str:
    """Run ``python -m module arguments`` as ``ranks`` processes under torchrun; what they have printed.

    The ranks find ``RANK`` and ``WORLD_SIZE`` in their environment, and ``LLM(tp="auto")`` is one LLM on all of them.
    Where this machine has fewer GPUs than ``ranks`` they compute on the CPU, a thread each. Over gloo they talk
    over the loopback interface. Let one rank print: what two print at the same time is mixed.

    Raises ``ArgumentError`` where ``accelerate`` is missing, ``RankLostError`` where a rank fails, or not all have
    ended after ``seconds``; then none of them is left.
    """
    check_count("ranks", ranks)
    if importlib.util.find_spec("accelerate") is None:
        raise ArgumentError("parallel_accelerate")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--local-addr", LOOPBACK]
    command += ["--nproc-per-node", str(ranks), "-m", module, *arguments]
    process = subprocess.Popen(
        command,
        env=_environment(ranks),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
    )
    try:
        told, said = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired as error:
        raise RankLostError("ranks_too_slow", module=module, ranks=ranks, seconds=seconds) from error
    finally:
        _end(process)
    if process.returncode:
        raise RankLostError("ranks_failed", module=module, status=process.returncode, reason=_reason(said))
    return told


def _environment(ranks: int) -> dict[str, str]:
    """This process's own, and what keeps the ranks on this machine and out of each other's way."""
    import torch

    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    if torch.cuda.device_count() < ranks:
        environment["CUDA_VISIBLE_DEVICES"] = ""
    if (loopback := _loopback()) is not None:
        environment["GLOO_SOCKET_IFNAME"] = loopback  # else gloo looks this machine's name up, which may fail
    return environment


def _loopback() -> str | None:
    """The name of the loopback interface: "lo", on macOS "lo0"."""
    interfaces = psutil.net_if_addrs().items()
    return next((name for name, known in interfaces if any(each.address == LOOPBACK for each in known)), None)


def _end(process: subprocess.Popen) -> None:
    """End the process and all that it has started: torchrun's ranks are in sessions of their own."""
    if process.poll() is not None:
        return
    parent = psutil.Process(process.pid)
    parent.suspend()  # it starts nothing more
    for each in parent.children(recursive=True):
        try:
            each.kill()
        except psutil.NoSuchProcess:
            continue
    process.kill()
    process.communicate()


def _reason(said: str) -> str:
    """What was wrong, in one line: the last error of the ranks, or what else stands before torchrun's own report."""
    before = _REPORT.split(said, maxsplit=1)[0]
    lines = [line.strip() for line in (before.strip() or said).splitlines() if line.strip()]
    errors = [line for line in lines if _ERROR.match(line)]
    return (errors or lines or ["-"])[-1][:600]
