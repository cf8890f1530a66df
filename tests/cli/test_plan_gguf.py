"""``minikv plan FILE.gguf``: the plan, its forms, and the options that do not belong to it."""

import json

import pytest

from minikv.plan import plan_gguf
from tests.cli.inside import is_one_sentence
from tests.plan.gguf.files import TENSORS, write


@pytest.fixture
def path(tmp_path):
    return write(tmp_path / "small.gguf", tensors=TENSORS, general={"general.name": "Small"})


def test_plan_says_what_llama_cpp_allocates(path, terminal):
    done = terminal("plan", str(path), "--context", "2048", "--batch", "3", "--kv-dtype", "q8_0")
    plan = plan_gguf(path, context=2048, batch=3, kv_dtype="q8_0")
    assert (done.code, done.err) == (0, "")
    assert f"{plan.cache_bytes:,}" in done.out
    assert "--gpu H200" in done.out


def test_json_has_the_same_figures(path, terminal):
    words = ("--gpu-bytes", "2GiB", "--v-dtype", "q4_0", "--chunk", "256", "--json")
    told = json.loads(terminal("plan", str(path), *words).out)
    plan = plan_gguf(path, gpu_bytes=2**31, v_dtype="q4_0", chunk=256)
    assert told["cache_bytes"] == plan.cache_bytes
    assert told["parts"] == plan.parts()
    assert (told["fits"], told["max_context"], told["gpu_layers"]) == (True, 2048, 3)
    assert told["weights"]["on_gpu"] == plan.weights.on_gpu
    assert told["cache_bytes_by_type"]["q8_0"] == plan.in_type("q8_0").cache_bytes
    assert (told["chunk"], told["kv_dtype"], told["layout"]) == (256, "f16/q4_0", "llama.cpp")
    assert "parts" not in json.loads(terminal("plan", str(path), "--json").out)


def test_a_table_sets_types_against_contexts(path, terminal):
    rows = json.loads(terminal("plan", str(path), "--table", "--json", "--gpu-bytes", "1026MiB").out)[
        "contexts"
    ]
    assert [row["context"] for row in rows] == [1024, 2048]
    assert list(rows[0]["cache_bytes"]) == ["f16", "q8_0", "q4_0"]
    assert rows[0]["fits"][-1] == "q4_0"
    assert set(rows[1]["fits"]) < {"f16", "q8_0", "q4_0"}
    said = terminal("plan", str(path), "--table", "--gpu-bytes", "1026MiB").out
    assert "q4_0, GiB" in said
    assert "fits in" not in terminal("plan", str(path), "--table").out


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_both_languages_explain(path, terminal, lang):
    assert "llama.block_count = 2" in terminal("plan", str(path), "--explain", "--lang", lang).out
    shown = terminal("plan", str(path), "--gpu", "RTX 4090", "--lang", lang)
    assert (shown.code, "llama-server -m" in shown.out) == (0, True)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--tp", "2", "--utilization", "0.9"), "--tp, --utilization"),
        (("--layout", "hf"), "--layout"),
        (("--kv-dtype", "fp8"), "fp8"),
        (("--batch", "0"), "batch"),
        (("--gpu", "H100"), "H100"),
    ],
)
def test_what_does_not_belong_to_a_file_is_one_sentence(path, terminal, words, said):
    done = terminal("plan", str(path), *words)
    assert done.code == 2
    assert said in done.err
    assert is_one_sentence(done)


def test_v_in_another_type_is_llama_cpp_s_alone(terminal):
    done = terminal("plan", "Llama-3.1-8B", "--v-dtype", "q4_0")
    assert (done.code, "--v-dtype q4_0" in done.err) == (2, True)


def test_a_name_in_the_file_cannot_steer_the_terminal(tmp_path, terminal):
    path = write(tmp_path / "m.gguf", general={"general.name": "a\x1b[2Jb"})
    for words in ((), ("--gpu", "T4"), ("--explain",), ("--table",)):
        done = terminal("plan", str(path), *words)
        assert (done.code, "\x1b" in done.out) == (0, False)
