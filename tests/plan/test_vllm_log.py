"""``check_log``: published logs, logs as people paste them, broken logs, and logs that no engine wrote."""

import math
import re
import tomllib
from dataclasses import replace
from importlib.resources import files

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minikv.errors import ArgumentError, ConfigError, MiniKVError, UnknownNameError
from minikv.plan.spec import CacheSpec
from minikv.plan.vllm_lines import LogFacts, Refusal, read_log
from minikv.plan.vllm_log import check_log
from minikv.plan.vllm_pool import vllm_pool
from minikv.units import GIB
from tests.plan.vllm_cases import CASES, log_of

LLAMA = "Llama-3.1-8B"


def llama_log(num_bytes: int, tokens: int, *more: str) -> str:
    gib_line = f"Available KV cache memory: {num_bytes / GIB:.2f} GiB"
    return "\n".join([gib_line, f"GPU KV cache size: {tokens:,} tokens", *more])


def keys(verdict) -> list[str]:
    return [key for key, _ in verdict.reasons]


# The published cases.

EXPECTED = {
    "C01": ("agrees", []),
    "C03": ("agrees", []),
    "C05": ("explained", ["other_pp"]),
    "C07": ("explained", ["poorer_rank"]),
    "C08": ("explained", ["poorer_rank"]),
    "C09": ("explained", ["poorer_rank"]),
    "C10": ("explained", ["other_manager"]),
    "C12": ("agrees", []),
    "C13": ("agrees", []),
    "H01": ("explained", ["rule_old"]),
    "H03": ("agrees", ["rule_new", "batched"]),
    "H05": ("explained", ["rule_new", "mamba"]),
    "H07": ("agrees", ["rule_old", "mamba", "no_gib"]),
}


@pytest.mark.parametrize("name", EXPECTED)
def test_published_case(name):
    case = CASES[name]
    status, reasons = EXPECTED[name]
    length = case.get("max_model_len")
    verdict = check_log(log_of(case), model=case["config"], tp=case["tp"], max_model_len=length)
    assert (verdict.status, keys(verdict)) == (status, reasons)
    assert verdict.consistent
    assert verdict.printed_tokens == case.get("tokens")


def test_c17_compares_only_what_is_printed():
    """127,626 blocks, 2,042,016 tokens and 997.08x belong together whatever the model: there are no GiB."""
    verdict = check_log(log_of(CASES["C17"]), model=LLAMA, tp=1)
    assert (verdict.status, keys(verdict)) == ("agrees", ["no_gib"])
    assert verdict.predicted_tokens is None
    wrong = log_of(CASES["C17"] | {"concurrency": "997.18"})
    assert check_log(wrong, model=LLAMA, tp=1).status == "contradicts"


@pytest.mark.parametrize("name", ["C15", "C16"])
def test_a_budget_without_tokens_is_asked_for_tokens(name):
    budget = CASES[name]["budget"]
    text = f"the rest of the memory reserved for KV Cache is {budget.get('available_kv_gib', 1.95)}GiB."
    with pytest.raises(ArgumentError, match="GPU KV cache size"):
        check_log(text, model=LLAMA, tp=1)


def test_c08_says_which_rank_and_how_much():
    report = check_log(log_of(CASES["C08"]), model="Qwen3-235B-A22B", tp=4).report()
    assert "minimum over 4 ranks: 178,880 tokens need 8.02 GiB; the printed 8.11 GiB" in report


# Reading.

ENGINE = (
    "INFO 07-01 12:00:00 [core.py:69] Initializing a V1 LLM engine (v0.9.1) with config: model='Qwen/Qwen3-8B', "
    "speculative_config=None, tokenizer='Qwen/Qwen3-8B', dtype=torch.bfloat16, max_seq_len=40960, "
    "load_format=auto, tensor_parallel_size=4, pipeline_parallel_size=2, kv_cache_dtype=fp8, seed=0"
)
ARGUMENTS = (
    "(APIServer pid=1) INFO 02-01 23:01:25 [utils.py:250] non-default args: {'model_tag': 'meta-llama/Llama-3.1-8B', "
    "'model': 'meta-llama/Llama-3.1-8B', 'max_model_len': 1024, 'tensor_parallel_size': 2, 'block_size': 64, "
    "'kv_cache_dtype': 'fp8_e4m3', 'max_num_batched_tokens': 4096}"
)


