"""An engine in a process of its own: answers in lines, whatever it prints; its end is told with its last words."""

import json
import subprocess
import sys

import pytest

from minikv.course.your_engine import driven
from minikv.course.your_engine.driven import DRIVER, Driven, DrivenError, vllm_command, vllm_variables
from minikv.course.your_engine.ways import RaceRequest
from minikv.models.sources import find_folder
from tests.vllm_stand_in import make

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="vLLM for CPUs runs on Linux")
ASKED = (RaceRequest((1, 2, 3), 2), RaceRequest((4, 5), 3))
ANSWERS = [[7, 8], [9, 10, 11]]
SETUP = {"folder": str(find_folder("tiny-gqa")), "eager": True}
SETUP |= {"seats": 4, "step_tokens": 16, "longest": 32, "kv_bytes": 2**20}


def start(tmp_path, limit_s=60.0, **stand_in):
    python = make(tmp_path, ASKED, ANSWERS, **stand_in)
    return Driven("vLLM", vllm_command(python), SETUP, vllm_variables(1, tmp_path / "cache"), limit_s)


def ask(engine, warm=0):
    return engine.ask([each.prompt for each in ASKED], [each.new for each in ASKED], warm)


def test_it_answers_every_load_with_tokens_seconds_and_memory(tmp_path):
    with start(tmp_path) as engine:
        found = [engine.ask([ASKED[0].prompt], [1]), ask(engine), ask(engine, warm=1)]
        assert [each["tokens"] for each in found] == [[[7]], ANSWERS, ANSWERS]
        times = [engine.began, *(each["now"] for each in found)]
        assert times == sorted(times)
        assert all(each["seconds"] >= 0 and each["peak_bytes"] > 2**20 for each in found)


def test_the_memory_is_its_own_and_not_that_of_the_process_that_starts_it(tmp_path):
    kept = bytearray(300 * 2**20)
    kept[:: 2**12] = b"1" * len(kept[:: 2**12])
    with start(tmp_path) as engine:
        assert ask(engine)["peak_bytes"] < 200 * 2**20
    del kept


def test_the_last_lines_of_one_that_ends_are_told(tmp_path):
    with start(tmp_path, at_load="raise MemoryError('no blocks left')") as engine:
        with pytest.raises(DrivenError, match=r"code 1.*MemoryError: no blocks left") as told:
            ask(engine)
        assert "\n" not in str(told.value)
        assert "vLLM" in told.value.text("zh")


def test_one_that_ends_before_it_was_asked_is_told_too(tmp_path):
    with (
        start(tmp_path, at_start="sys.exit('this processor is too old')") as engine,
        pytest.raises(DrivenError, match="this processor is too old"),
    ):
        ask(engine)


def test_one_that_does_not_answer_is_ended(tmp_path):
    engine = start(tmp_path, limit_s=0.01, at_load="__import__('threading').Event().wait()")
    with engine, pytest.raises(DrivenError) as told:
        ask(engine)
    assert told.value.code == "driven_too_long"


def test_the_driver_runs_where_nothing_of_ours_can_be_imported(tmp_path):
    """As in vLLM's environment: only the standard library is there."""
    make(tmp_path, ASKED, ANSWERS)
    lines = [SETUP, {"prompts": [[1, 2, 3]], "new": [2], "warm": 0}]
    done = subprocess.run(
        [sys.executable, "-S", "-P", str(DRIVER)],
        input="".join(json.dumps(line) + "\n" for line in lines),
        env={"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["tokens"] == [[7, 8]]
    assert "words of a library" in done.stderr


def test_an_environment_that_was_not_finished_is_not_used(tmp_path, monkeypatch):
    monkeypatch.setattr(driven, "VLLM_FOLDER", tmp_path)
    assert driven.vllm_python() is None
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").touch()
    assert driven.vllm_python() is None
    (tmp_path / ".ready").touch()
    assert driven.vllm_python() == tmp_path / "bin" / "python"
