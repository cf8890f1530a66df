"""Every benchmark in its short form, one behind the other: what this machine says to each claim, in under 15 minutes.

    python -m tools.bench [--only NAME ...]

The tables are printed; the rows go to ``benchmarks/results/quick/NAME.json``, never in the place of a long run.
"""

import argparse
import subprocess
import sys
import time
from pathlib import Path

from tools.gpu.parts import RESULTS, is_program

ROOT = Path(__file__).parent.parent
APART = {"vllm_cpu", "kvpress_peer"}  # need environments of their own: make bench-vllm, make bench-kvpress
LIMIT_S = 180  # a short form ends within 60 s on 2 cores; what takes three times as long is stuck


def names() -> list[str]:
    """The benchmarks that can be run in this environment."""
    programs = (path.stem for path in sorted((ROOT / "benchmarks").glob("*.py")) if is_program(path))
    return [name for name in programs if name not in APART]


def run(name: str) -> str:
    """Run one; what became of it, in a word or two."""
    command = [sys.executable, "-m", f"benchmarks.{name}", "--quick"]
    command += ["--json", str(ROOT / RESULTS / "quick" / f"{name}.json")]
    try:
        code = subprocess.run(command, cwd=ROOT, timeout=LIMIT_S, check=False).returncode
    except subprocess.TimeoutExpired:
        return f"cut after {LIMIT_S} s"
    return "done" if code == 0 else f"failed with exit code {code}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=names(), help="these alone")
    told = []
    for name in parser.parse_args().only or names():
        print(f"\n== {name}", flush=True)
        start = time.monotonic()
        outcome = run(name)
        told.append((name, outcome, time.monotonic() - start))
    print()
    for name, outcome, seconds in told:
        print(f"{name:<20}{seconds:6.0f} s  {outcome}")
    print(f"{'all':<20}{sum(seconds for _, _, seconds in told):6.0f} s")
    return int(any(outcome != "done" for _, outcome, _ in told))


if __name__ == "__main__":
    raise SystemExit(main())
