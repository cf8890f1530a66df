"""The file of progress: processes write it at once and lose nothing, and no trouble with it reaches a check."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from minikv.course import check, progress_file
from minikv.course.progress_file import VARIABLE, ProgressFile, progress_path, record_attempt
from minikv.errors import ConfigError
from tests.course.sample import blocks_needed

pytestmark = pytest.mark.usefixtures("lesson_99")

WRITERS, TURNS = 4, 25
WRITE = """
import sys
from pathlib import Path
from minikv.course.progress_file import ProgressFile
file, own, turns = ProgressFile(Path(sys.argv[1]), wait_s=60), sys.argv[2], int(sys.argv[3])
sys.stdin.read(1)  # all begin together
for turn in range(turns):
    file.change(lambda progress: progress.after("99.1", False, turn))
    file.change(lambda progress: progress.after(f"{own}.{turn + 1}", True, turn))
"""


@pytest.fixture(autouse=True)
def path(tmp_path, monkeypatch) -> Path:
    place = tmp_path / "deep" / "progress.json"
    monkeypatch.setenv(VARIABLE, str(place))
    progress_file._told.cache_clear()
    return place


def wrong(lengths, block_size):
    return 0


def test_processes_that_write_at_once_lose_nothing(path):
    command = [sys.executable, "-c", WRITE, str(path)]
    writers = [
        subprocess.Popen([*command, str(number), str(TURNS)], stdin=subprocess.PIPE)
        for number in range(WRITERS)
    ]
    for writer in writers:
        writer.stdin.write(b".")
        writer.stdin.close()
    assert [writer.wait(timeout=120) for writer in writers] == [0] * WRITERS
    progress = ProgressFile(path).read()
    assert progress.tasks["99.1"].attempts == WRITERS * TURNS
    due = {f"{number}.{turn + 1}" for number in range(WRITERS) for turn in range(TURNS)}
    assert progress.solved == due
    assert sorted(place.name for place in path.parent.iterdir()) == [path.name, f"{path.name}.lock"]


def test_threads_that_write_at_once_lose_nothing(path):
    def write():
        for turn in range(TURNS):
            ProgressFile(path, wait_s=60).change(lambda progress: progress.after("99.1", False, turn))  # noqa: B023

    threads = [threading.Thread(target=write) for _ in range(WRITERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert ProgressFile(path).read().tasks["99.1"].attempts == WRITERS * TURNS


def test_a_reader_never_sees_half_a_file(path):
    file = ProgressFile(path)
    file.change(lambda progress: progress.after("99.1", False, 0))
    over, seen = threading.Event(), []

    def look():
        while not over.is_set():
            seen.append(file.read().tasks["99.1"].attempts)

    reader = threading.Thread(target=look)
    reader.start()
    for turn in range(200):
        file.change(lambda progress: progress.after("99.1", False, turn))  # noqa: B023
    over.set()
    reader.join()
    assert seen == sorted(seen)


def test_check_records_what_was_tried(path, capsys):
    def stub(lengths, block_size):
        raise NotImplementedError

    def other_names(a, b):
        return 0

    def raises(lengths, block_size):
        raise RuntimeError

    for fn in (..., stub, other_names, 5):
        check("99.1", fn)
    assert not path.exists(), "nothing was tried"
    check("99.1", wrong, seed=4)
    check("99.1", raises, seed=5)
    assert ProgressFile(path).read().tasks["99.1"].attempts == 2
    assert not ProgressFile(path).read().solved
    check("99.1", blocks_needed, seed=6)
    check("99.1", wrong, seed=7)
    tried = ProgressFile(path).read().tasks["99.1"]
    assert (tried.attempts, tried.passed, tried.seed) == (3, True, 6)
    assert "recorded" not in capsys.readouterr().out
    assert "blocks_needed" not in path.read_text()


def test_off_writes_nothing(path, monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("LOCALAPPDATA", str(tmp_path / "data"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for word in ("off", "OFF"):
        monkeypatch.setenv(VARIABLE, word)
        check("99.1", blocks_needed)
    assert list(tmp_path.iterdir()) == []
    assert capsys.readouterr().out.count("\n") == 2


def test_where_it_is(tmp_path, monkeypatch):
    home = tmp_path / "home"
    monkeypatch.setattr(Path, "home", lambda: home)
    name = Path("minikv", "progress.json")
    due = {
        "linux": home / ".local" / "share" / name,
        "darwin": home / "Library" / "Application Support" / name,
        "win32": home / "AppData" / "Local" / name,
    }
    for platform, place in due.items():
        assert progress_path({}, platform) == place
        assert progress_path({VARIABLE: ""}, platform) == place
        assert progress_path({VARIABLE: "mine.json"}, platform) == Path("mine.json")
        assert progress_path({VARIABLE: "off"}, platform) is None
    shared = str(tmp_path / "shared")
    assert progress_path({"XDG_DATA_HOME": shared}, "linux") == Path(shared) / name
    assert progress_path({"XDG_DATA_HOME": "not/absolute"}, "linux") == due["linux"]
    assert progress_path({"LOCALAPPDATA": shared}, "win32") == Path(shared) / name


def test_a_user_without_a_home_is_told(monkeypatch):
    def homeless():
        raise RuntimeError("no home")

    monkeypatch.setattr(Path, "home", homeless)
    with pytest.raises(ConfigError) as refused:
        progress_path({}, "linux")
    assert refused.value.code == "progress_no_home"


@pytest.mark.parametrize("content", [b"", b"{", b'{"format": 1}', b"\xff"])
def test_a_damaged_file_is_kept_aside_and_said(path, content, capsys):
    path.parent.mkdir(parents=True)
    for number, lang in enumerate(("en", "zh", "en"), start=1):
        path.write_bytes(content)
        with pytest.raises(ConfigError):
            ProgressFile(path).read()
        assert path.read_bytes() == content, "reading changes nothing"
        check("99.1", blocks_needed, lang=lang)
        aside = path.with_name(path.name + (".damaged" if number == 1 else f".damaged{number}"))
        assert aside.read_bytes() == content
        said = capsys.readouterr().out.replace("\n", "")
        assert aside.name in said
        assert {"en": "passed", "zh": "通过"}[lang] in said
        assert ProgressFile(path).read().solved == {"99.1"}


def test_the_file_of_a_newer_minikv_stays_as_it_is(path, capsys):
    path.parent.mkdir(parents=True)
    path.write_text('{"format": 2, "tasks": []}')
    for _ in range(3):
        check("99.1", blocks_needed)
    assert path.read_text() == '{"format": 2, "tasks": []}'
    said = capsys.readouterr().out
    assert said.count("passed") == 3
    assert said.count("said once") == 1


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_a_place_that_cannot_be_written_is_said_once(tmp_path, monkeypatch, capsys, lang):
    (tmp_path / "file").write_text("mine")
    (tmp_path / "folder").mkdir()
    for place in ("file/progress.json", "folder", "file/deeper/progress.json"):
        progress_file._told.cache_clear()
        monkeypatch.setenv(VARIABLE, str(tmp_path / place))
        for _ in range(3):
            check("99.1", blocks_needed, lang=lang)
        said = capsys.readouterr().out
        assert said.count({"en": "passed", "zh": "通过"}[lang]) == 3
        assert said.count({"en": "said once", "zh": "只提示一次"}[lang]) == 1
    assert (tmp_path / "file").read_text() == "mine"


READ_ONLY = """
import os, sys
from minikv.course import progress_file
from minikv.i18n import text
for key in ("progress.not_recorded", "errors.unwritable_file"):
    text(key, "en", reason="", variable="", path="")  # nobody else may read the files of the package
