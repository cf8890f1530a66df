"""Pyodide, Python compiled for browsers: fetched once with npm, by version and hash (``npm/package-lock.json``)."""

import os
import shutil
import subprocess
from pathlib import Path

LOCKED = Path(__file__).with_name("npm")
FILES = ("pyodide.mjs", "pyodide.asm.mjs", "pyodide.asm.wasm", "python_stdlib.zip", "pyodide-lock.json")


def fetched(folder: Path) -> Path | None:
    """Return the folder of Pyodide's files, below ``folder``; None where npm is absent or cannot fetch it.

    npm compares the hash of what it has fetched with the lock file's. No script of a package is run.
    """
    package = folder / "node_modules" / "pyodide"
    lock = LOCKED / "package-lock.json"
    kept = folder / lock.name
    if kept.is_file() and kept.read_bytes() == lock.read_bytes() and _complete(package):
        return package
    npm = shutil.which("npm")
    if npm is None:
        return None
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(LOCKED / "package.json", folder)
    shutil.copy(lock, folder)
    command = [npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"]
    variables = {name: value for name, value in os.environ.items() if not name.startswith("npm_")}
    done = subprocess.run(command, cwd=folder, env=variables, check=False)
    if done.returncode or not _complete(package):
        kept.unlink()
        return None
    return package


def megabytes(package: Path | None) -> int:
    """Return what a page loads of it, in MB; 0 where there is none."""
    return round(sum((package / name).stat().st_size for name in FILES) / 1e6) if package else 0


def copy_to(package: Path, folder: Path) -> None:
    """Copy what a page loads."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in FILES:
        shutil.copy(package / name, folder)


def _complete(package: Path) -> bool:
    return all((package / name).is_file() for name in FILES)
