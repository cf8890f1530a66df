"""Compiling kernels while the tests interpret them: a process of its own, in which Triton is not told to interpret."""

import json
import os
import subprocess
import sys
from typing import Any


def rows_of(*modules: str, everything: bool = False) -> list[dict[str, Any]]:
    """The rows of all ``modules`` (``tests.kernels.compiling``), from one process: to import torch takes seconds."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", "tests.kernels.compiling", *(["--all"] if everything else []), *modules]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    return [json.loads(line) for line in done.stdout.splitlines()]
