"""check_log against bad input, random logs, and both languages."""

import math
import re
import tomllib
from importlib.resources import files

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minikv.errors import ArgumentError, ConfigError, MiniKVError, UnknownNameError
from minikv.plan.logs.check_log import check_log
from minikv.plan.logs.lines import read_log
from minikv.plan.logs.vllm_pool import vllm_pool
from minikv.plan.spec.cache_spec import CacheSpec
from minikv.units import GIB
from tests.in_turn import in_turn
from tests.plan.logs.test_lines import LLAMA, MESSAGES, llama_log
from tests.plan.logs.test_log import EXPECTED, keys
from tests.plan.vllm_cases import CASES, log_of

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
@in_turn("value", [0, -1, 1.5, True, "2"])
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


@in_turn("text", HOSTILE)
@pytest.mark.parametrize("options", [{}, {"model": LLAMA, "tp": 1}, {"model": "gpt-oss-20b", "tp": 1}])
def test_hostile_logs_get_a_verdict_or_one_of_our_errors(text, options):
    try:
        answer = check_log(text, **options).text
    except MiniKVError as error:
        answer = error.text
    for lang in ("en", "zh"):
        assert answer(lang)


@in_turn(
    "filler",
    [
        " ",
        "GPU KV cache size: 1",
        "Available KV cache memory: ",
        "Maximum concurrency for 1",
        "'model': ",
        "Initializing an LLM engine ",
    ],
)
def test_a_megabyte_in_one_line(filler):
    """The patterns are linear: one that backtracks would not come back from this within a day."""
    log = llama_log(GIB, 8192)
    text = log + " " + filler * (10**6 // len(filler))
    assert read_log(text).tokens == (8192,)


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


@settings(max_examples=60)
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


@settings(max_examples=40)
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
        (files("minikv.plan.logs") / name).read_text(encoding="utf-8")
        for name in ("fit.py", "judge.py", "setup.py")
    )
    made = {f"status_{status}" for status in ("agrees", "explained", "contradicts")} | {
        "rule_old",
        "rule_new",
    }
    made |= {f"figure_{figure}" for figure in ("gib", "tokens", "blocks", "concurrency")}
    for key in table:
        assert key in made or f'"{key}"' in source, key


@pytest.mark.parametrize("lang", ["en", "zh"])
@in_turn("name", EXPECTED)
def test_reports_read_well(name, lang):
    case = CASES[name]
    length = case.get("max_model_len")
    report = check_log(log_of(case), model=case["config"], tp=case["tp"], max_model_len=length).text(lang)
    assert not re.search(r"[{}]|None|\bnan\b|inf\b", report)
    assert report.count("\n") >= 1
