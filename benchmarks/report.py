"""What every benchmark prints and writes: rows of claim, ours, peer, ratio, goal, holds."""

import argparse
import json
import os
import platform
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

LIBRARIES = ("minikv", "torch", "transformers", "triton", "jupyterlab", "anywidget")


@dataclass(frozen=True)
class Row:
    """One claim. ``ratio`` is ours / peer; ``goal`` says in words what ``holds`` tested; numbers have ``unit``."""

    claim: str
    ours: float
    peer: float
    peer_name: str
    unit: str
    goal: str
    holds: bool

    @property
    def ratio(self) -> float:
        return self.ours / self.peer if self.peer else float("nan")


def arguments(description: str) -> argparse.Namespace:
    """The two options that every benchmark has: ``--quick`` and ``--json FILE``."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--quick", action="store_true", help="end within 60 s on 2 cores")
    parser.add_argument("--json", type=Path, help="write the rows, the device and the versions here")
    return parser.parse_args()


def publish(rows: Iterable[Row], json_file: Path | None = None) -> None:
    """Print the rows and the closing line; write them as JSON where asked.

    Give a generator that yields each row as it is measured: it is printed and written at once, so that whoever
    cuts a benchmark keeps what it has said. "complete" in the file is true after the last row only.
    """
    told: list[Row] = []
    print(f"{'claim':<52}{'ours':>10}{'peer':>10}{'ratio':>8}  goal", flush=True)
    for row in rows:
        told.append(row)
        mark = "holds" if row.holds else "FALLS SHORT"
        print(f"{row.claim:<52}{row.ours:>10.4g}{row.peer:>10.4g}{row.ratio:>8.3f}  {row.goal}: {mark}")
        print(f"{'':<4}in {row.unit}, peer: {row.peer_name}", flush=True)
        if json_file is not None:
            write_rows(json_file, [asdict(row) | {"ratio": row.ratio} for row in told], complete=False)
    held = sum(row.holds for row in told)
    print(f"claims: {held} hold, {len(told) - held} fall short")
    if json_file is not None:
        write_rows(json_file, [asdict(row) | {"ratio": row.ratio} for row in told], complete=True)


def write_rows(json_file: Path, rows: list[dict[str, Any]], *, complete: bool) -> None:
    """Write the rows with the device and the versions, in one step: a cut leaves the file as it was, or whole."""
    versions = {name: found for name in LIBRARIES if (found := _version(name))}
    replace_json(json_file, {"device": device(), "versions": versions, "complete": complete, "rows": rows})


def replace_json(json_file: Path, content: dict[str, Any]) -> None:
    """Write ``content`` beside the file, then put it in the file's place."""
    json_file.parent.mkdir(parents=True, exist_ok=True)
    beside = json_file.with_name(f".{json_file.name}.part")
    beside.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    os.replace(beside, json_file)


def device() -> str:
    """The GPU where torch sees one, else the machine's processor and core count."""
    import torch

    if torch.cuda.is_available():
        return torch.cuda.get_device_name()
    import psutil

    return f"{platform.machine()} CPU, {psutil.cpu_count()} cores, Python {platform.python_version()}"


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
