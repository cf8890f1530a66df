"""One file without minikv: it says nano's tokens, reads configs as the planner does, and holds a learner's code."""

import importlib.util
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import pytest

from minikv import nano
from minikv.course.your_engine.flat import Yours, flatten
from minikv.course.your_engine.kept import KeptPart
from minikv.course.your_engine.parts import PART_OF, PARTS
from minikv.errors import ArgumentError, ConfigError
from minikv.plan.spec.architectures import ARCHITECTURES
from minikv.plan.spec.cache_spec import CacheSpec
from tests.plan.small_models import small_config

FOLDER = Path(nano.__file__).parent.parent / "models" / "data" / "tiny-gqa"
PROMPT = "ada paris the old cat sleeps ben oslo ? ben"
LOAD = [[(7 * row + column) % 190 + 1 for column in range(5 + 3 * row)] for row in range(8)]
CODE = f"""
def answers(llm, params):
    return [each.token_ids for each in llm.generate({LOAD}, params(6, temperature=0, ignore_eos=True))]
"""

VICTIM = '''
def newest(self):
    """The one that was admitted last.

    Among those that run.
    """
    words = """two
lines"""
    assert words == WORDS and isinstance(self, Loop)
    CALLS.append(PLACE)
    return self.running[PLACE]
'''
VICTIM_NEEDS = '''
import operator
from collections import deque
from minikv.nano.scheduler import Scheduler as Loop

CALLS = []
PLACE = operator.neg(1)  # the last
WORDS = """two
lines"""
'''


def yours(task: str, source: str, needs: str = "") -> Yours:
    name = re.findall(r"^(?:def )?(\w+)", source, re.MULTILINE)[0]
    kept = KeptPart(name, source, needs, "2026-11-23T10:15:00Z", "0.1.0")
    return Yours(PART_OF[task], kept, f"yours, exercise {task}")


COMMAND = f"""
import io, runpy, sys
from contextlib import redirect_stderr, redirect_stdout

def command(*arguments):
    sys.argv, out, err, code = ["my_engine.py", *arguments], io.StringIO(), io.StringIO(), 0
    with redirect_stdout(out), redirect_stderr(err):
        try:
            runpy.run_path("my_engine.py", run_name="__main__")
        except SystemExit as end:
            code = end.code
    return [code, out.getvalue(), err.getvalue()]

commands = [
    command({str(FOLDER)!r}, {PROMPT!r}, "--max-tokens", "4"),
    command({str(FOLDER)!r}, {PROMPT!r}, "--max-tokens", "0"),
    command("no_folder_of_mine/at_all/here", {PROMPT!r}),
]
"""


def said_by(path: Path) -> dict:
    """What the file says in a Python of its own, where importing minikv fails."""
    (path.parent / "minikv.py").write_text("raise ImportError('minikv')")
    code = f"{CODE}\nimport json\nfrom my_engine import LLM, SamplingParams\n"
    code += f"llm = LLM({str(FOLDER)!r}, num_blocks=12, block_size=4)\n"
    code += f"said = answers(llm, SamplingParams)\nassert llm.scheduler.num_preemptions\n{COMMAND}\n"
    code += "print(json.dumps({'answers': said, 'commands': commands}))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=path.parent,
        env={**os.environ, "PYTHONPATH": str(path.parent), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        encoding="utf-8",
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def ours(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("ours") / "my_engine.py"
    path.write_text(flatten([], "An engine."), encoding="utf-8")
    return path


@contextmanager
def imported(path: Path) -> Iterator[ModuleType]:
    """The file as a module of this process, in which importing minikv fails meanwhile."""
    spec = importlib.util.spec_from_file_location("exported_engine", path)
    found = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, spec.name, found)  # where a dataclass looks for its own module
        for name in [name for name in sys.modules if name.partition(".")[0] == "minikv"]:
            patch.setitem(sys.modules, name, None)
        spec.loader.exec_module(found)
        yield found


@pytest.fixture(scope="module")
def module(ours):
    with imported(ours) as found:
        pass
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, found.__name__, found)
        yield found


@pytest.fixture(scope="module")
def expected() -> list[list[int]]:
    scope: dict = {}
    exec(CODE, scope)
    return scope["answers"](nano.LLM(str(FOLDER), num_blocks=12, block_size=4), nano.SamplingParams)


def test_it_answers_without_minikv_and_refuses_in_one_line(ours, expected):
    said = said_by(ours)
    assert said["answers"] == expected
    (code, out, _), *refused = said["commands"]
    params = nano.SamplingParams(4, temperature=0)
    assert (code, out.strip()) == (0, nano.LLM("tiny-gqa", num_blocks=8).generate(PROMPT, params)[0].text)
    for (code, out, err), word in zip(refused, ("max_tokens", "no_folder_of_mine"), strict=True):
        assert (code, out) == (2, "")
        assert word in err
        assert len(err.strip().splitlines()) == 1


