"""``python -m tools.notebooks build [names] | check | count [names] | hash FILE [--write]`` (see docs/lessons.md)."""

import argparse
import sys
import time
from pathlib import Path

from tools.notebooks.source import SourceError

ROOT = Path(__file__).resolve().parents[2]


def main(arguments: list[str] | None = None) -> int:
    """0 where all is well, 1 where there is a problem, each on its own line."""
    parser = argparse.ArgumentParser(prog="python -m tools.notebooks", description=__doc__)
    parser.add_argument("--root", type=Path, default=ROOT, help=argparse.SUPPRESS)
    commands = parser.add_subparsers(dest="command", required=True)
    building = commands.add_parser("build", help="generate and run what is stale")
    building.add_argument(
        "names", nargs="*", help="lessons, as 02 or 02_how_many_bytes; all where none is named"
    )
    building.add_argument("--all", action="store_true", help="run everything, also what is up to date")
    building.add_argument("--jobs", type=int, default=2, help="notebooks at a time (default 2)")
    commands.add_parser("check", help="fail on anything stale, untranslated or forbidden; runs nothing")
    counting = commands.add_parser(
        "count", help="words before the first picture, visuals and labels by lesson"
    )
    counting.add_argument("names", nargs="*", help="lessons; all where none is named")
    hashing = commands.add_parser("hash", help="show the zh cells whose en sibling changed")
    hashing.add_argument("file", type=Path)
    hashing.add_argument("--write", action="store_true", help="accept them, once you have compared the two")
    options = parser.parse_args(arguments)
    command = {"build": _build, "check": _check, "count": _count, "hash": _hash}[options.command]
    try:
        return command(options)
    except (SourceError, LookupError) as error:
        print(error.args[0], file=sys.stderr)
        return 1


def _build(options: argparse.Namespace) -> int:
    from tools.notebooks.build import build
    from tools.notebooks.course import open_course

    course = open_course(options.root)
    begin = time.perf_counter()
    report = build(course, course.targets(tuple(options.names)), force=options.all, jobs=options.jobs)
    for path in report.written:
        print(f"written   {path}")
    for problem in report.problems:
        print(problem, file=sys.stderr)
    lessons = [seconds for path, seconds in report.seconds.items() if path.parts[0] == "notebooks"]
    mean = f", a lesson {sum(lessons) / len(lessons):.1f} s on average" if lessons else ""
    seconds = time.perf_counter() - begin
    print(f"{len(report.seconds)} ran in {seconds:.1f} s{mean}; {len(report.written)} written")
    return 1 if report.problems else 0


def _check(options: argparse.Namespace) -> int:
    from tools.notebooks.check import check

    problems = check(options.root)
    for problem in problems:
        print(problem, file=sys.stderr)
    print(f"{len(problems)} problem{'' if len(problems) == 1 else 's'}")
    return 1 if problems else 0


def _count(options: argparse.Namespace) -> int:
    from tools.notebooks.counts import HEAD, count
    from tools.notebooks.course import open_course

    course = open_course(options.root)
    targets = [target for target in course.targets(tuple(options.names)) if target.kind == "lesson"]
    print(f"{'lesson':<8}{HEAD}")
    for target in sorted(targets, key=lambda target: target.lang):
        print(f"{target.lang} {target.stem.split('_')[0]:<5}{count(course, target).row()}")
    return 0


def _hash(options: argparse.Namespace) -> int:
    from tools.notebooks.hashes import stale_hashes, write_hashes

    rows = stale_hashes(options.file)
    for line, key, written, expected in rows:
        print(f'{options.file}:{line} {key}: src="{written}" should be "{expected}"')
    if options.write:
        print(f"{write_hashes(options.file)} written")
    return 1 if rows and not options.write else 0


if __name__ == "__main__":
    sys.exit(main())
