"""An environment with kvpress, ``.venv-kvpress``, which ``make bench-kvpress`` measures minikv's policies beside.

    python -m tools.kvpress [--python PYTHON]

It takes 2 GB, and is made once. It stands apart, since kvpress pins an older transformers. Where it cannot be made a
sentence says what it needs, before anything is downloaded.
"""

import argparse
import shutil
import subprocess
import sys

from tools.environments import ROOT, Environment
from tools.vllm import TORCH, unreachable

FOLDER = ROOT / ".venv-kvpress"
RELEASE = "0.5.5"
INSTALLS = [[TORCH], [f"kvpress=={RELEASE}", "transformers<5.3"]]
NEEDED_GIB = 3.0  # while it is made


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.kvpress", description=__doc__.splitlines()[0])
    parser.add_argument("--python", default=sys.executable, help="an interpreter: python3.12 or its path")
    environment = Environment(FOLDER, parser.parse_args(arguments).python)
    try:
        if environment.is_made(INSTALLS):
            return 0
        if (why := refusal()) is not None:
            print(why, file=sys.stderr)
            return 1
        print(f"Building {FOLDER.name} with kvpress {RELEASE}, this once: 2 GB on the disk.", flush=True)
        environment.make(INSTALLS)
    except (OSError, subprocess.CalledProcessError) as error:
        print(f"{FOLDER.name} could not be made: {error}", file=sys.stderr)
        return 1
    return 0


def refusal() -> str | None:
    """What it lacks here, as a sentence; None where it can be made."""
    free = shutil.disk_usage(FOLDER.parent).free / 2**30
    if free < NEEDED_GIB:
        return (
            f"{FOLDER.name} needs {NEEDED_GIB:.1f} GiB while it is made, "
            f"and the disk of {FOLDER.parent} has {free:.1f} GiB free."
        )
    return unreachable(f"kvpress {RELEASE}", INSTALLS)


if __name__ == "__main__":
    sys.exit(main())
