"""A C source, compiled by the C compiler of this machine when it is first needed, as Triton compiles for a GPU.

The library is kept in the user's cache folder, under a name that stands for the source with its headers, the constants,
the compiler and the processor, so that it is compiled once. It shares the threads of torch: OpenMP's symbols are those
of the library that torch has loaded, so no second pool of threads waits beside the first.
"""

import ctypes
import hashlib
import os
import platform
import shlex
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import cache, partial
from pathlib import Path
from typing import Any

# No -ffast-math: linked into a library, it changes how the whole process rounds.
FLAGS = ("-O3", "-march=native", "-fPIC", "-fopenmp", "-fno-math-errno", "-fno-trapping-math")
LINK = ("-shared", "-lm")  # without -fopenmp, which would load another OpenMP than torch's
SECONDS = 60
_NOTE: ContextVar[Callable[[Callable[[], Any]], None] | None] = ContextVar("note", default=None)


def load(source: Path, **constants: int) -> ctypes.CDLL | None:
    """Return the library of ``source`` with ``constants`` as macros; None where it cannot be had.

    That is so without a C compiler (``CC``, or ``cc``), on other systems than Linux, and where torch has no OpenMP.
    """
    compiler = find_compiler()
    if compiler is None:
        return None
    command = [*compiler, *FLAGS, *(f"-D{name}={value}" for name, value in constants.items())]
    try:
        folder = _folder()
        kept = None if folder is None else folder / f"{source.stem}-{_name(command, source)}.so"
        if kept is not None and _is_ours(kept):
            with suppress(OSError):  # cut, or of another C library: compiled anew
                return ctypes.CDLL(str(kept))
        with tempfile.TemporaryDirectory(prefix="minikv.", dir=folder) as scratch:
            part = f"{scratch}/{source.stem}"
            for step in (
                [*command, "-c", str(source), "-o", f"{part}.o"],
                [*compiler, f"{part}.o", *LINK, "-o", f"{part}.so"],
            ):
                subprocess.run(step, check=True, capture_output=True, timeout=SECONDS)
            library = ctypes.CDLL(f"{part}.so")  # only what can be loaded is kept
            if kept is not None:
                os.replace(f"{part}.so", kept)
            return library
    except (OSError, subprocess.SubprocessError):
        return None


def call(function: Any, *args: Any) -> Any:
    """Call a function of a library. ``args`` are numbers and addresses, which mean the same if it is called again."""
    note = _NOTE.get()
    if note is not None:
        note(partial(function, *args))
    return function(*args)


@contextmanager
def noting(note: Callable[[Callable[[], Any]], None]) -> Iterator[None]:
    """Tell ``note`` every call of the block, as a function that makes it again."""
    token = _NOTE.set(note)
    try:
        yield
    finally:
        _NOTE.reset(token)


@cache
def find_compiler() -> tuple[str, ...] | None:
    """Return the command of the C compiler, its path first, or None."""
    if sys.platform != "linux":
        return None
    with suppress(ValueError):  # a quotation mark that is not closed
        name, *options = shlex.split(os.environ.get("CC") or "") or ["cc"]
        found = shutil.which(name)
        return None if found is None else (found, *options)
    return None


def _name(command: list[str], source: Path) -> str:
    """Everything that the library depends on, as 24 hex digits. Machines that differ may share a home folder."""
    real = os.path.realpath(command[0])
    parts = [
        *command,
        *LINK,
        real,
        str(os.stat(real).st_mtime_ns),
        *platform.libc_ver(),
        *(each.read_text("utf-8") for each in (source, *sorted(source.parent.glob("*.h")))),
    ]
    of_processor = "model name", "flags", "Features", "CPU part"
    lines = Path("/proc/cpuinfo").read_text("utf-8", "replace").splitlines()
    parts += sorted({line for line in lines if line.startswith(of_processor)})
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:24]


def _folder() -> Path | None:
    """Return the folder of the compiled libraries, which this user alone can write to; None where there is none."""
    named = Path(os.environ.get("XDG_CACHE_HOME") or "")
    try:
        folder = named if named.is_absolute() else Path.home() / ".cache"
        for name in ("minikv", "kernels"):
            folder /= name
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not _is_ours(folder):
                return None
    except (OSError, RuntimeError):  # no home, or it is read-only
        return None
    return folder if os.access(folder, os.W_OK) else None


def _is_ours(path: Path) -> bool:
    """Whether ``path`` is there, is no link, and no other user can write to it: what it has is run."""
    try:
        found = os.lstat(path)
    except OSError:
        return False
    others = found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return found.st_uid == os.getuid() and not others and not stat.S_ISLNK(found.st_mode)