def test_reads_the_engine_line():
    facts = read_log(ENGINE)
    assert (facts.model, facts.tp, facts.pp) == ("Qwen/Qwen3-8B", 4, 2)
    assert (facts.kv_dtype, facts.version, facts.max_model_len) == ("fp8", "0.9.1", 40960)
    assert not facts.speculative


def test_reads_the_arguments():
    facts = read_log(ARGUMENTS)
    assert (facts.model, facts.tp, facts.pp) == ("meta-llama/Llama-3.1-8B", 2, 1)
    assert (facts.kv_dtype, facts.block_size) == ("fp8_e4m3", 64)
    assert (facts.max_model_len, facts.batched_tokens) == (1024, 4096)


@pytest.mark.parametrize(
    "command",
    [
        "vllm serve Qwen/Qwen3-8B --tensor-parallel-size 4 --max-model-len 8192 --kv-cache-dtype fp8",
        "$ vllm serve Qwen/Qwen3-8B -tp 4 --max-model-len=8192 --kv-cache-dtype=fp8",
        "python -m vllm.entrypoints.openai.api_server --model Qwen/Qwen3-8B --tensor-parallel-size=4 "
        "--max_model_len 8192 --kv_cache_dtype fp8",
    ],
)
def test_reads_the_command_line(command):
    facts = read_log(command)
    assert (facts.model, facts.tp) == ("Qwen/Qwen3-8B", 4)
    assert (facts.max_model_len, facts.kv_dtype) == (8192, "fp8")


def test_reads_a_log_that_names_only_the_loaded_model():
    facts = read_log("INFO [gpu_model_runner.py:1273] Starting to load model Qwen/Qwen3-8B...")
    assert (facts.model, facts.tp) == ("Qwen/Qwen3-8B", None)


MESSAGES = [
    "Available KV cache memory: 8.11 GiB",
    "GPU KV cache size: 178,880 tokens",
    "Maximum concurrency for 2,048 tokens per request: 87.34x",
]


@pytest.mark.parametrize(
    "text",
    [
        "\n".join(MESSAGES),
        "\r\n".join(f"INFO 01-01 12:00:00 [kv_cache_utils.py:634] {line}" for line in MESSAGES),
        "\n".join(f"\x1b[1;36m(VllmWorker rank=0 pid=123)\x1b[0;0m INFO {line}" for line in MESSAGES),
        ", ".join(MESSAGES),
        "".join(MESSAGES),
        " ".join(MESSAGES).replace(" ", "\n"),
        "\n".join(MESSAGES).replace("Available KV cache memory: 8.11 GiB", "kv_cache_size=8.11GiB"),
        "\n".join(MESSAGES).replace(
            "Available KV cache memory:", "the rest of the memory reserved for KV Cache is"
        ),
    ],
    ids=["plain", "prefixed", "coloured", "one line", "joined", "broken", "v0.6", "v0"],
)
def test_reads_the_three_lines_as_people_paste_them(text):
    facts = read_log(text)
    assert (facts.available_gib, facts.tokens) == (("8.11",), (178880,))
    assert (facts.max_model_len, facts.concurrency) == (2048, "87.34")


@pytest.mark.parametrize("word", ["GPU", "CUDA", "cuda"])
def test_reads_blocks_of_the_gpu_and_not_of_the_cpu(word):
    assert read_log(f"INFO executor_base.py:113] # {word} blocks: 127626, # CPU blocks: 2048").blocks == (
        127626,
    )


