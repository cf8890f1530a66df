"""What python -m tools.gpu finds to run, in which order, and when it takes figures for stale. No GPU is needed."""

import ast
import json
import re
from pathlib import Path

import pytest

from tools.gpu.__main__ import ROOT, choose, main
from tools.gpu.machine import Machine, judge
from tools.gpu.parts import EXPECTED_S, ORDER, RESULTS, SANITIZER, UNKNOWN_S, all_parts
from tools.gpu.results import merge, stamp, why_to_run
from tools.gpu.sources import closure, digest, missing_libraries

H100 = Machine("Fake H100", "2.11.0")

BENCHMARK = """
import argparse, json
from minikv.{room} import figure
NEEDS_GPU = True
parser = argparse.ArgumentParser()
parser.add_argument("--json")
if __name__ == "__main__":
    told = {{"device": "Fake H100", "versions": {{"torch": "2.11.0"}}, "complete": True, "rows": [figure]}}
    with open(parser.parse_args().json, "w") as file:
        json.dump(told, file)
"""
GPU_TEST = "import pytest\npytestmark = pytest.mark.gpu\ndef test_one():\n    pass\n"


@pytest.fixture
def tree(tmp_path):
    """Two benchmarks of two rooms, a test marked gpu, one that is not, one that only says so in a string."""
    files = {
        "minikv/__init__.py": "",
        "minikv/errors.py": "",
        "minikv/a.py": "from minikv.errors import *\nfrom minikv.deep import figure\n",
        "minikv/b.py": "figure = 2\n",
        "minikv/deep.py": "figure = 1\n",
        "benchmarks/__init__.py": "",
        "benchmarks/helper.py": "",
        "benchmarks/first.py": BENCHMARK.format(room="a"),
        "benchmarks/second.py": BENCHMARK.format(room="b"),
        "tests/memory/test_gpu.py": GPU_TEST,
        "tests/memory/test_cpu.py": "def test_one():\n    pass\n",
        "tests/cache/test_says.py": "SOURCE = 'pytest.mark.gpu'\n",
    }
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


def names(tree):
    return [part.name for part in all_parts(tree)]


def result_of(tree, name, **changes):
    """A file of figures for benchmark ``name`` that holds now, up to ``changes``."""
    sources = digest(tree, [f"benchmarks/{name}.py"])
    told = {"device": H100.device, "versions": {"torch": "2.11.1+cu130"}, "complete": True, "rows": [1, 2]}
    told |= {"sources": sources, "seconds": 5.0} | changes
    path = tree / RESULTS / f"{name}.cuda.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(told))
    return path, sources


def test_the_most_valuable_comes_first_then_the_cheapest(tree):
    assert names(tree) == ["tests-memory", "first", "second"]
    result_of(tree, "second", seconds=4.0)
    assert names(tree) == ["tests-memory", "second", "first"]
    result_of(tree, "second", seconds=4.0, complete=False)  # a cut run does not say how long it takes
    assert names(tree) == ["tests-memory", "first", "second"]


def test_a_file_more_is_a_part_more(tree):
    (tree / "benchmarks/third.py").write_text(BENCHMARK.format(room="a"))
    (tree / "tests/cache/test_more.py").write_text(GPU_TEST)
    assert set(names(tree)) == {"tests-memory", "tests-cache", "csan-cache", "first", "second", "third"}


def test_a_benchmark_is_a_part_only_where_it_says_that_it_needs_a_gpu(tree):
    text = BENCHMARK.format(room="a")
    (tree / "benchmarks/third.py").write_text(text.replace("NEEDS_GPU = True", ""))
    sections = 'GPU_PARTS = {"one": ("--only", "one"), "two": ("--sweep", "two, B1")}'
    (tree / "benchmarks/fourth.py").write_text(text.replace("NEEDS_GPU = True", sections))
    parts = {part.name: part for part in all_parts(tree)}
    assert set(parts) == {"tests-memory", "first", "second", "fourth-one", "fourth-two"}
    command = ["benchmarks.fourth", "--sweep", "two, B1", "--json", "x.json"]
    assert parts["fourth-two"].commands(Path("x.json"), parts["fourth-two"].files) == [command]
    assert parts["fourth-two"].result == "fourth-two.cuda.json"


