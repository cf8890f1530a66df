"""``minikv generate``: the text on standard output, figures beside it, and one sentence for every bad input."""

import json
import os
import re
import shlex
from pathlib import Path

import pytest

from minikv.engine import LLM, EventLog, SamplingParams, summary
from minikv.models import load, recall_prompt
from tests.cli.inside import is_one_sentence

pytestmark = pytest.mark.usefixtures("loaded_once")

ASKED = [recall_prompt(seed) for seed in range(3)]
PROMPT = ASKED[0].text


def reference(loaded, texts, **params):
    with LLM(loaded, num_blocks=64, seed=params.pop("llm_seed", None)) as llm:
        return llm.generate(texts, SamplingParams(**({"temperature": 0, "max_tokens": 8} | params)))


def test_one_prompt_is_streamed_to_standard_output_and_nothing_else(terminal, loaded):
    done = terminal("generate", PROMPT, "--max-tokens", "8")
    assert done.code == 0
    assert done.out == reference(loaded, PROMPT)[0].text + "\n"
    assert done.out.split()[0] == ASKED[0].answer
    told = done.err.splitlines()[-1]
    assert told.startswith("8 tokens in ")
    assert f"0 of {len(loaded.tokenizer(PROMPT)['input_ids'])} prompt tokens" in told


def test_dtypes_have_the_names_that_they_have_elsewhere(terminal):
    done = terminal("generate", PROMPT, "--max-tokens", "1", "--dtype", "float32", "--kv-dtype", "bfloat16")
    assert (done.code, done.out) == (0, f" {ASKED[0].answer}\n")
    assert terminal("generate", PROMPT, "--kv-dtype", "bfloat15").code == 2


@pytest.mark.parametrize("name", ["docs/guide.md", "docs/guide.zh.md"])
def test_the_guide_shows_real_output(terminal, name):
    text = (Path(__file__).parents[2] / name).read_text(encoding="utf-8")
    command, shown = re.search(r"```console\n\$ minikv (generate [^\n]*)\n(.*?)```", text, re.DOTALL).groups()
    assert terminal(*shlex.split(command)).out == shown


def test_several_answers_come_in_the_order_of_their_prompts(terminal, loaded):
    texts = [asked.text for asked in ASKED]
    done = terminal("generate", *texts, "--max-tokens", "1")
    assert done.out == "".join(f"[{i}] {asked.answer}\n" for i, asked in enumerate(ASKED, 1))
    twice = terminal("generate", PROMPT, "--n", "2", "--max-tokens", "1")
    assert twice.out == f"[1.1] {ASKED[0].answer}\n[1.2] {ASKED[0].answer}\n"


def test_every_option_reaches_the_sampler(terminal, loaded):
    options = ["--temperature", "1.5", "--top-k", "50", "--top-p", "0.95", "--min-p", "0.001", "--n", "2"]
    done = terminal("generate", PROMPT, *options, "--seed", "7", "--max-tokens", "9", "--json")
    params = {"temperature": 1.5, "top_k": 50, "top_p": 0.95, "min_p": 0.001, "n": 2, "max_tokens": 9}
    want = reference(loaded, PROMPT, llm_seed=7, **params)[0]
    told = json.loads(done.out)["outputs"][0]["completions"]
    assert [each["token_ids"] for each in told] == [list(each.token_ids) for each in want.completions]
    assert [each["text"] for each in told] == [each.text for each in want.completions]
    stopped = terminal("generate", PROMPT, "--stop", ASKED[0].answer)
    assert stopped.out.strip() == ""


def test_penalties_and_the_least_number_of_tokens_reach_the_sampler(terminal, loaded):
    options = ["--repetition-penalty", "1.3", "--presence-penalty", "0.5", "--frequency-penalty", "0.2"]
    done = terminal("generate", PROMPT, *options, "--min-tokens", "4", "--max-tokens", "9", "--json")
    asked = {"repetition_penalty": 1.3, "presence_penalty": 0.5, "frequency_penalty": 0.2, "min_tokens": 4}
    want = reference(loaded, PROMPT, temperature=0, max_tokens=9, **asked)[0]
    told = json.loads(done.out)["outputs"][0]["completions"]
    assert [each["token_ids"] for each in told] == [list(each.token_ids) for each in want.completions]
    assert terminal("generate", PROMPT, "--repetition-penalty", "0").code == 2


