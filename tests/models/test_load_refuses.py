"""What ``load`` refuses before a weight is read or foreign code is run."""

import pickle
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from minikv.errors import ArgumentError, UnknownNameError
from minikv.models import load
from tests.models.refusing import edit, refused


class Trap:
    """Unpickled, it makes a file: the proof that somebody's code has run."""

    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


def test_dtype_and_device_are_checked_first():
    for dtype in ("fp8", "float", torch.int8, torch.float64, None, 16):
        assert refused("no/such/folder", ArgumentError, dtype=dtype).code == "unknown_choice"
    for device in ("meta", "gpu", "cuda:99", None):
        assert refused("no/such/folder", ArgumentError, device=device).code == "arena_device"


def test_what_is_no_folder(folder, tmp_path):
    assert refused(7, ArgumentError).code == "models_name"
    absent = tmp_path / "absent"
    for name in (absent, str(absent), "a/b/c", "-x", "tiny gqa", "x/" + "y" * 5000, "a\0b", "~nobody-here/x"):
        assert refused(name, UnknownNameError).code == "models_no_folder"
    assert refused(folder / "model.safetensors").code == "models_file"


def test_a_config_that_is_absent_or_none(folder):
    edit(folder, model_type=None)
    assert refused(folder).code == "missing_field"
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


def test_weights_that_are_not_all_there_are_not_made_up(folder):
    weights = load_file(folder / "model.safetensors")
    gone = weights.pop("model.layers.1.mlp.up_proj.weight")
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    error = refused(folder)
    assert (error.code, error.values["count"]) == ("models_weights_missing", 1)
    assert error.values["first"] == "model.layers.1.mlp.up_proj.weight"
    weights["model.layers.1.mlp.up_proj.weight"] = gone[:5].clone()
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    assert refused(folder).code == "models_unreadable"


def test_damaged_files(folder):
    (folder / "tokenizer.json").write_text("{}")
    assert refused(folder).code == "models_unreadable"
    (folder / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes()[:1000])
    assert refused(folder).code == "models_unreadable"
    edit(folder, dtype=None)
    assert refused(folder).code == "models_unreadable"
    edit(folder, hidden_size="wide")
    assert refused(folder).code == "models_unreadable"
