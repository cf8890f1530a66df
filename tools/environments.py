"""Python environments beside ``.venv``, for versions that are not the ones of constraints.txt.

A ``Peer`` is one with another project in it, which minikv is measured beside.
"""

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
READY = ".ready"  # in the environment's folder: the digest of what went into it
INDEX = "PIP_EXTRA_INDEX_URL"
TORCH = "torch==2.13.0+cpu"  # the Python package index does not have it
TORCH_INDEX = "https://download.pytorch.org/whl/cpu"
PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--retries", "1"]


@dataclass(frozen=True)
class Environment:
    """A virtual environment in ``folder``, made with the interpreter ``base``."""

    folder: Path
    base: str = sys.executable

    @property
    def python(self) -> Path:
        return self.folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")

    def make(self, installs: list[list[str]], unwanted: Sequence[str] = ()) -> bool:
        """Make it from nothing and run ``pip install`` with each list of arguments; False where it is there already.

        ``unwanted`` packages that came along are removed again.

        What a name without a version brings is the newest of the day on which it was made: remove the folder to have
        today's. Raises ``CalledProcessError`` where an installation fails; then the next call begins anew.
        """
        if self.is_made(installs, unwanted):
            return False
        ready = self.folder / READY
        ready.unlink(missing_ok=True)
        self._create()
        for arguments in installs:
            self.install(*arguments)
        if unwanted:
            self._uninstall(*unwanted)
        ready.write_text(self._digest([*installs, list(unwanted)]))
        return True

    def is_made(self, installs: list[list[str]], unwanted: Sequence[str] = ()) -> bool:
        """Whether ``make`` with the same arguments has nothing to do."""
        ready = self.folder / READY
        return ready.is_file() and ready.read_text() == self._digest([*installs, list(unwanted)])

    def install(self, *arguments: str) -> None:
        subprocess.run(
            [*self._pip, "install", "--quiet", *arguments], cwd=ROOT, env=self.variables(), check=True
        )

    def _uninstall(self, *packages: str) -> None:
        command = [*self._pip, "uninstall", "--quiet", "--yes", *packages]
        subprocess.run(command, env=self.variables(), check=True)

    def versions(self) -> dict[str, str]:
        """What is installed: {"torch": "2.11.0", ...}, names as pip compares them."""
        command = [*self._pip, "list", "--format=json"]
        told = subprocess.run(
            command, env=self.variables(), check=True, capture_output=True, text=True
        ).stdout
        return {package["name"].lower().replace("_", "-"): package["version"] for package in json.loads(told)}

    def python_version(self) -> str:
        """As ``python --version`` says it."""
        told = subprocess.run([self.python, "--version"], check=True, capture_output=True, text=True)
        return told.stdout.strip()

    @staticmethod
    def variables() -> dict[str, str]:
        """This process's own, without what would lead that Python to our packages or to this checkout."""
        ours = ("PYTHONPATH", "VIRTUAL_ENV", "PYTHONHOME")
        return {name: value for name, value in os.environ.items() if name not in ours}

    @property
    def _pip(self) -> list[str]:
        return [str(self.python), "-m", "pip", "--disable-pip-version-check"]

    def _create(self) -> None:
        subprocess.run([self.base, "-m", "venv", "--clear", self.folder], check=True)

    def _digest(self, installs: list[list[str]]) -> str:
        """Of the interpreter, the arguments, and the content of the files that they name."""
        told = [subprocess.run([self.base, "-VV"], check=True, capture_output=True, text=True).stdout]
        for argument in (argument for arguments in installs for argument in arguments):
            path = ROOT / argument
            told.append(path.read_text(encoding="utf-8") if path.is_file() else argument)
        return hashlib.sha256("\0".join(told).encode()).hexdigest()


@dataclass(frozen=True)
class Peer:
    """``name``, a release of another project: the ``installs`` that make its environment, without ``unwanted`` ones.

    ``size``: in words, what it takes. ``needed_gib`` of the disk are free before anything is downloaded, and pip finds
    all of it. ``lacks`` says as a sentence what else an environment of it lacks here, None: nothing.
    """

    module: str
    name: str
    folder: Path
    installs: list[list[str]]
    size: str
    needed_gib: float
    unwanted: Sequence[str] = ()
    lacks: Callable[[Environment], str | None] = lambda environment: None

    def main(self, arguments: list[str] | None, summary: str) -> int:
        """Make it once, as ``python -m`` its module with the line of help ``summary``; 1 where it cannot be made."""
        parser = argparse.ArgumentParser(prog=f"python -m {self.module}", description=summary)
        parser.add_argument("--python", default=sys.executable, help="an interpreter: python3.12 or its path")
        environment = Environment(self.folder, parser.parse_args(arguments).python)
        try:
            if environment.is_made(self.installs, self.unwanted):
                return 0
            if (why := self.lacks(environment) or self.no_room() or self.unreachable()) is not None:
                print(why, file=sys.stderr)
                return 1
            print(f"Building {self.folder.name} with {self.name}, this once: {self.size}.", flush=True)
            begin = time.perf_counter()
            environment.make(self.installs, self.unwanted)
        except (OSError, subprocess.CalledProcessError) as error:
            print(f"{self.folder.name} could not be made: {error}", file=sys.stderr)
            return 1
        print(f"{self.folder.name} made in {time.perf_counter() - begin:.0f} s", flush=True)
        return 0

    def no_room(self) -> str | None:
        """The room that the disk lacks, as a sentence."""
        free = shutil.disk_usage(self.folder.parent).free / 2**30
        if free >= self.needed_gib:
            return None
        return (
            f"{self.folder.name} needs {self.needed_gib:.1f} GiB while it is made, "
            f"and the disk of {self.folder.parent} has {free:.1f} GiB free."
        )

    def unreachable(self) -> str | None:
        """Why pip lacks it or torch; None where it finds both, then with the index of torch's builds if need be."""
        names = [name for install in self.installs for name in install]
        command = [*PIP, "install", "--dry-run", "--quiet", "--no-deps", "--ignore-installed", *names]
        variables = Environment.variables()
        for index in ({}, {INDEX: " ".join(filter(None, [variables.get(INDEX), TORCH_INDEX]))}):
            found = subprocess.run(
                command, env=variables | index, check=False, capture_output=True, text=True
            )
            if found.returncode == 0:
                os.environ |= index
                return None
        last = found.stderr.strip().splitlines()[-1:]
        return (
            f"{self.name} needs the Python package index and {TORCH_INDEX} (or wheels of both that pip finds), "
            f"and pip says: {' '.join(last)}"
        )
