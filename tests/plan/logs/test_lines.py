"""Reading the lines of a start-up log, as people paste them."""

import pytest

from minikv.plan.logs.lines import LogFacts, Refusal, read_log
from minikv.units import GIB
from tests.plan.vllm_cases import CASES, log_of

LLAMA = "Llama-3.1-8B"


def llama_log(num_bytes: int, tokens: int, *more: str) -> str:
    gib_line = f"Available KV cache memory: {num_bytes / GIB:.2f} GiB"
    return "\n".join([gib_line, f"GPU KV cache size: {tokens:,} tokens", *more])


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
