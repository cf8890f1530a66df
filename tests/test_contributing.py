"""The examples of docs/contributing.md, run as the page says: its files in a copy of the tree, its commands in order.

A file that is named and exists gets the code at its end; any other is made. Both languages have the same code.
"""

import ast
import importlib
import os
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = {
    lang: ROOT / "docs" / name for lang, name in (("en", "contributing.md"), ("zh", "contributing.zh.md"))
}
BLOCK = re.compile(
    r"(?:^`(?P<path>[\w./-]+)`\n\n)?^```(?P<kind>\w+)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL
)
SECTIONS = ("policy", "architecture", "kernel", "lesson")


@dataclass(frozen=True)
class Block:
    """A fenced block. ``path``: the file that it belongs to, "" for commands and notes."""

    path: str
    kind: str
    text: str


def blocks(markdown: str) -> list[Block]:
    return [Block(match["path"] or "", match["kind"], match["text"]) for match in BLOCK.finditer(markdown)]


def sections(lang: str) -> list[str]:
    """The texts of the four worked examples, in order."""
    parts = re.split(r"^## .*$", PAGES[lang].read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert len(parts) == 1 + len(SECTIONS)
    return parts[1:]


def example(name: str) -> list[Block]:
    return blocks(sections("en")[SECTIONS.index(name)])


class Tree:
    """A copy of the tree without its notebooks, and what is done to it."""

    def __init__(self, root: Path):
        self.root = root
        ignored = shutil.ignore_patterns("__pycache__", "browser", "wheel", "*.ipynb")
        for folder in ("minikv", "tests", "tools"):
            shutil.copytree(ROOT / folder, root / folder, ignore=ignored)
        (root / "docs").mkdir()
        for name in ("minikv/course/data/glossary.toml", "pyproject.toml"):
            shutil.copy(ROOT / name, root / name)

    def put(self, block: Block) -> None:
        path = self.root / block.path
        path.parent.mkdir(parents=True, exist_ok=True)
        before = path.read_text(encoding="utf-8") + "\n\n" if path.is_file() else ""
        path.write_text(before + block.text, encoding="utf-8")

    def run(self, command: str, expect: int = 0) -> str:
        """What ``command`` prints, run here with the Python of these tests. Its exit code must be ``expect``."""
        words = shlex.split(command)
        assert words[0] == "python"
        env = {**os.environ, "PYTHONPATH": str(self.root), "PYTHONDONTWRITEBYTECODE": "1", "COLUMNS": "120"}
        env["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # they take seconds to load
        for name in ("PYTEST_ADDOPTS", "PYTEST_XDIST_WORKER"):
            env.pop(name, None)
        done = subprocess.run(
            [sys.executable, *words[1:]], cwd=self.root, env=env, capture_output=True, text=True
        )
        assert done.returncode == expect, f"{command}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
        return done.stdout


@pytest.fixture
def tree(tmp_path):
    return Tree(tmp_path / "tree")


def follow(tree: Tree, name: str) -> dict[str, str]:
    """Do what the section says, block by block; what each command printed."""
    printed = {}
    for block in example(name):
        if block.path:
            tree.put(block)
        elif block.kind == "bash":
            for command in block.text.strip().splitlines():
                printed[command] = tree.run(command)
    return printed


def passed(output: str) -> int:
    """How many tests pytest counted as passed."""
    dots = "".join(re.findall(r"^([.sxF]+)\s*\[", output, re.MULTILINE))
    assert "F" not in dots
    return dots.count(".")


def test_both_pages_have_the_same_code_and_the_same_sections():
    for one, other in zip(sections("en"), sections("zh"), strict=True):
        assert blocks(one) == blocks(other)
        assert len(blocks(one)) >= 2
    for lang, page in PAGES.items():
        text = page.read_text(encoding="utf-8")
        assert len(re.findall(r"^```", text, re.MULTILINE)) == 2 * len(blocks(text))  # no block is missed
        assert not [line for line in text.splitlines() if len(line) > 160]
        assert bool(re.search(r"[\u4e00-\u9fff]", BLOCK.sub("", text).replace("简体中文", ""))) == (
            lang == "zh"
        )


def test_links_of_both_pages_lead_somewhere():
    for page in PAGES.values():
        text = BLOCK.sub("", page.read_text(encoding="utf-8"))
        assert re.findall(r"\]\(([^)#]+)", text)
        for target in re.findall(r"\]\(([^)#]+)", text):
            assert (page.parent / target).exists(), target


@pytest.mark.parametrize("name", SECTIONS)
def test_files_that_the_text_names_are_there_or_made(name):
    made = {block.path for block in example(name)}
    prose = BLOCK.sub("", sections("en")[SECTIONS.index(name)])
    for path in re.findall(r"`((?:minikv|tests|tools|benchmarks|docs)/[\w./]+)`", prose):
        assert path in made or (ROOT / path).exists(), path


@pytest.mark.parametrize("name", SECTIONS)
def test_what_an_example_imports_is_there_or_made(name):
    """Also without running the example: a name that has moved is found here."""
    trees = [ast.parse(block.text) for block in example(name) if block.path.endswith(".py")]
    nodes = [node for tree in trees for node in ast.walk(tree)]
    made = {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    files = {block.path.removesuffix(".py").replace("/", ".") for block in example(name)}
    assert trees
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and node.module not in files:
            module = importlib.import_module(node.module)
            for alias in node.names:
                assert alias.name in made or hasattr(module, alias.name), ast.unparse(node)


@pytest.mark.slow
def test_the_policy_has_less_than_30_lines_and_passes_the_contract(tree):
    [policy] = [block for block in example("policy") if block.kind == "python"]
    assert len(policy.text.strip().splitlines()) < 30
    [output] = follow(tree, "policy").values()
    # A score, a value, compaction = masking in three layouts and two attentions, a budget as long as the text twice.
    assert passed(output) == 2 + 3 * 2 + 2


@pytest.mark.long
def test_a_policy_that_scores_wrongly_does_not_pass_the_contract(tree):
    [policy] = [block for block in example("policy") if block.kind == "python"]
    broken = policy.text.replace(".sum(-1)\n", ".sum((-1, -2))\n")  # one number a head
    assert broken != policy.text
    tree.put(Block(policy.path, "python", broken))
    output = tree.run("python -m pytest -q tests/eviction/policies/test_literature.py -k vatp", expect=1)
    assert "test_a_score_for_every_token[vatp]" in output


@pytest.mark.long
def test_the_architecture_holds_what_transformers_holds(tree):
    printed = list(follow(tree, "architecture").values())
    assert passed(printed[1]) == 1
    # Two outer layers of 3 heads, four of 2, K and V of 128 elements in 2 bytes.
    token_bytes = (2 * 3 + 4 * 2) * 2 * 128 * 2
    assert f"{token_bytes:,}" in printed[2]


@pytest.mark.long
def test_an_architecture_that_forgets_its_outer_layers_is_found_out(tree):
    for block in example("architecture"):
        if block.path:
            tree.put(
                Block(block.path, block.kind, block.text.replace("index not in (0,", "index not in (99,"))
            )
    output = tree.run("python -m pytest -q tests/plan/test_truth.py -k sandwich", expect=1)
    assert "assert numel_bytes(cache) == spec.bytes_for(" in output


@pytest.mark.long
def test_the_kernel_agrees_and_compiles(tree):
    pytest.importorskip("triton")
    [output] = follow(tree, "kernel").values()
    assert passed(output) == 6 * 3 + 2 + 3 + 1


def test_the_kernel_stands_in_all_places_of_its_name():
    """As architecture.md and the text have it: checked, computed in torch, computed in Triton, one docstring each."""
    for path in ("storage.py", "slots.py", "gpu/operations.py"):
        [block] = [block for block in example("kernel") if block.path == f"minikv/kernels/{path}"]
        [function] = [node for node in ast.parse(block.text).body if isinstance(node, ast.FunctionDef)]
        assert function.name == "clear_blocks"
        assert [arg.arg for arg in function.args.args] == ["cache", "blocks"]
        assert ast.get_docstring(function)


@pytest.mark.long
def test_the_lesson_is_composed_checked_and_run(tree):
    printed = follow(tree, "lesson")
    commands = list(printed)
    assert passed(printed[commands[0]]) == 1
    assert printed[commands[1]].rstrip().endswith("1 written")
    assert re.search(r"^6 ran in .*; 6 written$", printed[commands[3]], re.MULTILINE)
    assert printed[commands[4]].strip() == "0 problems"
    for lang, words in (("en", "8,192 tokens of 131,072 bytes"), ("zh", "8,192 个 token，每个 131,072 字节")):
        assert words in (tree.root / "notebooks" / lang / "90_how_far.ipynb").read_text(encoding="utf-8")
        exercise = (tree.root / "exercises" / lang / "90_how_far.ipynb").read_text(encoding="utf-8")
        assert "raise NotImplementedError" in exercise
        assert "num_bytes // token_bytes" not in exercise
    # Its Chinese is held to its English from now on.
    source = tree.root / "notebooks/src/90_how_far.py"
    source.write_text(
        source.read_text(encoding="utf-8").replace("Guess before", "Guess, before"), encoding="utf-8"
    )
    assert tree.run(commands[4], expect=1).strip() != "0 problems"
