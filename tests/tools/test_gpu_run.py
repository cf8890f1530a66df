"""A part as a process: what a cut keeps, what is left out where a library is missing, what the files say."""

import contextlib
import json
import os
import select
import subprocess
import sys

import pytest

import benchmarks.report as report
from tests.tools.without import environment_without
from tools.gpu.__main__ import ROOT, main
from tools.gpu.machine import Machine
from tools.gpu.parts import Part
from tools.gpu.results import why_to_run
from tools.gpu.run import loadable, run_part
from tools.gpu.sources import digest

H100 = Machine("Fake H100", "2.11.0")
CUT = """
import json, os, subprocess, sys
path = sys.argv[2]
for count in (1, 2):
    with open(path + ".part", "w") as file:
        json.dump({"complete": False, "rows": list(range(count))}, file)
    os.replace(path + ".part", path)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
with open("child.pid", "w") as file:
    file.write(str(child.pid))
child.wait()
"""


def part(name, kind="benchmark"):
    return Part(name, kind, f"{name}.cuda.json", (f"benchmarks/{name}.py",), 1)


def benchmark(tree, name, text):
    path = tree / "benchmarks" / f"{name}.py"
    path.parent.mkdir(exist_ok=True)
    path.with_name("__init__.py").touch()  # a package: it hides the real one
    path.write_text(text)


def wait_for_the_end(pid):
    """A killed process ends a little after the signal; ``AssertionError`` where it does not within a minute."""
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        ended = select.poll()
        ended.register(process, select.POLLIN)
        assert ended.poll(60_000), f"process {pid} is still running"
    finally:
        os.close(process)


def test_a_cut_keeps_the_rows_and_ends_every_child(tmp_path):
    benchmark(tmp_path, "slow", CUT)
    outcome = run_part(part("slow"), tmp_path, tmp_path / "out", limit_s=4)
    assert outcome.state == "cut"
    assert "2 rows are kept" in outcome.note
    told = json.loads((tmp_path / "out/slow.cuda.json").read_text())
    assert told["rows"] == [0, 1]
    sources = digest(tmp_path, ["benchmarks/slow.py"])
    assert why_to_run(tmp_path / "out/slow.cuda.json", sources, H100) == "cut after 2 rows"
    wait_for_the_end(int((tmp_path / "child.pid").read_text()))


def test_a_part_that_fails_says_so_and_the_next_one_runs(tmp_path, capsys):
    guard = 'if __name__ == "__main__":\n    '
    benchmark(tmp_path, "bad", f"{guard}raise SystemExit(3)\n")
    good = 'import json, sys; json.dump({"complete": True, "rows": []}, open(sys.argv[2], "w"))\n'
    benchmark(tmp_path, "good", guard + good)
    assert main([], root=tmp_path, find=lambda: H100) == 1
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[-2:]] == ["failed", "done"]
    assert not (tmp_path / "benchmarks/results/bad.cuda.json").exists()


def test_a_missing_library_is_named_and_nothing_is_written(tmp_path):
    benchmark(tmp_path, "needy", "import no_such_library_c\n")
    outcome = run_part(part("needy"), tmp_path, tmp_path / "out")
    assert outcome.state == "skipped"
    assert "benchmarks/needy.py needs no_such_library_c" in outcome.note
    assert not (tmp_path / "out").exists()


def test_a_group_of_tests_leaves_out_only_the_files_that_lack_something(tmp_path):
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests/test_a.py").write_text("import no_such_library_c\n")
    (tmp_path / "tests/test_b.py").write_text("import pytest\n")
    group = Part("tests-x", "tests", "tests_x.cuda.json", ("tests/test_a.py", "tests/test_b.py"), 1)
    files, note = loadable(group, tmp_path)
    assert files == ("tests/test_b.py",)
    assert "tests/test_a.py needs no_such_library_c" in note