@pytest.mark.parametrize(
    ("printed", "name"),
    [
        ("auto", None),
        ("fp8_e5m2", "fp8_e5m2"),
        ("fp8_ds_mla", "fp8"),
        ("int8_per_token_head", "int8"),
        ("auto, dtype=torch.float32", "torch.float32"),
    ],
)
def test_reads_the_dtype_of_the_cache(printed, name):
    assert read_log(f"tensor_parallel_size=1, kv_cache_dtype={printed}, seed=0").kv_dtype == name


def test_reads_a_refusal():
    facts = read_log(log_of(CASES["C05"]))
    assert facts.refusal == Refusal("24.00", 262144, 34736)
    assert facts.available_gib == ("3.18",)


def test_reads_the_last_engine_that_came_up():
    first = ENGINE.replace("size=4", "size=1") + "\n" + llama_log(5 * GIB, 1600)
    second = ENGINE + "\n" + llama_log(7 * GIB, 3200)
    third = ENGINE + "\nTraceback: killed"
    facts = read_log("\n".join([first, second, third]))
    assert (facts.tp, facts.available_gib, facts.tokens) == (4, ("7.00",), (3200,))


def test_words_near_the_settings_are_not_read_as_settings():
    text = (
        "model weights take 15.63GiB; hash_block_size=3 mamba_block_size: 7 dtype=auto --draft-block-size 3"
    )
    assert read_log(text) == LogFacts()


# The verdict.


def test_the_log_names_the_model_and_the_rest():
    spec = CacheSpec.from_config("Qwen3-8B", tp=4, kv_dtype="fp8", layout="vllm")
    pool = vllm_pool(spec, pp=2)
    tokens = pool.num_blocks(20 * GIB) * 16
    verdict = check_log(ENGINE + "\n" + llama_log(20 * GIB, tokens))
    assert (verdict.status, verdict.model) == ("agrees", "Qwen3-8B")
    assert verdict.setup.kv_dtype == "fp8"
    # An argument wins over the log.
    assert not check_log(
        ENGINE + "\n" + llama_log(20 * GIB, tokens), model="Llama-2-70B", tp=3 + 1
    ).consistent


@pytest.mark.parametrize(
    "name",
    [
        "meta-llama/Llama-3.1-8B-Instruct",
        "/mnt/models/Llama-3.1-8B-Instruct-FP8",
        "/data/hub/models--meta-llama--Llama-3.1-8B/snapshots/27dcfa74d334bc87",
        "someone/Llama-3.1-8B-Instruct-AWQ-INT4/",
    ],
)
def test_the_model_is_found_under_the_names_that_logs_use(name):
    log = f"model='{name}', tensor_parallel_size=1\n" + log_of(CASES["C12"])
    assert check_log(log).model == LLAMA


def test_several_ranks_the_smallest_decides():
    pool = vllm_pool(CacheSpec.from_config(LLAMA, tp=2, layout="vllm"))
    ranks = [12 * GIB, 11 * GIB]
    lines = [f"(Worker_TP{i}) Available KV cache memory: {n / GIB:.2f} GiB" for i, n in enumerate(ranks)]
    # Up to v0.10 each rank printed its own tokens before the pool was cut to the smallest.
    lines += [f"GPU KV cache size: {pool.num_blocks(num_bytes) * 16:,} tokens" for num_bytes in ranks]
    verdict = check_log("\n".join(lines), model=LLAMA, tp=2)
    assert (verdict.status, keys(verdict)) == ("agrees", ["several_ranks"])
    # All ranks are printed, so that none can be the poorer one.
    cut = [*lines[:2], "GPU KV cache size: 150,000 tokens"]
    assert check_log("\n".join(cut), model=LLAMA, tp=2).status == "contradicts"


def fitting_log(num_bytes: int, block_size: int = 16, model: str = LLAMA, **setup) -> str:
    """A log whose tokens belong to another setup than the one that the test asks about."""
    manager = setup.pop("hybrid_manager", True)
    spec = CacheSpec.from_config(model, layout="vllm", **setup)
    pool = vllm_pool(spec, block_size=block_size, hybrid_manager=manager)
    return llama_log(num_bytes, pool.tokens_printed(pool.num_blocks(num_bytes)))


