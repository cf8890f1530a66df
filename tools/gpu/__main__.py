"""Run what needs a GPU, in parts of under 9 minutes, and keep the figures.

    python -m tools.gpu --list                 every part, and whether its figures are missing, stale or there
    python -m tools.gpu                        the tests, then what is missing or stale, cheapest first
    python -m tools.gpu --part 3 blocks 5-7    these parts, by number or name, whether stale or not
    python -m tools.gpu --out DIR              figures go to DIR instead of benchmarks/results
    python -m tools.gpu --merge DIR            take figures that a machine has written to its DIR

Exit code: 0 where all is well, 1 where a test failed or a part did not end, 2 where this machine will not do.
"""

import argparse
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from tools.gpu.machine import Machine, find_machine
from tools.gpu.parts import RESULTS, Part, all_parts
from tools.gpu.results import merge, why_to_run
from tools.gpu.run import LIMIT_S, Outcome, run_part
from tools.gpu.sources import digest

ROOT = Path(__file__).resolve().parents[2]


def main(
    arguments: Sequence[str] | None = None,
    *,
    root: Path = ROOT,
    find: Callable[[], Machine | str] = find_machine,
    limit_s: float = LIMIT_S,
) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.gpu", description="What needs a GPU, in parts.")
    parser.add_argument("--list", action="store_true", help="say what there is to run, and why; runs nothing")
    parser.add_argument("--part", nargs="+", metavar="N", help="these alone: numbers, ranges (2-4) or names")
    parser.add_argument("--out", type=Path, metavar="DIR", help=f"write figures here instead of {RESULTS}")
    parser.add_argument("--merge", type=Path, metavar="DIR", help=f"take the figures in DIR into {RESULTS}")
    options = parser.parse_args(arguments)
    results = root / RESULTS
    if options.merge is not None:
        return _merge(options.merge, results)
    parts = all_parts(root)
    folders = [results] if options.out is None else [options.out, results]
    try:
        chosen = choose(parts, options.part) if options.part else parts
    except LookupError as error:
        print(f"no part {error.args[0]}; parts are 1 to {len(parts)}, see --list", file=sys.stderr)
        return 2
    machine = find()
    if options.list:
        _list(parts, chosen, root, folders, machine)
        return 0
    if isinstance(machine, str):
        print(machine, file=sys.stderr)
        return 2
    print(f"{machine.device}, torch {machine.torch}", flush=True)
    if not options.part:
        chosen = [part for part in parts if reason(part, root, folders, machine)]
    outcomes = []
    for part in chosen:
        print(f"== {parts.index(part) + 1} {part.name}", flush=True)
        outcomes.append(run_part(part, root, folders[0], limit_s))
        print(_line(outcomes[-1]), flush=True)
    print("\nparts:", *map(_line, outcomes), sep="\n")
    return 1 if any(outcome.state in ("failed", "cut") for outcome in outcomes) else 0


def choose(parts: list[Part], asked: Sequence[str]) -> list[Part]:
    """The parts of these names, numbers and ranges, in the order of the list. Raises ``LookupError``."""
    names = {part.name: place for place, part in enumerate(parts)}
    places = set()
    for word in asked:
        first, dash, last = word.partition("-")
        if word in names:
            places.add(names[word])
        elif first.isdecimal() and (last.isdecimal() if dash else True):
            wanted = range(int(first), int(last or first) + 1)
            if not wanted or wanted[0] < 1 or wanted[-1] > len(parts):
                raise LookupError(word)
            places.update(number - 1 for number in wanted)
        else:
            raise LookupError(word)
    return [parts[place] for place in sorted(places)]


def reason(part: Part, root: Path, folders: list[Path], machine: Machine | None) -> str:
    """Why the part is to run, "" where its figures hold in one of the folders. Tests run every time."""
    if part.kind == "tests":
        return "tests run every time"
    sources = digest(root, part.files)
    found = [why_to_run(folder / part.result, sources, machine) for folder in folders]
    return "" if "" in found else found[0] if found[0] != "missing" else found[-1]


def _list(
    parts: list[Part], chosen: list[Part], root: Path, folders: list[Path], machine: Machine | str
) -> None:
    known = machine if isinstance(machine, Machine) else None
    for part in chosen:
        why = reason(part, root, folders, known) or "its figures hold"
        print(f"{parts.index(part) + 1:>3}  {part.name:<24} about {part.expected_s:>4} s  {why}")
    print(f"{machine.device}, torch {machine.torch}" if isinstance(machine, Machine) else machine)


def _line(outcome: Outcome) -> str:
    note = f"  {outcome.note}" if outcome.note else ""
    return f"{outcome.state:<8}{outcome.seconds:>7.1f} s  {outcome.name}{note}"


def _merge(source: Path, target: Path) -> int:
    if not source.is_dir():
        print(f"{source} is no folder", file=sys.stderr)
        return 2
    lines = merge(source, target)
    print(*lines or [f"{source} holds no figures"], sep="\n")
    return 0 if lines else 1


if __name__ == "__main__":
    # A part is a process group of its own: when we are told to end, it must end with us.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    sys.exit(main())
