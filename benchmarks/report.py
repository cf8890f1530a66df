"""What every benchmark prints and writes: rows of claim, ours, peer, ratio, goal, holds."""

import argparse
import json
import os
import platform
import traceback
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

LIBRARIES = ("minikv", "torch", "transformers", "triton", "jupyterlab", "anywidget")
# Set by tools.gpu: the digest of what the figures rest on. A file of the same digest that was cut is gone on with.
SOURCES = "MINIKV_GPU_SOURCES"


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


@dataclass(frozen=True)
class Step:
    """Rows that are measured together, of ``publish``: left out where a run that was cut has kept them."""

    name: str
    rows: Callable[[], Iterable[Row]]


def arguments(description: str) -> argparse.Namespace:
    """The two options that every benchmark has: ``--quick`` and ``--json FILE``."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--quick", action="store_true", help="end within 60 s on 2 cores")
    parser.add_argument("--json", type=Path, help="write the rows, the device and the versions here")
    return parser.parse_args()


def publish(
    rows: Iterable[Row | Step],
    json_file: Path | None = None,
    *,
    on: str = "cpu",
    versions: Mapping[str, str] = {},
    left_out: Collection[str] = (),
) -> None:
    """Print the rows and the closing line; write them as JSON where asked. ``on``: "cpu" or "cuda", where they ran.

    ``versions``: of peers that another environment has.

    Give a generator that yields each row as it is measured: it is printed and written at once, so that a run that is
    cut keeps what it has said. "complete" in the file is true after the last row only. A ``Step`` that fails is told
    with its traceback, and the next one begins; the end is then ``SystemExit``, and the file stays incomplete.
    ``left_out`` names the steps that this run does not measure: the file keeps their rows if device and versions are
    the same, and is incomplete without them.
    """
    before = {} if json_file is None else kept(json_file)
    ended = list(before.get("ended", []))
    if json_file is not None and left_out:
        before = of_this_machine(json_file, on, _versions(versions))
        ended = [name for name in before.get("ended", []) if name in left_out]
        versions = {**before.get("versions", {}), **versions}  # of peers that the kept rows had
    told = [row for row in before.get("rows", []) if row.get("step") in ended]
    failed: list[str] = []

    def write(complete: bool = False) -> None:
        if json_file is not None:
            write_rows(json_file, told, complete=complete, on=on, others=versions, ended=ended)

    def tell(row: Row, **of: str) -> None:
        told.append(asdict(row) | {"ratio": row.ratio} | of)
        mark = "holds" if row.holds else "FALLS SHORT"
        print(f"{row.claim:<52}{row.ours:>10.4g}{row.peer:>10.4g}{row.ratio:>8.3f}  {row.goal}: {mark}")
        print(f"{'':<4}in {row.unit}, peer: {row.peer_name}", flush=True)
        write()

    print(f"{'claim':<52}{'ours':>10}{'peer':>10}{'ratio':>8}  goal", flush=True)
    for entry in rows:
        if isinstance(entry, Row):
            tell(entry)
        elif entry.name in ended:
            print(f"{entry.name}: measured before, kept", flush=True)
        else:
            try:
                for row in entry.rows():
                    tell(row, step=entry.name)
            except Exception as error:
                traceback.print_exc()
                failed.append(f"{entry.name} ({error})")
            else:
                ended.append(entry.name)
                write()
    held = sum(row["holds"] for row in told)
    print(f"claims: {held} hold, {len(told) - held} fall short", flush=True)
    write(complete=not failed and set(left_out) <= set(ended))
    if failed:
        raise SystemExit(f"could not be measured: {'; '.join(failed)}")


def kept(json_file: Path) -> dict[str, Any]:
    """What a run that was cut has left in the file; {} where this run is not one of tools.gpu, or begins anew."""
    try:
        told = json.loads(json_file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    goes_on = told.get("complete") is False and told.get("sources") == os.environ.get(SOURCES, "")
    return told if goes_on else {}


def of_this_machine(json_file: Path, on: str, versions: Mapping[str, str]) -> dict[str, Any]:
    """The content of the file if its figures come from this device and from these versions, else {}."""
    try:
        told = json.loads(json_file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    then = told.get("versions", {})
    same = all(then[name] == versions[name] for name in then.keys() & versions.keys())
    return told if same and told.get("device") == device(on) else {}


def write_rows(
    json_file: Path,
    rows: list[dict[str, Any]],
    *,
    complete: bool,
    on: str = "cuda",
    others: Mapping[str, str] = {},
    **more: Any,
) -> None:
    """Write the rows with the device and the versions, ``others`` beside ours, in one step.

    A cut leaves the file as it was, or whole.
    """
    if SOURCES in os.environ:
        more["sources"] = os.environ[SOURCES]
    content = {
        "device": device(on),
        "versions": _versions(others),
        **more,
        "complete": complete,
        "rows": rows,
    }
    replace_json(json_file, content)


def replace_json(json_file: Path, content: dict[str, Any]) -> None:
    """Write ``content`` beside the file, then put it in the file's place."""
    json_file.parent.mkdir(parents=True, exist_ok=True)
    beside = json_file.with_name(f".{json_file.name}.part")
    beside.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    os.replace(beside, json_file)


def device(on: str = "cuda") -> str:
    """For "cuda" the GPU where torch sees one; else the machine's processor, core count and Python."""
    import torch

    if on == "cuda" and torch.cuda.is_available():
        return torch.cuda.get_device_name()
    import psutil

    cores, python = f"{psutil.cpu_count()} cores", f"Python {platform.python_version()}"
    return f"{platform.machine()} CPU, {processor()}, {cores}, {python}"


def processor() -> str:
    """The processor's name, on Linux with family and model: clouds sell several under one name."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or "unknown"
    found = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    if "model name" not in found:
        return platform.processor() or "unknown"
    return f"{found['model name']} (family {found.get('cpu family')}, model {found.get('model')})"


def _versions(others: Mapping[str, str]) -> dict[str, str]:
    return {name: found for name in LIBRARIES if (found := _version(name))} | dict(others)


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
