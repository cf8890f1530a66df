"""The lessons as a reader of Colab runs them: the wheel beside the versions that Colab has (``make test-colab``).

    python -m tools.colab [02 10 ...] [--lang en] [--kind lesson] [--torch 2.13.0] [--python PATH]

An environment gets what constraints-colab.txt names; the wheel is installed there, alone and as the setup cell does it.
It may replace nothing but plotly, since a runtime that has loaded a package keeps the old one; and the engine that the
setup cell asks for is there already, so ``pip install minikv`` alone is enough. Then nbval runs the committed
notebooks with that Python and compares their outputs, and a line says what became of each. The environment
(``.venv-colab``) is kept. Colab's torch is a build for CUDA, 5 GB with what it brings; ``--torch`` takes another.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

from tools.environments import ROOT, Environment
from tools.notebooks.course import KINDS, open_course
from tools.notebooks.source import SourceError

CONSTRAINTS = ROOT / "constraints-colab.txt"
COLAB_PYTHON = "3.13"
# Colab's 5.24 is older than what anywidget figures need; no lesson has loaded it by then
MAY_BE_REPLACED = {"plotly"}
CELL_SECONDS = 300


@dataclass
class Outcome:
    """What became of one notebook: the seconds of its cells, and a sentence for each cell that failed."""

    seconds: float = 0.0
    problems: list[str] = field(default_factory=list)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.colab", description=__doc__.splitlines()[0])
    parser.add_argument("lessons", nargs="*", help="as 02 or 02_how_many_bytes; all where none is named")
    parser.add_argument("--kind", action="append", choices=list(KINDS), help="lesson where none is named")
    parser.add_argument("--lang", action="append", choices=["en", "zh"], help="both where none is named")
    parser.add_argument("--torch", help="another release of torch, with the triton that it wants")
    parser.add_argument("--python", default=None, help=f"the interpreter; Colab has {COLAB_PYTHON}")
    parser.add_argument("--jobs", type=int, default=2, help="notebooks at a time")
    options = parser.parse_args(arguments)
    try:
        targets = open_course(ROOT).targets(tuple(options.lessons))
    except (SourceError, LookupError) as error:
        parser.error(error.args[0])
    kinds, languages = options.kind or ["lesson"], options.lang or ["en", "zh"]
    notebooks = [str(one.path) for one in targets if one.kind in kinds and one.lang in languages]
    if not notebooks:
        parser.error(f"no notebook of the kind {' or '.join(kinds)} belongs to these lessons")
    colab = Environment(ROOT / ".venv-colab", options.python or find_python())
    try:
        replaced = prepare(colab, options.torch)
    except subprocess.CalledProcessError as error:
        print(f"could not be prepared: {' '.join(map(str, error.cmd))}", file=sys.stderr)
        return 1
    may = MAY_BE_REPLACED | ({"triton"} if options.torch else set())  # a CPU build of torch wants none
    for name, (had, has) in sorted(replaced.items()):
        note = "" if name in may else "  FAILED: a Colab session keeps the old one until it restarts"
        print(f"the wheel replaced {name} {had} by {has}{note}")
    outcomes = run(colab, notebooks, options.jobs)
    print(table(outcomes))
    failed = any(outcome.problems for outcome in outcomes.values())
    return 1 if failed or replaced.keys() - may else 0


def find_python() -> str:
    """Colab's Python where this machine has one, else the one that runs this; a line says which."""
    found = shutil.which(f"python{COLAB_PYTHON}")
    works = found and subprocess.run([found, "-c", ""], check=False, capture_output=True).returncode == 0
    if found and works:
        return found
    print(f"no python{COLAB_PYTHON} here, which Colab has: {sys.version.split()[0]} instead", flush=True)
    return sys.executable


