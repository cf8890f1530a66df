"""The tests that lean on transformers, with another release of it (``make test-transformers-oldest``, ``-newest``).

    python -m tools.transformers_versions oldest | newest | 5.17.0 [pytest arguments]

``oldest`` is the release that pyproject.toml declares, ``newest`` what the index has today. Everything else is that of
constraints.txt, but for the packages whose versions transformers chooses. The environments (``.venv-transformers-*``)
are kept; ``newest`` looks each time whether there is a newer one.
"""

import argparse
import re
import subprocess
import sys
import tomllib

from packaging.requirements import Requirement
from packaging.version import InvalidVersion, Version

from tools.environments import ROOT, Environment

# Models of every kind against our caches, our figures and our eviction; the engine on top of them.
TESTS = ["tests/models", "tests/plan", "tests/eviction", "tests/cache", "tests/engine"]
CHOSEN_BY_TRANSFORMERS = {
    "transformers",
    "tokenizers",
    "huggingface-hub",
    "hf-xet",
    "safetensors",
    "regex",
    "typer",
}
CONSTRAINTS = "build/constraints-but-transformers.txt"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("release", help="oldest, newest, or a version")
    parser.add_argument("tests", nargs=argparse.REMAINDER, help=f"what pytest runs; else {' '.join(TESTS)}")
    options = parser.parse_args(arguments)
    try:
        wanted = requirement(options.release, declared())
    except InvalidVersion as error:
        parser.error(str(error))
    name = re.sub(r"[^\w.]", "_", options.release)
    environment = Environment(ROOT / f".venv-transformers-{name}")
    path = ROOT / CONSTRAINTS
    path.parent.mkdir(exist_ok=True)
    path.write_text(constraints_without((ROOT / "constraints.txt").read_text(encoding="utf-8")))
    try:
        environment.make([["-c", CONSTRAINTS, "-e", ".[dev]", wanted]])
        if options.release == "newest":
            environment.install("-c", CONSTRAINTS, "--upgrade", wanted)
    except subprocess.CalledProcessError as error:
        print(f"could not be installed: {' '.join(map(str, error.cmd))}", file=sys.stderr)
        return 1
    has = environment.versions()
    print(
        f"transformers {has['transformers']}, tokenizers {has['tokenizers']}, torch {has['torch']}",
        flush=True,
    )
    return run(environment, options.tests or [*TESTS, "-m", "not slow", "-n", "2"])


def declared() -> Requirement:
    """What pyproject.toml says of transformers."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return next(one for one in map(Requirement, project["dependencies"]) if one.name == "transformers")


def requirement(release: str, declared: Requirement) -> str:
    """What pip is asked for. Raises ``InvalidVersion`` for a release that is none."""
    if release == "newest":
        return str(declared)
    if release == "oldest":
        release = next(part.version for part in declared.specifier if part.operator == ">=")
    return f"transformers=={Version(release)}"


def constraints_without(text: str) -> str:
    """constraints.txt without the packages that a release of transformers chooses for itself."""
    kept = []
    for line in text.splitlines():
        name = line.partition("==")[0].lower().replace("_", "-")
        if name not in CHOSEN_BY_TRANSFORMERS:
            kept.append(line)
    return "\n".join(kept) + "\n"


def run(environment: Environment, tests: list[str]) -> int:
    """pytest in this tree with that Python, as tools/run_tests.py starts it."""
    variables = {"OMP_NUM_THREADS": "1", **environment.variables()}
    variables |= {"HF_HUB_OFFLINE": "1", "PYTHONHASHSEED": "0", "MINIKV_PROGRESS": "off"}
    command = [str(environment.python), "-m", "pytest", "-p", "no:cacheprovider", *tests]
    return subprocess.run(command, cwd=ROOT, env=variables, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
