"""A part as a process: what a cut keeps, what is left out where a library is missing, what the files say."""

import contextlib
import json
import os
import re
import select
import subprocess
import sys
from dataclasses import replace

import pytest

import benchmarks.report as report
from tests.tools.without import environment_without
from tools.gpu.__main__ import ROOT, main
from tools.gpu.machine import Machine
from tools.gpu.parts import Part, gpu_sections, is_program
from tools.gpu.record_tests import RUNNING
from tools.gpu.results import why_to_run
from tools.gpu.run import environment, loadable, run_part
from tools.gpu.sources import digest, installed

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
    guard = 'NEEDS_GPU = True\nif __name__ == "__main__":\n    '
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


@pytest.fixture
def cut_when_ready(tmp_path, monkeypatch):
    """A part's time is up as soon as it has made a file "ready"."""

    class Cut(subprocess.Popen):
        def wait(self, timeout=None):
            while timeout is not None and self.poll() is None:
                if (tmp_path / "ready").exists():
                    (tmp_path / "ready").unlink()
                    raise subprocess.TimeoutExpired(self.args, timeout)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    super().wait(0.02)
            return super().wait()

    monkeypatch.setattr(subprocess, "Popen", Cut)


TORCH = """
class cuda:
    is_available = is_initialized = staticmethod(lambda: True)
    get_device_name = staticmethod(lambda: "Fake H100")
    broken = False
    def synchronize():
        if cuda.broken:
            raise RuntimeError("an illegal memory access was encountered")
"""