def prepare(colab: Environment, torch: str | None = None) -> dict[str, tuple[str, str]]:
    """Colab's versions and the wheel of this tree in ``colab``; what that replaced, {name: (old, new)}.

    And what its ``[engine]`` then brings in addition: on Colab nothing.
    """
    with tempfile.TemporaryDirectory(prefix="minikv-wheel-") as folder:
        build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder]
        subprocess.run([*build, str(ROOT)], check=True, stdout=subprocess.DEVNULL)
        wheel = str(next(Path(folder).glob("*.whl")))
        pins = colab_pins(CONSTRAINTS.read_text(encoding="utf-8"), torch)
        begin = time.perf_counter()
        if colab.make([["--only-binary=:all:", *pins]]):
            print(f"{colab.folder.name} made in {time.perf_counter() - begin:.0f} s", flush=True)
        before = pinned(pins)
        colab.install(wheel)
        # The same version may be there from an older tree
        colab.install("--no-deps", "--force-reinstall", wheel)
        alone = colab.versions()
        colab.install(f"{wheel}[engine]")
    replaced = {
        name: (had, alone[name])
        for name, had in before.items()
        if name in alone and alone[name].partition("+")[0] != had
    }
    for name, has in colab.versions().items():
        if has != alone.get(name):
            replaced[name] = (alone.get(name, "nothing"), has)
    return replaced


def colab_pins(text: str, torch: str | None = None) -> list[str]:
    """The lines of constraints-colab.txt that are no comments. Another ``torch`` chooses its own triton."""
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("#")]
    if torch is None:
        return lines
    kept = [line for line in lines if not re.match(r"(torch|triton)\b", line)]
    return [*kept, f"torch=={torch}"]


def pinned(pins: list[str]) -> dict[str, str]:
    """{"ipywidgets": "7.7.1", ...}, names as pip compares them."""
    parts = (pin.partition(";")[0].strip().partition("==") for pin in pins)
    return {name.lower().replace("_", "-"): version for name, _, version in parts}


def run(colab: Environment, notebooks: list[str], jobs: int) -> dict[str, Outcome]:
    """Run the notebooks with ``colab``'s Python under nbval; their outcomes, in the order given."""
    with tempfile.TemporaryDirectory(prefix="minikv-colab-") as folder:
        report = Path(folder, "report.xml")
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-p",
            "tools.notebooks.nbval_rules",
            "-p",
            "no:cacheprovider",
        ]
        command += ["--nbval", "--nbval-current-env", f"--nbval-cell-timeout={CELL_SECONDS}"]
        command += ["--nbval-kernel-startup-timeout=300", "--kernel-python", str(colab.python), "--color=no"]
        command += ["-n", str(min(jobs, len(notebooks))), "--dist", "loadfile", "-q", "--tb=short"]
        command += ["--junitxml", str(report), *notebooks]
        threads = {"OMP_NUM_THREADS": "1"} if jobs > 1 else {}
        subprocess.run(command, cwd=ROOT, env={**threads, **os.environ}, check=False)
        if not report.is_file():
            return {path: Outcome(problems=["nbval did not run"]) for path in notebooks}
        read = read_report(report.read_text(encoding="utf-8"))
    absent = "nbval has run none of its cells"
    return {path: read.get(path, Outcome(problems=[absent])) for path in notebooks}


def read_report(xml: str) -> dict[str, Outcome]:
    """nbval's JUnit report by notebook: {"notebooks/en/02_how_many_bytes.ipynb": Outcome(...)}."""
    outcomes: dict[str, Outcome] = defaultdict(Outcome)
    for case in ElementTree.fromstring(xml).iter("testcase"):
        outcome = outcomes[case.get("classname", "").removesuffix(".ipynb").replace(".", "/") + ".ipynb"]
        outcome.seconds += float(case.get("time", 0))
        for found in (*case.findall("failure"), *case.findall("error"), *case.findall("skipped")):
            outcome.problems.append(f"{case.get('name')}: {_reason(found)}")
    return dict(outcomes)


def table(outcomes: dict[str, Outcome]) -> str:
    """A line a notebook, under it the cells that failed."""
    lines = [""]
    for path, outcome in outcomes.items():
        lines.append(f"{'FAILED' if outcome.problems else 'ok':<7}{outcome.seconds:7.1f} s  {path}")
        lines += [f"{'':18}{problem}" for problem in outcome.problems]
    failed = sum(bool(outcome.problems) for outcome in outcomes.values())
    return "\n".join([*lines, f"{len(outcomes) - failed} passed, {failed} failed"])


def _reason(found: ElementTree.Element) -> str:
    """The line of nbval's report that says what happened; the details stand above, in pytest's own output."""
    text = " ".join([found.get("message") or "", found.text or ""])
    known = ["Cell outputs differ", "Cell execution caused an exception", "Timeout of", "timed out"]
    return next((words for words in known if words in text), text.strip().partition("\n")[0][:200])


if __name__ == "__main__":
    sys.exit(main())