def test_explained_by_fp8():
    verdict = check_log(fitting_log(30 * GIB, kv_dtype="fp8"), model=LLAMA, tp=1)
    assert (verdict.status, keys(verdict)) == ("explained", ["other_kv_dtype"])
    assert "A KV cache in fp8 gives exactly" in verdict.report()


def test_explained_by_another_tp():
    verdict = check_log(fitting_log(30 * GIB, tp=8), model=LLAMA, tp=1)
    assert keys(verdict) == ["other_tp"]
    assert "tp=8 gives exactly" in verdict.report()


def test_explained_by_the_manager_being_off():
    """Seven groups of 10 hold 8 padding layers; 62 whole layers hold none, and the old rule prints more tokens."""
    log = fitting_log(30 * GIB, model="Gemma-3-27B", hybrid_manager=False)
    assert keys(check_log(log, model="Gemma-3-27B", tp=1)) == ["other_manager"]


def test_the_old_rule_prints_the_same_with_and_without_the_manager_where_nothing_is_padded():
    log = fitting_log(30 * GIB, model="gpt-oss-20b", hybrid_manager=False)
    assert keys(check_log(log, model="gpt-oss-20b", tp=1)) == ["rule_old"]


def test_explained_by_mla_being_off():
    """Without its MLA kernels vLLM caches K and V of every head, V padded to the 192 of K: 35.6 times the latent."""
    spec = CacheSpec.from_config("DeepSeek-V2-Lite", layout="hf-expanded")
    padded = tuple(replace(layer, v_dim=layer.k_dim) for layer in spec.layers)
    pool = vllm_pool(replace(spec, layers=padded, layout="vllm"))
    assert pool.block_bytes == 16 * 27 * 16 * 2 * 192 * 2
    log = llama_log(20 * GIB, pool.num_blocks(20 * GIB) * 16)
    assert keys(check_log(log, model="DeepSeek-V2-Lite", tp=1)) == ["other_expanded"]


def test_explained_by_draft_layers():
    spec = CacheSpec.from_config(LLAMA, layout="vllm")
    pool = vllm_pool(replace(spec, layers=(*spec.layers, spec.layers[-1])))
    log = "speculative_config=SpeculativeConfig(method='eagle')\n" + llama_log(
        20 * GIB, pool.num_blocks(20 * GIB) * 16
    )
    assert keys(check_log(log, model=LLAMA, tp=1)) == ["other_draft"]


def test_explained_by_an_override():
    log = llama_log(20 * GIB, 1600, "Overriding num_gpu_blocks=10240 with num_gpu_blocks_override=100")
    assert keys(check_log(log, model=LLAMA, tp=1)) == ["override"]
    wrong = log.replace("override=100", "override=101")
    assert check_log(wrong, model=LLAMA, tp=1).status == "contradicts"


@pytest.mark.parametrize(
    ("share", "status"), [(0.76, "explained"), (0.74, "contradicts"), (1.03, "contradicts")]
)
def test_a_poorer_rank_explains_a_smaller_pool_within_reason(share, status):
    pool = vllm_pool(CacheSpec.from_config(LLAMA, tp=4, layout="vllm"))
    log = llama_log(20 * GIB, int(pool.num_blocks(20 * GIB) * share) * 16)
    assert check_log(log, model=LLAMA, tp=4).status == status


def test_one_gpu_has_no_poorer_rank_and_the_gap_is_named():
    pool = vllm_pool(CacheSpec.from_config(LLAMA, layout="vllm"))
    tokens = int(pool.num_blocks(20 * GIB) * 0.9) * 16
    verdict = check_log(llama_log(20 * GIB, tokens), model=LLAMA, tp=1)
    assert (verdict.status, keys(verdict)) == ("contradicts", ["differs"])
    assert verdict.reasons[0][1]["percent"] == pytest.approx(-10, abs=0.1)
    assert "-9.9" in verdict.report() or "-10.0" in verdict.report()
    assert "18.00 GiB" in verdict.report()