def test_every_test_leaves_a_row(tmp_path):
    (tmp_path / "test_rows.py").write_text(
        "import pytest\npytestmark = pytest.mark.gpu\n"
        "def test_good():\n    pass\n"
        "def test_bad():\n    assert 1 == 2\n"
        "def test_not_here():\n    pytest.skip('needs two GPUs')\n"
        "@pytest.fixture\ndef broken():\n    raise OSError('no driver')\n"
        "def test_error(broken):\n    pass\n"
        "def test_dies():\n    import os; os._exit(7)\n"
    )
    command = Part("t", "tests", "t.cuda.json", (), 1).command(tmp_path / "t.json", ("test_rows.py",))
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-m", *command, "-c", str(ROOT / "pyproject.toml"), "--rootdir", str(tmp_path)],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 7, done.stdout + done.stderr
    told = json.loads((tmp_path / "t.json").read_text())
    rows = {row["test"].rpartition(":")[2]: row for row in told["rows"]}
    assert told["complete"] is False  # the process died in the last test; those before it are kept
    assert {name: row["outcome"] for name, row in rows.items()} == {
        "test_good": "passed",
        "test_bad": "failed",
        "test_not_here": "skipped",
        "test_error": "failed",
    }
    assert "assert 1 == 2" in rows["test_bad"]["reason"]
    assert "needs two GPUs" in rows["test_not_here"]["reason"]
    assert "no driver" in rows["test_error"]["reason"]


def row(number):
    return report.Row(f"claim {number}", 1.0, 2.0, "peer", "s", "goal", True)


def test_a_benchmark_is_written_after_each_row(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(report, "device", lambda: "Fake H100")
    path = tmp_path / "folder" / "rows.json"
    seen = []

    def rows():
        for number in range(3):
            if path.exists():
                told = json.loads(path.read_text())
                seen.append((len(told["rows"]), told["complete"]))
            yield row(number)

    report.publish(rows(), path)
    assert seen == [(1, False), (2, False)]
    told = json.loads(path.read_text())
    assert (len(told["rows"]), told["complete"], told["device"]) == (3, True, "Fake H100")
    assert told["rows"][0]["ratio"] == 0.5
    assert "claims: 3 hold, 0 fall short" in capsys.readouterr().out
    assert [entry.name for entry in path.parent.iterdir()] == ["rows.json"]


def test_a_benchmark_that_dies_keeps_its_rows(tmp_path, monkeypatch):
    monkeypatch.setattr(report, "device", lambda: "Fake H100")

    def rows():
        yield row(0)
        raise MemoryError

    with pytest.raises(MemoryError):
        report.publish(rows(), tmp_path / "rows.json")
    told = json.loads((tmp_path / "rows.json").read_text())
    assert (len(told["rows"]), told["complete"]) == (1, False)


LOAD = """
import importlib, json
from pathlib import Path
from tools.gpu.parts import all_parts
from tools.gpu.run import loadable
left = []
for part in all_parts(Path.cwd()):
    files, note = loadable(part, Path.cwd())
    left += [note] if note else []
    if part.kind != "lessons":
        for name in files:
            importlib.import_module(name.removesuffix(".py").replace("/", "."))
print(json.dumps(left))
"""


def test_every_part_loads_without_jupyter_and_without_drawing_libraries(tmp_path):
    """What the planner says can be loaded can be; what it leaves out lacks only libraries that draw."""
    environment = environment_without(tmp_path, ROOT)
    done = subprocess.run(
        [sys.executable, "-c", LOAD], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    for note in json.loads(done.stdout.splitlines()[-1]):
        assert "benchmarks/" not in note, note
        for said in note.removeprefix("left out: ").split("; "):
            assert set(said.partition(" needs ")[2].split(", ")) <= {"anywidget", "traitlets"}, said


def test_whoever_ends_the_command_ends_the_part_and_keeps_its_rows(tmp_path):
    """As the time limit of a borrowed machine does: SIGTERM to the command alone."""
    benchmark(
        tmp_path, "slow", CUT + 'if __name__ == "__main__":\n    pass\n'
    )  # all_parts looks for that line
    program = (
        "import signal, sys; from pathlib import Path; from tools.gpu import __main__ as gpu, machine\n"
        "signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))\n"
        "here = machine.Machine('Fake H100', '2.11.0')\n"
        "gpu.main(['--part', 'slow'], root=Path(sys.argv[1]), find=lambda: here)\n"
    )
    command = subprocess.Popen([sys.executable, "-c", program, str(tmp_path)], cwd=ROOT)
    pid = tmp_path / "child.pid"
    while not pid.exists() or not pid.read_text():
        with contextlib.suppress(subprocess.TimeoutExpired):
            command.wait(0.05)
        assert command.returncode is None
    command.terminate()
    assert command.wait() == 143
    told = json.loads((tmp_path / "benchmarks/results/slow.cuda.json").read_text())
    assert told["rows"] == [0, 1]
    assert told["sources"] == digest(tmp_path, ["benchmarks/slow.py"])
    wait_for_the_end(int((tmp_path / "child.pid").read_text()))
