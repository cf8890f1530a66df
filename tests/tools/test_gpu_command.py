"""The options of python -m tools.gpu: a first look that stops the rest, minutes that are kept, one file of figures."""

import io
import json
import tarfile

import pytest

from tools.gpu.__main__ import main
from tools.gpu.machine import Machine
from tools.gpu.parts import RESULTS, all_parts

H100 = Machine("Fake H100", "2.11.0")
RUNS = """
import json, os, sys
NEEDS_GPU = True
with open("ran", "a") as file:
    file.write("{name} " + os.environ.get("TORCH_CUDA_SANITIZER", "") + "\\n")
told = {{"device": "Fake H100", "versions": {{"torch": "2.11.0"}}, "complete": True, "rows": ["{name}"]}}
json.dump(told, open(sys.argv[-1], "w"))
{end}
"""


@pytest.fixture
def tree(tmp_path):
    """A first look and three benchmarks, which are expected to take 60, 10, 20 and 300 s."""
    for name in ("tools/__init__.py", "tools/gpu/__init__.py", "benchmarks/__init__.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    write(tmp_path, "tools/gpu/smoke.py")
    for name in ("cheap", "dear", "unknown"):
        write(tmp_path, f"benchmarks/{name}.py")
    known(tmp_path, "cheap", 10)
    known(tmp_path, "dear", 20)
    return tmp_path


def write(tree, name, end=""):
    stem = name.split("/")[-1].removesuffix(".py")
    (tree / name).write_text(RUNS.format(name=stem, end=end))


def known(tree, name, seconds):
    """A run of long ago has said how long it takes."""
    path = tree / RESULTS / f"{name}.cuda.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"complete": True, "seconds": seconds, "sources": "old", "rows": ["old"]}))


def run(tree, *arguments):
    code = main(list(arguments), root=tree, find=lambda: H100)
    ran = (tree / "ran").read_text().split() if (tree / "ran").exists() else []
    (tree / "ran").unlink(missing_ok=True)
    return code, ran


def test_the_first_look_comes_first_and_stops_the_rest_where_it_fails(tree, capsys):
    assert run(tree) == (0, ["smoke", "cheap", "dear", "unknown"])
    assert run(tree, "--smoke") == (0, ["smoke"])
    assert run(tree, "--smoke", "--part", "dear") == (0, ["smoke", "dear"])
    write(tree, "tools/gpu/smoke.py", "raise SystemExit(1)")
    capsys.readouterr()
    assert run(tree, "--smoke", "--part", "dear", "unknown") == (1, ["smoke"])
    told = capsys.readouterr().out
    assert "the rest would cost time" in told
    assert "left: dear, unknown" in told
    assert run(tree, "--part", "dear") == (0, ["dear"])


def test_what_would_not_end_within_the_minutes_is_left_and_named(tree, capsys):
    assert run(tree, "--minutes", "2") == (0, ["smoke", "cheap", "dear"])  # 60 + 10 + 20 s, then 300 s
    assert capsys.readouterr().out.endswith("left: unknown\n")
    assert run(tree, "--part", "dear", "--minutes", "0.001") == (0, [])
    assert run(tree, "--minutes", "9", "--part", "unknown") == (0, ["unknown"])
    assert "left" not in capsys.readouterr().out.splitlines()[-1]


@pytest.mark.parametrize("wrong", ["0", "-1", "nan", "x"])
def test_minutes_are_a_number_of_minutes(tree, wrong, capsys):
    with pytest.raises(SystemExit):
        run(tree, f"--minutes={wrong}")
    assert "--minutes" in capsys.readouterr().err


def test_no_part_runs_longer_than_the_minutes_that_are_left(tree, monkeypatch):
    limits = []

    def noted(part, root, out, limit_s, machine):
        limits.append(limit_s)
        return real(part, root, out, limit_s, machine)

    real = main.__globals__["run_part"]
    monkeypatch.setitem(main.__globals__, "run_part", noted)
    run(tree, "--part", "cheap", "dear", "--minutes", "1")
    assert 60 >= limits[0] > limits[1] > 0
    run(tree, "--part", "cheap")
    assert limits[2] == 530


def names(file):
    with tarfile.open(file) as archive:
        return sorted(archive.getnames())


def test_the_archive_holds_every_file_of_figures_and_comes_back_by_merge(tree, tmp_path, capsys):
    out, file = tree / "figures", tree / "away" / "figures.tar.gz"
    write(tree, "benchmarks/dear.py", "raise SystemExit(3)")
    assert run(tree, "--out", str(out), "--archive", str(file))[0] == 1  # what has failed does not stop it
    assert names(file) == sorted(path.name for path in out.iterdir())
    assert [path.name for path in file.parent.iterdir()] == [file.name]
    for part in all_parts(tree):
        (tree / RESULTS / part.result).unlink(missing_ok=True)
    capsys.readouterr()
    assert main(["--merge", str(file)], root=tree) == 0
    assert capsys.readouterr().out.count("taken") == 4
    for name in ("smoke", "cheap", "dear", "unknown"):
        assert json.loads((tree / RESULTS / f"{name}.cuda.json").read_text())["rows"] == [name]


def test_an_archive_is_there_after_each_part(tree, monkeypatch):
    """A command that is killed in a later part keeps the earlier ones."""
    seen, file = [], tree / "figures.tar.gz"
    real = main.__globals__["run_part"]

    def counted(*given):
        seen.append(names(file) if file.exists() else [])
        return real(*given)

    monkeypatch.setitem(main.__globals__, "run_part", counted)
    run(tree, "--part", "cheap", "dear", "--out", str(tree / "figures"), "--archive", str(file))
    assert seen == [[], ["cheap.cuda.json"]]


def member(name, content=b"{}", **changes):
    found = tarfile.TarInfo(name)
    found.size = len(content)
    for key, value in changes.items():
        setattr(found, key, value)
    return found, content


@pytest.mark.parametrize(
    "wrong",
    [
        member("../escaped.cuda.json"),
        member("/tmp/escaped.cuda.json"),
        member("folder/a.cuda.json"),
        member("cpu.json"),
        member("link.cuda.json", b"", type=tarfile.SYMTYPE, linkname="/etc/passwd"),
        member("pipe.cuda.json", b"", type=tarfile.FIFOTYPE),
    ],
    ids=lambda wrong: wrong[0].name,
)
def test_an_archive_of_anything_else_is_refused_whole(tree, wrong, capsys):
    file = tree / "wrong.tar"
    with tarfile.open(file, "w") as archive:
        for info, content in (member("good.cuda.json", b'{"rows": [1]}'), wrong):
            archive.addfile(info, io.BytesIO(content))
    assert main(["--merge", str(file)], root=tree) == 2
    assert wrong[0].name in capsys.readouterr().err
    assert not (tree / RESULTS / "good.cuda.json").exists()


@pytest.mark.parametrize("content", [b"", b"no archive", None])
def test_what_is_no_archive_is_a_sentence(tree, content, capsys):
    file = tree / "figures.tar"
    if content is not None:
        file.write_bytes(content)
    assert main(["--merge", str(file)], root=tree) == 2
    assert "neither a folder nor an archive" in capsys.readouterr().err


def test_the_sanitizer_of_streams_is_asked_for_by_name(tree, capsys):
    (tree / "tests/engine").mkdir(parents=True)
    (tree / "tests/engine/test_gpu.py").write_text("import pytest\npytestmark = pytest.mark.gpu\n")
    assert main(["--csan", "--list"], root=tree, find=lambda: H100) == 0
    assert [line.split()[1] for line in capsys.readouterr().out.splitlines()[:-1]] == ["csan-engine"]