def test_a_refusal_that_does_not_add_up():
    case = CASES["C10"] | {"needed_gib": "25.00"}
    verdict = check_log(log_of(case), model="Llama-4-Scout-17B-16E", tp=8)
    assert (verdict.status, keys(verdict)) == ("contradicts", ["needed_differs"])


@pytest.mark.parametrize(("tp", "note"), [(4, []), (8, []), (16, ["replicated"])])
def test_replicated_heads_are_named(tp, note):
    assert keys(check_log(fitting_log(20 * GIB, tp=tp), model=LLAMA, tp=tp)) == note


def test_replicated_latents_are_named():
    log = fitting_log(20 * GIB, model="DeepSeek-V3", tp=8)
    assert keys(check_log(log, model="DeepSeek-V3", tp=8)) == ["latent"]


def test_a_forced_block_size_is_read():
    log = fitting_log(20 * GIB, block_size=64, model="DeepSeek-V3")
    assert keys(check_log(log, model="DeepSeek-V3", tp=1)) in ([], ["other_block_size"])
    forced = "INFO Forcing kv cache block size to 64 for FlashMLA backend.\n" + log
    assert check_log(forced, model="DeepSeek-V3", tp=1).setup.block_size == 64


# What is missing, and what is wrong.


@pytest.mark.parametrize(
    ("text", "options", "code", "names"),
    [
        ("", {"model": LLAMA, "tp": 1}, "log_no_tokens", "GPU KV cache size"),
        (
            "Available KV cache memory: 8.11 GiB",
            {"model": LLAMA, "tp": 1},
            "log_no_tokens",
            "GPU KV cache size",
        ),
        (
            "GPU KV cache size: 1,600 tokens",
            {"model": LLAMA, "tp": 1},
            "log_no_gib",
            "Available KV cache memory",
        ),
        (llama_log(GIB, 16), {"tp": 1}, "log_no_model", "--model"),
        (llama_log(GIB, 16), {"model": LLAMA}, "log_no_tp", "--tp"),
        (llama_log(GIB, 16, "vllm serve a/unknown-17B"), {}, "log_unknown_model", "--model"),
        (
            llama_log(GIB, 16, "vLLM API server version 0.24.0"),
            {"model": "gpt-oss-20b", "tp": 1},
            "log_no_max_model_len",
            "--max-model-len",
        ),
    ],
)
def test_a_missing_fact_names_the_option(text, options, code, names):
    with pytest.raises((ArgumentError, UnknownNameError)) as caught:
        check_log(text, **options)
    assert caught.value.code == code
    for lang in ("en", "zh"):
        assert names in caught.value.text(lang)


@pytest.mark.parametrize("option", ["tp", "pp", "block_size", "max_model_len", "max_num_batched_tokens"])
@pytest.mark.parametrize("value", [0, -1, 1.5, True, "2"])
def test_bad_arguments_are_refused(option, value):
    with pytest.raises(ArgumentError, match=option):
        check_log(llama_log(GIB, 16), **({"model": LLAMA, "tp": 1} | {option: value}))


def test_bad_models_and_dtypes_are_refused():
    log = llama_log(GIB, 8192)
    with pytest.raises(UnknownNameError):
        check_log(log, model="no-such-model", tp=1)
    with pytest.raises(ArgumentError, match="kv_dtype"):
        check_log(log, model=LLAMA, tp=1, kv_dtype="int3")
    with pytest.raises(ConfigError, match="divide"):
        check_log(log, model=LLAMA, tp=3)
    with pytest.raises(ConfigError, match="model_type"):
        check_log(log, model={"hidden_size": 1}, tp=1)


