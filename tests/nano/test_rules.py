"""What nano promises to be: small, plain, on few rooms; and a page that quotes it word for word."""

import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from minikv import CacheSpec
from tests.test_imports import imports_of

NANO = Path(__file__).parents[2] / "minikv" / "nano"
FILES = {"sequence", "block_manager", "scheduler", "kv_cache", "attention", "runner", "llm"}
FEATURES = re.compile(r"evict|swap|offload|draft|speculat|ahead|graph|rank|emit", re.IGNORECASE)
PURE = ("sequence", "block_manager", "scheduler")
PAGES = ("README.md", "README.zh.md")


def test_it_has_at_most_a_thousand_lines_in_seven_files():
    lines = {path.stem: path.read_text(encoding="utf-8").splitlines() for path in NANO.glob("*.py")}
    assert lines.keys() == FILES | {"__init__"}
    assert sum(map(len, lines.values())) <= 1000
    assert [line for of_file in lines.values() for line in of_file if len(line) > 110] == []


@pytest.mark.parametrize("path", sorted(NANO.glob("*.py")), ids=lambda path: path.stem)
def test_it_names_no_feature_beyond_its_list(path):
    assert FEATURES.findall(path.read_text(encoding="utf-8")) == []


def test_it_has_four_data_classes():
    """A reader meets these: SamplingParams, Sequence, Batch, RequestOutput."""
    sources = "".join(path.read_text(encoding="utf-8") for path in NANO.glob("*.py"))
    assert len(re.findall(r"^@dataclass", sources, re.MULTILINE)) == 4


def test_it_imports_the_planner_the_errors_and_no_other_room():
    ours = {
        ".".join(name.split(".")[:2])
        for path in NANO.glob("*.py")
        for name in imports_of(path)
        if name.startswith("minikv.")
    }
    assert ours <= {"minikv.plan", "minikv.errors", "minikv.nano", "minikv.extras"}


def test_scheduler_and_block_manager_are_pure_python():
    code = (
        "import sys, minikv.nano.scheduler, minikv.nano.block_manager\n"
        "print([name for name in ('torch', 'numpy', 'transformers') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def blocks_of(page: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (NANO / page).read_text(encoding="utf-8"), re.DOTALL)


@pytest.mark.parametrize("page", PAGES)
def test_the_excerpts_stand_in_the_files_as_they_are(page):
    text = (NANO / page).read_text(encoding="utf-8")
    sources = [textwrap.dedent(path.read_text(encoding="utf-8")) for path in sorted(NANO.glob("*.py"))]
    flat = ["\n".join(line.strip() for line in source.splitlines()) for source in sources]
    excerpts = blocks_of(page, "python")[1:]
    assert len(excerpts) == 9
    for excerpt in excerpts:
        wanted = "\n".join(line.strip() for line in excerpt.strip().splitlines())
        assert sum(wanted in source for source in flat) == 1, excerpt
    assert {f"[{name}.py]({name}.py)" for name in FILES} <= set(re.findall(r"\[\w+\.py\]\(\w+\.py\)", text))


@pytest.mark.parametrize("page", PAGES)
def test_the_example_prints_what_the_page_shows(page, capsys):
    exec(blocks_of(page, "python")[0], {})
    assert capsys.readouterr().out == blocks_of(page, "text")[0]


@pytest.mark.parametrize("page", PAGES)
def test_the_bytes_of_tiny_mla_are_those_of_the_planner(page):
    text = (NANO / page).read_text(encoding="utf-8")
    config = NANO.parent / "models" / "data" / "tiny-mla" / "config.json"
    for layout in ("hf", "hf-expanded"):
        assert f" {CacheSpec.from_config(config, layout=layout, kv_dtype='fp32').bytes_for(1):,} " in text
