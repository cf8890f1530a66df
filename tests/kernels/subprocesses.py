"""Compiling kernels while the tests interpret them: a process of its own, in which Triton is not told to interpret."""

import json
import os
import subprocess
import sys
from typing import Any


def rows_of(module: str, *arguments: str) -> list[dict[str, Any]]:
    """The JSON rows that ``python -m module`` prints, with Triton's compiler in place of its interpreter."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", module, *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    return [json.loads(line) for line in done.stdout.splitlines()]
