"""What ``pip install minikv`` brings: the course, and no torch."""

import json
import subprocess
import zipfile
from pathlib import Path

import pytest

from tests.wheel.conftest import clean, install, run


@pytest.fixture(scope="module")
def core_python(wheel, tmp_path_factory) -> Path:
    """What ``pip install minikv`` brings."""
    return install(tmp_path_factory.mktemp("core") / "venv", str(wheel))


def test_the_wheel_holds_the_course_and_no_tests(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    lessons = [name for name in names if "/shipped/notebooks/" in name]
    assert {Path(name).parent.name for name in lessons} == {"en", "zh"}
    for folder in ("notebooks", "exercises", "solutions"):
        for lang in ("en", "zh"):
            assert f"minikv/course/shipped/{folder}/{lang}/02_how_many_bytes.ipynb" in names
    assert "minikv/py.typed" in names
    assert "minikv/messages/errors.toml" in names
    assert "minikv/course/widgets/budget.js" in names
    assert not [name for name in names if name.startswith(("tests/", "tools/"))]
    assert wheel.stat().st_size < 10 * 2**20


SIZES = """
import json
from importlib.metadata import distributions
sizes = {
    one.name: sum(file.locate().stat().st_size for file in one.files if file.locate().is_file())
    for one in distributions()
}
print(json.dumps(sizes))
"""


def test_the_core_is_small_and_brings_nothing_that_computes(core_python, tmp_path):
    """Bytes of the files as pip lays them down, compiled ones among them; pip itself does not count."""
    sizes = json.loads(run(core_python, "-c", SIZES, cwd=tmp_path))
    sizes = {name: size for name, size in sizes.items() if name not in ("pip", "setuptools")}
    assert not {name.lower() for name in sizes} & {
        "torch",
        "transformers",
        "triton",
        "safetensors",
        "accelerate",
        "jupyterlab",
    }
    assert sizes["minikv"] > 10_000_000, "the sizes of what was installed were not found"
    assert sum(sizes.values()) < 250_000_000


def test_the_core_plans_simulates_and_draws(core_python, tmp_path):
    plan = ("plan", "DeepSeek-V3", "--gpu", "H200", "--tp", "8", "--json")
    assert json.loads(run(core_python, "-m", "minikv", *plan, cwd=tmp_path))["token_bytes"] == 70_272
    fleet = (
        "simulate",
        "--model",
        "Qwen3-8B",
        "--gpu",
        "H200",
        "--synthetic",
        "50",
        "--sweep",
        "replicas=1,2",
    )
    assert "replicas" in run(core_python, "-m", "minikv", *fleet, "--plot", "sweep.html", cwd=tmp_path)
    assert (tmp_path / "sweep.html").stat().st_size > 100_000
    code = (
        "from minikv import BlockManager, CacheSpec\n"
        "from minikv.course.widgets import BudgetWidget, RooflineWidget, WalkWidget\n"
        "for widget in (BudgetWidget('en'), RooflineWidget('zh'), WalkWidget('en')): assert widget.text()\n"
        "blocks = BlockManager(num_blocks=8, block_size=4)\n"
        "blocks.allocate('a', list(range(10)))\n"
        "print(CacheSpec.from_config('Llama-3.1-8B').bytes_for(1))"
    )
    assert run(core_python, "-c", code, cwd=tmp_path).strip() == "131072"


def test_what_needs_torch_says_what_to_install(core_python, tmp_path):
    for lang, word in (("en", "not installed"), ("zh", "没有安装")):
        for command in (["generate", "hello"], ["bench"], ["doctor", "--smoke"]):
            done = subprocess.run(
                [core_python, "-m", "minikv", *command, "--lang", lang],
                cwd=tmp_path, env=clean(), capture_output=True, text=True, encoding="utf-8",
            )  # fmt: skip
            assert (done.returncode, done.stdout) == (2, "")
            assert 'pip install "minikv[engine]"' in done.stderr
            assert word in done.stderr
            assert done.stderr.count("\n") == 1
    code = (
        "from minikv.course import start\n"
        "for name in ('minikv.LLM', 'minikv.models.load', 'minikv.cache.allocate_kv_cache', 'minikv.kernels.gather',"
        " 'minikv.memory.Arena', 'minikv.eviction.H2O'):\n"
        "    room, _, name = name.rpartition('.')\n"
        "    try: exec(f'from {room} import {name}')\n"
        "    except ImportError as error: print(error)\n"
        "try: start('02')\n"
        "except ImportError as error: print(error)"
    )
    sentence = 'This needs torch, which is not installed: pip install "minikv[engine]".'
    assert run(core_python, "-c", code, cwd=tmp_path).splitlines() == [sentence] * 7


def test_the_installed_command_copies_the_course(core_python, tmp_path):
    run(core_python, "-m", "minikv", "lab", "--copy-only", "--folder", "course", cwd=tmp_path)
    assert (tmp_path / "course" / "notebooks" / "zh" / "02_how_many_bytes.ipynb").is_file()
    assert (tmp_path / "course" / "solutions" / "en" / "02_how_many_bytes.ipynb").is_file()
