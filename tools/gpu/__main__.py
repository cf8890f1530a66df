"""Run what needs a GPU, in parts of under 9 minutes, and keep the figures.

    python -m tools.gpu --list                 every part, and whether its figures are missing, stale or there
    python -m tools.gpu                        a first look, then what is missing or stale, most valuable first
    python -m tools.gpu --smoke                the first look alone: a minute
    python -m tools.gpu --part 3 kernels 5-7   these parts, by number, name or what a name begins with
    python -m tools.gpu --csan                 the tests of engine and cache under torch's sanitizer of streams
    python -m tools.gpu --minutes 9            stop before a part that would not end within them
    python -m tools.gpu --out DIR              figures go to DIR instead of benchmarks/results
    python -m tools.gpu --archive FILE         after every part all figures of the folder as one tar
    python -m tools.gpu --merge DIR            take figures that a machine has written to its DIR, or such a tar

Exit code: 0 where all is well, 1 where a test failed or a part did not end, 2 where this machine will not do.
"""

import argparse
import math
import signal
import sys
import tarfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from tools.gpu.machine import Machine, find_machine
from tools.gpu.parts import RESULTS, Part, all_parts
from tools.gpu.results import archive, merge, why_to_run
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
    options = _parse(arguments)
    results = root / RESULTS
    if options.merge is not None:
        return _merge(options.merge, results)
    parts = all_parts(root)
    folders = [results] if options.out is None else [options.out, results]
    asked = [
        *(options.part or ()),
        *(["smoke"] if options.smoke else ()),
        *(["csan"] if options.csan else ()),
    ]
    try:
        chosen = choose(parts, asked) if asked else parts
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
    print(machine, flush=True)
    if not asked:
        chosen = [part for part in parts if reason(part, root, folders, machine)]
    outcomes = []
    for part, left_s in _in_time(chosen, options.minutes):
        print(f"== {parts.index(part) + 1} {part.name}", flush=True)
        outcomes.append(run_part(part, root, folders[0], min(limit_s, left_s), machine))
        print(_line(outcomes[-1]), flush=True)
        if options.archive is not None:
            archive(folders[0], options.archive)
        if part.kind == "smoke" and outcomes[-1].state != "done":
            print("the first look says that something is broken: the rest would cost time and say no more")
            break
    print("\nparts:", *map(_line, outcomes), sep="\n")
    left = [part.name for part in chosen[len(outcomes) :]]
    if left:
        print(f"left: {', '.join(left)}")
    return 1 if any(outcome.state in ("failed", "cut") for outcome in outcomes) else 0


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tools.gpu", description="What needs a GPU, in parts.")
    parser.add_argument("--list", action="store_true", help="say what there is to run, and why; runs nothing")
    what = "these alone: numbers, ranges (2-4), names, or what names begin with"
    parser.add_argument("--part", nargs="+", metavar="N", help=what)
    what = "the first look, of a minute; where it fails nothing else runs"
    parser.add_argument("--smoke", action="store_true", help=what)
    what = "tests of engine and cache under torch's sanitizer of streams"
    parser.add_argument("--csan", action="store_true", help=what)
    what = "stop before a part that would not end within them"
    parser.add_argument("--minutes", type=_minutes, default=math.inf, metavar="N", help=what)
    parser.add_argument("--out", type=Path, metavar="DIR", help=f"write figures here instead of {RESULTS}")
    what = "after every part, put all figures of the folder into this tar"
    parser.add_argument("--archive", type=Path, metavar="FILE", help=what)
    what = f"take the figures in a folder or a tar into {RESULTS}"
    parser.add_argument("--merge", type=Path, metavar="DIR", help=what)
    return parser.parse_args(arguments)


def _minutes(text: str) -> float:
    found = float(text)
    if not found > 0:
        raise ValueError
    return found


def _in_time(parts: list[Part], minutes: float) -> Iterator[tuple[Part, float]]:
    """Each part with the seconds that are left, up to the first that is expected to need more."""
    end = time.monotonic() + 60 * minutes
    for part in parts:
        left = end - time.monotonic()
        if part.expected_s > left:
            return
        yield part, left


def choose(parts: list[Part], asked: Sequence[str]) -> list[Part]:
    """The parts of these names ("kernels": every "kernels-..."), numbers and ranges, in the order of the list.

    Raises ``LookupError``.
    """
    places: set[int] = set()
    for word in asked:
        first, dash, last = word.partition("-")
        named = [
            place for place, part in enumerate(parts) if part.name == word or part.name.startswith(f"{word}-")
        ]
        if named:
            places.update(named)
        elif first.isdecimal() and (last.isdecimal() if dash else True):
            wanted = range(int(first), int(last or first) + 1)
            if not wanted or wanted[0] < 1 or wanted[-1] > len(parts):
                raise LookupError(word)
            places.update(number - 1 for number in wanted)
        else:
            raise LookupError(word)
    return [parts[place] for place in sorted(places)]


def reason(part: Part, root: Path, folders: list[Path], machine: Machine | None) -> str:
    """Why the part is to run, "" where its figures hold in one of the folders."""
    if part.kind in ("tests", "smoke"):
        return "runs every time"
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
    print(machine)


def _line(outcome: Outcome) -> str:
    note = f"  {outcome.note}" if outcome.note else ""
    return f"{outcome.state:<8}{outcome.seconds:>7.1f} s  {outcome.name}{note}"


def _merge(source: Path, target: Path) -> int:
    try:
        lines = merge(source, target)
    except (OSError, tarfile.TarError) as error:
        print(f"{source} is neither a folder nor an archive of figures: {error}", file=sys.stderr)
        return 2
    print(*lines or [f"{source} holds no figures"], sep="\n")
    return 0 if lines else 1


if __name__ == "__main__":
    # A part is a process group of its own: when we are told to end, it must end with us.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    sys.exit(main())
