"""``--cpu-kv`` and ``--prefix-dir``: the second run finds the first one's prompt, and bench says what was swapped."""

import json
import re
import warnings

import pytest

from minikv.models import recall_prompt
from tests.cache.resealed import MALFORMED, reseal
from tests.cli.inside import is_one_sentence

pytestmark = pytest.mark.usefixtures("loaded_once")

PROMPT = recall_prompt(0).text
SMALL = ("--num-requests", "6", "--input-len", "30:60", "--output-len", "40", "--num-blocks", "12")


def test_the_next_run_finds_the_prompt_in_the_folder(terminal, tmp_path):
    command = (
        "generate",
        PROMPT,
        "--max-tokens",
        "4",
        "--cpu-kv",
        "4MiB",
        "--prefix-dir",
        str(tmp_path / "kept"),
    )
    first, second = terminal(*command), terminal(*command)
    assert (first.code, second.code) == (0, 0)
    assert first.out == second.out
    found = [int(re.search(r"(\d+) of (\d+) prompt tokens", done.err)[1]) for done in (first, second)]
    assert found[0] == 0
    assert found[1] >= 16


def test_a_malformed_file_in_the_folder_is_a_warning(terminal, tmp_path):
    folder = tmp_path / "kept"
    command = ("generate", PROMPT, "--max-tokens", "4", "--cpu-kv", "4MiB", "--prefix-dir", str(folder))
    due = terminal(*command).out
    (path,) = folder.iterdir()
    whole = path.read_bytes()
    for form in ("no metadata", "no JSON", "notes are nested"):
        path.write_bytes(whole)
        reseal(path, MALFORMED[form])
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            done = terminal(*command)
        assert (done.code, done.out) == (0, due), form
        assert "Traceback" not in done.err
        assert ["not used" in str(each.message) for each in said] == [True], form


def test_bench_tells_of_swaps(terminal, monkeypatch):
    monkeypatch.setattr("minikv.engine.ext.host.transfer_speeds", lambda pool: (1e15, 1e15))
    plain = terminal("bench", *SMALL, "--json")
    host = terminal("bench", *SMALL, "--cpu-kv", "16MiB", "--json")
    assert "swaps" in terminal("bench", *SMALL, "--cpu-kv", "16MiB").out
    plain, host = json.loads(plain.out)["metrics"], json.loads(host.out)["metrics"]
    assert plain["preemptions"] > 0
    assert (plain["swaps"], plain["host_hit_rate"]) == (0, 0)
    assert host["generated_tokens"] == plain["generated_tokens"]
    assert host["swaps"] == host["preemptions"] > 0


@pytest.mark.parametrize("lang", ["en", "zh"])
@pytest.mark.parametrize(
    "options",
    [
        ("--prefix-dir", "kept"),
        ("--cpu-kv", "1KiB"),
        ("--cpu-kv", "0"),
        ("--cpu-kv", "much"),
        ("--cpu-kv", "4MiB", "--prefix-dir", __file__),
        ("--cpu-kv", "4MiB", "--cache", "linear"),
    ],
)
def test_what_is_refused(terminal, options, lang):
    assert is_one_sentence(terminal("generate", PROMPT, *options, "--lang", lang))
