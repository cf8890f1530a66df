"""A machine without torch, Triton (macOS, Windows), NVML or accelerate: what runs there, and what it says."""

import itertools
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
from minikv.i18n import LANGUAGES, text
from tests.cli.test_commands import LOG
from tests.cli.watching import RUN, lines
from tests.longer import usual_if
from tests.test_imports import COURSE_TORCH_AT_IMPORT, MAY_IMPORT, TORCH_AT_IMPORT
from tests.tools.without import environment_without

ROOT = Path(__file__).parents[2]
MODULES = {"triton": "triton", "nvidia-ml-py": "pynvml", "accelerate": "accelerate"}
ENGINE = {name: name for name in ("torch", "transformers", "safetensors", "tokenizers")} | MODULES
ENGINE |= {"huggingface-hub": "huggingface_hub"}
MEASURED = {"hardware", "timing"}


@pytest.fixture(scope="module")
def without(tmp_path_factory):
    """``without("triton")(code)``: what Python prints that runs the code where this package is not installed."""

    def start(*packages: str, folder: Path | None = None):
        hook = tmp_path_factory.mktemp("-".join(["without", *packages]))
        modules = tuple(ENGINE[name] for name in packages)
        environment = environment_without(hook, ROOT, modules, packages)
        for name in ("TRITON_INTERPRET", "MINIKV_KERNELS"):
            environment.pop(name, None)

        def run(code: str) -> str:
            done = subprocess.run(
                [sys.executable, "-c", code],
                capture_output=True,
                text=True,
                env=environment,
                cwd=folder or hook,
            )
            assert done.returncode == 0, done.stderr[-3000:]
            return done.stdout

        return run

    return start


# ``command("plan", ...)`` is (exit code, standard output, standard error) of ``minikv plan ...``.
COMMAND = """
import io, json, sys
from contextlib import redirect_stderr, redirect_stdout
from minikv.cli import main

def command(*arguments):
    sys.argv, out, err, code = ["minikv", *arguments], io.StringIO(), io.StringIO(), 0
    with redirect_stdout(out), redirect_stderr(err):
        try:
            main()
        except SystemExit as end:
            code = end.code or 0
    return code, out.getvalue(), err.getvalue()
"""
LIGHT = """
import importlib, minikv, pkgutil
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
""".replace("ROOMS", repr(" ".join([*(MAY_IMPORT.keys() - {"cli"}), "course.widgets"])))
COMPUTES = (*TORCH_AT_IMPORT, *(f"course.{part}" for part in COURSE_TORCH_AT_IMPORT))
RUNS = [
    ["plan", "DeepSeek-V3", "--gpu", "H200", "--tp", "8"],
    ["simulate", "--model", "Qwen3-8B", "--gpu", "H200", "--synthetic", "20"],
    ["watch", "events.jsonl", "--once"],
    ["check-log", "vllm.log", "--model", "Llama-3.1-8B", "--tp", "1"],
    ["lab", "--copy-only", "--folder", "course"],
]
SAYS = [
    ["generate", "hello", "--events", "new.jsonl", "--profile", "new.json"],
    ["bench"],
    ["doctor", "--smoke"],
]
OBJECTS = """
from minikv.course import monitor
from minikv.course.machine import examine
from minikv.course.widgets import AllocationWidget, BudgetWidget, GrowthWidget, HeatMapWidget

for computes_bytes_alone in (BudgetWidget, AllocationWidget):
    assert "minikv" not in computes_bytes_alone("en").text()
widgets = []
for make in (GrowthWidget, HeatMapWidget, monitor.memory, lambda: monitor.eviction(None)):
    try:
        make()
    except MissingPackageError as error:
        widgets.append(str(error))
doctor = [one.line("en") for one in examine()]
"""


@pytest.fixture(scope="module")
def bare(without, tmp_path_factory):
    """What one Python says that has nothing of ``[engine]``: it imports every room, and then runs the commands."""
    folder = tmp_path_factory.mktemp("bare")
    (folder / "events.jsonl").write_text(lines(RUN))
    (folder / "vllm.log").write_text(LOG)
    asked = [*RUNS, *([*command, "--lang", lang] for command in SAYS for lang in LANGUAGES)]
    found = "'heavy': heavy, 'told': told, 'widgets': widgets, 'doctor': doctor, 'commands': commands"
    code = f"{COMMAND}{LIGHT}{OBJECTS}\ncommands = [command(*each) for each in {asked!r}]\n"
    said = json.loads(without(*ENGINE, folder=folder)(f"{code}print(json.dumps({{{found}}}))"))
    assert not list(folder.glob("new.*"))
    return said | {
        "commands": {" ".join(each): done for each, done in zip(asked, said["commands"], strict=True)}
    }


@pytest.mark.slow
def test_the_core_needs_no_torch_and_what_needs_it_says_so_in_one_sentence(bare):
    others = {
        name for name in bare["heavy"] if not name.startswith(tuple(f"minikv.{room}." for room in COMPUTES))
    }
    # What imports these has said the sentence before.
    watches = {"minikv.course.widgets.monitor_memory", "minikv.course.widgets.monitor_eviction"}
    assert others == {"minikv.cli.bench_run", "minikv.cli.evaluate_plot", *watches}
    assert not {name for name in bare["heavy"] if name.startswith("minikv.simulate")}
    for sentences in bare["told"].values():
        assert len(set(sentences)) == 2
        assert all('pip install "minikv[engine]"' in one and one.count("\n") == 0 for one in sentences)
    rooms = {name.split(".")[1] for name in bare["told"] if name.count(".") == 2}
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
    missing = {name.split(".")[1] for name in bare["told"] if name.count(".") == 1}
    assert missing == set(minikv.__all__) - light - {"__version__", "ownership"}


