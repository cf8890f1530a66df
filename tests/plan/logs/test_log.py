"""``check_log``: published logs, logs as people paste them, broken logs, and logs that no engine wrote."""

import re
from dataclasses import replace

import pytest

from minikv.errors import ArgumentError
from minikv.plan.logs.check_log import check_log
from minikv.plan.logs.vllm_pool import vllm_pool
from minikv.plan.spec.cache_spec import CacheSpec
from minikv.units import GIB
from tests.plan.logs.test_lines import ENGINE, LLAMA, llama_log
from tests.plan.vllm_cases import CASES, log_of


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
    assert verdict.status != "contradicts"
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
    report = check_log(log_of(CASES["C08"]), model="Qwen3-235B-A22B", tp=4).text()
    assert "minimum over 4 ranks: 178,880 tokens need 8.02 GiB; the printed 8.11 GiB" in report


# The verdict.


def test_the_log_names_the_model_and_the_rest():
    spec = CacheSpec.from_config("Qwen3-8B", tp=4, kv_dtype="fp8", layout="vllm")
    pool = vllm_pool(spec, pp=2)
    tokens = pool.num_blocks(20 * GIB) * 16
    verdict = check_log(ENGINE + "\n" + llama_log(20 * GIB, tokens))
    assert (verdict.status, verdict.model) == ("agrees", "Qwen3-8B")
    assert verdict.setup.kv_dtype == "fp8"
    # An argument wins over the log.
    other = check_log(ENGINE + "\n" + llama_log(20 * GIB, tokens), model="Llama-2-70B", tp=3 + 1)
    assert other.status == "contradicts"


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
    assert "A KV cache in fp8 gives exactly" in verdict.text()


def test_explained_by_another_tp():
    verdict = check_log(fitting_log(30 * GIB, tp=8), model=LLAMA, tp=1)
    assert keys(verdict) == ["other_tp"]
    assert "tp=8 gives exactly" in verdict.text()


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
    assert "-9.9" in verdict.text() or "-10.0" in verdict.text()
    assert "18.00 GiB" in verdict.text()


def test_a_refusal_that_does_not_add_up():
    case = CASES["C10"] | {"needed_gib": "25.00"}
    verdict = check_log(log_of(case), model="Llama-4-Scout-17B-16E", tp=8)
    assert (verdict.status, keys(verdict)) == ("contradicts", ["needed_differs"])


# One figure falsified, and the sentence that names it.

STARTED = """model='Qwen/Qwen3-8B', dtype=torch.bfloat16, tensor_parallel_size=1, max_seq_len=40960
Available KV cache memory: 20.00 GiB
# GPU blocks: 9102, # CPU blocks: 2048
GPU KV cache size: 145,632 tokens
Maximum concurrency for 40,960 tokens per request: 3.56x"""
REFUSED = """model='Qwen/Qwen3-8B', dtype=torch.bfloat16, tensor_parallel_size=1, max_seq_len=40960
ValueError: To serve at least one request with the models's max seq len (40960), (5.62 GiB KV cache is needed, which
is larger than the available KV cache memory (4.00 GiB). Based on the available memory, the estimated maximum model
length is 29120."""

FALSIFIED = [
    (STARTED, "20.00", "22.00", ["gib_misses"], "20.00"),
    (STARTED, "20.00", "19.90", ["gib_misses"], "20.00"),
    (STARTED, "9102", "9202", ["blocks_misses"], "9,102"),
    (STARTED, "9102", "4600", ["blocks_misses"], "9,102"),
    (STARTED, "145,632", "150,000", ["tokens_misses"], "145,632"),
    (STARTED, "145,632", "145,633", ["tokens_misses"], "145,632"),
    (STARTED, "3.56x", "3.66x", ["concurrency_misses"], "3.56x"),
    (STARTED, "for 40,960", "for 32,768", ["concurrency_misses"], "4.44x"),
    (REFUSED, "5.62 GiB", "5.72 GiB", ["needed_differs"], "5.62"),
    (REFUSED, "4.00 GiB", "6.00 GiB", ["available_misses"], "5.62"),
    (REFUSED, "4.00 GiB", "3.00 GiB", ["estimate_differs"], "21,8"),
    (REFUSED, "29120", "50000", ["estimate_differs"], "29,1"),
    (REFUSED, "29120", "29000", ["estimate_differs"], "29,1"),
]


