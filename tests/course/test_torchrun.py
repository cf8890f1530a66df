"""Ranks from a notebook: what they print comes back, what goes wrong is a sentence, and no process is left."""

import importlib.util
import os
import subprocess
import sys

import psutil
import pytest
import torch

from minikv.course import torchrun
from minikv.course.torchrun import run_ranks
from minikv.errors import ArgumentError, RankLostError

RANK = """
import os, sys
if os.environ["RANK"] == "0":
    print(os.environ["WORLD_SIZE"], *sys.argv[1:], repr(os.environ["CUDA_VISIBLE_DEVICES"]))
"""
FAILS = """
import os
if os.environ["RANK"] == "1":
    raise ValueError("rank 1 has had enough")
"""
PARENT = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
print(child.pid, flush=True)
time.sleep(600)
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    """A function: a module of this text that the ranks can import."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)

    def write(text: str) -> str:
        (tmp_path / "a_rank.py").write_text(text)
        return "a_rank"

    return write


@pytest.mark.slow
def test_arguments_arrive_as_they_are_and_what_is_printed_comes_back(module):
    told = run_ranks(module(RANK), "a b", "$HOME; echo c", ranks=2)
    assert told == "2 a b $HOME; echo c ''\n"


@pytest.mark.slow
def test_a_rank_that_fails_is_a_sentence_with_its_error(module):
    with pytest.raises(RankLostError) as lost:
        run_ranks(module(FAILS), ranks=2)
    assert lost.value.code == "ranks_failed"
    assert str(lost.value).endswith("status 1: ValueError: rank 1 has had enough")


def test_a_time_limit_ends_it(module):
    before = set(psutil.Process().children(recursive=True))
    with pytest.raises(RankLostError) as lost:
        run_ranks(module("import time; time.sleep(600)"), seconds=0.3)
    assert lost.value.code == "ranks_too_slow"
    assert "0.3 seconds" in str(lost.value)
    assert set(psutil.Process().children(recursive=True)) <= before


def test_ranks_in_sessions_of_their_own_are_ended_too():
    process = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True)
    child = psutil.Process(int(process.stdout.readline()))
    torchrun._end(process)
    assert process.poll() is not None
    child_ended = psutil.wait_procs([child], timeout=10)[0]
    assert child_ended == [child]


def test_ending_what_has_ended_is_no_error():
    process = subprocess.Popen([sys.executable, "-c", ""], stdout=subprocess.PIPE)
    process.communicate()
    torchrun._end(process)


def test_without_accelerate_nothing_is_started(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(subprocess, "Popen", lambda *args, **options: pytest.fail("started"))
    with pytest.raises(ArgumentError) as refused:
        run_ranks("anything")
    assert refused.value.code == "parallel_accelerate"
    with pytest.raises(ArgumentError):
        run_ranks("anything", ranks=0)


def test_gpus_are_hidden_only_where_they_are_too_few(monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    for gpus, hidden in ((0, True), (1, True), (2, False), (8, False)):
        monkeypatch.setattr(torch.cuda, "device_count", lambda gpus=gpus: gpus)
        assert (torchrun._environment(2).get("CUDA_VISIBLE_DEVICES") == "") == hidden
    assert torchrun._environment(2)["GLOO_SOCKET_IFNAME"] in psutil.net_if_addrs()


REPORT = "E1122 10:00:00.1 7 torch/distributed/elastic/multiprocessing/api.py:1012] failed"


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (f"Traceback\n  line\nValueError: no\n{REPORT}\nOSError: later", "ValueError: no"),
        (f"a.b.ConfigError: first\nmore of it\n{REPORT}", "a.b.ConfigError: first"),
        (f"python: No module named x\n\n{REPORT}", "python: No module named x"),
        (f"{REPORT}\nChildFailedError: it", "ChildFailedError: it"),
        ("killed", "killed"),
        ("", "-"),
    ],
)
def test_the_reason_is_what_the_ranks_said_before_torchruns_report(said, reason):
    assert torchrun._reason(said) == reason