def test_a_file_of_tests_has_a_process_of_its_own_and_the_kernels_share_some(tree, monkeypatch):
    (tree / "tests/memory/test_more.py").write_text(GPU_TEST)
    (tree / "tests/kernels").mkdir()
    (tree / "tests/kernels/test_a.py").write_text(GPU_TEST)
    (tree / "tests/kernels/test_b.py").write_text(GPU_TEST)
    parts = {part.name: part for part in all_parts(tree)}

    def of(name):
        return parts[name].commands(Path("x.json"), parts[name].files)

    assert [command[1] for command in of("tests-memory")] == [
        "tests/memory/test_gpu.py",
        "tests/memory/test_more.py",
    ]
    assert not any("-n" in command for command in of("tests-memory"))
    for installed, workers in ((True, ["2"]), (False, [])):
        monkeypatch.setattr("tools.gpu.parts.installed", lambda name, found=installed: found)
        monkeypatch.setattr("os.cpu_count", lambda: 2)
        (command,) = of("tests-kernels")
        assert command[1:3] == ["tests/kernels/test_a.py", "tests/kernels/test_b.py"]
        assert [command[place + 1] for place, word in enumerate(command) if word == "-n"] == workers


def test_the_real_tree_has_the_parts_that_are_promised_in_the_order_of_their_value():
    parts = {part.name: part for part in all_parts(ROOT)}
    assert {"lessons", "malloc", "kv_bytes", "tests-course", "tests-eviction"} <= set(parts)
    assert {name for line in ORDER for name in line} <= set(parts)
    assert set(EXPECTED_S) <= set(parts)
    assert not {"blocks", "caching_allocator", "startup", "simulate", "parallel", "kernels", "engine"} & set(
        parts
    )
    assert list(parts)[:2] == ["smoke", "tests-kernels"]
    assert list(parts)[-1] == "sanitizer"
    assert set(parts) <= set(EXPECTED_S), "a part without minutes"
    values = [part.value for part in parts.values()]
    assert values == sorted(values)
    assert dict(parts["csan-engine"].variables) == {"TORCH_CUDA_SANITIZER": "1"}
    assert parts["csan-engine"].files == parts["tests-engine"].files
    assert parts["sanitizer"].files == (SANITIZER,)
    later = {
        "tests-engine": ["tests/engine/test_decoders_gpu.py", "tests/engine/test_sampler.py"],
        "tests-nano": ["tests/nano/test_llm_gpu.py"],
        "tests-course": ["tests/course/test_monitor_gpu.py"],
    }
    assert all(set(files) <= set(parts[name].files) for name, files in later.items())
    assert {Path(name).stem.split("_")[0] for name in parts["lessons-first"].files[1:]} >= {"10", "11a", "16"}
    assert not set(parts["lessons-first"].files[1:]) & set(parts["lessons"].files)
    assert "tests/memory/allocator/test_gpu.py" in parts["tests-memory"].files
    assert all(part.result.endswith(".cuda.json") for part in parts.values())
    assert len({part.result for part in parts.values()}) == len(parts)
    assert all((ROOT / name).is_file() for part in parts.values() for name in part.files)


# Test files that name a device and need none: what they do is the same on every machine.
NO_GPU = {
    "tests/cache/test_linear_pages.py": "Triton's interpreter, on a CPU",
    "tests/cache/test_offload.py": "a fake torch.cuda that notes the order of its calls",
    "tests/cache/test_offload_pieces.py": "a fake torch.cuda",
    "tests/cache/test_paged_builds.py": "a device that is not there is refused",
    "tests/cli/test_commands.py": "what a broken CUDA says",
    "tests/cli/test_doctor_memory.py": "the devices that doctor lists, whichever there are",
    "tests/cli/test_generate.py": "a device that is not there is refused",
    "tests/course/lessons/test_l13.py": "a made-up card",
    "tests/course/lessons/test_lgpu.py": "made-up cards and figures; the lab itself is a lesson",
    "tests/course/test_allocation_widget.py": "a recorded report",
    "tests/course/test_monitor_memory.py": "a made-up report",
    "tests/course/test_torchrun.py": "a fake count of GPUs",
    "tests/engine/test_eviction_events.py": "a fake cache",
    "tests/engine/test_graphs_reports.py": "a fake cache",
    "tests/engine/test_llm_refusals.py": "a fake model",
    "tests/kernels/test_expanding.py": "arithmetic, and the reference on a CPU",
    "tests/kernels/test_attention_refuses.py": "a name that is refused",
    "tests/memory/test_arena.py": "a device that is not there is refused",
    "tests/memory/retention/test_report.py": "a fake tensor",
    "tests/models/test_adapter.py": "Triton's interpreter, on a CPU",
    "tests/models/test_linear.py": "Triton's interpreter, on a CPU",
    "tests/models/test_load.py": "a table of device and dtype",
    "tests/models/test_load_refuses.py": "a device that is not there is refused",
    "tests/nano/test_llm.py": "what is refused where there is no GPU",
    "tests/plan/logs/test_lines.py": "a recorded log",
    "tests/test_shown.py": "a made-up report",
}