HOSTILE = [
    b"\x00\xff\xfe" * 1000,
    "GPU KV cache size: " + "9" * 5000 + " tokens",
    "Available KV cache memory: " + "9" * 5000 + " GiB",
    "Available KV cache memory: -7.83 GiB\nGPU KV cache size: -16 tokens",
    "Available KV cache memory: -7.83 GiB\nGPU KV cache size: 0 tokens",
    "Available KV cache memory: 0.00 GiB\nGPU KV cache size: 16 tokens",
    "Available KV cache memory: nan GiB\nGPU KV cache size: inf tokens",
    "Available KV cache memory: 999999999999.99 GiB\nGPU KV cache size: 999,999,999,999,999 tokens",
    "Available KV cache memory: 1 GiB GPU KV cache size: ,,,, tokens GPU KV cache size: 1,,,6 tokens",
    llama_log(GIB, 16, "Maximum concurrency for 0 tokens per request: 0.00x"),
    llama_log(GIB, 16, "Maximum concurrency for 999999999999999999 tokens per request: 999999999999.99x"),
    llama_log(GIB, 16, "Maximum concurrency for 1 tokens per request: -1.00x"),
    llama_log(GIB, 16, "block_size=999999999999999 tensor_parallel_size=0 pipeline_parallel_size=99999999"),
    llama_log(GIB, 16, "max_num_batched_tokens=999999999999999, 'max_model_len': -1, version 99999.9"),
    llama_log(GIB, 16, "kv_cache_dtype=nvfp4"),
    llama_log(GIB, 16, "tensor_parallel_size=7"),
    "max seq len (0), (0.00 GiB KV cache is needed, available KV cache memory (-1.0 GiB)",
    "max seq len (9999999999999), (0.01 GiB KV cache is needed, estimated maximum model length is 0",
    "model='" + "../" * 60 + "etc', tensor_parallel_size=1 " + llama_log(GIB, 16),
    "model='\x00\x01', tensor_parallel_size=1 " + llama_log(GIB, 16),
]


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
@pytest.mark.parametrize("options", [{}, {"model": LLAMA, "tp": 1}, {"model": "gpt-oss-20b", "tp": 1}])
def test_hostile_logs_get_a_verdict_or_one_of_our_errors(text, options):
    try:
        answer = check_log(text, **options).report
    except MiniKVError as error:
        answer = error.text
    for lang in ("en", "zh"):
        assert answer(lang)


