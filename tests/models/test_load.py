"""What ``load`` gives, and in which dtype."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, Gemma3Config
from transformers.utils import logging

from minikv.models import load, loading
from minikv.models.sources import TINY, find_folder
from minikv.plan import CacheSpec
from tests.models.refusing import edit
from tests.plan.small_models import small_config, small_model


@pytest.mark.parametrize("name", TINY)
def test_a_tiny_model_is_ready_to_run(name):
    loaded = load(name, device="cpu")
    model, tokenizer = loaded
    assert (loaded.name, model, tokenizer) == (name, loaded.model, loaded.tokenizer)
    assert CacheSpec.from_config(model.config).name == name
    assert not model.training
    assert not any(parameter.requires_grad for parameter in model.parameters())
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    assert "float32" in loaded.note()
    assert loaded.note("zh") != loaded.note("en")
    ids = tokenizer("ada paris the old cat sleeps ben oslo ? ada", return_tensors="pt").input_ids
    assert tokenizer.decode(model(ids).logits[0, -1].argmax()) == "paris"


@pytest.mark.parametrize(
    ("asked", "dtype"),
    [
        ("fp32", torch.float32),
        ("bf16", torch.bfloat16),
        ("fp16", torch.float16),
        (torch.float16, torch.float16),
    ],
)
def test_a_dtype_that_was_asked_for_is_given_without_a_note(folder, asked, dtype):
    loaded = load(folder, dtype=asked, device="cpu")
    assert {parameter.dtype for parameter in loaded.model.parameters()} == {dtype}
    # Angles of positions need float32 whatever the weights are.
    assert {buffer.dtype for buffer in loaded.model.buffers()} == {torch.float32}
    assert loaded.note() is None


def test_the_dtype_of_a_config_that_says_none_is_that_of_the_weights(folder):
    edit(folder, dtype=None)
    loaded = load(folder, device="cpu")
    assert (loaded.model.dtype, loaded.note() is None) == (torch.float32, False)
    weights = {key: tensor.bfloat16() for key, tensor in load_file(folder / "model.safetensors").items()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    loaded = load(folder, device="cpu")
    assert (loaded.model.dtype, loaded.note()) == (torch.bfloat16, None)


@pytest.mark.parametrize(
    ("device", "capability", "stated", "dtype"),
    [
        ("cuda", (7, 5), torch.bfloat16, torch.float16),
        ("cuda", (8, 0), torch.bfloat16, torch.bfloat16),
        ("cuda", (9, 0), torch.bfloat16, torch.bfloat16),
        ("cuda", (7, 5), torch.float16, torch.float16),
        ("cuda", (7, 5), torch.float32, torch.float32),
        ("cpu", None, torch.float16, torch.float32),
        ("cpu", None, torch.bfloat16, torch.bfloat16),
    ],
)
def test_auto_is_the_files_dtype_where_the_device_has_it(monkeypatch, device, capability, stated, dtype):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Tesla T4")
    chosen, note = loading._suit(stated, torch.device(device))
    assert chosen == dtype
    assert (note is None) == (chosen == stated)
    if note and device == "cuda":
        for lang in ("en", "zh"):
            said = loading.Loaded(None, None, "any", note).note(lang)
            assert "Tesla T4" in said
            assert "7.5" in said


def test_a_decoder_that_states_no_dtype_has_that_of_the_whole_config(tmp_path):
    whole = Gemma3Config(dtype="bfloat16").to_dict()
    del whole["text_config"]["dtype"]
    (tmp_path / "config.json").write_text(json.dumps(whole))
    config = loading._read_config(tmp_path)
    assert config.get_text_config(decoder=True).dtype is None
    assert loading._stated_dtype(config, tmp_path) == torch.bfloat16


def test_no_bar_stands_in_a_notebook_and_others_keep_theirs(folder, capsys):
    logging.enable_progress_bar()
    AutoModelForCausalLM.from_pretrained(folder)
    assert "Loading weights" in capsys.readouterr().err, "the bar that transformers shows"
    load(folder)
    assert "Loading weights" not in capsys.readouterr().err
    AutoModelForCausalLM.from_pretrained(folder)
    assert "Loading weights" in capsys.readouterr().err


def test_a_folder_without_a_tokenizer_gives_none(folder):
    for file in folder.glob("tokenizer*"):
        file.unlink()
    assert load(folder).tokenizer is None


def test_a_folder_is_found_by_text_and_by_path_and_from_home(folder, monkeypatch):
    monkeypatch.setenv("HOME", str(folder.parent))
    monkeypatch.setenv("USERPROFILE", str(folder.parent))
    assert find_folder(str(folder)) == find_folder(folder) == find_folder("~/copy") == folder


@pytest.mark.parametrize("model_type", ["gpt_neox", "gpt2", "gemma3_text"])
def test_other_decoders_load_as_they_were_saved(tmp_path, model_type):
    model = small_model(small_config(model_type))
    model.save_pretrained(tmp_path / "model")
    loaded = load(tmp_path / "model", device="cpu")
    assert (loaded.tokenizer, loaded.note()) == (None, None)
    ids = torch.tensor([[5, 9, 3]])
    assert torch.equal(loaded.model(ids).logits, model(ids).logits)