def names_a_device(path):
    """Whether code (no string of prose) takes ``DEVICE``, calls ``.cuda``, or has a string like "cuda:0"."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Name) and node.id == "DEVICE":
            return True
        if isinstance(node, ast.Attribute) and node.attr == "cuda":
            return True
        if (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and re.fullmatch(r"cuda(:\d+)?", node.value)
        ):
            return True
    return False


def test_every_test_that_names_a_gpu_is_in_a_part_or_is_known_to_need_none():
    in_parts = {name for part in all_parts(ROOT) for name in part.files}
    naming = {
        str(path.relative_to(ROOT))
        for room in sorted((ROOT / "tests").iterdir())
        if room.name not in ("benchmarks", "tools")  # both fake what they need
        for path in (room.rglob("test_*.py") if room.is_dir() else [room])
        if path.suffix == ".py" and path.name.startswith("test_") and names_a_device(path)
    }
    assert naming - in_parts - set(NO_GPU) == set(), "mark it gpu, or say in NO_GPU why it needs none"
    assert set(NO_GPU) & in_parts == set()
    assert set(NO_GPU) <= naming, "no longer names a device"


def test_the_commands_that_are_written_down_fit_into_their_minutes():
    parts = all_parts(ROOT)
    text = (ROOT / "docs/gpu.md").read_text(encoding="utf-8").replace("\n", " ")
    commands = re.findall(r"`gpu (\d+) ([^`]*--part [^`]+)`", text)
    assert len(commands) >= 9
    named = []
    for minutes, options in commands:
        words = options.replace("--smoke", "").split()
        chosen = choose(parts, [word for word in words if word != "--part"])
        named += [part.name for part in chosen]
        seconds = sum(EXPECTED_S.get(part.name, UNKNOWN_S) for part in chosen) + 60 * ("--smoke" in options)
        assert seconds <= 60 * int(minutes), options
    first = [name for line in ORDER[1:-3] for name in line if name != "engine-mixed"]
    assert set(first) <= set(named)


def names_read(node):
    """Every name and attribute that code below ``node`` reads."""
    found = (each for each in ast.walk(node) if isinstance(each, ast.Name | ast.Attribute))
    return {each.id if isinstance(each, ast.Name) else each.attr for each in found}


def test_every_kernel_is_launched_by_a_test_of_a_part():
    """By its launch's name, or by that of an operation that starts it."""
    modules = [ast.parse(path.read_text()) for path in (ROOT / "minikv/kernels/gpu").glob("*.py")]
    functions = [node for tree in modules for node in tree.body if isinstance(node, ast.FunctionDef)]
    compiled = [node.name for node in functions if "jit" in names_read(ast.Module(node.decorator_list, []))]
    kernels = [name for name in compiled if name.endswith("_kernel")]
    files = {file for part in all_parts(ROOT) if part.kind == "tests" for file in part.files}
    read = set().union(*(names_read(ast.parse((ROOT / file).read_text())) for file in files))
    assert {"attention_kernel", "merge_splits_kernel", "store_kernel"} <= set(kernels)
    for kernel in kernels:
        starts, more = {kernel}, {kernel}
        while more:
            more = {node.name for node in functions if names_read(node) & starts} - starts
            starts |= more
        assert (starts - {kernel}) & read, kernel


def test_parts_by_number_range_and_name(tree):
    parts = all_parts(tree)

    def chosen(*words):
        return [part.name for part in choose(parts, words)]

    assert chosen("3", "1") == ["tests-memory", "second"]
    assert chosen("2-3") == ["first", "second"]
    assert chosen("tests-memory", "1", "1-1") == ["tests-memory"]
    assert chosen("tests") == ["tests-memory"]  # and every other that begins with it
    for wrong in ("0", "4", "2-4", "3-2", "-1", "1-", "x", "", "1.5", "²"):
        with pytest.raises(LookupError):
            choose(parts, ["1", wrong])


