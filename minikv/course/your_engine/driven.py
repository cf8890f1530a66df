"""Driven: an engine in a process of its own, asked in lines of JSON (``vllm_driver.py``). No torch."""

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import minikv
from minikv.errors import MiniKVError

DRIVER = Path(__file__).with_name("vllm_driver.py")
VLLM_FOLDER = Path(minikv.__file__).parents[1] / ".venv-vllm"  # of a checkout: python -m tools.vllm makes it
VLLM_BLOCK = 128  # tokens of a block, unless vLLM is told otherwise
LIMIT_S = 1200.0  # for one answer; the first one waits for the engine to be made and compiled
LAST_LINES = 4


class DrivenError(MiniKVError):
    """The process of an engine has ended without an answer, or was ended since it had none in time."""


class Driven:
    """The process that ``command`` starts, with the engine of ``setup``. A context manager that ends it.

    ``name`` is the engine's in errors, ``variables`` are the process's whole environment, and an answer may take
    ``limit_s`` seconds.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        setup: Mapping[str, Any],
        variables: Mapping[str, str],
        limit_s: float = LIMIT_S,
    ):
        self.name, self.limit_s = name, limit_s
        self._said = tempfile.TemporaryFile()  # noqa: SIM115, closed by close()
        self.began = time.monotonic()
        self._process = subprocess.Popen(
            command,
            env=dict(variables),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            text=True,
            encoding="utf-8",
        )
        self._write(setup)

    def __enter__(self) -> "Driven":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def ask(self, prompts: Sequence[Sequence[int]], new: Sequence[int], warm: int = 0) -> dict[str, Any]:
        """The answer to one load. Raises ``DrivenError``."""
        self._write({"prompts": [list(prompt) for prompt in prompts], "new": list(new), "warm": warm})
        late = threading.Event()

        def end() -> None:
            late.set()
            self._process.kill()

        timer = threading.Timer(self.limit_s, end)
        timer.start()
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        timer.cancel()
        if line:
            return json.loads(line)
        if late.is_set():
            raise DrivenError("driven_too_long", name=self.name, seconds=self.limit_s)
        raise DrivenError(
            "driven_ended", name=self.name, exit=self._process.wait(), reason=self._last_lines()
        )

    def close(self) -> None:
        """End the process: it has answered what it was asked, or is not waited for."""
        self._process.kill()
        self._process.wait()
        for file in (self._process.stdin, self._process.stdout, self._said):
            with suppress(OSError):  # what was not read any more
                file.close()  # type: ignore[union-attr]

    def _write(self, line: Mapping[str, Any]) -> None:
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # it has ended: no answer will come, and ``ask`` says why
            self._process.stdin.write(json.dumps(line) + "\n")
            self._process.stdin.flush()

    def _last_lines(self) -> str:
        self._said.seek(0)
        lines = self._said.read().decode("utf-8", errors="replace").strip().splitlines()
        return " / ".join(line.strip() for line in lines[-LAST_LINES:])[-800:]


def vllm_command(python: str | Path) -> list[str]:
    """The driver's command with the Python of vLLM's environment. The driver's own folder is not on its import path."""
    return [str(python), "-P", str(DRIVER)]


def vllm_variables(threads: int, cache: str | Path) -> dict[str, str]:
    """This process's variables for vLLM's: one process, ``threads`` threads, nothing of our import path, no network.

    What vLLM compiles is kept in the folder ``cache``.
    """
    ours = ("PYTHONPATH", "VIRTUAL_ENV", "PYTHONHOME")
    return {name: value for name, value in os.environ.items() if name not in ours} | {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_LOGGING_LEVEL": "ERROR",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_CACHE_ROOT": str(cache),
        "TORCHINDUCTOR_CACHE_DIR": str(Path(cache) / "inductor"),
        "OMP_NUM_THREADS": str(threads),
        "CUDA_VISIBLE_DEVICES": "",
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
    }


def vllm_python() -> Path | None:
    """The Python of the checkout's environment with vLLM; None where there is none, or one half made."""
    python = VLLM_FOLDER / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")
    return python if (VLLM_FOLDER / ".ready").is_file() and python.is_file() else None