if os.geteuid() == 0:
    os.seteuid(65534)  # root may write everywhere
for _ in range(3):
    progress_file.record_attempt("02.1", True, 0, "en")
print("done")
"""


@pytest.mark.skipif(sys.platform == "win32", reason="Windows keeps no such permission of a folder")
def test_a_read_only_folder_stops_nothing(tmp_path):
    folder = tmp_path / "locked"
    folder.mkdir()
    for above in (tmp_path, *tmp_path.parents[:2]):
        above.chmod(0o755)  # so that the folder itself is what refuses
    folder.chmod(0o555)
    environment = {**os.environ, VARIABLE: str(folder / "progress.json")}
    done = subprocess.run(
        [sys.executable, "-c", READ_ONLY], env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("done\n")
    assert done.stdout.count("said once") == 1
    assert list(folder.iterdir()) == []


def test_whoever_waits_too_long_gives_up(path):
    file = ProgressFile(path, wait_s=0)
    with file._locked(), pytest.raises(ConfigError) as refused:
        file.change(lambda progress: progress.after("99.1", True, 0))
    assert refused.value.code == "progress_busy"
    assert not path.exists()
    assert file.change(lambda progress: progress.after("99.1", True, 0))[0].solved == {"99.1"}


def test_an_error_that_nobody_thought_of_reaches_no_check(path, monkeypatch, capsys):
    def broken(*args):
        raise ZeroDivisionError("surprise")

    monkeypatch.setattr(ProgressFile, "change", broken)
    record_attempt("99.1", True, 0, "en")
    assert "ZeroDivisionError: surprise" in capsys.readouterr().out


def test_a_step_that_fails_changes_nothing(path):
    file = ProgressFile(path)
    file.change(lambda progress: progress.after("99.1", True, 0))
    before = path.read_bytes()

    def fails(progress):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        file.change(fails)
    assert path.read_bytes() == before
    assert file.change(lambda progress: progress.after("99.2", True, 0))[0].solved == {"99.1", "99.2"}


def test_a_full_disk_leaves_what_was_there(path, monkeypatch):
    file = ProgressFile(path)
    file.change(lambda progress: progress.after("99.1", True, 0))

    def full(*args):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", full)
        with pytest.raises(ConfigError) as refused:
            file.change(lambda progress: progress.after("99.2", True, 0))
    assert refused.value.code == "unwritable_file"
    assert file.read().solved == {"99.1"}
    assert sorted(place.name for place in path.parent.iterdir()) == [path.name, f"{path.name}.lock"]


@pytest.mark.skipif(sys.platform == "win32", reason="links need rights there")
def test_a_link_stays_a_link(path, tmp_path):
    real = tmp_path / "synced.json"
    path.parent.mkdir(parents=True)
    path.symlink_to(real)
    ProgressFile(path).change(lambda progress: progress.after("99.1", True, 0))
    assert path.is_symlink()
    assert ProgressFile(real).read().solved == {"99.1"}


def test_what_builds_and_tests_notebooks_records_nothing(path, monkeypatch):
    """Each of them starts kernels, or processes, that inherit its environment."""
    import tools.gpu.run
    from tools.notebooks import nbval_rules
    from tools.notebooks.execute import kernel_environment

    assert tools.gpu.run.environment(path)[VARIABLE] == "off"
    root = Path(__file__).parents[2]
    assert kernel_environment(root)[VARIABLE] == "off", "of the build, whatever started it"
    monkeypatch.setenv(VARIABLE, str(path))

    class Config:
        rootpath = root

        def getoption(self, name, default):
            return True

    for name in kernel_environment(root):
        monkeypatch.setenv(name, os.environ.get(name, ""))  # so that it is as it was after the test
    monkeypatch.setattr(nbval_rules.nbval.kernel, "KernelManager", None)
    nbval_rules.pytest_configure(Config())
    assert os.environ[VARIABLE] == "off"