def test_figures_are_stale_when_a_file_that_they_rest_on_changes(tree):
    path, sources = result_of(tree, "first")
    assert why_to_run(path, sources, H100) == ""
    (tree / "minikv/errors.py").write_text("# words\n")
    (tree / "minikv/b.py").write_text("figure = 3\n")
    assert digest(tree, ["benchmarks/first.py"]) == sources
    (tree / "minikv/deep.py").write_text("figure = 9\n")
    changed = digest(tree, ["benchmarks/first.py"])
    assert changed != sources
    assert "changed" in why_to_run(path, changed, H100)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({}, ""),
        ({"complete": False}, "cut after 2 rows"),
        ({"device": "Fake T4"}, "stale: measured on Fake T4"),
        ({"versions": {"torch": "2.12.0"}}, "stale: measured with torch 2.12.0"),
        ({"versions": {}}, "stale: measured with torch none"),
        ({"sources": "0" * 16}, "stale: its files changed"),
    ],
)
def test_when_figures_hold(tree, changes, why):
    path, sources = result_of(tree, "first", **changes)
    assert why_to_run(path, sources, H100) == why


def test_without_a_machine_only_the_files_are_compared(tree):
    path, sources = result_of(tree, "first", device="Fake T4")
    assert why_to_run(path, sources, None) == ""
    assert why_to_run(path, "other", None) == "stale: its files changed"
    assert why_to_run(tree / "none.json", sources, None) == "missing"
    path.write_text('{"device": ')
    assert why_to_run(path, sources, None) == "missing"


def test_no_gpu_is_one_sentence_and_code_2_but_the_list_works(tree, capsys):
    def find():
        return "No CUDA device that torch can use."

    assert main([], root=tree, find=find) == 2
    assert main(["--part", "2"], root=tree, find=find) == 2
    told = capsys.readouterr()
    assert told.err.splitlines() == ["No CUDA device that torch can use."] * 2
    assert not (tree / RESULTS).exists()
    assert main(["--list"], root=tree, find=find) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[1] for line in lines[:3]] == ["tests-memory", "first", "second"]
    assert "missing" in lines[1]
    assert main(["--part", "9"], root=tree, find=find) == 2
    assert "1 to 3" in capsys.readouterr().err


def test_what_a_machine_is_told():
    good = {"torch": "2.11.0+cu128", "triton": "3.6.0", "transformers": "5.17.1", "device": "Fake H100"}
    assert (judge(good).device, judge(good).torch) == ("Fake H100", "2.11.0+cu128")
    assert "torch 2.10.9 is too old" in str(judge(good | {"torch": "2.10.9"}))
    assert "triton is not installed" in str(judge(good | {"triton": None}))
    assert "No CUDA device" in str(judge(good | {"device": None}))
    assert "driver" in str(judge(good | {"device": None, "error": "RuntimeError: driver too old"}))
    told = str(judge(good | {"numpy": "2.5.0", "python": "3.12.3", "interpret": "0"}))
    assert (
        told == "Fake H100, torch 2.11.0+cu128, triton 3.6.0, transformers 5.17.1, numpy 2.5.0, python 3.12.3"
    )
    assert "TRITON_INTERPRET is set" in str(judge(good | {"interpret": "1"}))
    assert "No CUDA device" in str(judge(good | {"device": None, "interpret": "1"}))


def test_only_what_is_missing_or_stale_runs_and_is_stamped(tree, capsys):
    result_of(tree, "second")
    arguments = ["--part", "first", "second"]
    parts = [part for part in all_parts(tree) if part.kind == "benchmark"]
    for path in (tree / "tests").rglob("test_*.py"):
        path.unlink()  # the tests' part would start pytest
    assert main([], root=tree, find=lambda: H100) == 0
    # Second is cheaper by its file, but there is nothing to do
    assert "== 2 first" in capsys.readouterr().out
    first = json.loads((tree / RESULTS / "first.cuda.json").read_text())
    assert first["rows"] == [1]
    assert first["sources"] == digest(tree, ["benchmarks/first.py"])
    assert json.loads((tree / RESULTS / "second.cuda.json").read_text())["rows"] == [1, 2]
    assert main([], root=tree, find=lambda: H100) == 0
    assert "==" not in capsys.readouterr().out
    assert main(arguments, root=tree, find=lambda: H100) == 0  # asked for by name: whether stale or not
    assert json.loads((tree / RESULTS / "second.cuda.json").read_text())["rows"] == [2]
    assert len(parts) == 2