@pytest.mark.parametrize("log", [STARTED, REFUSED])
def test_the_logs_that_are_falsified_below_agree_as_they_are(log):
    assert check_log(log).status == "agrees"


@pytest.mark.parametrize(("log", "true", "false", "reasons", "due"), FALSIFIED)
def test_a_falsified_figure_is_named_with_what_it_should_be(log, true, false, reasons, due):
    verdict = check_log(log.replace(true, false))
    assert (verdict.status, keys(verdict)) == ("contradicts", reasons)
    sentence = verdict.text().splitlines()[-1]
    assert re.search("[0-9.,]+", false)[0].replace(",", "") in sentence.replace(",", "")
    assert due in sentence
    assert verdict.text("zh") != verdict.text()


def test_a_refusal_with_room_enough_or_an_impossible_estimate_does_not_say_that_the_needed_gib_differ():
    """The log of a reader: 5.62 GiB are right, and 4.00 GiB hold no 50,000 tokens."""
    report = check_log(REFUSED.replace("29120", "50000")).text()
    assert "50,000 tokens need 6.87 GiB" in report
    assert "5.62" not in report


@pytest.mark.parametrize(
    "without",
    ["# GPU blocks: 9102, # CPU blocks: 2048\n", "Maximum concurrency for 40,960 tokens per request: 3.56x"],
)
def test_three_figures_are_enough_to_name_one(without):
    assert keys(check_log(STARTED.replace(without, "").replace("145,632", "150,000"))) == ["tokens_misses"]


def test_two_figures_name_each_other():
    lines = STARTED.splitlines()
    assert keys(check_log("\n".join([*lines[:2], lines[3].replace("145,632", "150,000")]))) == ["differs"]
    assert keys(check_log("\n".join([*lines[:3]]).replace("9102", "9999"))) == ["differs"]
    pair = check_log("\n".join([lines[0], lines[2], lines[4]]).replace("9102", "9999"))
    assert keys(pair) == ["numbers_differ", "figure_blocks", "figure_concurrency", "no_gib"]
    assert "9,999 blocks" in pair.text()
    assert "3.56x for requests of 40,960 tokens takes 9,101-9,126 blocks" in pair.text()


def test_where_two_figures_may_be_the_wrong_one_both_are_named_and_no_other():
    """One block more fits the GiB and the concurrency as well."""
    verdict = check_log(STARTED.replace("145,632", "145,648"))
    assert keys(verdict) == ["numbers_differ", "figure_tokens", "figure_blocks"]
    assert "145,648 tokens are printed for 9,103 blocks" in verdict.text()


def test_figures_of_which_no_one_alone_is_wrong_are_all_listed():
    verdict = check_log(STARTED.replace("145,632", "150,000").replace("9102", "9999"))
    assert keys(verdict) == [
        "numbers_differ",
        "figure_gib",
        "figure_tokens",
        "figure_blocks",
        "figure_concurrency",
    ]


@pytest.mark.parametrize("case", ["H01", "H03", "H05", "C13"])
def test_a_falsified_figure_of_a_hybrid_model_s_log_is_named(case):
    case = CASES[case] | {"tokens": CASES[case]["tokens"] * 3 // 2}
    verdict = check_log(
        log_of(case), model=case["config"], tp=case["tp"], max_model_len=case.get("max_model_len")
    )
    due = ["tokens_misses"] if "concurrency" in case else ["differs"]
    assert (verdict.status, keys(verdict)[:1]) == ("contradicts", due)


@pytest.mark.parametrize(
    ("case", "field", "wrong", "reason"),
    [
        ("C05", "available_gib", "6.00", "estimate_differs"),
        ("C05", "estimated_tokens", 50_000, "estimate_differs"),
        ("C05", "needed_gib", "23.00", "needed_differs"),
        ("C07", "concurrency", "2.22", "concurrency_misses"),
        ("C07", "tokens", 340_816, "tokens_misses"),
        ("C07", "available_gib", "48.74", "gib_misses"),
    ],
)
def test_a_log_that_needs_an_explanation_names_the_falsified_figure_all_the_same(case, field, wrong, reason):
    """Its stage count or its poorer rank is no second fault."""
    case = CASES[case] | {field: wrong}
    verdict = check_log(
        log_of(case), model=case["config"], tp=case["tp"], max_model_len=case["max_model_len"]
    )
    assert (verdict.status, keys(verdict)[:1]) == ("contradicts", [reason])


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
