"""The command line as somebody types it: right answers, and for every bad input one clear line and exit code 2."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from minikv.plan import CacheSpec
from minikv.units import exact_bytes
from tests.cli.inside import Done, is_one_sentence
from tests.longer import every_value

LLAMA = {
    "model_type": "llama",
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 1000,
    "max_position_embeddings": 2048,
    "torch_dtype": "bfloat16",
}


def minikv(
    *arguments: str, stdin: str | bytes | None = None, **environment: str
) -> subprocess.CompletedProcess:
    env = {**os.environ, "COLUMNS": "100", **environment}
    data = stdin.encode() if isinstance(stdin, str) else stdin
    done = subprocess.run(
        [sys.executable, "-m", "minikv", *arguments], input=data, capture_output=True, env=env
    )
    encoding = environment.get("PYTHONIOENCODING", "utf-8")
    done.stdout, done.stderr = done.stdout.decode(encoding), done.stderr.decode(encoding)
    return done


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(LLAMA))
    return path


def test_plan_prints_every_part_with_its_exact_bytes(config, terminal):
    done = terminal("plan", str(config), "--gpu", "H200")
    told = json.loads(terminal("plan", str(config), "--gpu", "H200", "--json").out)
    assert (done.code, done.err) == (0, "")
    for num_bytes in told["parts"].values():
        assert f"{num_bytes:,}" in done.out
    assert f"{told['num_blocks']:,} blocks" in done.out


def test_json_parts_add_up(config, terminal):
    told = json.loads(terminal("plan", str(config), "--gpu", "H200", "--json").out)
    assert sum(told["parts"].values()) == told["total_bytes"]
    assert told["token_bytes"] == 2 * 2 * 2 * 64 * 2
    assert told["fits"] is True


def test_chinese_is_chinese(config, terminal):
    english, chinese = (
        terminal("plan", str(config), "--gpu", "H200", "--lang", lang).out for lang in ("en", "zh")
    )
    assert "权重" in chinese
    assert "weights" in english
    assert terminal("plan", str(config), "--gpu", "H200", MINIKV_LANG="zh").out == chinese


def test_table_ends_at_the_model_s_positions(config, terminal):
    done = terminal("plan", str(config), "--gpu", "H200", "--table")
    assert "2,048 *" in done.out
    assert "max_position_embeddings = 2,048" in done.out
    rows = json.loads(terminal("plan", str(config), "--gpu", "H200", "--table", "--json").out)
    assert [row["context"] for row in rows["contexts"]] == [1024, 2048]


def test_list_names_every_model_and_gpu(terminal):
    listed = json.loads(terminal("plan", "--list", "--json").out)
    assert {"Llama-3.1-8B", "DeepSeek-V3"} <= {model["name"] for model in listed["models"]}
    said = terminal("plan", "--list").out
    assert all(gpu["name"] in said for gpu in listed["gpus"])


def test_explain_names_the_fields(config, terminal):
    assert "num_key_value_heads = 2" in terminal("plan", str(config), "--explain").out


def test_without_a_gpu_plan_says_what_the_cache_costs(tmp_path, terminal):
    done = terminal("plan", "Llama-2-7B", "--context", "4096")
    assert (done.code, done.err) == (0, "")
    for said in (
        "full attention",
        "512.00 KiB (524,288 B)",
        "1 x 4,096 tokens take 2.00 GiB (2,147,483,648 B)",
        "--gpu H200",
    ):
        assert said in done.out
    told = json.loads(terminal("plan", "Llama-2-7B", "--batch", "8", "--json").out)
    assert (told["token_bytes"], told["context"], told["batch"]) == (524_288, 4096, 8)
    assert told["cache_bytes"] == 8 * 2**31
    assert [(layer["count"], layer["kind"], layer["token_bytes"]) for layer in told["layers"]] == [
        (32, "full", 16_384)
    ]
    assert "cache_bytes" not in json.loads(terminal("plan", "Llama-2-7B", "--json").out)
    chinese = terminal("plan", "Gemma-3-4B", "--context", "100000", "--lang", "zh").out
    size = CacheSpec.from_config("Gemma-3-4B").bytes_for(100_000)
    assert f"1 × 100,000 个 token 的缓存占 {exact_bytes(size)}" in chinese


def test_five_numbers_without_a_model_type_are_planned_once_it_is_given(tmp_path, terminal):
    path = tmp_path / "five.json"
    five = ("hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "vocab_size")
    path.write_text(json.dumps({name: LLAMA[name] for name in five}))
    refused = terminal("plan", str(path))
    assert refused.code == 2
    assert "--model-type llama" in refused.err
    told = json.loads(terminal("plan", str(path), "--model-type", "llama", "--json").out)
    assert (told["model"], told["model_type"], told["token_bytes"]) == (
        "five.json",
        "llama",
        2 * 2 * 2 * 64 * 2,
    )
    (said,) = [line for line in told["assumptions"] if "model_type" in line]
    assert "llama" in said
    assert "intermediate_size = 11008" in said  # the class's, and not this model's: it has to be said
    assert "vocab_size" not in said
    on_gpu = json.loads(terminal("plan", str(path), "--model-type", "llama", "--gpu", "H200", "--json").out)
    assert said in on_gpu["assumptions"]


def test_a_weight_dtype_is_planned_with(config, terminal):
    told, plain = (
        json.loads(terminal("plan", str(config), "--gpu", "H200", "--json", *more).out)
        for more in (["--weight-dtype", "int4"], [])
    )
    assert told["parts"]["weights"] < plain["parts"]["weights"]
    assert any("int4" in sentence for sentence in told["assumptions"])


def test_plan_needs_no_torch(config):
    code = (
        "import sys; sys.argv = ['minikv', 'plan', sys.argv[1], '--gpu', 'H200']\n"
        "from minikv.cli import main\nmain_error = None\n"
        "try:\n    main()\nexcept SystemExit as end:\n    assert not end.code, end.code\n"
        "assert not {'torch', 'transformers'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code, str(config)], check=True, capture_output=True)


BAD = [
    (["plan"], "minikv plan --list"),
    (["plan", "{config}", "--table"], "--gpu"),
    (["plan", "{config}", "--weight-dtype", "int4", "--chunk", "64"], "--chunk, --weight-dtype"),
    (["plan", "NoSuchLlama-3.1-8B"], "Llama-3.1-8B"),
    (["plan", "NoSuchLlama-3.1-8B", "--gpu", "H900", "--batch", "0"], "Llama-3.1-8B"),
    (["plan", "{config}", "--context", "4096"], "2,048"),
    (["plan", "{config}", "--batch", "0"], "batch"),
    (["plan", "{config}", "--gpu", "H200", "--weight-dtype", "int5"], "nvfp4"),
    (
        ["plan", "{config}", "--gpu", "H200", "--weight-dtype", "int4", "--weight-bytes", "1GiB"],
        "1,073,741,824",
    ),
    (["plan", "{config}", "--model-type", "qwen3"], "'llama'"),
    (["plan", "{config}", "--gpu", "H900"], "H900"),
    (["plan", "{config}", "--gpu", "A100"], "A100 SXM 80GB"),
    (["plan", "{config}", "--gpu", "GB200"], "--gpu-bytes"),
    (["plan", "{config}", "--gpu-bytes", "80 apples"], "80 apples"),
    (["plan", "{config}", "--gpu-bytes", "-5"], "-5"),
    (["plan", "{config}", "--gpu-bytes", "nan"], "nan"),
    (["plan", "{config}", "--gpu", "H200", "--tp", "3"], "tp=3"),
    (["plan", "{config}", "--gpu", "H200", "--tp", "0"], "tp"),
    (["plan", "{config}", "--gpu", "H200", "--context", "4096"], "2,048"),
    (["plan", "{config}", "--gpu", "H200", "--batch", "0"], "batch"),
    (["plan", "{config}", "--gpu", "H200", "--utilization", "90"], "utilization"),
    (["plan", "{config}", "--gpu", "H200", "--kv-dtype", "fp3"], "fp8"),
    (["plan", "{config}", "--gpu", "H200", "--layout", "sglang"], "vllm"),
    (["plan", "{config}", "--gpu", "H200", "--lang", "fr"], "zh"),
    (["plan", "{config}", "--gpu", "H200", "--encoder-tokens", "4"], "encoder"),
    (["plan", "{config}", "--gpu-bytes", "1GiB"], "does not fit"),
    (["plan", "no/such/config.json", "--gpu", "H200"], "config.json"),
    (["plan", "{folder}", "--gpu", "H200"], "bad.json"),
    (["plan", "Lama-3.1-8B", "--gpu", "H200"], "Llama-3.1-8B"),
    (["check-log", "no-such-log.txt", "--model", "Llama-3.1-8B"], "no-such-log.txt"),
    (["lab", "--port", "99999", "--copy-only"], "99999"),
]


@pytest.mark.parametrize(
    ("arguments", "names"), BAD, ids=lambda value: "_".join(value) if isinstance(value, list) else ""
)
@pytest.mark.parametrize("lang", ["en", "zh"])
def test_bad_input_is_one_line_and_exit_code_2(arguments, names, lang, config, tmp_path, terminal):
    (tmp_path / "bad.json").write_text("{'model_type': 1}")
    places = {"config": str(config), "folder": str(tmp_path / "bad.json")}
    given = [argument.format(**places) for argument in arguments]
    if "--lang" not in given:
        given += ["--lang", lang]
    done = terminal(*given)
    assert is_one_sentence(done), done
    if lang == "en":
        assert names in done.err
    elif "--lang" not in arguments:
        assert any("\u4e00" <= letter <= "\u9fff" for letter in done.err), done.err


@pytest.mark.parametrize(
    ("arguments", "encoding"),
    [
        (("NoSuchLlama-3.1-8B", "--lang", "en"), "utf-8"),
        (("Llama-3.1-8B", "--gpu", "H200", "--lang", "zh"), "gbk"),
    ],
    ids=["error", "answer"],
)
def test_a_process_says_what_is_said_here(arguments, encoding, terminal):
    here = terminal("plan", *arguments, encoding=encoding)
    done = minikv("plan", *arguments, PYTHONIOENCODING=encoding)
    assert Done(done.returncode, done.stdout, done.stderr) == here


@pytest.mark.parametrize(
    "arguments", [["plan", "x", "--tp", "two"], ["plan", "--no-such-option"], ["no-such-command"]]
)
def test_wrong_usage_has_exit_code_2_and_no_traceback(arguments, terminal):
    done = terminal(*arguments)
    assert done.code == 2
    assert "Traceback" not in done.err


def test_a_missing_field_is_named(tmp_path, terminal):
    path = tmp_path / "config.json"
    path.write_text(json.dumps({key: value for key, value in LLAMA.items() if key != "num_hidden_layers"}))
    assert "num_hidden_layers" in terminal("plan", str(path), "--gpu", "H200").err


LOG = """INFO 06-01 12:00:00 [gpu_worker.py:298] Available KV cache memory: 8.11 GiB
INFO 06-01 12:00:01 [kv_cache_utils.py:864] GPU KV cache size: 66,416 tokens
INFO 06-01 12:00:01 [kv_cache_utils.py:868] Maximum concurrency for 2,048 tokens per request: 32.43x
"""


def test_check_log_from_a_file_and_from_standard_input(tmp_path, terminal):
    path = tmp_path / "start.log"
    path.write_text(LOG)
    model = ("--model", "Llama-3.1-8B", "--tp", "1")
    from_file = terminal("check-log", str(path), *model)
    piped = minikv("check-log", "-", *model, stdin=LOG)  # a real pipe
    assert from_file.code == 0, from_file
    assert from_file.out == piped.stdout
    assert "66,4" in from_file.out
    told = json.loads(terminal("check-log", "-", *model, "--json", stdin=LOG.encode()).out)
    assert (told["status"], told["model"], told["reasons"]) == ("agrees", "Llama-3.1-8B", [])
    assert told["predicted_tokens"][0] <= told["printed"]["tokens"] == 66_416 <= told["predicted_tokens"][1]
    contradicting = LOG.replace("8.11", "9.11").encode()
    wrong = terminal("check-log", "-", *model, "--json", "--lang", "zh", stdin=contradicting)
    told = json.loads(wrong.out)
    assert (wrong.code, told["status"], told["reasons"][0]["code"]) == (1, "contradicts", "gib_misses")
    assert told["reasons"][0]["text"].startswith("对不上的是")
    assert terminal("check-log", "-", "--model", "Llama-3.1-8B", stdin=b"\x00\xff" * 5000).code == 2


def test_lab_copies_the_course_and_never_overwrites_work(tmp_path, terminal):
    course = tmp_path / "course"
    first = terminal("lab", "--copy-only", "--folder", str(course))
    assert first.code == 0, first
    lesson = course / "notebooks" / "en" / "00_start_here.ipynb"
    exercise = course / "exercises" / "zh" / "02_how_many_bytes.ipynb"
    assert lesson.is_file()
    notebook = json.loads(exercise.read_text())
    notebook["cells"][-1]["source"] = "my own words"
    work = json.dumps(notebook)
    exercise.write_text(work)
    again = terminal("lab", "--copy-only", "--folder", str(course), "--lang", "zh")
    assert exercise.read_text() == work
    assert exercise.name in again.out
    assert ".new" not in again.out, "the same version: there is no newer one to speak of"
    # An update of a notebook that nobody touched is taken over.
    ledger = json.loads((course / ".minikv.json").read_text())
    lesson.write_text("old")
    import hashlib

    ledger["notebooks/en/00_start_here.ipynb"] = hashlib.sha256(b"old").hexdigest()
    (course / ".minikv.json").write_text(json.dumps(ledger))
    terminal("lab", "--copy-only", "--folder", str(course))
    assert lesson.read_text() != "old"
    # A damaged ledger never costs the reader's work.
    (course / ".minikv.json").write_text("{")
    lesson.write_text("mine")
    told = terminal("lab", "--copy-only", "--folder", str(course)).out
    assert lesson.read_text() == "mine"
    assert "the newer one is notebooks/en/00_start_here.new.ipynb" in told
    assert (course / "notebooks/en/00_start_here.new.ipynb").is_file()


def test_lab_says_when_a_folder_cannot_be_written(tmp_path, terminal):
    (tmp_path / "file").write_text("")
    done = terminal("lab", "--copy-only", "--folder", str(tmp_path / "file" / "inside"))
    assert done.code == 2
    assert done.err.count("\n") == 1


BROKEN = (
    "OSError('libcudart.so.12: cannot open shared object file\\nmore advice')",
    "ImportError('libcublas.so.12')",
    "RuntimeError('wrong build')",
)


@pytest.mark.parametrize(("error", "lang"), every_value(BROKEN, ["en", "zh"]))
def test_doctor_reports_a_torch_that_cannot_be_imported(error, lang, tmp_path):
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text(f"raise {error}")
    done = minikv("doctor", "--json", "--lang", lang, PYTHONPATH=str(tmp_path))
    assert done.stderr == ""
    assert done.returncode == 1
    topics = {finding["topic"]: finding for finding in json.loads(done.stdout)}
    assert topics["torch"]["state"] == "missing"
    assert error.split("'")[1].split("\\n")[0] in topics["torch"]["text"]
    assert "\n" not in topics["torch"]["text"]
    assert topics["gpu"]["state"] == topics["kernels"]["state"] == "note"
    chinese = [any("\u4e00" <= letter <= "\u9fff" for letter in topics["torch"]["text"])]
    assert chinese == [lang == "zh"]


def test_doctor_says_what_is_here(terminal):
    import torch

    done = terminal("doctor")
    assert done.code == 0
    assert torch.__version__ in done.out
    topics = {finding["topic"]: finding for finding in json.loads(terminal("doctor", "--json").out)}
    assert topics["python"]["values"]["version"].startswith(f"{sys.version_info.major}.")
    assert (topics["gpu"]["state"] == "ok") == torch.cuda.is_available()