def test_it_is_clean(ours):
    subprocess.run([sys.executable, "-W", "error", "-m", "py_compile", str(ours)], check=True)
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "ruff",
            "check",
            "--isolated",
            "--select=E,F,I,B,UP",
            "--line-length=120",
            ours,
        ],
        capture_output=True,
        encoding="utf-8",
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_learners_part_runs_in_it_with_what_it_needs(tmp_path, expected):
    path = tmp_path / "my_engine.py"
    path.write_text(flatten([yours("11b.2", VICTIM, VICTIM_NEEDS)], "x"), encoding="utf-8")
    text = path.read_text()
    assert text.count("# yours, exercise 11b.2") == 2, "where it was, and where it is"
    assert "PLACE = operator.neg(1)" in text
    scope: dict = {}
    exec(CODE, scope)
    with imported(path) as found:
        llm = found.LLM(str(FOLDER), num_blocks=12, block_size=4)
        assert scope["answers"](llm, found.SamplingParams) == expected
    assert llm.scheduler.num_preemptions


def test_each_part_can_be_another():
    """Every part's definition is replaced where it stands; the file stays whole."""
    before = flatten([], "x")
    for part in PARTS:
        fn = f"def {part.name}(*given):\n    raise RuntimeError({part.task!r})\n"
        text = flatten([yours(part.task, fn)], "x")
        compile(text, part.task, "exec")
        assert text.count(f"raise RuntimeError({part.task!r})") == 1
        assert text.count(f"def {part.name}(") == before.count(f"def {part.name}("), part


def test_a_kernel_stands_where_ours_stood():
    """Triton finds the names of a kernel at the top of its file, and nowhere else."""
    kernel = "@triton.jit\ndef paged_decode_kernel(query, TILE: tl.constexpr):\n    pass\n"
    text = flatten([yours("10.6", kernel, "import triton\nimport triton.language as tl\n")], "x")
    placed = (
        "if triton is not None:\n\n    # yours, exercise 10.6\n    @triton.jit\n    def paged_decode_kernel("
    )
    assert placed in text
    assert text.count("import triton.language as tl") == 1


def test_an_import_goes_to_the_head_unless_it_hides_a_name():
    fn = "def block_digest(previous, tokens):\n    return {name}(previous, tokens)\n"
    text = flatten([yours("09.3", fn.format(name="hashlib.md5"), "import hashlib\n")], "x")
    assert "\nimport hashlib\n" in text
    assert "\n# yours, exercise 09.3\ndef block_digest(" in text
    for hidden in ("deque", "Batch", "sum"):
        text = flatten(
            [yours("09.3", fn.format(name=hidden), f"from operator import add as {hidden}\n")], "x"
        )
        assert f"\n    from operator import add as {hidden}\n" in text


@pytest.mark.parametrize(
    ("needs", "name"),
    [
        ("from minikv.blocks import BlockPool", "minikv.blocks.BlockPool"),
        ("import minikv.units", "minikv.units"),
    ],
)
def test_what_minikv_alone_has_is_refused_by_name(needs, name):
    with pytest.raises(ConfigError, match=f"11c.1.*{name}"):
        flatten([yours("11c.1", "def sample(logits, step):\n    return []", needs)], "x")


def test_it_reads_the_layers_of_a_config_as_the_planner_does(module):
    """And refuses by name what it does not know; the types left out are those that nano refuses, and falcon."""
    left_out = set()
    for model_type in ARCHITECTURES:
        config = small_config(model_type)
        if config.model_type not in module.MODEL_TYPES:
            left_out.add(model_type)
            with pytest.raises(module.ConfigError, match=config.model_type):
                module.CacheSpec.from_config(config)
            continue
        due, got = (kind.from_config(config, layout="hf-expanded") for kind in (CacheSpec, module.CacheSpec))
        fields = ("kind", "kv_heads", "k_dim", "v_dim", "window", "index_bytes")
        due_layers, got_layers = (
            [[getattr(layer, field) for field in fields] for layer in spec.layers] for spec in (due, got)
        )
        assert got_layers == due_layers, model_type
        assert (got.max_positions or 0) <= (due.max_positions or 0) or not due.max_positions
    for model_type in left_out - {"falcon"}:
        try:
            layers = CacheSpec.from_config(small_config(model_type), layout="hf-expanded").layers
        except ArgumentError:  # an encoder-decoder
            continue
        plain = all(layer.kind in ("full", "sliding") and not layer.index_bytes for layer in layers)
        assert not plain or len({(each.kv_heads, each.k_dim, each.v_dim) for each in layers}) > 1, model_type


def test_a_config_of_one_size_for_all_and_with_fewer_fields(module):
    """A sliding window that is off, heads that are not stated: what published configs leave out."""
    for model_type, changes in (
        ("mistral", {"sliding_window": None}),
        ("qwen2", {"use_sliding_window": False}),
    ):
        config = small_config(model_type, **changes)
        due, got = (kind.from_config(config, layout="hf-expanded") for kind in (CacheSpec, module.CacheSpec))
        assert [(x.kind, x.window, x.k_dim) for x in got.layers] == [
            (x.kind, x.window, x.k_dim) for x in due.layers
        ]
