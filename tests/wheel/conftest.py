"""The wheel as a stranger gets it: built, and installed in clean environments.

Each environment has a file of its own: they are made side by side.
"""

import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent


def clean() -> dict[str, str]:
    """This process's environment, without what would lead to this checkout.

    What is imported twice is compiled once, also where this process compiles nothing.
    """
    ours = ("PYTHONPATH", "VIRTUAL_ENV", "PYTHONDONTWRITEBYTECODE")
    return {name: value for name, value in os.environ.items() if name not in ours}


def run(*command: str | Path, cwd: Path, **environment: str) -> str:
    done = subprocess.run(
        list(map(str, command)), cwd=cwd, env=clean() | environment, capture_output=True, text=True
    )
    assert done.returncode == 0, f"{command}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout


@pytest.fixture(scope="session")
def wheel(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("dist")
    # The build tools are those of this environment: no second download.
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", out, ROOT, cwd=out)
    return next(out.glob("minikv-*.whl"))


def install(folder: Path, *packages: str) -> Path:
    """A new environment in ``folder`` with these packages and nothing of this checkout; its Python."""
    venv.create(folder, with_pip=False)  # ours installs into it
    python = folder / ("Scripts" if os.name == "nt" else "bin") / "python"
    pip = [sys.executable, "-m", "pip", "--python", python, "--disable-pip-version-check"]
    run(*pip, "install", "--quiet", "-c", ROOT / "constraints.txt", *packages, cwd=folder)
    return python
