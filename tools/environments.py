"""Python environments beside ``.venv``, for versions that are not the ones of constraints.txt."""

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
READY = ".ready"  # in the environment's folder: the digest of what went into it


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
