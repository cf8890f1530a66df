"""``minikv doctor --smoke``: a line a check in both languages, no transformers, and exit code 1 where one fails."""

import json
import re
import subprocess
import sys

import pytest

from minikv.eviction.policies.select import select
from minikv.eviction.study import smoke as module
from tests.cli.inside import is_one_sentence


def checks_of(out):
    return [line for line in out.splitlines() if line.startswith("[")]


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_a_line_a_check_and_how_many_there_were(terminal, lang):
    done = terminal("doctor", "--smoke", "--lang", lang)
    assert (done.code, done.err) == (0, "")
    lines = checks_of(done.out)
    assert len(lines) > 20
    assert all(line.startswith("[ok  ] ") for line in lines)
    assert len(done.out.splitlines()) == len(lines) + 1
    assert str(len(lines)) in done.out.splitlines()[-1]


def test_json_says_which_and_how_long(terminal):
    told = json.loads(terminal("doctor", "--smoke", "--json").out)
    assert told["failed"] == 0
    assert told["seconds"] > 0
    assert told["import_seconds"] >= 0
    assert {"capacity", "blocks", "masking_gqa"} < {check["check"] for check in told["checks"]}
    assert all(check["passed"] for check in told["checks"])


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_what_fails_says_what_came_out_and_the_code_is_1(terminal, monkeypatch, lang):
    monkeypatch.setattr(module, "select", lambda *args, **options: select(*args, **options | {"n_sink": 0}))
    done = terminal("doctor", "--smoke", "--lang", lang)
    assert done.code == 1
    failed = [line for line in checks_of(done.out) if line.startswith("[FAIL]")]
    (streaming,) = [line for line in failed if "streaming" in line]
    assert re.search(r"(?<!0 )6 7 8 9", streaming)  # what came out, beside 0 6 7 8 9
    assert len(failed) < len(checks_of(done.out))
    assert str(len(failed)) in done.out.splitlines()[-1]


def test_what_raises_has_failed_and_the_others_go_on(terminal, monkeypatch):
    def broken(*args, **options):
        raise RuntimeError("no kernel image\nis available")

    monkeypatch.setattr("minikv.eviction.study.smoke_cache.paged_decode", broken)
    told = json.loads(terminal("doctor", "--smoke", "--json").out)
    failed = [check for check in told["checks"] if not check["passed"]]
    assert [check["check"] for check in failed] == ["masking_gqa"]
    assert failed[0]["text"].endswith("RuntimeError: no kernel image")


def test_it_is_not_both_and_a_torch_that_fails_is_one_sentence(terminal, monkeypatch):
    assert is_one_sentence(terminal("doctor", "--smoke", "--memory"))
    monkeypatch.setitem(sys.modules, "torch", None)
    assert is_one_sentence(terminal("doctor", "--smoke"))


def test_no_transformers_is_loaded():
    code = """
import sys
from minikv.eviction.study.smoke import smoke
print(len(list(smoke())), "transformers" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    count, loaded = done.stdout.split()
    assert int(count) > 20
    assert loaded == "False"
