"""How much a reader meets: what one token runs through, and the sizes of the rooms.

    python -m tools.structure            tables, as in docs/internal/structure.md
    python -m tools.structure --json     the same as data

What one token runs through is counted with ``sys.setprofile`` on tiny-gqa and a CPU: the files and functions of
``minikv/``, the calls and how deep they nest, the lines of the files, the data classes and named tuples that are made
or whose methods run, and how many of the calls check a kernel's arguments (``minikv/kernels/checks.py``). What runs
when a module is imported does not count.
"""

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, is_dataclass
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

PACKAGE = Path(__file__).parent.parent / "minikv"
PROMPT = "ada paris the cat sleeps"


@dataclass
class Trace:
    """``functions`` that ran, as (file, qualified name); ``data`` classes; ``calls``, ``checks`` of them; ``depth``."""

    functions: set[tuple[str, str]] = field(default_factory=set)
    data: set[str] = field(default_factory=set)
    calls: int = 0
    checks: int = 0
    depth: int = 0

    @property
    def files(self) -> set[str]:
        return {file for file, _ in self.functions}

    def of(self, call: Callable[[], Any]) -> Any:
        """Runs ``call``, adds what it runs through, and returns its answer."""
        levels = [0]  # how deep the calls of ours nest, for each frame that is open

        def note(frame: FrameType, event: str, _: Any) -> None:
            if event == "call":
                levels.append(levels[-1] + self._enter(frame))
                self.depth = max(self.depth, levels[-1])
            elif event == "return" and len(levels) > 1:
                levels.pop()

        sys.setprofile(note)
        try:
            return call()
        finally:
            sys.setprofile(None)

    def _enter(self, frame: FrameType) -> bool:
        """Whether the frame is a call into the package; a class's generated ``__init__`` is one of its data class."""
        code = frame.f_code
        owner = type(frame.f_locals["self"]) if "self" in frame.f_locals else None
        if code.co_name == "__new__" and code.co_filename.startswith("<") and "_cls" in frame.f_locals:
            owner = frame.f_locals["_cls"]
        if owner is not None and owner.__module__.startswith("minikv") and _is_data(owner):
            self.data.add(f"{owner.__module__}.{owner.__qualname__}")
        if not code.co_filename.startswith(str(PACKAGE)) or code.co_name == "<module>":
            return False
        file = str(Path(code.co_filename).relative_to(PACKAGE.parent))
        self.functions.add((file, code.co_qualname))
        self.calls += 1
        self.checks += file.endswith("kernels/checks.py")
        return True

    def row(self, what: str) -> dict[str, Any]:
        lines = sum(map(line_count, (PACKAGE.parent / file for file in self.files)))
        counts = {"files": len(self.files), "functions": len(self.functions), "calls": self.calls}
        classes = {"data classes": len(self.data), "checks": self.checks}
        return {"what": what, **counts, "depth": self.depth, "lines": lines, **classes}


def _is_data(owner: type) -> bool:
    return is_dataclass(owner) or (issubclass(owner, tuple) and hasattr(owner, "_fields"))


def line_count(file: Path) -> int:
    return len(file.read_text(encoding="utf-8").splitlines())


def paths() -> list[dict[str, Any]]:
    """A row for each part of a request of two tokens, for all of it and for the construction: of ``LLM``, of nano."""
    from minikv import LLM, SamplingParams, nano

    kinds: list[tuple[str, Callable[[], Any], Any]] = [
        (
            "LLM",
            lambda: LLM("tiny-gqa", device="cpu", num_blocks=64),
            SamplingParams(temperature=0, max_tokens=2),
        ),
        (
            "nano",
            lambda: nano.LLM("tiny-gqa", num_blocks=64),
            nano.SamplingParams(temperature=0, max_tokens=2),
        ),
    ]
    rows = []
    for name, make, params in kinds:
        make().generate([PROMPT], params)  # what happens once in a process happens now
        parts = {
            what: Trace() for what in ("construction", "add_request", "prefill", "decode", "generate, in all")
        }
        llm = parts["construction"].of(make)
        parts["add_request"].of(partial(llm.add_request, PROMPT, params))
        parts["prefill"].of(llm.step)
        parts["decode"].of(llm.step)
        parts["generate, in all"].of(partial(llm.generate, [PROMPT], params))
        rows += [trace.row(f"{name}: {what}") for what, trace in parts.items()]
    return rows


def rooms() -> list[dict[str, Any]]:
    """A row for each folder of the package with files of its own: Python files and their lines, and all beneath it."""
    rows = []
    for folder in sorted({file.parent for file in PACKAGE.rglob("*.py")}):
        own, all_files = list(folder.glob("*.py")), list(folder.rglob("*.py"))
        name = folder.relative_to(PACKAGE.parent).as_posix()
        counts = {"files": len(own), "lines": sum(map(line_count, own))}
        rows.append(
            {
                "room": name,
                **counts,
                "files in all": len(all_files),
                "lines in all": sum(map(line_count, all_files)),
            }
        )
    return rows


def table(rows: list[dict[str, Any]]) -> str:
    """The rows in Markdown."""
    heads = list(rows[0])
    cells = [[f"{value:,}" if isinstance(value, int) else value for value in row.values()] for row in rows]
    lines = [heads, ["---"] * len(heads), *cells]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.structure")
    parser.add_argument("--json", action="store_true")
    found = {"paths": paths(), "rooms": rooms()}
    if parser.parse_args().json:
        print(json.dumps(found, indent=2))
    else:
        print(table(found["paths"]), table(found["rooms"]), sep="\n\n")


if __name__ == "__main__":
    main()