@pytest.fixture
def tests_of(tmp_path, monkeypatch):
    """``tests_of({"a": text})`` is a part of those files of tests, run by pytest with our plugin and a fake torch."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # they take seconds to load
    if installed("xdist"):
        monkeypatch.setenv("PYTEST_PLUGINS", "xdist.plugin")
    (tmp_path / "torch.py").write_text(TORCH)
    (tmp_path / "pyproject.toml").write_text('[tool.pytest.ini_options]\nmarkers = ["gpu: needs a GPU"]\n')

    def make(files, name="tests-x"):
        (tmp_path / "tests").mkdir(exist_ok=True)
        begin = "import pytest\npytestmark = pytest.mark.gpu\n"
        for stem, text in files.items():
            (tmp_path / f"tests/test_{stem}.py").write_text(begin + text)
        listed = tuple(f"tests/test_{stem}.py" for stem in files)
        return Part(name, "tests", "tests_x.cuda.json", listed, 1)

    return make


def told(tmp_path):
    return json.loads((tmp_path / "out/tests_x.cuda.json").read_text())


def outcomes(tmp_path):
    return {row["test"].rpartition(":")[2]: row["outcome"] for row in told(tmp_path)["rows"]}


def test_every_test_leaves_a_row(tmp_path, tests_of):
    text = (
        "def test_good():\n    pass\n"
        "def test_bad():\n    assert 1 == 2\n"
        "def test_not_here():\n    pytest.skip('needs two GPUs')\n"
        "@pytest.fixture\ndef broken():\n    raise OSError('no driver')\n"
        "def test_error(broken):\n    pass\n"
    )
    outcome = run_part(tests_of({"rows": text}), tmp_path, tmp_path / "out")
    assert outcome.state == "failed"
    assert "1 passed, 2 failed, 1 skipped" in outcome.note
    assert "skipped without a reason that is listed: tests/test_rows.py::test_not_here" in outcome.note
    assert told(tmp_path)["complete"] is True
    rows = {row["test"].rpartition(":")[2]: row for row in told(tmp_path)["rows"]}
    assert [rows[name]["outcome"] for name in rows] == ["passed", "failed", "skipped", "failed"]
    assert "assert 1 == 2" in rows["test_bad"]["reason"]
    assert "needs two GPUs" in rows["test_not_here"]["reason"]
    assert "no driver" in rows["test_error"]["reason"]


@pytest.mark.parametrize(
    ("text", "state"),
    [
        ("def test_a():\n    pytest.skip('compute-sanitizer is not installed here')\n", "done"),
        ("def test_a():\n    pytest.skip('another test still holds GPU memory')\n", "failed"),
        ("", "failed"),  # no test at all
        ("raise OSError('cannot be read')\n", "failed"),
    ],
)
def test_on_a_gpu_silence_is_a_failure_unless_its_reason_is_listed(tmp_path, tests_of, text, state):
    given = tests_of({"a": text})
    assert run_part(given, tmp_path, tmp_path / "out").state == state


def test_a_test_that_kills_its_process_fails_and_the_others_go_on(tmp_path, tests_of):
    dies = "def test_a():\n    pass\ndef test_dies():\n    import os; os._exit(7)\ndef test_z():\n    pass\n"
    given = tests_of({"first": dies, "second": "def test_other():\n    pass\n"})
    outcome = run_part(given, tmp_path, tmp_path / "out")
    assert outcome.state == "failed"
    assert outcomes(tmp_path) == {
        "test_a": "passed",
        "test_dies": "failed",
        "test_z": "passed",
        "test_other": "passed",
    }
    assert told(tmp_path)["complete"] is True
    (died,) = [row for row in told(tmp_path)["rows"] if row["outcome"] == "failed"]
    assert died["reason"] == "the process ended with code 7"


def test_a_test_that_spoils_the_device_spoils_no_other_one(tmp_path, tests_of):
    text = "import torch\ndef test_a():\n    torch.cuda.broken = True\ndef test_z():\n    torch.cuda.synchronize()\n"
    outcome = run_part(tests_of({"a": text}), tmp_path, tmp_path / "out")
    assert outcomes(tmp_path) == {"test_a": "failed", "test_z": "passed"}
    assert "failed: tests/test_a.py::test_a" in outcome.note


def test_a_process_that_cannot_begin_ends_the_part(tmp_path, tests_of):
    given = tests_of({"a": "import os; os._exit(9)\n"})
    outcome = run_part(given, tmp_path, tmp_path / "out")
    assert outcome.state == "failed"


def test_each_file_of_tests_has_a_process_of_its_own(tmp_path, tests_of):
    write = "def test_{name}():\n    import os; open('pids', 'a').write(f'{{os.getpid()}}\\n')\n"
    files = {name: write.format(name=name) + write.format(name=f"{name}_more") for name in ("a", "b")}
    assert run_part(tests_of(files), tmp_path, tmp_path / "out").state == "done"
    pids = (tmp_path / "pids").read_text().split()
    assert (len(pids), len(set(pids))) == (4, 2)
    assert len(outcomes(tmp_path)) == 4


def test_tests_that_were_cut_go_on_and_what_was_running_runs_last(tmp_path, tests_of, cut_when_ready):
    """The first run hangs in a test until it is cut; the next one does not run again what has a row."""
    text = (
        "import os, time\n"
        "def note(name):\n    open('ran', 'a').write(f'{name} ')\n"
        "def test_a():\n    note('a')\n"
        "def test_hangs():\n    note('hangs')\n    if not os.path.exists('go'):\n"
        "        open('ready', 'w').close()\n        time.sleep(600)\n"
        "def test_z():\n    note('z')\n"
    )
    given = tests_of({"slow": text})
    outcome = run_part(given, tmp_path, tmp_path / "out")
    assert outcome.state == "cut"
    before = told(tmp_path)["seconds"]
    assert outcomes(tmp_path) == {"test_a": "passed", "test_hangs": RUNNING}
    assert told(tmp_path)["complete"] is False
    (tmp_path / "go").touch()
    assert run_part(given, tmp_path, tmp_path / "out").state == "done"
    assert (tmp_path / "ran").read_text().split() == ["a", "hangs", "z", "hangs"]
    assert outcomes(tmp_path) == dict.fromkeys(("test_a", "test_hangs", "test_z"), "passed")
    assert told(tmp_path)["seconds"] > before > 0  # of both runs
    assert run_part(given, tmp_path, tmp_path / "out").state == "done"  # what is whole begins anew
    assert (tmp_path / "ran").read_text().split()[4:] == ["a", "hangs", "z"]


def test_of_two_workers_none_writes_the_rows(tmp_path, tests_of, monkeypatch):
    pytest.importorskip("xdist")
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    # pytest replaces files of its own with what it compiles
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    (tmp_path / "conftest.py").write_text(
        "import os\nreplace = os.replace\n"
        "def noted(source, target):\n"
        "    open('writers', 'a').write(f'{os.getpid()}\\n')\n    replace(source, target)\n"
        "os.replace = noted\n"
    )
    write = "def test_{name}():\n    import os; open('pids', 'a').write(f'{{os.getpid()}}\\n')\n"
    given = tests_of({name: write.format(name=name) for name in "abcd"}, name="tests-kernels")
    assert "-n" in given.commands(tmp_path, given.files)[0]
    assert run_part(given, tmp_path, tmp_path / "out").state == "done"
    workers, writers = ({*(tmp_path / name).read_text().split()} for name in ("pids", "writers"))
    assert len(writers) == 1
    assert not writers & workers
    assert outcomes(tmp_path) == {f"test_{name}": "passed" for name in "abcd"}


GOES_ON = """
import json, os, sys, time
path = sys.argv[2]
kept = json.load(open(path))["rows"] if os.path.exists(path) else []
told = {"device": "Fake H100", "versions": {"torch": "2.11.0"}, "complete": False, "rows": [*kept, len(kept)]}
with open(path, "w") as file:
    json.dump(told, file)
