"""Tests with another Python, torch, Triton or transformers than ``.venv`` has (``make test-python`` and others).

    python -m tools.versions [--core] [--python PYTHON] [--torch R] [--triton R] [--transformers R]
        [pytest arguments]

A release ``R`` is "oldest", which pyproject.toml declares, "newest", which the index has today, or a version. All else
is that of constraints.txt, but for what torch or transformers choose themselves. ``--core`` installs what
``pip install minikv`` does, and runs what needs no torch. The environments (``.venv-*``) are kept; "newest" looks each
time whether there is a newer one.
"""

import argparse
import re
import subprocess
import sys
import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.version import InvalidVersion, Version

from tools.environments import ROOT, Environment

# Models of every kind against our caches, our figures and our eviction; the engine on top of them.
TESTS = ["tests/models", "tests/plan", "tests/eviction", "tests/cache", "tests/engine", "tests/simulate"]
# What a Python without torch can run: the planner, the block manager, the scheduler, the simulator, the allocator.
CORE_TESTS = [
    "tests/blocks",
    "tests/simulate",
    "--ignore=tests/simulate/test_same_decisions.py",  # it asks an LLM
    "--ignore=tests/simulate/test_cluster.py",  # it needs distributed
    *(f"tests/engine/test_{name}.py" for name in ("events", "prompt_lookup", "sampling_params", "scheduler")),
    *(f"tests/memory/allocator/test_{name}.py" for name in ("caching_allocator", "settings", "trace")),
    *(f"tests/plan/test_{name}.py" for name in ("catalog", "measured", "moments", "preemption", "roofline")),
    "tests/plan/logs/test_log.py",
]
# What a release of it chooses for itself.
CHOSEN_BY = {
    "transformers": {
        "transformers",
        "tokenizers",
        "huggingface-hub",
        "hf-xet",
        "safetensors",
        "regex",
        "typer",
    },
    "torch": {"torch", "triton"},
    "triton": {"triton"},
}
SHOWN = ("torch", "triton", "transformers", "tokenizers", "numpy")
CONSTRAINTS = "build/constraints-{}.txt"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.versions", description=__doc__.splitlines()[0])
    parser.add_argument("--core", action="store_true", help="without torch, as pip install minikv leaves it")
    parser.add_argument("--python", default=sys.executable, help="an interpreter: python3.13 or its path")
    for package in CHOSEN_BY:
        parser.add_argument(f"--{package}", metavar="R", help="oldest, newest, or a version")
    options, tests = parser.parse_known_args(arguments)
    releases = {name: release for name in CHOSEN_BY if (release := getattr(options, name)) is not None}
    if options.core and releases:
        parser.error(f"--core has no {' and no '.join(releases)}")
    try:
        wanted = [requirement(release, declared(name)) for name, release in releases.items()]
    except InvalidVersion as error:
        parser.error(str(error))
    name = name_of(options.core, options.python, releases)
    environment = Environment(ROOT / f".venv-{name}", options.python)
    constraints = CONSTRAINTS.format(name)
    path = ROOT / constraints
    path.parent.mkdir(exist_ok=True)
    path.write_text(
        constraints_without((ROOT / "constraints.txt").read_text(encoding="utf-8"), set(releases))
    )
    ours = ["-e", ".", "hypothesis", "pytest", "pytest-xdist"] if options.core else ["-e", ".[dev]"]
    try:
        environment.make([["-c", constraints, *ours, *wanted]])
        if "newest" in releases.values():
            environment.install("-c", constraints, "--upgrade", *wanted)
    except (OSError, subprocess.CalledProcessError) as error:
        print(f"could not be made: {error}", file=sys.stderr)
        return 1
    has = environment.versions()
    shown = [f"{name} {has.get(name, 'none')}" for name in SHOWN]
    print(f"{environment.python_version()}, {', '.join(shown)}", flush=True)
    return run(environment, tests or [*(CORE_TESTS if options.core else TESTS), "-m", "not slow", "-n", "2"])


def name_of(core: bool, python: str, releases: dict[str, str]) -> str:
    """What tells the environment from others: "core-python3.13", "transformers-oldest"."""
    parts = ["core"] * core + [f"{name}-{release}" for name, release in releases.items()]
    if python != sys.executable or not parts:
        parts.append(Path(python).name)
    return re.sub(r"[^\w.-]", "_", "-".join(parts))


def declared(name: str) -> Requirement:
    """What pyproject.toml says of a package of the engine."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return next(
        one for one in map(Requirement, project["optional-dependencies"]["engine"]) if one.name == name
    )


def requirement(release: str, declared: Requirement) -> str:
    """What pip is asked for. Raises ``InvalidVersion`` for a release that is none."""
    if release == "newest":
        return str(declared)
    if release == "oldest":
        release = next(part.version for part in declared.specifier if part.operator == ">=")
    return f"{declared.name}=={Version(release)}"


def constraints_without(text: str, packages: set[str]) -> str:
    """constraints.txt without what other releases of ``packages`` choose for themselves."""
    chosen = {name for package in packages for name in CHOSEN_BY[package]}
    lines = text.splitlines()
    kept = [line for line in lines if line.partition("==")[0].lower().replace("_", "-") not in chosen]
    return "\n".join(kept) + "\n"


def run(environment: Environment, tests: list[str]) -> int:
    """pytest in this tree with that Python, as tools/run_tests.py starts it."""
    variables = {"OMP_NUM_THREADS": "1", **environment.variables()}
    variables |= {"HF_HUB_OFFLINE": "1", "PYTHONHASHSEED": "0", "MINIKV_PROGRESS": "off"}
    command = [str(environment.python), "-m", "pytest", "-p", "no:cacheprovider", *tests]
    return subprocess.run(command, cwd=ROOT, env=variables, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
