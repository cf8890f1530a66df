"""A machine without torch, Triton (macOS, Windows), NVML or accelerate: what runs there, and what it says."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import minikv
from minikv import extras
from minikv.course import start
from minikv.engine import LLM, SamplingParams
from minikv.errors import MissingPackageError
from minikv.i18n import text
from tests.cli.test_commands import LOG
from tests.cli.watching import RUN, lines
from tests.longer import every_value, usual_if
from tests.test_imports import COURSE_TORCH_AT_IMPORT, MAY_IMPORT, TORCH_AT_IMPORT
from tests.tools.without import environment_without

ROOT = Path(__file__).parents[2]
MODULES = {"triton": "triton", "nvidia-ml-py": "pynvml", "accelerate": "accelerate"}
ENGINE = {name: name for name in ("torch", "transformers", "safetensors", "tokenizers")} | MODULES
ENGINE |= {"huggingface-hub": "huggingface_hub"}
MEASURED = {"hardware", "timing"}


@pytest.fixture
def without(tmp_path, monkeypatch):
    """``without("triton")(arguments)``: run Python with the arguments where this package is not installed."""

    def start(*packages: str):
        folder = tmp_path / "-".join(["without", *packages])
        folder.mkdir()
        modules = tuple(ENGINE[name] for name in packages)
        environment = environment_without(folder, ROOT, modules, packages)
        for name in ("TRITON_INTERPRET", "MINIKV_KERNELS"):
            environment.pop(name, None)

        def run(*arguments: str, fails: int = 0) -> str:
            """What was printed; with ``fails`` the sentence on standard error, and this exit code."""
            done = subprocess.run(
                [sys.executable, *arguments], capture_output=True, text=True, env=environment, cwd=tmp_path
            )
            assert done.returncode == fails, done.stderr[-3000:]
            return done.stderr if fails else done.stdout

        return run

    return start


LIGHT = """
import importlib, json, minikv, pkgutil
from minikv.errors import MissingPackageError

heavy, told = [], {}
for module in sorted(each.name for each in pkgutil.walk_packages(minikv.__path__, "minikv.")):
    try:
        if module != "minikv.__main__":
            importlib.import_module(module)
    except ImportError:
        heavy.append(module)
for room in [minikv, *(importlib.import_module("minikv." + room) for room in ROOMS.split())]:
    for name in room.__all__:
        try:
            getattr(room, name)
        except MissingPackageError as error:
            told[room.__name__ + "." + name] = [error.text("en"), error.text("zh")]
print(json.dumps({"heavy": heavy, "told": told}))
""".replace("ROOMS", repr(" ".join([*(MAY_IMPORT.keys() - {"cli"}), "course.widgets"])))
COMPUTES = (*TORCH_AT_IMPORT, *(f"course.{part}" for part in COURSE_TORCH_AT_IMPORT))


def test_the_core_needs_no_torch_and_what_needs_it_says_so_in_one_sentence(without):
    told = json.loads(without(*ENGINE)("-c", LIGHT))
    others = {
        name for name in told["heavy"] if not name.startswith(tuple(f"minikv.{room}." for room in COMPUTES))
    }
    # What imports these has said the sentence before.
    watches = {"minikv.course.widgets.monitor_memory", "minikv.course.widgets.monitor_eviction"}
    assert others == {"minikv.cli.bench_run", *watches}
    assert not {name for name in told["heavy"] if name.startswith("minikv.simulate")}
    for sentences in told["told"].values():
        assert len(set(sentences)) == 2
        assert all('pip install "minikv[engine]"' in one and one.count("\n") == 0 for one in sentences)
    rooms = {name.split(".")[1] for name in told["told"] if name.count(".") == 2}
    assert rooms == TORCH_AT_IMPORT
    light = {
        "MiniKVError",
        "CacheSpec",
        "MemoryBudget",
        "plan_memory",
        "BlockManager",
        "BlockPool",
        "SamplingParams",
    }
    missing = {name.split(".")[1] for name in told["told"] if name.count(".") == 1}
    assert missing == set(minikv.__all__) - light - {"__version__", "ownership"}


RUNS = [
    ["plan", "DeepSeek-V3", "--gpu", "H200", "--tp", "8"],
    ["simulate", "--model", "Qwen3-8B", "--gpu", "H200", "--synthetic", "20"],
    ["watch", "events.jsonl", "--once"],
    ["check-log", "vllm.log", "--model", "Llama-3.1-8B", "--tp", "1"],
    ["lab", "--copy-only", "--folder", "course"],
]


@pytest.mark.parametrize("command", RUNS, ids=lambda command: command[0])
def test_without_torch_a_command_on_paper_runs(without, tmp_path, command):
    (tmp_path / "events.jsonl").write_text(lines(RUN))
    (tmp_path / "vllm.log").write_text(LOG)
    assert without(*ENGINE)("-m", "minikv", *command)


SAYS = [
    ["generate", "hello", "--events", "new.jsonl", "--profile", "new.json"],
    ["bench"],
    ["doctor", "--smoke"],
]


@pytest.mark.parametrize(
    ("command", "lang"),
    every_value(SAYS, ["en", "zh"]),
    ids=lambda each: each if isinstance(each, str) else each[0],
)
def test_without_torch_a_command_that_computes_says_what_to_install(without, tmp_path, command, lang):
    said = without(*ENGINE)("-m", "minikv", *command, "--lang", lang, fails=2)
    assert said == f"minikv: {text('errors.engine_absent', lang, name='torch', wanted='minikv[engine]')}\n"
    assert not list(tmp_path.glob("new.*"))


OBJECTS = """
from minikv.course import monitor
from minikv.course.widgets import AllocationWidget, BudgetWidget, GrowthWidget, HeatMapWidget
from minikv.errors import MissingPackageError

