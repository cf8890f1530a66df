"""A machine without Triton (macOS, Windows), without NVML, without accelerate: what runs there, and what it says."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from minikv.i18n import text
from tests.tools.without import environment_without

ROOT = Path(__file__).parents[2]
MODULES = {"triton": "triton", "nvidia-ml-py": "pynvml", "accelerate": "accelerate"}
MEASURED = {"hardware", "timing"}


@pytest.fixture
def without(tmp_path, monkeypatch):
    """``without("triton")(arguments)``: run Python with the arguments where this package is not installed."""

    def start(*packages: str):
        folder = tmp_path / "-".join(["without", *packages])
        folder.mkdir()
        modules = tuple(MODULES[name] for name in packages)
        environment = environment_without(folder, ROOT, modules, packages)
        for name in ("TRITON_INTERPRET", "MINIKV_KERNELS"):
            environment.pop(name, None)

        def run(*arguments: str) -> str:
            done = subprocess.run(
                [sys.executable, *arguments], capture_output=True, text=True, env=environment, cwd=tmp_path
            )
            assert done.returncode == 0, done.stderr[-3000:]
            return done.stdout

        return run

    return start


ROOMS = """
import importlib, importlib.util, sys
for room in "plan blocks memory cache kernels models eviction engine course course.start".split():
    importlib.import_module("minikv." + room)
assert importlib.util.find_spec(sys.argv[1]) is None
from minikv.cli import main
sys.argv = ["minikv", "doctor", "--json"]
main()
"""


@pytest.mark.parametrize("package", MODULES)
def test_every_room_can_be_imported_and_the_doctor_says_what_is_absent(without, package):
    told = json.loads(without(package)("-c", ROOMS, MODULES[package]))
    notes = {finding["topic"]: finding for finding in told if finding["state"] == "note"}
    assert package in notes[package]["text"]
    assert {finding["state"] for finding in told} <= {"ok", "note"}


KERNELS = """
import torch
from minikv.errors import ArgumentError
from minikv.kernels.dispatch import implementation
print(implementation(torch.device("cuda")).__name__, implementation(torch.device("cpu")).__name__)
import os
os.environ["MINIKV_KERNELS"] = "triton"
try:
    implementation(torch.device("cpu"))
except ArgumentError as error:
    print(error.code)
"""


def test_without_triton_the_references_run_on_every_device(without):
    told = without("triton")("-c", KERNELS).split()
    assert told == ["minikv.kernels.reference", "minikv.kernels.reference", "kernel_no_triton"]


def test_without_all_three_a_model_answers_the_same(without):
    command = ["-m", "minikv", "generate", "paris berlin paris", "--max-tokens", "8", "--json"]
    told = [json.loads(run(*command))["outputs"] for run in (without(*MODULES), without())]
    answers = [[one["token_ids"] for output in run for one in output["completions"]] for run in told]
    assert len(answers[0][0]) == 8
    assert answers[0] == answers[1]


def test_without_accelerate_a_sharded_run_names_it(without):
    code = (
        "from minikv.course.torchrun import run_ranks\nfrom minikv.errors import ArgumentError\n"
        "try:\n    run_ranks('minikv')\nexcept ArgumentError as error:\n    print(error.text('en'))"
    )
    assert "pip install accelerate" in without("accelerate")("-c", code)


@pytest.mark.slow
@pytest.mark.parametrize("lesson", ["08", "10", "11"])
def test_without_triton_a_lesson_runs_and_only_kernel_cells_say_that_they_need_linux(
    lesson, tmp_path, monkeypatch
):
    import nbformat

    from tools.notebooks.execute import execute_all

    folder = tmp_path / "hook"
    folder.mkdir()
    environment = environment_without(folder, ROOT, ("triton",), ("triton",))
    for name in ("TRITON_INTERPRET", "MINIKV_KERNELS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(folder), environment["PYTHONPATH"]]))
    path = next((ROOT / "notebooks/en").glob(f"{lesson}_*.ipynb"))
    committed = nbformat.read(path, as_version=4)
    (run,) = execute_all([committed], ROOT, tmp_path / "photos", jobs=1)
    assert not run.problem
    says_so = text("lesson_10.no_triton", "en")
    differ = [
        (cell.id, told)
        for cell, other in zip(committed.cells, run.notebook.cells, strict=True)
        if cell.cell_type == "code" and not MEASURED & set(cell.metadata.get("tags", ()))
        if (told := texts(other)) != texts(cell)
    ]
    assert [cell for cell, told in differ if says_so not in told] == []
    assert "Linux" in says_so
    assert bool(differ) == (lesson == "10"), (
        "without Triton the kernel cells cannot show what they show with it"
    )


def texts(cell) -> str:
    """What a cell says on standard output and shows as text."""
    parts = [
        output.get("text", "") if output.output_type == "stream" else output.data.get("text/plain", "")
        for output in cell.outputs
        if output.output_type in ("display_data", "execute_result") or output.get("name") == "stdout"
    ]
    return "".join(parts)