def test_figures_that_go_elsewhere_leave_the_tree_alone_and_come_back_by_merge(tree, tmp_path, capsys):
    for path in (tree / "tests").rglob("test_*.py"):
        path.unlink()
    (tree / RESULTS).mkdir(parents=True)
    cpu = tree / RESULTS / "first.json"
    cpu.write_text("of a CPU")
    out = tmp_path / "elsewhere"
    assert main(["--out", str(out)], root=tree, find=lambda: H100) == 0
    assert sorted(path.name for path in out.iterdir()) == ["first.cuda.json", "second.cuda.json"]
    assert [path.name for path in (tree / RESULTS).iterdir()] == ["first.json"]
    assert main(["--out", str(out)], root=tree, find=lambda: H100) == 0  # what lies there counts as measured
    assert main(["--merge", str(out)], root=tree) == 0
    assert "taken       first.cuda.json: 1 rows" in capsys.readouterr().out
    assert cpu.read_text() == "of a CPU"
    assert main(["--list"], root=tree, find=lambda: H100) == 0
    assert capsys.readouterr().out.count("its figures hold") == 2
    assert main(["--merge", str(tmp_path / "nowhere")], root=tree) == 2


def test_a_cut_replaces_nothing_that_is_whole(tree, tmp_path):
    source, target = tmp_path / "new", tree / RESULTS
    source.mkdir()
    whole, _ = result_of(tree, "first")
    before = whole.read_text()
    (source / "first.cuda.json").write_text(json.dumps({"complete": False, "rows": [1]}))
    (source / "second.cuda.json").write_text(json.dumps({"complete": False, "rows": [1]}))
    (source / "third.cuda.json").write_text('{"rows": [')
    (source / "first.json").write_text("{}")  # a CPU's, not ours to take
    lines = merge(source, target)
    assert [line.split()[0] for line in lines] == ["kept", "taken", "unreadable"]
    assert whole.read_text() == before
    assert json.loads((target / "second.cuda.json").read_text())["rows"] == [1]
    assert not (target / "first.json").exists()
    (source / "second.cuda.json").write_text(json.dumps({"complete": True, "rows": [1, 2]}))
    assert any(line.startswith("taken") for line in merge(source, target))
    assert json.loads((target / "second.cuda.json").read_text())["complete"] is True


def test_a_stamp_adds_and_loses_nothing(tree):
    path, _ = result_of(tree, "first")
    before = json.loads(path.read_text())
    stamp(path, sources="abc", seconds=1.26)
    assert json.loads(path.read_text()) == before | {"sources": "abc", "seconds": 1.3}
    stamp(path.with_name("none.cuda.json"), sources="abc", seconds=1)
    assert not path.with_name("none.cuda.json").exists()


def test_what_a_file_rests_on(tree):
    (tree / "benchmarks/first.py").write_text(
        "import os, no_such_library_a\nfrom minikv import thing\n"
        "def late():\n    import no_such_library_b\n    from minikv.b import figure\n"
    )
    (tree / "minikv/__init__.py").write_text("if TYPE_CHECKING:\n    from minikv.a import thing\n")
    found = closure(tree, ["benchmarks/first.py"])
    # A name from the package may come from any room that it names; what a function imports counts as well.
    assert {"minikv/__init__.py", "minikv/a.py", "minikv/deep.py", "minikv/b.py"} <= found
    assert "minikv/b.py" not in closure(tree, ["benchmarks/first.py"], eager=True)
    assert missing_libraries(tree, ["benchmarks/first.py"]) == ["no_such_library_a"]


def test_a_file_beside_the_one_that_is_meant_does_not_count(tree):
    (tree / "minikv/room").mkdir()
    files = {
        "__init__.py": "from minikv.room.one import x\nfrom minikv.room.two import y\n",
        "one.py": "x = 1\n",
    }
    for name, text in (files | {"two.py": "import no_such_library_e\ny = 1\n"}).items():
        (tree / "minikv/room" / name).write_text(text)
    (tree / "benchmarks/first.py").write_text("from minikv.room.one import x\n")
    (tree / "benchmarks/second.py").write_text("from minikv.room import x\n")
    assert closure(tree, ["benchmarks/first.py"]) == {"benchmarks/first.py", "minikv/room/one.py"}
    assert "minikv/room/two.py" in closure(tree, ["benchmarks/second.py"])
    # Loading one file of a room loads the room, and what the others need.
    assert missing_libraries(tree, ["benchmarks/first.py"]) == ["no_such_library_e"]