def test_json_holds_the_run_and_the_memory(terminal, loaded):
    done = terminal("generate", PROMPT, "--max-tokens", "4", "--num-blocks", "16", "--memory", "--json")
    told = json.loads(done.out)
    assert told["model"] == "tiny-gqa"
    run = told["run"]
    assert (run["tokens"], run["cached_tokens"]) == (4, 0)
    assert run["prompt_tokens"] == len(told["outputs"][0]["prompt_token_ids"])
    assert run["tokens_per_second"] == pytest.approx(4 / run["seconds"])
    assert sum(told["memory"]["parts"].values()) == told["memory"]["total"]
    sizes = [
        json.loads(terminal("generate", PROMPT, "--memory", "--json", *option).out)["memory"]["parts"]["kv"]
        for option in (
            ("--num-blocks", "16"),
            ("--kv-bytes", "1MiB"),
            ("--block-size", "32", "--num-blocks", "8"),
        )
    ]
    assert sizes[0] == sizes[2]
    assert 2**19 < sizes[1] <= 2**20


def test_the_memory_report_has_host_memory(terminal):
    told = json.loads(terminal("generate", PROMPT, "--memory", "--json", "--cpu-kv", "1MiB").out)["memory"]
    assert 2**19 < told["host"].pop("bytes") == sum(told["host"].values()) <= 2**20
    said = terminal("generate", PROMPT, "--memory", "--cpu-kv", "1MiB").err
    assert "host_sequences" in said


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_figures_stand_on_standard_error(terminal, lang):
    done = terminal("generate", PROMPT, "--max-tokens", "2", "--memory", "--lang", lang)
    assert done.out.split()[0] == ASKED[0].answer
    assert "headroom" in done.err
    assert ("提示词" in done.err) == (lang == "zh")


def test_a_prompt_from_standard_input_is_the_same_prompt(terminal):
    typed = terminal("generate", PROMPT, "--max-tokens", "3")
    piped = terminal("generate", "-", "--max-tokens", "3", stdin=PROMPT.encode() + b"\n")
    assert piped.out == typed.out
    odd = terminal("generate", "-", "--max-tokens", "1", stdin=b"\xff\xfe\n")
    assert odd.code == 0, "no encoding is worth a traceback"


def test_the_linear_cache_answers_alike(terminal):
    paged, linear = (
        terminal("generate", PROMPT, "--max-tokens", "8", "--cache", c) for c in ("paged", "linear")
    )
    assert paged.out == linear.out


def test_drafts_change_no_token_and_are_counted(terminal):
    alone, guessed = (
        json.loads(terminal("generate", PROMPT, "--max-tokens", "40", "--json", *more).out)["outputs"][0]
        for more in ((), ("--prompt-lookup", "4"))
    )
    plain, drafted = alone["completions"][0], guessed["completions"][0]
    assert drafted["token_ids"] == plain["token_ids"]
    assert plain["num_drafted"] == 0 < drafted["num_accepted"] <= drafted["num_drafted"]


def test_events_are_whole_lines_of_a_log(terminal, tmp_path):
    path = tmp_path / "events.jsonl"
    texts = [asked.text for asked in ASKED]
    terminal("generate", *texts, "--max-tokens", "5", "--events", str(path))
    found = summary(EventLog.read(path).events)
    assert (found.finished, found.generated_tokens) == (3, 15)


def test_events_are_written_as_they_happen(monkeypatch, terminal, tmp_path):
    path, seen = tmp_path / "events.jsonl", []
    step = LLM.step

    def look(llm):
        seen.append(len(EventLog.read(path).of("step")))
        return step(llm)

    monkeypatch.setattr(LLM, "step", look)
    terminal("generate", PROMPT, "--max-tokens", "5", "--events", str(path))
    assert seen == [0, 1, 2, 3, 4]


def test_a_profile_has_every_phase_with_its_bytes(terminal, tmp_path):
    path = tmp_path / "profile.json"
    path.write_text("what was there before")
    done = terminal("generate", PROMPT, "--max-tokens", "5", "--num-blocks", "16", "--profile", str(path))
    told = json.loads(path.read_text())
    phases = {phase["name"]: phase for phase in told["phases"]}
    assert list(phases) == ["import", "load", "warmup", "allocate", "prefill", "decode"]
    assert (told["device"], told["instrument"]) == ("cpu", "rss")
    prompt = len(load("tiny-gqa").tokenizer(PROMPT)["input_ids"])
    assert phases["warmup"]["tokens"] == phases["prefill"]["tokens"] == prompt
    assert (phases["decode"]["steps"], phases["decode"]["tokens"]) == (4, 4)
    for phase in phases.values():
        assert phase["seconds"] >= 0
        assert min(phase["before"], phase["after"]) > 2**20
        assert phase["peak"] is None or phase["peak"] >= max(phase["before"], phase["after"]) - 2**20
    assert "warm-up" in done.err


def test_json_cannot_steer_a_terminal_and_says_the_same(terminal):
    prompt = f"{PROMPT} 两行\n\x9b2J\u202e\x1b"
    done = terminal("generate", prompt, "--max-tokens", "1", "--json")
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", done.out)
    assert json.loads(done.out)["outputs"][0]["prompt"] == prompt
    assert "两行" in done.out