@pytest.mark.parametrize(
    ("filler", "megabytes"),
    [
        (" ", 10),
        ("GPU KV cache size: 1", 10),
        ("Available KV cache memory: ", 1),
        ("Maximum concurrency for 1", 1),
        ("'model': ", 1),
        ("Initializing an LLM engine ", 1),
    ],
)
def test_many_megabytes_in_one_line(filler, megabytes):
    """The patterns are linear: one that backtracks would not come back from this within a day."""
    log = llama_log(GIB, 8192)
    text = log + " " + filler * (megabytes * 10**6 // len(filler))
    assert read_log(text).tokens == (8192,)


@settings(derandomize=True)
@given(st.text(max_size=200), st.sampled_from(MESSAGES), st.text(max_size=200))
def test_any_text_is_read(before, message, after):
    facts = read_log(before + message + after)
    assert facts.available_gib or facts.tokens or facts.concurrency or after[:1].isdigit()


# Properties.


@st.composite
def configs(draw) -> dict:
    """Llama, gpt-oss or Qwen3.5 in random sizes."""
    kind = draw(st.sampled_from(["llama", "gpt_oss", "qwen3_5_text"]))
    heads = draw(st.sampled_from([1, 2, 4, 8]))
    config = {
        "model_type": kind,
        "hidden_size": 1024,
        "num_hidden_layers": draw(st.integers(4, 60)),
        "num_attention_heads": 16,
        "num_key_value_heads": heads,
        "head_dim": draw(st.sampled_from([64, 128])),
        "sliding_window": 128 if kind == "gpt_oss" else None,
        "dtype": "bfloat16",
        "linear_num_key_heads": 16,
        "linear_num_value_heads": 16,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "linear_conv_kernel_dim": 4,
    }
    return config if kind == "qwen3_5_text" else {k: v for k, v in config.items() if "linear" not in k}


@settings(max_examples=60, derandomize=True)
@given(
    configs(),
    st.sampled_from([1, 2, 4, 16]),
    st.sampled_from([None, "fp8", "bf16"]),
    st.sampled_from(["old", "new"]),
    st.integers(1, 500_000),
    st.integers(2**27, 2**37),
)
def test_a_log_that_was_printed_by_the_rules_agrees(config, tp, kv_dtype, rule, max_model_len, num_bytes):
    pool = vllm_pool(CacheSpec.from_config(config, tp=tp, kv_dtype=kv_dtype, layout="vllm"))
    num_blocks = pool.num_blocks(num_bytes)
    tokens = pool.tokens_printed(num_blocks, rule=rule, max_model_len=max_model_len)
    concurrency = pool.concurrency(num_blocks, max_model_len)
    version = "0.19.1" if rule == "old" else "0.25.0"
    log = llama_log(
        num_bytes,
        tokens,
        f"Maximum concurrency for {max_model_len:,} tokens per request: {concurrency:.2f}x",
        f"vLLM API server version {version}, max_num_batched_tokens=8192, mamba_cache_mode='none'",
    )
    verdict = check_log(log, model=config, tp=tp, kv_dtype=kv_dtype)
    assert verdict.status == "agrees"
    fewest, most = verdict.predicted_tokens
    assert fewest <= tokens <= most
    assert "differs" not in keys(verdict)


@settings(max_examples=40, derandomize=True)
@given(st.integers(2**30, 2**36), st.floats(1.02, 1.8))
def test_more_tokens_than_the_memory_holds_are_never_explained_by_a_rank(num_bytes, factor):
    pool = vllm_pool(CacheSpec.from_config(LLAMA, tp=8, layout="vllm"))
    tokens = math.ceil(pool.num_blocks(num_bytes) * factor) * 16
    verdict = check_log(llama_log(num_bytes, tokens), model=LLAMA, tp=8)
    assert "poorer_rank" not in keys(verdict)


# The sentences.


def test_every_sentence_is_there_in_both_languages_with_the_same_numbers():
    table = tomllib.loads((files("minikv") / "messages" / "vllm.toml").read_text(encoding="utf-8"))
    for key, sentences in table.items():
        assert set(sentences) == {"en", "zh"}, key
        fields = [sorted(re.findall(r"{(\w+)[^}]*}", sentences[lang])) for lang in ("en", "zh")]
        assert set(fields[0]) == set(fields[1]), key
        assert re.search(r"[\u4e00-\u9fff]", sentences["zh"]), key
        assert not re.search(r"[\u4e00-\u9fff]", sentences["en"]), key


def test_every_reason_has_a_sentence_and_every_sentence_is_used():
    table = tomllib.loads((files("minikv") / "messages" / "vllm.toml").read_text(encoding="utf-8"))
    source = "".join(
        (files("minikv.plan") / name).read_text(encoding="utf-8")
        for name in ("vllm_judge.py", "vllm_setup.py")
    )
    made = {f"status_{status}" for status in ("agrees", "explained", "contradicts")} | {
        "rule_old",
        "rule_new",
    }
    for key in table:
        assert key in made or f'"{key}"' in source, key


@pytest.mark.parametrize("lang", ["en", "zh"])
@pytest.mark.parametrize("name", EXPECTED)
def test_reports_read_well(name, lang):
    case = CASES[name]
    length = case.get("max_model_len")
    report = check_log(log_of(case), model=case["config"], tp=case["tp"], max_model_len=length).report(lang)
    assert not re.search(r"[{}]|None|\bnan\b|inf\b", report)
    assert report.count("\n") >= 1
