"""``make bench`` knows every benchmark, and says which of them failed."""

import sys

import pytest

from tools import bench


def test_every_benchmark_with_a_main_is_run():
    found = bench.names()
    assert {"engine", "eviction", "kernels", "startup"} <= set(found)
    assert not {"report", "engine_cases", "__init__"} & set(found)
    assert "vllm_cpu" not in found, "it would download an environment"


def test_one_that_fails_does_not_stop_the_others(monkeypatch, capsys):
    outcomes = {"blocks": "failed with exit code 2", "malloc": "done"}
    monkeypatch.setattr(bench, "run", outcomes.__getitem__)
    monkeypatch.setattr(sys, "argv", ["bench", "--only", "blocks", "malloc"])
    assert bench.main() == 1
    told = capsys.readouterr().out
    assert "failed with exit code 2" in told
    assert "malloc" in told


def test_an_unknown_name_is_refused(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["bench", "--only", "nothing"])
    with pytest.raises(SystemExit):
        bench.main()
    assert "nothing" in capsys.readouterr().err
