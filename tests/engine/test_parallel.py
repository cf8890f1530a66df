"""Tensor parallel: two and four processes give the tokens of one, and each holds the bytes that the plan says."""

import json
import os
import subprocess
import sys

import pytest

from minikv import LLM, CacheSpec, MiniKVError
from minikv.models import load, recall_prompt
from minikv.plan.pool import kv_cache_groups
from tests.engine.rank_cases import (
    SIZES,
    answers,
    command,
    generate,
    own_size,
    refused,
    refuses_other_tp,
    run_ranks,
)
from tests.models.running import sharpen
from tests.plan.small_models import small_config, small_model

# 4 query heads on 2 KV heads, so that 4 ranks have to repeat them; a vocabulary that every version can divide.
SHAPE = {"num_attention_heads": 4, "vocab_size": 96, "num_hidden_layers": 3, "hidden_size": 32}
MODELS = ("llama", "qwen3", "deepseek_v3")


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A function: the folder of a small random model, made once."""
    made = {}

    def save(model_type):
        if model_type not in made:
            model = small_model(small_config(model_type, **SHAPE))
            model.generation_config.eos_token_id = None
            sharpen(model)
            made[model_type] = tmp_path_factory.mktemp("models") / model_type
            model.save_pretrained(made[model_type])
        return str(made[model_type])

    return save


def planned_bytes(folder, tp, blocks):
    """``blocks`` of each group on one of ``tp`` ranks."""
    groups = kv_cache_groups(CacheSpec.from_config(folder, tp=tp, kv_dtype="fp32"))
    pairs = zip(groups, blocks, strict=True)
    return sum(group.block_bytes(SIZES["block_size"]) * count for group, count in pairs)


def alone(folder):
    with LLM(folder, **SIZES) as llm:
        return answers(llm), llm.allocation.weight_bytes


@pytest.mark.parametrize("model_type", MODELS)
def test_two_ranks_give_the_tokens_of_one_process_and_hold_what_the_plan_says(model_type, saved, tmp_path):
    folder = saved(model_type)
    expected, weights = alone(folder)
    first, second = run_ranks(generate, 2, tmp_path / "ranks", folder)
    assert first["answers"] == expected
    assert first["preempted"] > 0
    assert second["code"] == 0, "the other rank ends when rank 0 closes"
    assert first["num_blocks"] == second["num_blocks"]
    assert first["num_blocks"][0] == SIZES["num_blocks"]
    planned = planned_bytes(folder, 2, first["num_blocks"])
    assert [first["kv_bytes"], second["kv_bytes"]] == [planned, planned]
    shares = 1 if model_type == "deepseek_v3" else 2  # latents are whole on every rank
    assert planned * shares == planned_bytes(folder, 1, first["num_blocks"])
    assert weights / 2 < first["weight_bytes"] < weights
    assert first["allocation"] == [first["weight_bytes"], planned]
    assert first["messages"] == first["steps"]


def test_drafts_are_verified_on_every_rank(saved, tmp_path):
    folder = saved("llama")
    first, second = run_ranks(generate, 2, tmp_path / "ranks", folder, prompt_lookup=3)
    assert first["accepted"] > 0
    assert first["answers"] == alone(folder)[0]
    assert second["code"] == 0


def test_more_ranks_than_kv_heads_repeat_them(saved, tmp_path):
    folder = saved("llama")
    ranks = run_ranks(generate, 4, tmp_path / "ranks", folder)
    assert ranks[0]["answers"] == alone(folder)[0]
    planned = planned_bytes(folder, 4, [SIZES["num_blocks"]])
    assert [rank["kv_bytes"] for rank in ranks] == [planned] * 4
    assert planned == planned_bytes(folder, 2, [SIZES["num_blocks"]]), "one head a rank, as with two ranks"


def test_the_rank_with_the_least_room_decides_for_all(saved, tmp_path):
    folder = saved("llama")
    first, second = run_ranks(own_size, 2, tmp_path / "ranks", folder)
    assert first["num_blocks"] == second["num_blocks"]
    assert first["num_blocks"][0] < first["own_blocks"]
    assert first["ranks"] == 2
    assert first["answers"] == alone(folder)[0]


def test_a_plan_that_leaves_attention_whole_is_refused_on_every_rank(saved, tmp_path):
    ranks = run_ranks(refused, 2, tmp_path / "ranks", saved("phi3"))
    assert [rank["error"] for rank in ranks] == ["parallel_heads"] * 2
    assert "2 KV heads of layer 0" in ranks[0]["said"]


def test_an_architecture_without_a_plan_is_refused(saved, tmp_path):
    ranks = run_ranks(refused, 2, tmp_path / "ranks", saved("gpt2"))
    assert [rank["error"] for rank in ranks] == ["parallel_no_plan"] * 2


def test_a_sharded_model_needs_an_llm_of_as_many_ranks(saved, tmp_path):
    ranks = run_ranks(refuses_other_tp, 2, tmp_path / "ranks", saved("llama"))
    assert [rank["error"] for rank in ranks] == ["parallel_model"] * 2


@pytest.mark.parametrize(
    ("tp", "code"),
    [(2, "parallel_world"), (0, "bad_count"), ("two", "bad_count"), (True, "bad_count"), ("auto", None)],
)
def test_tp_is_a_number_of_processes_that_there_are(tp, code):
    if code is None:
        with LLM("tiny-gqa", tp=tp, num_blocks=4) as llm:
            assert llm._group is None
    else:
        for call in (LLM, load):
            with pytest.raises(MiniKVError) as caught:
                call("tiny-gqa", tp=tp)
            assert caught.value.code == code
            assert caught.value.text("zh") != caught.value.text("en")


def test_one_process_pays_nothing():
    code = (
        "import sys\nfrom torch import distributed\nfrom minikv import LLM\n"
        "with LLM('tiny-gqa', num_blocks=9) as llm: llm.generate([[3, 4]], progress=False)\n"
        "name = 'minikv.engine.ext.tensor_parallel'\n"
        "print(name in sys.modules, distributed.is_initialized(), type(llm.runner).__name__)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False", "Runner"]


def generates(asked):
    return ["generate", asked.text, "--max-tokens", "4", "--json", "--device", "cpu"]


def first_word(printed):
    return json.loads(printed)["outputs"][0]["completions"][0]["text"].split()[0]


def test_of_two_ranks_of_the_command_rank_0_alone_prints(tmp_path):
    asked = recall_prompt(0)
    first, second = run_ranks(command, 2, tmp_path / "ranks", *generates(asked))
    assert (first["code"], second["code"]) == (0, 0)
    assert first_word(first["printed"]) == asked.answer
    assert second["printed"] == ""


@pytest.mark.long
def test_torchrun_starts_the_command():
    asked = recall_prompt(0)
    started = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "minikv"]
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, *started, *generates(asked)],
        capture_output=True,
        text=True,
        timeout=120,
        env=environment,
    )
    assert done.returncode == 0, done.stderr
    assert first_word(done.stdout) == asked.answer
