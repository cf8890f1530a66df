"""What the calculator's page answers: the package's own figures, from files that need the standard library alone."""

import json
import subprocess
import sys
import zipfile

import pytest

from minikv import CacheSpec, plan_memory
from minikv.course.widgets.budget import BudgetWidget
from minikv.i18n import LANGUAGES
from minikv.plan import plan_gguf
from minikv.plan.catalog import find_model
from tests.plan.gguf.files import TENSORS, write
from tools.site.browser import calculator, playground
from tools.site.calculator import rows, write_package


@pytest.fixture(autouse=True)
def own_models():
    yield
    calculator.models.clear()
    calculator.gguf_paths.clear()


def ask(lang: str = "en", **state: object) -> dict:
    return json.loads(calculator.answer(json.dumps({"lang": lang, "state": state})))


@pytest.mark.parametrize("lang", LANGUAGES)
def test_the_page_says_what_the_widget_says(lang):
    told = ask(lang, model="DeepSeek-V3", tp=8, context=32_768)
    widget = BudgetWidget(lang, model="DeepSeek-V3", tp=8, context=32_768)
    assert told["view"] == widget.view
    assert told["state"] == widget.state
    assert told["form"]["fields"] == json.loads(json.dumps(widget.form["fields"]))
    spec = CacheSpec.from_config("DeepSeek-V3", tp=8)
    assert told["explained"] == {each: spec.explain(each) for each in LANGUAGES}
    assert told["command"] == "minikv plan DeepSeek-V3 --gpu 'H200 SXM' --tp 8 --context 32768"


def test_settings_that_cannot_work_are_said():
    told = ask(model="Llama-3.1-70B", gpu="T4")
    assert told["view"]["error"]
    assert "327,680 B" in told["explained"]["en"], "what a token costs is known all the same"
    told = ask(model="Llama-3.1-70B", tp=7)
    assert told["view"]["status"] == told["explained"]["en"]


def test_a_model_whose_layers_were_measured_says_what_a_token_costs():
    told = ask(model="MiniMax-M3", tp=8)
    assert ["MiniMax-M3", "MiniMax-M3"] in told["form"]["fields"][0]["options"]
    assert "--activation-bytes" in told["view"]["status"]
    spec = CacheSpec.from_config("MiniMax-M3", tp=8)
    assert told["explained"] == {each: spec.explain(each) for each in LANGUAGES}
    assert {row.model: row.token_bytes for row in rows()}["MiniMax-M3"] == 137_472


def test_a_pasted_config_is_a_model_like_those_of_the_catalogue():
    config = find_model("Qwen3-0.6B").config
    [name] = json.loads(calculator.add_config(json.dumps(config), "en")).values()
    told = ask(model=name)
    assert told["view"]["figures"][1]["value"] == f"{plan_memory(config, gpu='H200').max_tokens:,}"
    assert [name, name] in told["form"]["fields"][0]["options"]
    assert "config.json" in told["command"]
    assert json.loads(calculator.add_config(json.dumps(config), "en"))["model"] != name


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"model_type": "no_such"}'])
def test_a_config_that_cannot_be_read_is_said_in_both_languages(text):
    for lang in LANGUAGES:
        told = json.loads(calculator.add_config(text, lang))
        assert told.keys() == {"error"}
        assert told["error"]
    assert calculator.models == {}


def test_a_gguf_file_is_planned_as_llama_cpp_allocates_for_it(tmp_path):
    path = write(tmp_path / "small.gguf", tensors=TENSORS)
    [name] = json.loads(calculator.add_gguf(str(path), "en")).values()
    told = ask("zh", model=name, kv_dtype="q8_0", context=512, tp=4)
    plan = plan_gguf(path, kv_dtype="q8_0", gpu="H200", context=512)
    assert told["explained"] == {lang: plan.text(lang) for lang in LANGUAGES}
    assert told["command"] == plan.command()
    assert told["view"]["bar"]["total"] == plan.total_bytes
    keys = [field["key"] for field in told["form"]["fields"]]
    assert keys == ["model", "gpu", "kv_dtype", "context", "batch"]
    # Back at a model of the catalogue, its own cache types are offered again.
    assert ask(model="Qwen3-0.6B", kv_dtype="q8_0")["state"]["kv_dtype"] is None


def test_a_gguf_file_that_is_too_large_is_drawn_beyond_the_edge(tmp_path):
    path = write(tmp_path / "small.gguf", tensors=TENSORS)
    [name] = json.loads(calculator.add_gguf(str(path), "en")).values()
    told = ask("en", model=name, kv_dtype="f16", gpu="T4", context=2048, batch=65536)
    plan = plan_gguf(path, kv_dtype="f16", gpu="T4", context=2048, batch=65536)
    bar = told["view"]["bar"]
    assert told["view"]["error"]
    assert bar["total"] - bar["over"]["limit"] == -plan.left_bytes > 0
    assert bar["over"]["limit"] == plan.total_bytes


def test_a_damaged_gguf_file_is_said(tmp_path):
    path = tmp_path / "a.gguf"
    path.write_bytes(b"GGUF")
    assert "error" in json.loads(calculator.add_gguf(str(path), "zh"))


def test_the_package_of_the_page_runs_on_the_standard_library_alone(tmp_path):
    package = tmp_path / "minikv.zip"
    write_package(package)
    code = (
        "import sys, json; sys.path.insert(0, sys.argv[1]); import calculator, playground;"
        "print(calculator.answer(json.dumps({'lang': 'en', 'state': {'model': 'DeepSeek-V3', 'tp': 8}})));"
        "print(playground.answer(json.dumps(playground.start('zh'))))"
    )
    folder = tmp_path / "unpacked"
    zipfile.ZipFile(package).extractall(folder)
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code, folder], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    calculated, run = map(json.loads, done.stdout.splitlines())
    assert calculated == ask(model="DeepSeek-V3", tp=8)
    assert run == json.loads(playground.answer(json.dumps(playground.start("zh"))))
    before = package.read_bytes()
    write_package(package)
    assert package.read_bytes() == before


def test_the_table_has_the_planner_s_figures():
    found = {row.model: row for row in rows()}
    assert found["DeepSeek-V3"].token_bytes == 70_272
    assert found["DeepSeek-V3"].fixed_bytes == 0
    assert found["DeepSeek-V3"].tokens == 0, "its weights do not fit one H200"
    hybrid = CacheSpec.from_config("Qwen3.5-27B")
    one = found["Qwen3.5-27B"]
    assert hybrid.bytes_for(1000) == one.fixed_bytes + 1000 * one.token_bytes > 1000 * one.token_bytes > 0
    assert found["Llama-3.1-8B"].tokens == plan_memory("Llama-3.1-8B", gpu="H200").max_tokens