BAD = [
    ([], "No prompt"),
    ([""], "Prompt 1"),
    (["x", "  \n"], "Prompt 2"),
    (["-"], "Prompt 1"),
    (["x", "--model", "no/such-model"], "no/such-model"),
    (["x", "--model", "tiny-gpa"], "tiny-gpa"),
    (["x", "--max-tokens", "0"], "max_tokens"),
    (["x", "--max-tokens", "99999999"], "99,999,999"),
    (["x", "--temperature", "-1"], "temperature"),
    (["x", "--temperature", "nan"], "temperature"),
    (["x", "--top-p", "0"], "top_p"),
    (["x", "--top-k", "-2"], "top_k"),
    (["x", "--min-p", "2"], "min_p"),
    (["x", "--n", "0"], "n is 0"),
    (["x", "--n", "65"], "65"),
    (["x", "--seed", "-1"], "seed"),
    (["x", "--stop", ""], "stop"),
    (["x", "--block-size", "0"], "block_size"),
    (["x", "--num-blocks", "0"], "num_blocks"),
    (["x", "--num-blocks", "1"], "32"),
    (["x", "--num-blocks", "9999999999"], "num_blocks"),
    (["x", "--kv-bytes", "two"], "--kv-bytes"),
    (["x", "--kv-bytes", "0"], "kv_bytes"),
    (["x", "--kv-bytes", "10"], "10"),
    (["x", "--kv-bytes", "900TiB"], "kv_bytes"),
    (["x", "--kv-bytes", "1MiB", "--num-blocks", "4"], "num_blocks"),
    (["x", "--kv-dtype", "fp3"], "fp3"),
    (["x", "--cache", "heap"], "heap"),
    (["x", "--cache", "linear", "--kv-dtype", "int8"], "int8"),
    (["x", "--dtype", "fp3"], "fp3"),
    (["x", "--device", "moon"], "moon"),
    (["x", "--device", "cuda:99"], "cuda:99"),
    (["x", "--max-num-seqs", "0"], "max_num_seqs"),
    (["x", "--prompt-lookup", "-1"], "prompt_lookup"),
    (["x", "--saved-states", "-1"], "saved_states"),
    (["x", "--saved-states", "2"], "saved_states"),
    (["x", "--max-batched-tokens", "8"], "8"),
    (["ada " * 5000], "5,0"),
    (["x", "--lang", "fr"], "fr"),
    (["x", "--events", "{folder}"], "{folder}"),
    (["x", "--events", "{folder}/no/such.jsonl"], "such.jsonl"),
    (["x", "--profile", "{folder}"], "{folder}"),
]


@pytest.mark.parametrize(
    ("arguments", "names"), BAD, ids=lambda value: "_".join(value)[:60] if isinstance(value, list) else ""
)
def test_bad_input_is_one_sentence(arguments, names, terminal, tmp_path):
    given = [argument.format(folder=tmp_path) for argument in arguments]
    done = terminal("generate", *given)
    assert is_one_sentence(done), done
    assert names.format(folder=tmp_path) in done.err
    if "--lang" not in given:
        chinese = terminal("generate", *given, "--lang", "zh")
        assert is_one_sentence(chinese)
        assert any("\u4e00" <= letter <= "\u9fff" for letter in chinese.err)


def test_what_is_refused_leaves_an_old_report_alone(terminal, tmp_path):
    path = tmp_path / "profile.json"
    path.write_text("an hour's work")
    assert is_one_sentence(terminal("generate", "ada " * 5000, "--profile", str(path)))
    assert path.read_text() == "an hour's work"


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs a file that is always full")
def test_a_full_disk_is_one_sentence(terminal):
    done = terminal("generate", PROMPT, PROMPT, "--max-tokens", "2", "--events", "/dev/full")
    assert is_one_sentence(done), done
    assert "/dev/full" in done.err


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs a file that is always full")
@pytest.mark.parametrize("prompts", [[PROMPT], [PROMPT, PROMPT], [PROMPT, "--json"]])
def test_a_report_that_cannot_be_written_costs_no_answer(prompts, terminal):
    done = terminal("generate", *prompts, "--max-tokens", "2", "--profile", "/dev/full")
    assert done.code == 2
    assert done.err.startswith("minikv: ")
    assert done.err.count("\n") == 1
    assert ASKED[0].answer in done.out
    assert done.out.endswith("\n")


def test_the_dtype_is_told_where_it_matters(terminal):
    """tiny-gqa is float16 on disk and float32 on a CPU: that explains its bytes, and changes no answer."""
    assert "float16" not in terminal("generate", PROMPT, "--max-tokens", "1").err
    assert "float16 on disk" in terminal("generate", PROMPT, "--max-tokens", "1", "--memory").err
