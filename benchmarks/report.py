"""What every benchmark prints and writes: rows of claim, ours, peer, ratio, goal, holds."""

import argparse
import json
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

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


def publish(rows: Sequence[Row], json_file: Path | None = None) -> None:
    """Print the rows and the closing line; write them as JSON where asked."""
    print(f"{'claim':<52}{'ours':>10}{'peer':>10}{'ratio':>8}  goal")
    for row in rows:
        mark = "holds" if row.holds else "FALLS SHORT"
        print(f"{row.claim:<52}{row.ours:>10.4g}{row.peer:>10.4g}{row.ratio:>8.3f}  {row.goal}: {mark}")
        print(f"{'':<4}in {row.unit}, peer: {row.peer_name}")
    held = sum(row.holds for row in rows)
    print(f"claims: {held} hold, {len(rows) - held} fall short")
    if json_file is not None:
        told = {
            "device": device(),
            "versions": {name: found for name in LIBRARIES if (found := _version(name))},
            "rows": [asdict(row) | {"ratio": row.ratio} for row in rows],
        }
        json_file.parent.mkdir(parents=True, exist_ok=True)
        json_file.write_text(json.dumps(told, indent=1) + "\n")


def device() -> str:
    """The GPU where torch sees one, else the machine's processor and core count."""
    import psutil
    import torch

    if torch.cuda.is_available():
        return torch.cuda.get_device_name()
    return f"{platform.machine()} CPU, {psutil.cpu_count()} cores, Python {platform.python_version()}"


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
