"""Ranks started from a notebook: several processes of one module on this machine, as torchrun starts them.

A notebook is one process, and each rank needs its own. ``run_ranks`` starts the ranks without a shell, gives them a
time limit, ends all of them afterwards, and reports errors in words.
"""

import importlib.util
import os
import re
import subprocess
import sys

import psutil

from minikv.errors import ArgumentError, RankLostError, check_count

LOOPBACK = "127.0.0.1"
_REPORT = re.compile(r"^E\d{4} [\d:.]+ \d+ torch/distributed", re.MULTILINE)  # the begin of torchrun's report
_ERROR = re.compile(r"[\w.]+(Error|Exception): ")


def run_ranks(module: str, *arguments: str, ranks: int = 2, seconds: float = 120.0) -> str:
    """Run ``python -m module arguments`` as ``ranks`` processes under torchrun; returns their output.

    The ranks find ``RANK`` and ``WORLD_SIZE`` in their environment, and ``LLM(tp="auto")`` is one LLM on all of them.
    On a machine with fewer GPUs than ``ranks`` they compute on the CPU, with one thread each. gloo uses the loopback
    interface. Only one rank should print: outputs of two at the same time are mixed.

    Raises ``ArgumentError`` where ``accelerate`` is missing, ``RankLostError`` where a rank fails or has not ended
    after ``seconds``; all ranks are ended then.
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
    """This process's environment, and variables that keep the ranks on this machine and on threads of their own."""
    import torch

    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    if torch.cuda.device_count() < ranks:
        environment["CUDA_VISIBLE_DEVICES"] = ""
    if (loopback := _loopback()) is not None:
        environment["GLOO_SOCKET_IFNAME"] = loopback  # else gloo looks up this machine's name, which may fail
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
    parent.suspend()  # it starts no more processes
    for each in parent.children(recursive=True):
        try:
            each.kill()
        except psutil.NoSuchProcess:
            continue
    process.kill()
    process.communicate()


def _reason(said: str) -> str:
    """The error in one line: the last one of the ranks, or else the text before torchrun's own report."""
    before = _REPORT.split(said, maxsplit=1)[0]
    lines = [line.strip() for line in (before.strip() or said).splitlines() if line.strip()]
    errors = [line for line in lines if _ERROR.match(line)]
    return (errors or lines or ["-"])[-1][:600]
