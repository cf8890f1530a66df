"""Starts the child process, waits for its answer, and ends its whole group. A part that ends it is named."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from minikv.course.your_engine.kept import KeptPart
from minikv.course.your_engine.parts import PARTS
from minikv.course.your_engine.worker import EMPTY, STATUS
from minikv.errors import MiniKVError

# For one call of a part. It takes milliseconds, the interpreted kernel half a second.
CALL_LIMIT_S = 20.0
LIMIT_S = 300.0  # for the whole process
_POLL_S = 0.05


class ChildError(MiniKVError):
    """The child process has ended without an answer, and no part of the learner's was running."""


def run_child(
    parts: Mapping[str, KeptPart],
    lang: str,
    *,
    small: bool = False,
    call_limit_s: float = CALL_LIMIT_S,
    limit_s: float = LIMIT_S,
) -> dict[str, Any]:
    """The answer of the worker as plain data. A part that hangs or ends the process is a finding; the others run again.

    Raises ``ChildError`` where the process ends for another reason.
    """
    end = time.monotonic() + limit_s
    left = dict(parts)
    lost: dict[str, Any] = {}
    while True:
        answer = _run_once(left, lang, small, call_limit_s, end)
        if "lost" not in answer:
            answer["findings"] |= lost
            return answer
        task = answer["lost"]["task"]
        lost[task] = answer["lost"]
        del left[task]


def _run_once(
    parts: Mapping[str, KeptPart], lang: str, small: bool, call_limit_s: float, end: float
) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="my_engine.", ignore_cleanup_errors=True) as place:
        folder, empty = Path(place), Path(place) / EMPTY
        empty.mkdir()
        (empty / "README").write_text("A part of an engine needs no files.\n", encoding="utf-8")
        job = {"lang": lang, "small": small, "parts": {task: asdict(part) for task, part in parts.items()}}
        (folder / "job.json").write_text(json.dumps(job), encoding="utf-8")
        (folder / "status").write_bytes(STATUS.pack(-1, 0, 0))
        with (folder / "said").open("wb") as said:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "minikv.course.your_engine.worker", place],
                cwd=empty,
                env=environment(),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=said,
                **own_group(),
            )
        try:
            hung = _wait(process, folder / "status", call_limit_s, end)
        finally:
            end_all(process)
        with suppress(FileNotFoundError):
            return json.loads((folder / "answer.json").read_text(encoding="utf-8"))
        place_of_part, call, _ = STATUS.unpack((folder / "status").read_bytes())
        if not 0 <= place_of_part < len(PARTS) or PARTS[place_of_part].task not in parts:
            last = (folder / "said").read_text(encoding="utf-8", errors="replace").strip().splitlines()[-1:]
            code = "my_engine_too_long" if hung else "my_engine_ended"
            raise ChildError(code, exit=process.returncode, reason=" ".join(last)[:300])
        found: dict[str, Any] = {"task": PARTS[place_of_part].task, "call": call}
        found |= (
            {"kind": "hung", "due": f"{hung:g}"}
            if hung
            else {"kind": "ended", "got": str(process.returncode)}
        )
        return {"lost": found}


def _wait(process: subprocess.Popen, status: Path, call_limit_s: float, end: float) -> float:
    """Wait for the end of the process; returns 0, or the limit in seconds that a part or the process has passed."""
    before, since = b"", time.monotonic()
    with status.open("rb", buffering=0) as file:
        while True:
            with suppress(subprocess.TimeoutExpired):
                process.wait(_POLL_S)
                return 0.0
            file.seek(0)
            now, clock = file.read(STATUS.size), time.monotonic()
            if now != before:
                before, since = now, clock
            active = STATUS.unpack(now)[0] >= 0
            if (active and clock - since > call_limit_s) or clock > end:
                return call_limit_s if active and clock - since > call_limit_s else clock - since


def environment() -> dict[str, str]:
    """This process's environment and import path; for a CPU, one thread, Triton's interpreter, and no hub."""
    path = [os.path.abspath(entry) for entry in sys.path]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(path),
        "PYTHONDONTWRITEBYTECODE": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "TRITON_INTERPRET": "1",
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
    }


def own_group() -> dict[str, Any]:
    if sys.platform == "win32":
        return {"creationflags": subprocess.CREATE_NEW_PROCESS_GROUP}
    return {"start_new_session": True}


def end_all(process: subprocess.Popen) -> None:
    """End the process, and where the system has process groups those that it has started."""
    if sys.platform != "win32":
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
    process.kill()
    process.wait()
