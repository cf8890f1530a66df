"""What ``load`` refuses before a weight is read or foreign code is run."""

import json
import pickle
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from minikv.errors import ArgumentError, ConfigError, DoesNotFitError, UnknownNameError
from minikv.models import load
from tests.models.refusing import edit, refused


class Trap:
    """Unpickled, it makes a file: the proof that somebody's code has run."""

    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


class BytesPath:
    def __fspath__(self) -> bytes:
        return b"model"


def test_dtype_and_device_are_checked_first():
    for dtype in ("fp8", "flaot", "double", torch.int8, torch.float64, None, 16):
        assert refused("no/such/folder", ArgumentError, dtype=dtype).code == "unknown_choice"
    for device in ("meta", "gpu", "cuda:99", None, -1, 10**30):
        assert refused("no/such/folder", ArgumentError, device=device).code == "arena_device"


def test_what_is_no_folder(folder, tmp_path):
    for name in (7, None, True, b"tiny-gqa", BytesPath(), ["tiny-gqa"]):
        assert refused(name, ArgumentError).code == "models_name"
    absent, loop = tmp_path / "absent", tmp_path / "loop"
    loop.symlink_to(loop)
    no_hub_ids = ["a/b/c", "../x", "-x", "tiny gqa", "tiny-gqa/"]
    for name in (absent, str(absent), loop, Path("org/model"), *no_hub_ids):
        error = refused(name, UnknownNameError)
        assert (error.code, str(name) in error.text()) == ("models_no_folder", True)
    for name in ("x/" + "y" * 5000, "a\0b", "~nobody-here/x", "\ud800", "https://huggingface.co/org/model"):
        assert refused(name, UnknownNameError).code == "models_no_folder"
    assert refused(folder / "model.safetensors").code == "models_file"


def test_a_config_that_is_absent_or_none(folder):
    edit(folder, model_type=None)
    assert refused(folder).code == "no_model_type"
    edit(folder, model_type=[], text_config={"model_type": "llama"})
    assert refused(folder).code == "models_unknown_type"
    (folder / "config.json").write_text("[]")
    assert refused(folder).code == "not_an_object"
    (folder / "config.json").write_text("{")
    assert refused(folder).code == "bad_json"
    (folder / "config.json").unlink()
    assert refused(folder).code == "no_config_json"


def test_pickles_are_refused_and_not_opened(folder, tmp_path):
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Trap(tmp_path / "ran")))
    assert load(folder, device="cpu").model.dtype == torch.float32, "beside safetensors they are passed over"
    (folder / "model.safetensors").unlink()
    error = refused(folder)
    assert (error.code, error.values["found"]) == ("models_pickle", "pytorch_model.bin")
    (folder / "pytorch_model.bin").unlink()
    assert refused(folder).code == "models_no_weights"
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("name", ["evil.bin", "evil.safetensors.bin", "evil"])
def test_pickles_that_only_an_index_names_are_not_opened(folder, tmp_path, name):
    """transformers reads every file of an index, whatever it is called."""
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").rename(folder / "other.safetensors")
    torch.save(weights, folder / name)
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": dict.fromkeys(weights, name)}))
    error = refused(folder)
    assert (error.code, error.values["found"]) == ("models_pickle", name)
    index.write_text(json.dumps({"metadata": {}, "weight_map": dict.fromkeys(weights, "other.safetensors")}))
    assert load(folder, device="cpu").model.dtype == torch.float32
    for damaged in ("{", "[]", '{"weight_map": [1]}', "{}"):
        index.write_text(damaged)
        assert refused(folder).code == "models_unreadable"


def test_code_that_comes_with_a_model_is_not_run(folder, tmp_path):
    ran = tmp_path / "ran"
    (folder / "modeling_mine.py").write_text(
        f"open({str(ran)!r}, 'w')\nclass Mine: pass\nclass Config: pass\n"
    )
    auto_map = {"AutoConfig": "modeling_mine.Config", "AutoModelForCausalLM": "modeling_mine.Mine"}
    edit(folder, auto_map=auto_map)
    assert type(load(folder).model).__name__ == "LlamaForCausalLM", "transformers' own class serves it"
    edit(folder, model_type="mine")
    assert refused(folder).code == "models_remote_code"
    edit(folder, auto_map=None)
    assert refused(folder).code == "models_unknown_type"
    assert not ran.exists()


@pytest.mark.parametrize(
    ("model_type", "architecture"),
    [
        ("bert", "BertForMaskedLM"),
        ("t5", "T5ForConditionalGeneration"),
        ("bart", "BartForConditionalGeneration"),
        ("vit", "ViTForImageClassification"),
        ("llama", "LlamaModel"),
        ("llama", "LlamaForSequenceClassification"),
    ],
)
def test_what_is_no_decoder(folder, model_type, architecture):
    edit(folder, model_type=model_type, architectures=[architecture])
    error = refused(folder, ArgumentError)
    assert (error.code, error.values["kind"]) == ("models_not_a_decoder", architecture)


@pytest.mark.parametrize("architectures", [[], [1], [None], 5, {"a": 1}, "Llama", [1, "LlamaForCausalLM"]])
def test_what_names_no_architecture_is_passed_over_or_refused_by_name(folder, architectures):
    edit(folder, architectures=architectures)
    try:
        found = type(load(folder, device="cpu").model).__name__
    except ConfigError as error:  # transformers 5.15 takes no such config, 5.23 does
        found = error.text("zh")
    assert found == "LlamaForCausalLM" or "architectures" in found


def test_weights_that_are_not_all_there_are_not_made_up(folder):
    weights = load_file(folder / "model.safetensors")
    gone = weights.pop("model.layers.1.mlp.up_proj.weight")
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    error = refused(folder)
    assert (error.code, error.values["count"]) == ("models_weights_missing", 1)
    assert error.values["first"] == "model.layers.1.mlp.up_proj.weight"
    weights["model.layers.1.mlp.up_proj.weight"] = gone[:5].clone()
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    error = refused(folder)
    assert (error.code, error.values["count"]) == ("models_weights_shape", 1)
    assert (error.values["stored"], error.values["wanted"]) == ([5, 128], [256, 128])
    assert error.values["first"] in error.text("zh")


def test_a_device_without_room_is_named_with_its_numbers(folder, monkeypatch):
    def full(model, device):
        raise torch.OutOfMemoryError("CUDA out of memory.\nTried to allocate 2.00 GiB. " + "word " * 100)

    monkeypatch.setattr(torch.nn.Module, "to", full)
    error = refused(folder, DoesNotFitError, device="cpu")
    assert (error.code, "2.00 GiB" in error.text("zh")) == ("models_no_memory", True)
    assert error.values["reason"].endswith("word …")
    assert len(error.values["reason"]) <= 300


def test_damaged_files(folder):
    (folder / "tokenizer.json").write_text("{}")
    assert refused(folder).code == "models_unreadable"
    (folder / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes()[:1000])
    assert refused(folder).code == "models_unreadable"
    edit(folder, dtype=None)
    assert refused(folder).code == "models_unreadable"
    edit(folder, hidden_size="wide")
    error = refused(folder)
    assert error.code == "models_config_refused"
    assert "wide" in error.text(), "what was wrong, not only where"
    edit(folder, hidden_size=128, text_config={"model_type": "llama"})
    assert refused(folder).code == "models_unreadable"