assert "minikv" not in BudgetWidget("en").text()
print(AllocationWidget("en").text())
for make in (GrowthWidget, HeatMapWidget, monitor.memory, lambda: monitor.eviction(None)):
    try:
        make()
    except MissingPackageError as error:
        print(error)
"""


def test_without_torch_a_widget_that_holds_tensors_says_so(without):
    told = without(*ENGINE)("-c", OBJECTS)
    assert told.count('pip install "minikv[engine]"') == 5


def test_without_torch_the_doctor_says_what_to_install(without):
    told = without(*ENGINE)
    code = "import json, sys; from minikv.course.machine import examine\nfor one in examine(): print(one.line('en'))"
    missing = [line for line in told("-c", code).splitlines() if line.startswith("[MISS]")]
    assert [line.partition(" ")[2].split()[0] for line in missing] == ["torch", "transformers", "safetensors"]
    assert all('pip install "minikv[engine]"' in line for line in missing)


def test_without_transformers_a_model_says_what_to_install(without):
    code = "from minikv.models import load\ntry:\n    load('tiny-gqa')\nexcept ImportError as error:\n    print(error)"
    assert 'transformers, which is not installed: pip install "minikv[engine]"' in without("transformers")(
        "-c", code
    )


@pytest.mark.parametrize(
    ("packages", "code"),
    [
        ({}, None),
        ({"torch": "2.13.0+cpu", "transformers": "5.99"}, None),
        ({"torch": None}, "engine_absent"),
        ({"transformers": None}, "engine_absent"),
        ({"torch": "2.7.1"}, "engine_too_old"),
        ({"transformers": "4.57.0"}, "engine_too_old"),
    ],
)
@pytest.mark.parametrize("lang", ["en", "zh"])
def test_a_lesson_starts_where_the_packages_suffice_and_else_says_what_to_install(
    monkeypatch, packages, code, lang
):
    real = extras.installed
    monkeypatch.setattr(extras, "installed", lambda name: packages[name] if name in packages else real(name))
    if code is None:
        assert callable(start("02", lang=lang).check)
        return
    with pytest.raises(MissingPackageError) as refused:
        start("02", lang=lang)
    assert refused.value.code == code
    ((name, found),) = packages.items()
    for part in ('pip install "minikv[engine]"', name, found or name):
        assert part in refused.value.text(lang)


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
    told = json.loads(without(*MODULES)(*command))["outputs"]
    with LLM("tiny-gqa") as llm:
        here = llm.generate("paris berlin paris", SamplingParams(temperature=0, max_tokens=8))
    assert len(here[0].token_ids) == 8
    assert [one["token_ids"] for output in told for one in output["completions"]] == [list(here[0].token_ids)]


def test_without_accelerate_a_sharded_run_names_it(without):
    code = (
        "from minikv.course.torchrun import run_ranks\nfrom minikv.errors import ArgumentError\n"
        "try:\n    run_ranks('minikv')\nexcept ArgumentError as error:\n    print(error.text('en'))"
    )
    assert "pip install accelerate" in without("accelerate")("-c", code)


@pytest.mark.slow
@pytest.mark.parametrize("lesson", usual_if(lambda lesson: lesson == "10", ["08", "10", "11a"]))
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
