"""``minikv doctor --model``: a decoder beside its own ``generate()``, in both languages, and what is refused."""

import json

import pytest

from minikv.engine import model_check
from tests.cli.inside import is_one_sentence
from tests.models.running import World

SMALL: dict[str, dict] = {"apertus": {"num_hidden_layers": 2}, "minimax": {}, "openai-gpt": {}}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Folders of small models: two on no list, and one that takes no cache."""
    places = {}
    for model_type, changes in SMALL.items():
        places[model_type] = tmp_path_factory.mktemp(model_type)
        World.bare(model_type, **changes).save_pretrained(places[model_type])
    return places


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_a_model_that_ships_is_what_generate_gives(terminal, lang):
    done = terminal("doctor", "--model", "tiny-gqa", "--lang", lang)
    assert done.code == 0
    assert "float32" in done.err  # why it is in another dtype than its file
    *lines, end = done.out.splitlines()
    assert all(line.startswith("[ok  ] ") for line in lines)
    assert str(len(lines)) in end


def test_json_says_what_was_measured_and_that_it_is_not_known(terminal, folders):
    done = terminal("doctor", "--model", str(folders["apertus"]), "--json")
    told = json.loads(done.out)
    assert (done.code, told["failed"], told["model"]) == (0, 0, str(folders["apertus"]))
    found = {check["key"]: check for check in told["checks"]}
    assert found["measured"]["values"]["model_type"] == "apertus"
    assert "measured, not known" in found["measured"]["text"]
    assert found["bytes"]["values"]["planned"] == found["bytes"]["values"]["held"] > 0
    values = found["tokens"]["values"]
    assert values["equal"] == values["total"] > 0
    assert values["preempted"] > 0
    assert values["cached"] > 0


def test_bad_input_is_one_sentence(terminal, folders, tmp_path):
    assert is_one_sentence(terminal("doctor", "--model", str(folders["openai-gpt"])))
    assert is_one_sentence(terminal("doctor", "--model", str(tmp_path)))
    assert is_one_sentence(terminal("doctor", "--model", "tiny-gpa"))
    assert is_one_sentence(terminal("doctor", "--model", "tiny-gqa", "--smoke"))
    assert is_one_sentence(terminal("doctor", "--model", "tiny-gqa", "--dtype", "fp17"))
    assert is_one_sentence(terminal("doctor", "--dtype", "fp32"))


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_what_differs_says_where_and_the_code_is_1(terminal, monkeypatch, lang):
    answer = model_check._answer

    def other(model, prompt):
        own = answer(model, prompt)
        own.tokens[1] = 0 if own.tokens[1] else 1
        own.logits[1][own.tokens[1]] = own.logits[1].max() + 1
        return own

    monkeypatch.setattr(model_check, "_answer", other)
    done = terminal("doctor", "--model", "tiny-gqa", "--lang", lang)
    assert done.code == 1
    failed = [line for line in done.out.splitlines() if line.startswith("[FAIL] ")]
    assert len(failed) == 1
    assert "generate()" in failed[0]