@pytest.mark.slow
def test_without_torch_a_command_on_paper_runs(bare):
    for arguments in RUNS:
        code, said, complaint = bare["commands"][" ".join(arguments)]
        assert (code, complaint) == (0, ""), arguments
        assert said, arguments


@pytest.mark.slow
def test_without_torch_a_command_that_computes_says_what_to_install(bare):
    for arguments, lang in itertools.product(SAYS, LANGUAGES):
        sentence = text("errors.engine_absent", lang, name="torch", wanted="minikv[engine]")
        done = bare["commands"][" ".join([*arguments, "--lang", lang])]
        assert done == [2, "", f"minikv: {sentence}\n"], (arguments, lang)


@pytest.mark.slow
def test_without_torch_a_widget_that_holds_tensors_says_so(bare):
    assert len(bare["widgets"]) == 4
    assert all('pip install "minikv[engine]"' in said for said in bare["widgets"])


@pytest.mark.slow
def test_without_torch_the_doctor_says_what_to_install(bare):
    missing = [line for line in bare["doctor"] if line.startswith("[MISS]")]
    assert [line.partition(" ")[2].split()[0] for line in missing] == ["torch", "transformers", "safetensors"]
    assert all('pip install "minikv[engine]"' in line for line in missing)


def test_without_transformers_a_model_says_what_to_install(without):
    code = "from minikv.models import load\ntry:\n    load('tiny-gqa')\nexcept ImportError as error:\n    print(error)"
    assert 'transformers, which is not installed: pip install "minikv[engine]"' in without("transformers")(
        code
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
import importlib, importlib.util
for room in "plan blocks memory cache kernels models eviction engine course course.start".split():
    importlib.import_module("minikv." + room)
assert not [module for module in MODULES if importlib.util.find_spec(module)]
doctor = json.loads(command("doctor", "--json")[1])
"""
COMPUTING = """
import os
import torch
from minikv.course.torchrun import run_ranks
from minikv.errors import ArgumentError
from minikv.kernels.dispatch import implementation

kernels = [implementation(torch.device(name)).__name__ for name in ("cuda", "cpu")]
os.environ["MINIKV_KERNELS"] = "triton"
try:
    implementation(torch.device("cpu"))
except ArgumentError as error:
    kernels.append(error.code)
del os.environ["MINIKV_KERNELS"]
try:
    run_ranks("minikv")
except ArgumentError as error:
    ranks = error.text("en")
answer = json.loads(command("generate", "paris berlin paris", "--max-tokens", "8", "--json")[1])
"""


def rooms_without(*packages: str) -> str:
    return COMMAND + ROOMS.replace("MODULES", repr([MODULES[package] for package in packages]))


@pytest.fixture(scope="module")
def fewer(without):
    """What one Python says that has torch, and neither Triton, nvidia-ml-py nor accelerate."""
    found = "{'doctor': doctor, 'kernels': kernels, 'ranks': ranks, 'outputs': answer['outputs']}"
    return json.loads(without(*MODULES)(f"{rooms_without(*MODULES)}{COMPUTING}print(json.dumps({found}))"))


@pytest.mark.slow
def test_every_room_can_be_imported_and_the_doctor_says_what_is_absent(fewer):
    notes = {finding["topic"]: finding for finding in fewer["doctor"] if finding["state"] == "note"}
    assert all(package in notes[package]["text"] for package in MODULES)
    assert {finding["state"] for finding in fewer["doctor"]} <= {"ok", "note"}


@pytest.mark.long
@pytest.mark.parametrize("package", MODULES)
def test_every_room_can_be_imported_where_only_one_is_absent(without, package):
    found = json.loads(without(package)(f"{rooms_without(package)}print(json.dumps(doctor))"))
    notes = {finding["topic"]: finding for finding in found if finding["state"] == "note"}
    assert package in notes[package]["text"]
    assert {finding["state"] for finding in found} <= {"ok", "note"}


@pytest.mark.slow
def test_without_triton_the_references_run_on_every_device(fewer):
    assert fewer["kernels"] == ["minikv.kernels.reference", "minikv.kernels.cpu", "kernel_no_triton"]


@pytest.mark.slow
def test_without_all_three_a_model_answers_the_same(fewer):
    with LLM("tiny-gqa") as llm:
        here = llm.generate("paris berlin paris", SamplingParams(temperature=0, max_tokens=8))
    assert len(here[0].token_ids) == 8
    found = [one["token_ids"] for output in fewer["outputs"] for one in output["completions"]]
    assert found == [list(here[0].token_ids)]


@pytest.mark.slow
def test_without_accelerate_a_sharded_run_names_it(fewer):
    assert "pip install accelerate" in fewer["ranks"]


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
    says_so = text("lesson_10.mode_none", "en")
    differ = [
        (cell.id, "".join(cell.source), told)
        for cell, other in zip(committed.cells, run.notebook.cells, strict=True)
        if cell.cell_type == "code" and not MEASURED & set(cell.metadata.get("tags", ()))
        if (told := texts(other)) != texts(cell)
    ]
    # The cells that launch a kernel ask for the mode, and say nothing without one; one cell says why.
    assert [
        cell for cell, source, told in differ if 'mode != "none"' not in source and says_so not in told
    ] == []
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
