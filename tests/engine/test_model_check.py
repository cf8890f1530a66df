"""``check_model``: each kind of cache beside ``generate()``, and a model that is unchanged afterwards."""

import pytest
import torch

from minikv.engine import model_check
from minikv.engine.model_check import check_model
from minikv.models import Loaded
from tests.models.running import World


def found_of(model):
    return {check.key: check for check in check_model(Loaded(model, None, "mine"))}


@pytest.mark.parametrize("model_type", ["gemma2", "deepseek_v3", "qwen3_next", "mamba2", "jamba", "bloom"])
def test_every_kind_of_cache_is_held_against_generate(model_type):
    mine = World.bare(model_type)
    mine.config.dtype = torch.float32
    before = mine.generation_config, mine.config._attn_implementation
    found = found_of(mine)
    assert {"known", "bytes"} < found.keys()
    assert {check.state for check in found.values()} == {"ok"}
    told = (found.get("tokens") or found["tied"]).values
    assert told["difference"] < 1e-3
    assert bool(told["preempted"]) == (model_type != "mamba2")
    assert told["reads"] == ("paged" if model_type in ("gemma2", "deepseek_v3") else "gather")
    assert (mine.generation_config, mine.config._attn_implementation) == before


def test_a_window_that_no_text_passed_is_a_note():
    found = found_of(World.bare("mistral", sliding_window=500, max_position_embeddings=1000))
    assert found["window"].state == "note"
    assert found["window"].values["window"] == 499


def test_a_cache_with_other_bytes_than_planned_fails(monkeypatch):
    held = model_check._held
    monkeypatch.setattr(model_check, "_held", lambda layer: [*held(layer), torch.zeros(3)])
    found = found_of(World.bare("llama"))["bytes"]
    assert (found.state, found.line("en").startswith("[FAIL] ")) == ("failed", True)
    assert found.values["held"] == found.values["planned"] + 6 * 12


def test_a_config_that_says_another_dtype_than_the_model_has_is_outdated():
    mine = World.bare("mamba2")
    mine.config.dtype = torch.bfloat16
    assert found_of(mine)["bytes"].state == "ok"


def test_texts_that_part_at_a_tie_are_not_compared_behind_it(monkeypatch):
    answer = model_check._answer

    def tied(model, prompt):
        own = answer(model, prompt)
        own.tokens[2] = int(own.logits[2].argsort()[-2])
        own.logits[2] *= 1e-9
        return own

    monkeypatch.setattr(model_check, "_answer", tied)
    found = found_of(World.bare("llama"))["tied"]
    assert (found.state, found.values["ties"], found.values["equal"]) == ("ok", 4, 8)
