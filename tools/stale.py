"""What goes stale although nothing here changes: a list with the check of each thing and the day it last ran.

    python -m tools.stale [--network] [--list] [NAME ...]      make stale

Runs the checks that need nothing, with ``--network`` also those that need one. The day of each that passes goes into
``stale.toml``. What a person compares is only listed; ``--compared NAME ...`` writes today's day for it.
"""

import argparse
import datetime
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tools.project import ROOT

LIST = Path(__file__).with_suffix(".toml")
NEEDS = ("nothing", "network", "person")


@dataclass(frozen=True)
class Check:
    """One thing that goes stale; ``stale.toml`` says what the fields are."""

    name: str
    what: str
    files: Sequence[str]
    check: str
    needs: str
    days: int
    ran: datetime.date | None = None

    @property
    def commands(self) -> list[list[str]]:
        """The check's commands, as words; none where a person compares."""
        return [] if self.needs == "person" else [shlex.split(part) for part in self.check.split("&&")]

    def left(self, today: datetime.date) -> int | None:
        """The days until it is due; None: it never ran."""
        return None if self.ran is None else self.days - (today - self.ran).days


def read_checks(path: Path = LIST) -> list[Check]:
    """Read the list."""
    table = tomllib.loads(path.read_text(encoding="utf-8"))
    return [Check(name, **fields) for name, fields in table.items()]


def write_day(name: str, today: datetime.date, path: Path = LIST) -> None:
    """Write that the check has run today."""
    head, mark, rest = path.read_text(encoding="utf-8").partition(f"[{name}]\n")
    entry, blank, later = rest.partition("\n\n")
    kept = re.sub(r"\nran = .*", "", entry.rstrip("\n"))
    path.write_text(f"{head}{mark}{kept}\nran = {today}\n{blank[1:]}{later}", encoding="utf-8")


def run(check: Check) -> bool:
    """Whether every command of the check passes; they print what they print."""
    for words in check.commands:
        command = [sys.executable, *words[1:]] if words[0] == "python" else words
        try:
            done = subprocess.run(command, cwd=ROOT, check=False)
        except OSError as error:
            print(f"{words[0]}: {error.strerror}", flush=True)
            return False
        if done.returncode:
            return False
    return True


def line(check: Check, today: datetime.date) -> str:
    """The check in one line of the list."""
    left = check.left(today)
    when = "-" if left is None else f"{check.ran}"
    due = "due" if left is None or left <= 0 else f"{left} days"
    return f"{check.name:<14}{when:<12}{due:<10}{check.needs:<9}{check.what}"


def main(
    arguments: Sequence[str] | None = None, path: Path = LIST, runs: Callable[[Check], bool] = run
) -> int:
    """Return 0, or 1 where a check failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    checks = {check.name: check for check in read_checks(path)}
    parser.add_argument("names", nargs="*", choices=[[], *checks], metavar="NAME", help="these alone")
    parser.add_argument("--network", action="store_true", help="also what needs a network")
    parser.add_argument("--list", action="store_true", help="run nothing")
    parser.add_argument("--compared", action="store_true", help="a person has compared NAME ... today")
    chosen = parser.parse_args(arguments)
    today = datetime.date.today()
    failed = []
    for name in chosen.names or checks:
        check = checks[name]
        if chosen.compared and chosen.names and check.needs == "person":
            write_day(name, today, path)
        elif not chosen.list and check.needs in (NEEDS[: 1 + chosen.network]):
            print(f"{name}: {check.check}", flush=True)
            if runs(check):
                write_day(name, today, path)
            else:
                failed.append(name)
    for check in read_checks(path):
        print(line(check, today))
        if check.needs == "person" and (check.left(today) or 0) <= 0:
            print(f"{'':<14}{check.check}")
    if failed:
        print(f"failed: {', '.join(failed)}")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
