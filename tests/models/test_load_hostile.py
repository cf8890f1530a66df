"""Folders that somebody else has made: what they ask for is refused by name, before anything is built or run."""

import json
import os
import re
import sys

import pytest
import torch
from safetensors.torch import load_file, save_file

from minikv.errors import DoesNotFitError
from minikv.models import load
from tests.models.refusing import edit, refused

HUGE = {
    "num_hidden_layers": (3, 300, 1_001, 10_000, 10**7, 10**30),
    "hidden_size": (256, 2**16, 2**24, 2**40, 10**30),
    "intermediate_size": (2**16, 2**24, 2**40),
    "vocab_size": (2**20, 2**40),
    "num_attention_heads": (128, 2**25, 2**40),
    "head_dim": (2**16, 2**40),
    "max_position_embeddings": (10**30,),
}
NAMED = ("field_too_large", "models_weights_shape", "models_config_refused")


@pytest.mark.parametrize(("field", "value"), [(name, value) for name in HUGE for value in HUGE[name]])
def test_a_size_that_the_weights_do_not_have_is_named(folder, field, value, monkeypatch):
    """By its field; by one of the weights; or, of many layers, by the parameters. No weight is read for it."""
    edit(folder, **{field: value})
    if value != 3:  # one layer more is found missing among what was read
        monkeypatch.setattr("minikv.models.loading._read_model", None)
    error = refused(folder)
    assert error.code in {3: ["models_weights_missing"], 300: ["models_weights_few"]}.get(value, NAMED)
    if error.code in NAMED:
        assert field in error.text("en")
        assert field in error.text("zh") or error.code == "models_config_refused"
        assert "again" not in error.text("en")


def test_a_field_of_another_part_is_bounded_too(folder):
    edit(folder, vision_config={"depth": [4, 10**9]})
    error = refused(folder)
    assert (error.code, error.values["field"]) == ("field_too_large", "depth")


@pytest.mark.parametrize("fields", [{"hidden_act": "org/name"}, {"rope_parameters": {"rope_type": "odd"}}])
def test_a_field_that_no_model_can_be_built_with_is_the_configs_fault(folder, fields):
    edit(folder, **fields)
    error = refused(folder)
    assert error.code == "models_config_refused"
    assert "again" not in str(error)


@pytest.mark.parametrize("label", [torch.int32, torch.uint8, torch.int64])
def test_weights_that_are_called_integers_are_refused_by_name(folder, label):
    weights = load_file(folder / "model.safetensors")
    name = "model.layers.1.mlp.up_proj.weight"
    weights[name] = torch.zeros(weights[name].shape, dtype=label)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    error = refused(folder)
    assert (error.code, error.values["count"], error.values["first"]) == ("models_weights_whole", 1, name)


def test_relabelled_bytes_of_the_same_width_are_refused(folder):
    data = (folder / "model.safetensors").read_bytes()
    size = int.from_bytes(data[:8], "little")
    header = data[8 : 8 + size].replace(b'"F16"', b'"I16"')
    assert header != data[8 : 8 + size]
    (folder / "model.safetensors").write_bytes(data[:8] + header + data[8 + size :])
    assert refused(folder).code == "models_weights_whole"


OUTSIDE = [
    "../other.safetensors",
    "/etc/passwd",
    "sub/../../x.safetensors",
    "..\\x.safetensors",
    "C:\\x.safetensors",
]


@pytest.mark.parametrize("name", OUTSIDE)
def test_an_index_does_not_lead_out_of_the_folder(folder, name):
    weights = load_file(folder / "model.safetensors")
    os.replace(folder / "model.safetensors", folder.parent / "other.safetensors")
    save_file({"a": torch.zeros(1)}, folder / "part.safetensors")
    index = {"metadata": {}, "weight_map": dict.fromkeys(weights, name)}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    error = refused(folder)
    assert (error.code, error.values["name"]) == ("models_outside", name)
    assert "pickle" not in str(error)


def test_links_as_in_a_hub_cache_are_followed(folder):
    """The hub's cache keeps every file once, and a folder of links to them for each revision."""
    blobs = folder.parent / "blobs"
    blobs.mkdir()
    weights = load_file(folder / "model.safetensors")
    os.replace(folder / "model.safetensors", blobs / "0123")
    (folder / "model-00001-of-00001.safetensors").symlink_to("../blobs/0123")
    index = {"metadata": {}, "weight_map": dict.fromkeys(weights, "model-00001-of-00001.safetensors")}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    assert torch.equal(load(folder, device="cpu").model.lm_head.weight, weights["lm_head.weight"])


@pytest.mark.parametrize(
    "fields",
    [
        {"_attn_implementation": "org/name"},
        {"attn_implementation": "org/name"},
        {"_attn_implementation": {"text_config": "org/name"}, "model_type": "gemma3", "architectures": None},
        {"_attn_implementation": {"": "org/name@main:flash"}},
        {"attn_implementation": "flash_attention_2"},
        {"_attn_implementation": "paged|sdpa"},
        {"experts_implementation": "deepgemm"},
        {"_experts_implementation": "sonicmoe"},
    ],
)
def test_an_attention_from_the_hub_is_never_looked_for(folder, fields, monkeypatch):
    asked = []

    class Kernels:
        """What transformers imports to download a kernel."""

        def __getattr__(self, name):
            asked.append(name)
            raise ImportError(name)

    monkeypatch.setitem(sys.modules, "kernels", Kernels())
    monkeypatch.setattr(
        "transformers.modeling_utils.lazy_import_flash_attention", lambda *args, **rest: asked.append(args)
    )
    edit(folder, **fields)
    error = refused(folder)
    assert error.code == "models_implementation"
    assert not asked


@pytest.mark.parametrize("name", ["eager", "sdpa"])
def test_an_attention_of_transformers_is_taken(folder, name):
    edit(folder, _attn_implementation=name)
    assert load(folder, device="cpu").model.config._attn_implementation == name


def test_what_is_refused_is_said_once_and_without_colours(folder, capfd):
    """transformers logs a table with escape sequences, whether or not anybody looks at a terminal."""
    weights = load_file(folder / "model.safetensors")
    gone = weights.pop("model.norm.weight")
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    assert refused(folder).code == "models_weights_missing"
    save_file(weights | {"model.norm.weight": gone, "left.over": gone.clone()}, folder / "model.safetensors")
    with pytest.warns(UserWarning, match=re.escape("left.over")) as said:
        load(folder, device="cpu")
    assert [each.filename for each in said] == [__file__]
    out, err = capfd.readouterr()
    assert (out, err) == ("", "")


def test_a_cpu_without_room_is_no_damaged_folder(folder, monkeypatch):
    def full(model, device):
        raise RuntimeError("[enforce fail at alloc_cpu.cpp:117] DefaultCPUAllocator: not enough memory")

    monkeypatch.setattr(torch.nn.Module, "to", full)
    assert refused(folder, DoesNotFitError, device="cpu").code == "models_no_memory"
