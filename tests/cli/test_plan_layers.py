"""``minikv plan --layers FILE``: layers that a file describes."""

import json

from minikv.cli.plan import spec_dict
from minikv.plan import CacheSpec
from tests.plan.spec.test_described import GIB, MINE


def test_the_command_plans_a_file(tmp_path, terminal):
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(MINE))
    shown = terminal("plan", "--layers", str(path), "--context", "4096")
    assert (shown.code, shown.err) == (0, "")
    assert f"{CacheSpec.from_layers(MINE).bytes_for(4096):,} B" in shown.out
    sizes = ("--gpu", "H200", "--weight-bytes", "14GiB", "--activation-bytes", "1GiB")
    told = json.loads(terminal("plan", "--layers", str(path), *sizes, "--json").out)
    assert (told["parts"]["weights"], told["parts"]["activations"]) == (14 * GIB, GIB)
    assert terminal("plan", "--layers", str(path), *sizes, "--table").code == 0
    assert "3 x full attention" in terminal("plan", "--layers", str(path), "--explain").out
    for words, said in (
        (("--gpu", "H200"), "weight_bytes, activation_bytes"),
        (("--tp", "2"), "--tp"),
        (("--model-type", "llama"), "--model-type"),
        (("Qwen3-8B",), "Qwen3-8B"),
    ):
        done = terminal("plan", "--layers", str(path), *words)
        assert (done.code, said in done.err) == (2, True)
    assert terminal("plan", "--layers", str(tmp_path / "none.json")).code == 2


def test_generate_holds_a_file_against_the_model(tmp_path, terminal, loaded_once, loaded):
    told = spec_dict(CacheSpec.from_config(loaded.model.config, kv_dtype="fp32"))
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(told))
    question = "ada paris the cat sleeps ben oslo ? ada"
    plain = terminal("generate", question, "--max-tokens", "4")
    assert terminal("generate", question, "--max-tokens", "4", "--layers", str(path)).out == plain.out
    told["layers"][0]["kv_heads"] += 1
    del told["layers"][0]["token_bytes"]
    path.write_text(json.dumps(told))
    done = terminal("generate", question, "--layers", str(path))
    assert (done.code, "kv_heads" in done.err, "Traceback" in done.err) == (2, True, False)
