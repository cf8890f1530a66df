"""A C source, compiled by the C compiler of this machine when it is first needed, as Triton compiles for a GPU.

The library is kept in the user's cache folder, under a name that stands for the source, the constants, the compiler and
the processor, so that it is compiled once. It shares the threads of torch: OpenMP's symbols are those of the library
that torch has loaded, so no second pool of threads waits beside the first.
"""

import ctypes
import hashlib
import os
import shutil
import stat
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

# No -ffast-math: linked into a library, it changes how the whole process rounds.
FLAGS = ("-O3", "-march=native", "-fPIC", "-fopenmp", "-fno-math-errno", "-fno-trapping-math")
SECONDS = 60
OTHERS = stat.S_IWGRP | stat.S_IWOTH  # a folder with these can be written to by other users


def load(source: Path, **constants: int) -> ctypes.CDLL | None:
    """Return the library of ``source`` with ``constants`` as macros; None where it cannot be had.

    That is so without a C compiler (``CC``, or ``cc``), on other systems than Linux, and where torch has no OpenMP.
    """
    compiler = find_compiler()
    if compiler is None:
        return None
    command = [compiler, *FLAGS, *(f"-D{name}={value}" for name, value in constants.items())]
    try:
        names = "\0".join([*command, _processor(), source.read_text("utf-8")])
        folder = _folder()
        with tempfile.TemporaryDirectory(prefix="minikv.", dir=folder) as scratch:
            kept = (
                folder or Path(scratch)
            ) / f"{source.stem}-{hashlib.sha256(names.encode()).hexdigest()[:24]}.so"
            if not kept.is_file():
                part = f"{scratch}/{source.stem}"
                # Linked without -fopenmp, which would load another OpenMP than torch's.
                for step in (
                    [*command, "-c", str(source), "-o", f"{part}.o"],
                    [compiler, "-shared", f"{part}.o", "-lm", "-o", f"{part}.so"],
                ):
                    subprocess.run(step, check=True, capture_output=True, timeout=SECONDS)
                os.replace(f"{part}.so", kept)
            return ctypes.CDLL(str(kept))
    except (OSError, subprocess.SubprocessError):
        return None


@cache
def find_compiler() -> str | None:
    """Return the path of the C compiler, or None."""
    return shutil.which(os.environ.get("CC") or "cc") if sys.platform == "linux" else None


def _processor() -> str:
    """What ``-march=native`` depends on: machines with other processors may share a home folder."""
    names = "model name", "flags", "Features", "CPU part"
    lines = Path("/proc/cpuinfo").read_text("utf-8", "replace").splitlines()
    return "\n".join(sorted({line for line in lines if line.startswith(names)}))


def _folder() -> Path | None:
    """Return the folder of the compiled libraries, which this user alone can write to; None where there is none."""
    try:
        folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "minikv" / "kernels"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = folder.stat()
    except (OSError, RuntimeError):  # no home, or it is read-only
        return None
    is_ours = found.st_uid == os.getuid() and not found.st_mode & OTHERS
    return folder if is_ours and os.access(folder, os.W_OK) else None