open("ready", "w").close()
time.sleep(600)
"""


def test_a_part_that_was_cut_keeps_its_rows_until_its_files_or_the_machine_change(tmp_path, cut_when_ready):
    benchmark(tmp_path, "slow", GOES_ON)

    def rows(machine=H100):
        assert run_part(part("slow"), tmp_path, tmp_path / "out", machine=machine).state == "cut"
        return json.loads((tmp_path / "out/slow.cuda.json").read_text())["rows"]

    assert [rows(), rows(), rows()] == [[0], [0, 1], [0, 1, 2]]
    assert rows(Machine("Fake T4", "2.11.0")) == [0]
    assert rows() == [0, 1]  # it says that it is of an H100
    assert rows(Machine("Fake H100", "2.12.0")) == [0]
    benchmark(tmp_path, "slow", GOES_ON + "# changed\n")
    assert rows() == [0]


def test_what_is_compiled_lies_in_the_build_folder_unless_it_is_said_otherwise(tmp_path, monkeypatch):
    monkeypatch.delenv("TRITON_CACHE_DIR", raising=False)
    assert environment(tmp_path)["TRITON_CACHE_DIR"] == str(tmp_path / "build/triton")
    monkeypatch.setenv("TRITON_CACHE_DIR", "/elsewhere")
    assert environment(tmp_path)["TRITON_CACHE_DIR"] == "/elsewhere"


def test_a_part_has_variables_of_its_own(tmp_path):
    text = "import os; raise SystemExit(os.environ.get('TORCH_CUDA_SANITIZER') != '1')"
    benchmark(tmp_path, "sees", text)
    plain = part("sees")
    assert run_part(plain, tmp_path, tmp_path / "out").state == "failed"
    given = replace(plain, variables=(("TORCH_CUDA_SANITIZER", "1"),))
    assert run_part(given, tmp_path, tmp_path / "out").state == "done"


def row(number):
    return report.Row(f"claim {number}", 1.0, 2.0, "peer", "s", "goal", True)


def test_a_benchmark_is_written_after_each_row(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(report, "device", lambda on: f"Fake {on}")
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
    assert (len(told["rows"]), told["complete"], told["device"]) == (3, True, "Fake cpu")
    assert told["rows"][0]["ratio"] == 0.5
    assert "claims: 3 hold, 0 fall short" in capsys.readouterr().out
    assert [entry.name for entry in path.parent.iterdir()] == ["rows.json"]


def test_a_benchmark_that_dies_keeps_its_rows(tmp_path, monkeypatch):
    monkeypatch.setattr(report, "device", lambda on: f"Fake {on}")

    def rows():
        yield row(0)
        raise MemoryError

    with pytest.raises(MemoryError):
        report.publish(rows(), tmp_path / "rows.json")
    told = json.loads((tmp_path / "rows.json").read_text())
    assert (len(told["rows"]), told["complete"]) == (1, False)


def test_figures_are_stamped_with_the_device_that_they_ran_on(tmp_path, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.get_device_name", lambda: "Fake H100")
    for on, name in (("cuda", "Fake H100"), ("cpu", " CPU, ")):
        report.publish([row(0)], tmp_path / f"{on}.json", on=on)
        assert name in json.loads((tmp_path / f"{on}.json").read_text())["device"]


def test_every_benchmark_of_a_gpu_says_that_its_rows_ran_there():
    """And every other one does not: its figures would bear a GPU's name."""
    for path in sorted((ROOT / "benchmarks").glob("*.py")):
        if is_program(path):
            told = bool(re.search(r"publish\(.*\bon=", path.read_text()))
            assert told == bool(list(gpu_sections(path))), path.name


def test_steps_that_have_ended_are_kept_and_one_that_fails_does_not_stop_the_next(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.setenv(report.SOURCES, "abc")
    path, ran = tmp_path / "rows.json", []

    def steps(broken=()):
        for name in ("one", "two", "three"):

            def rows(name=name):
                ran.append(name)
                yield row(f"{name} a")
                if name in broken:
                    raise MemoryError(name)
                yield row(f"{name} b")

            yield report.Step(name, rows)

    with pytest.raises(SystemExit, match="could not be measured: two"):
        report.publish(steps(broken=["two"]), path)
    assert ran == ["one", "two", "three"]
    found = json.loads(path.read_text())
    assert (len(found["rows"]), found["complete"], found["sources"]) == (5, False, "abc")
    ran.clear()
    report.publish(steps(), path)
    assert ran == ["two"]
    found = json.loads(path.read_text())
    claims = ["one a", "one b", "three a", "three b", "two a", "two b"]
    assert sorted(entry["claim"] for entry in found["rows"]) == [f"claim {name}" for name in sorted(claims)]
    assert found["complete"] is True
    assert "one: measured before, kept" in capsys.readouterr().out
    ran.clear()
    report.publish(steps(), path)  # what is whole begins anew
    assert ran == ["one", "two", "three"]


@pytest.mark.parametrize("sources", [None, "other"])
def test_rows_of_other_files_are_not_gone_on_with(tmp_path, monkeypatch, sources):
    path = tmp_path / "rows.json"
    monkeypatch.setenv(report.SOURCES, "abc")
    report.write_rows(path, [{"claim": "old", "step": "one"}], complete=False, ended=["one"])
    assert report.kept(path)["ended"] == ["one"]
    monkeypatch.delenv(report.SOURCES)
    if sources:
        monkeypatch.setenv(report.SOURCES, sources)
    assert report.kept(path) == {}
    report.publish([report.Step("one", lambda: [row("new")])], path)
    assert [entry["claim"] for entry in json.loads(path.read_text())["rows"]] == ["claim new"]


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


@pytest.mark.long
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
    benchmark(tmp_path, "slow", CUT + "NEEDS_GPU = True\n")  # all_parts looks for that line
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
