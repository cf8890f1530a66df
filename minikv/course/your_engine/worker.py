"""The child process of ``my_engine``: runs the learner's parts where they cannot harm the notebook.

``python -m minikv.course.your_engine.worker FOLDER``: reads ``job.json`` there, writes ``answer.json``. ``status``
always says which part runs, so that the parent can name a part that hangs or ends this process.
"""

import json
import mmap
import os
import struct
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from minikv.course import guard
from minikv.course.your_engine.beside import raised
from minikv.course.your_engine.finding import Finding
from minikv.course.your_engine.kept import KeptPart
from minikv.course.your_engine.load import loads
from minikv.course.your_engine.load_parts import load_part
from minikv.course.your_engine.parts import PARTS
from minikv.course.your_engine.run import examine, prepare

STATUS = struct.Struct("<qqq")  # the active part in PARTS or -1; its call; the count of these writes
EMPTY = "empty"  # the working folder of the learner's code, with one file that is not its own
_PLACE = {part.task: place for place, part in enumerate(PARTS)}


def main(folder: Path) -> None:
    job: dict[str, Any] = json.loads((folder / "job.json").read_text(encoding="utf-8"))
    lang, parts = job["lang"], {task: KeptPart(**part) for task, part in job["parts"].items()}
    with (folder / "status").open("r+b") as file, mmap.mmap(file.fileno(), STATUS.size) as status:
        written = 0

        def tell(task: str, call: int) -> None:
            nonlocal written
            written += 1
            STATUS.pack_into(status, 0, _PLACE.get(task, -1), call, written)

        ready = [prepare(load) for load in loads(job["small"])]
        sys.addaudithook(_without_network)
        theirs, unloaded = {}, {}
        for task, part in parts.items():
            tell(task, 0)
            outcome = guard.outcome(lambda task=task, part=part: load_part(task, part))  # type: ignore[misc]
            if isinstance(outcome, guard.Returned):
                theirs[task] = outcome.value
            else:
                unloaded[task] = Finding(task, **(raised(outcome, lang) | {"kind": "not_loaded"}))
        tell("", 0)
        examined = examine(ready, theirs, tell, lang, str(folder / EMPTY))
        examined.findings |= unloaded
    half = folder / "answer.half"
    half.write_text(json.dumps(asdict(examined)), encoding="utf-8")
    os.replace(half, folder / "answer.json")


def _without_network(event: str, arguments: tuple) -> None:
    if event in ("socket.connect", "socket.bind", "socket.getaddrinfo", "socket.sendto"):
        raise PermissionError("a part of an engine needs no network")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
    os._exit(0)  # the answer is written: do not wait for threads that a part has left running
