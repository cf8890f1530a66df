"""``minikv doctor --memory``: the figures of the host and of every GPU, in both languages and as JSON."""

import json

import psutil
import pytest

from tests.cli.test_commands import minikv


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_the_host_is_described_with_its_exact_total(lang, terminal):
    plain = terminal("doctor", "--lang", lang)
    done = terminal("doctor", "--memory", "--lang", lang)
    assert (done.code, done.err) == (0, "")
    total = f"{psutil.virtual_memory().total:,}"
    assert total in done.out
    assert total not in plain.out
    assert ("含义" in done.out) == (lang == "zh")


def test_json_has_the_memory_beside_the_findings(terminal):
    import torch

    told = json.loads(terminal("doctor", "--memory", "--json").out)
    assert told["findings"][0]["topic"] == "python"
    assert [one["device"] for one in told["memory"]] == [
        "cpu",
        *(f"cuda:{index}" for index in range(torch.cuda.device_count())),
    ]
    host = told["memory"][0]
    assert host["used"] + host["free"] == host["total"] == psutil.virtual_memory().total


def test_a_torch_that_fails_leaves_the_memory_out_and_the_findings_in(tmp_path):
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("raise ImportError('libcublas.so.12')")
    done = minikv("doctor", "--memory", "--json", PYTHONPATH=str(tmp_path))
    assert (done.returncode, done.stderr) == (1, "")
    told = json.loads(done.stdout)
    assert told["memory"] == []
    assert any(finding["state"] == "missing" for finding in told["findings"])
