"""How long a learner waits before anything happens: importing minikv, planning a config, against transformers.

    python -m benchmarks.startup [--quick] [--json FILE]

The peer of the import is torch's, which minikv avoids; the peer of the planner is what people do without it:
import transformers, build the config class, and compute by hand.
"""

import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.report import Row, arguments, publish
from minikv.plan import find_model

IMPORT_GOAL_S, PLAN_GOAL_S = 0.150, 1.0


def seconds(*command: str, repeat: int) -> float:
    """The median wall time of a command, after one run that warms the file cache."""
    times = []
    for _ in range(repeat + 1):
        start = time.perf_counter()
        subprocess.run([sys.executable, *command], check=True, capture_output=True)
        times.append(time.perf_counter() - start)
    return statistics.median(times[1:])


def import_seconds(repeat: int) -> float:
    """``python -X importtime -c "import minikv"``: the cumulative time of minikv alone, in seconds."""
    times = []
    for _ in range(repeat):
        done = subprocess.run(
            [sys.executable, "-X", "importtime", "-c", "import minikv"],
            check=True,
            capture_output=True,
            text=True,
        )
        line = next(line for line in done.stderr.splitlines() if line.endswith(" minikv"))
        times.append(int(line.split("|")[1]) / 1e6)
    return statistics.median(times)


def rows(quick: bool) -> Iterator[Row]:
    repeat = 3 if quick else 9
    torch = seconds("-c", "import torch", repeat=repeat)
    imported = import_seconds(repeat)
    goal = f"under {IMPORT_GOAL_S} s"
    yield Row("import minikv", imported, torch, "import torch", "s", goal, imported < IMPORT_GOAL_S)
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "config.json"
        config.write_text(json.dumps(find_model("DeepSeek-V3").config))
        plan = seconds("-m", "minikv", "plan", str(config), "--gpu", "H200", "--tp", "8", repeat=repeat)
        by_class = (
            f"from transformers import AutoConfig; AutoConfig.from_pretrained({folder!r}).num_hidden_layers"
        )
        transformers = seconds("-c", by_class, repeat=repeat)
    goal = f"under {PLAN_GOAL_S:g} s"
    peer = "AutoConfig of the same file"
    yield Row("minikv plan config.json", plan, transformers, peer, "s", goal, plan < PLAN_GOAL_S)


def main() -> None:
    options = arguments(__doc__.splitlines()[0])
    publish(rows(options.quick), options.json)


if __name__ == "__main__":
    main()
